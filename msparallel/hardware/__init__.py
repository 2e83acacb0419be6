"""Machines by name.

In: the name of a profile. Out: what a node of it holds, and how fast its parts are. One YAML file a profile in
`profiles/`, each number with its source in a comment; "assumed" where none was found. `speed.py` turns the
speeds into seconds. `profiles/comparison/` has machines that MindSpore does not train on and no recipe can name: others
have published measurements of them, which estimates are compared with.

>>> load_hardware("atlas_800t_a2").devices_per_node
8
>>> load_hardware("atlas_800t_a2").matrix.tflops["bfloat16"]
294.9
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from msparallel.errors import RecipeError
from msparallel.interop.yaml_tree import Tree, is_number, read_tree

_PROFILES = Path(__file__).parent / "profiles"
_COMPARISON = _PROFILES / "comparison"

_MOST_BYTES = 64 * 1024
_LEAST_WORK, _MOST_WORK = 0.5, 5000
"""Operations for each byte of memory: a core of a processor some 5, an A2 184, a B200 281."""

Dtype = Literal["float32", "float16", "bfloat16"]
Algorithm = Literal["mesh", "ring", "H-D_R", "NHR", "NB"]
Share = Annotated[float, Field(gt=0, le=1)]
"""Of a peak, what is reached."""
Tflops = Annotated[float, Field(ge=0.001, le=20_000, description="1e12 operations a second")]
Bandwidth = Annotated[float, Field(ge=0.01, le=50_000, description="1e9 bytes a second")]
Microseconds = Annotated[float, Field(ge=0.01, le=10_000, description="1e-6 seconds")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Matrix(_Part):
    """The unit that multiplies matrices.

    Attributes:
        tflops: peak for each type that it multiplies, TFLOP/s; a multiplication and an addition are two.
        tile: lengths are padded to a multiple of this.
        efficiency: share of the peak that a large product reaches.
        fill_us: what any product takes beyond its work: filling the cores, and the last round, which few of them have.
        attention_efficiency, attention_backward_efficiency: share of the peak that fused attention reaches, and its
            gradient.
    """

    tflops: Annotated[dict[Dtype, Tflops], Field(min_length=1)]
    tile: Annotated[int, Field(ge=1, le=1024)]
    efficiency: Share
    fill_us: Annotated[float, Field(ge=0, le=10_000, description="1e-6 seconds")]
    attention_efficiency: Share
    attention_backward_efficiency: Share


class Memory(_Part):
    """A device's own memory: bandwidth, reads and writes together, and the share of it that operators reach."""

    bandwidth_gb_s: Bandwidth
    efficiency: Share


class Launch(_Part):
    """What an operator takes before its work begins: one that computes, one that communicates."""

    kernel_us: Microseconds
    collective_us: Microseconds


class Link(_Part):
    """One level of the network.

    Attributes:
        joins: how many consecutive devices it joins; None: any number.
        topology: switch: a device reaches any other with all of its bandwidth. mesh: a wire from each to each, so that
            among n of the devices (n - 1) / (joins - 1) of it are of use.
        bandwidth_gb_s: of one device, in one direction, to all others together.
        efficiency: share of it that collectives reach.
        most_gb_s: most that a device sends at once, where its wires together could carry more.
        latency_us: of one step of a collective.
        algorithm: of collectives among the parts that it joins (`speed.one_pass`); what HCCL_ALGO chooses by level.
    """

    name: str
    joins: Annotated[int, Field(ge=2)] | None
    topology: Literal["switch", "mesh"]
    bandwidth_gb_s: Bandwidth
    efficiency: Share
    most_gb_s: Bandwidth | None = None
    latency_us: Microseconds
    algorithm: Algorithm = "ring"

    @model_validator(mode="before")
    @classmethod
    def _mesh_sends_at_once(cls, values: Any) -> Any:
        """A mesh needs no other algorithm than its own."""
        if isinstance(values, dict) and values.get("topology") == "mesh":
            return {"algorithm": "mesh", **values}
        return values


