"""What HCCL and MindSpore ask of a rank table, all at once.

In: a RankTable, the chip that it is for. Out: problems (the job would not start, or not as meant) and advice. Each rule
is one function in RULES or ADVICE; its name is the `rule` of what it finds.

>>> from msparallel.cluster.rank_table import Device, RankTable, Server
>>> twice = tuple(Device(rank_id=rank, device_id=0) for rank in (0, 1))
>>> table = RankTable(version="1.0", count=1, servers=(Server(server_id="node_0", devices=twice),))
>>> [problem.rule for problem in check(table).problems]
['device_ids_are_unique']
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from msparallel.cluster import rank_list_rules, server_rules, table_rules
from msparallel.cluster.rank_table import RankTable
from msparallel.cluster.table_rules import Job, Rule
from msparallel.errors import Problem

RULES: tuple[Rule, ...] = (
    table_rules.status_is_completed,
    table_rules.file_is_regular,
    table_rules.version_fits_chip,
    table_rules.version_fits_content,
    table_rules.count_fits_list,
    table_rules.rank_ids_are_complete,
    table_rules.server_ids_are_unique,
    table_rules.server_ids_are_short,
    table_rules.servers_have_devices,
    server_rules.device_ids_are_unique,
    server_rules.device_ids_are_physical,
    server_rules.device_counts_are_legal,
    server_rules.device_counts_are_equal,
    server_rules.devices_are_of_one_half,
    server_rules.device_ips_are_there,
    server_rules.device_ips_are_addresses,
    server_rules.device_ips_are_unique,
    server_rules.device_ips_are_of_one_family,
    server_rules.backup_ips_are_of_the_same_npu,
    server_rules.host_ips_are_addresses,
    server_rules.ports_are_legal,
    server_rules.host_ports_are_unique,
    server_rules.backup_ports_differ,
    table_rules.ranks_of_a_server_are_contiguous,
    table_rules.super_device_ids_are_there,
    table_rules.super_device_ids_are_unique,
    table_rules.super_pods_cover_servers,
    table_rules.ranks_of_a_super_pod_are_contiguous,
    table_rules.clusters_cover_servers,
    rank_list_rules.local_ids_are_unique,
    rank_list_rules.ids_are_in_range,
    rank_list_rules.levels_ascend,
    rank_list_rules.level_0_is_described,
    rank_list_rules.addresses_fit_their_type,
    rank_list_rules.address_counts_are_equal,
    rank_list_rules.addresses_have_ports,
)
"""What must hold, in the order in which it is told."""

ADVICE: tuple[Rule, ...] = (
    table_rules.servers_are_in_dictionary_order,
    table_rules.form_is_current,
    table_rules.file_is_copied_from_its_config_map,
    server_rules.ports_are_not_reserved,
    server_rules.dies_are_in_pairs,
)
"""What is legal and seldom meant."""

_NOT_READY = (table_rules.status_is_completed, table_rules.file_is_regular, table_rules.version_fits_chip)
"""Rules for a file that is still being written: the rest is not there yet."""
_MOST = 5


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Attributes:
    chip: that rules were checked for.
    problems: broken rules; empty for a good table.
    advice: legal, but look at it.
    """

    chip: str
    problems: tuple[Problem, ...]
    advice: tuple[Problem, ...]


def check(table: RankTable, chip: str | None = None, *, roce: bool = False) -> Checked:
    """Every rule on a table.

    Args:
        chip: 910A, A2, A3 or A5; by default the one that the table itself tells.
        roce: whether devices of one server talk over RoCE (HCCL_INTRA_ROCE_ENABLE=1).
    """
    job = Job(table=table, chip=chip or table_rules.chip_of(table), chip_is_given=chip is not None, roce=roce)
    ready = table.status == "completed"
    problems = [problem for rule in (RULES if ready else _NOT_READY) for problem in _found(rule, job)]
    advice = [problem for rule in ADVICE if ready and not problems for problem in _found(rule, job)]
    return Checked(chip=job.chip, problems=tuple(problems), advice=tuple(advice))


def _found(rule: Rule, job: Job) -> list[Problem]:
    """The first few of a rule's problems; the last one tells how many more there are."""
    broken = rule(job)
    problems = [
        Problem(key=f"{item.place.key}.{item.field}".strip(".") or "file", value=item.value, rule=rule.__name__,
                message=item.message, file=item.place.file or job.table.file, suggestion=item.suggestion,
                line=item.place.lines.get(item.field, item.place.lines.get("")))
        for item in islice(broken, _MOST)
    ]  # fmt: skip
    if more := sum(1 for _ in broken):
        last = problems[-1]
        problems[-1] = replace(last, message=f"{last.message} (The same is true of {more:,} more.)")
    return problems
