"""The collective algorithms that a job chooses with the environment variable HCCL_ALGO.

In: a hardware profile, the variable's text. Out: the profile with those algorithms, for `Speed`. Level 0 is inside a
server and cannot be chosen, level 1 between servers, level 2 between super-nodes (CANN, environment variable reference,
"HCCL_ALGO"). Where nothing is chosen HCCL decides by size and group; a profile's links say what is assumed then.

>>> machine = choose_algorithms(load_hardware("atlas_900_a2"), "level0:NA;level1:H-D_R")
>>> machine.links[-1].algorithm
'H-D_R'
"""

from __future__ import annotations

from msparallel.errors import UserError
from msparallel.hardware import Algorithm, Hardware, Link

CHOICES: dict[str, Algorithm] = {"ring": "ring", "H-D_R": "H-D_R", "NHR": "NHR", "NB": "NB"}
"""Values with a formula here. Not among them: `pipeline`, which runs two levels at once, `AHC` and `NHR_V1`."""


def choose_algorithms(hardware: Hardware, text: str) -> Hardware:
    """A profile whose links use what `text` says, for all collectives; its name says so.

    Raises:
        UserError: a text that HCCL would not take, or an algorithm without a formula.
    """
    if hardware.target != "Ascend":
        raise UserError(f"HCCL_ALGO: {text}\n  {hardware.name} has no HCCL: its target is {hardware.target}.")
    chosen: dict[int, Algorithm] = {}
    for part in text.split(";"):
        level, colon, name = part.partition(":")
        if not colon or level not in ("level0", "level1", "level2"):
            raise UserError(
                f"HCCL_ALGO: {text}\n  {part!r} is no level with its algorithm. Algorithms of single collectives are "
                "not planned for. Use level0:NA;level1:NHR."
            )
        if level == "level0":
            if name != "NA":
                raise UserError(f"HCCL_ALGO: {text}\n  Inside a server HCCL chooses by itself. Use level0:NA.")
            continue
        if name not in CHOICES:
            raise UserError(
                f"HCCL_ALGO: {text}\n  {level}: {name!r} has no formula here. Use {', '.join(CHOICES)}."
            )
        chosen[int(level[-1])] = CHOICES[name]
    links = [
        link.model_copy(update={"algorithm": chosen[level]}) if (level := level_of(hardware, link)) in chosen else link
        for link in hardware.links
    ]
    return hardware.model_copy(update={"name": f"{hardware.name} with HCCL_ALGO={text}", "links": links})


def level_of(hardware: Hardware, link: Link) -> int:
    """HCCL's number of a level of links: 0 in a server, 1 between the servers of a super-node or of a cluster without
    such, 2 between super-nodes."""
    if link.joins and link.joins <= hardware.devices_per_node:
        return 0
    between_servers = [other for other in hardware.links if not other.joins or other.joins > hardware.devices_per_node]
    return 1 + between_servers.index(link)