class Hardware(_Part):
    """Attributes:
    target: MindSpore's device target; CUDA in `profiles/comparison/` only.
    chip: marketing name.
    devices_per_node: most devices that one machine has.
    memory_gib: memory of one device; 0: its host's.
    usable_gib: of it, what a job can have: the driver, and buffers of collectives that no framework counts, take the
        rest.
    fused_exposed: share of a message that is fused into a matrix product which computation still waits for.
    links: narrowest first; the last joins any number.
    """

    name: str
    target: Literal["CPU", "Ascend", "CUDA"]
    chip: str
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    memory_gib: Annotated[float, Field(ge=0, le=4096, description="2**30 bytes")]
    usable_gib: Annotated[float, Field(ge=0, le=4096, description="2**30 bytes")]
    matrix: Matrix
    memory: Memory
    launch: Launch
    fused_exposed: Share
    links: Annotated[list[Link], Field(min_length=1)]

    def __hash__(self) -> int:
        """Equal profiles have equal names; what is computed for one is kept by it."""
        return hash(self.name)

    @property
    def dtypes(self) -> list[Dtype]:
        """Types that matrix products may use."""
        return list(self.matrix.tflops)

    @model_validator(mode="after")
    def _memory_holds_what_is_usable(self) -> Hardware:
        if self.target != "CPU" and not self.memory_gib:
            raise ValueError(f"memory_gib: 0 means the host's memory, which devices of target {self.target} do not use")
        if self.usable_gib > self.memory_gib or (self.memory_gib and not self.usable_gib):
            raise ValueError(f"usable_gib: {self.usable_gib:g} of {self.memory_gib:g} (memory_gib)")
        return self

    @model_validator(mode="after")
    def _speeds_go_together(self) -> Hardware:
        """A slip of a thousand, as TB/s for GB/s, stands alone within wide bounds, but not beside the others."""
        memory, peak = self.memory.bandwidth_gb_s, max(self.matrix.tflops.values())
        work = peak * 1e3 / memory
        if not _LEAST_WORK <= work <= _MOST_WORK:
            raise ValueError(
                f"memory.bandwidth_gb_s: {memory:g} GB/s beside {peak:g} TFLOP/s are {work:,.1f} operations for each "
                f"byte; machines have {_LEAST_WORK} to {_MOST_WORK}. Is one in another unit?"
            )
        for place, link in enumerate(self.links):
            if link.bandwidth_gb_s > memory:
                raise ValueError(
                    f"links.{place}.bandwidth_gb_s: {link.bandwidth_gb_s:g} GB/s are more than the memory's "
                    f"{memory:g}. Is one in another unit?"
                )
        return self

    @model_validator(mode="after")
    def _links_widen(self) -> Hardware:
        joined = [link.joins for link in self.links]
        if joined[-1] is not None or None in joined[:-1]:
            raise ValueError("links: the last one, and no other, joins any number of devices (joins: null)")
        if any(wide % narrow for narrow, wide in pairwise([n for n in joined if n])):
            raise ValueError(f"links: each must join whole groups of the one before it, not {joined}")
        node = self.devices_per_node
        for n in joined:
            if n and node % n and n % node:
                raise ValueError(f"links: {n} devices are neither a part of a node of {node} nor whole nodes")
        return self


def hardware_names() -> list[str]:
    """Names of the profiles that a recipe may name."""
    return sorted(path.stem for path in _PROFILES.glob("*.yaml"))


@cache
def load_hardware(name: str) -> Hardware:
    """Read one profile, a comparison's too. Raises KeyError for a name that has none."""
    for folder in (_PROFILES, _COMPARISON):
        if name in (path.stem for path in folder.glob("*.yaml")):
            return read_hardware(folder / f"{name}.yaml")
    raise KeyError(name)


def read_hardware(path: Path) -> Hardware:
    """Read a profile's file. Raises ValueError that names file, line and key for one that cannot be meant, OSError for
    one that cannot be read."""
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path}: has more than {_MOST_BYTES // 1024} KiB; a profile has some two")
    try:
        tree = read_tree(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise ValueError(f"{path}:{line}  byte {data[problem.start]:#04x} is not UTF-8; a profile is text") from None
    except RecipeError as problem:
        first = problem.problems[0]
        raise ValueError(f"{path}:{first.line or 1}  {first.message}") from None
    for key, lines in tree.repeated.items():
        raise ValueError(f"{path}:{lines[-1]}  {key}: stands on line {lines[0]} too; which one counts?")
    try:
        return Hardware.model_validate({"name": path.stem, **tree.values})
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")
        rule = _rule(first)
        if not key:  # what several numbers say together; it begins with the key of one of them
            key, _, rule = rule.partition(": ")
        raise ValueError(f"{path}:{_line(tree, key)}  {key}: {rule}") from problem


def _line(tree: Tree, key: str) -> int:
    """Line of a key, or of what it should stand in."""
    while key and key not in tree.lines:
        inside = [line for name, line in tree.lines.items() if name.startswith(f"{key}.")]
        if inside:
            return min(inside)
        key = key.rpartition(".")[0]
    return tree.lines.get(key, 1)


def _rule(problem: Any) -> str:
    """What pydantic found, with the unit where a number was meant."""
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] == "extra_forbidden":
        return "no profile has this key"
    told = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return told
    if isinstance(problem["input"], str) and is_number(problem["input"]):
        told = "is text to YAML; a number has no quotes, and a point before its e: 6.0e+1"
    unit = next((unit for key, unit in _UNITS.items() if key in problem["loc"][-2:]), "")
    written = "nothing" if problem["input"] is None else repr(problem["input"])
    return f"{written}: {told}{unit}"


_UNITS = {
    "tflops": "; the unit is TFLOP/s, 1e12 operations a second",
    **dict.fromkeys(("bandwidth_gb_s", "most_gb_s"), "; the unit is GB/s, 1e9 bytes a second"),
    **dict.fromkeys(("fill_us", "kernel_us", "collective_us", "latency_us"), "; the unit is a millionth of a second"),
    **dict.fromkeys(
        ("efficiency", "attention_efficiency", "attention_backward_efficiency", "fused_exposed"),
        "; it is a share of the peak",
    ),
    **dict.fromkeys(("memory_gib", "usable_gib"), "; the unit is GiB, 2**30 bytes"),
}
