"""What profilers measured, as values: the one thing that rules, text and report read.

In: nothing. Out: frozen dataclasses; times in microseconds as the files have them unless a name says otherwise.

>>> StepPart(rank=0, step="1", computing_us=80.0, exposed_us=15.0, overlapped_us=5.0, free_us=5.0, bubble_us=4.0,
...          preparing_us=1.0, stage_us=96.0, place=Evidence("a.csv", 2, "")).step_us
100.0
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msparallel.finding import Evidence


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """A step of a rank, a row of step_trace_time.csv.

    Attributes:
        exposed_us: communication that computation waits for, receives of the pipeline among it.
        overlapped_us: communication behind computation; it is inside computing_us.
        free_us: neither computes nor communicates.
        bubble_us: time in receives (torch_npu) or in sends and receives (MindSpore).
        preparing_us: from the step's beginning to its first operator.
        stage_us: the step without the bubble as the profiler says it, None where it is not said.
        group: pipeline stage where the file names one.
    """

    rank: int
    step: str
    computing_us: float
    exposed_us: float
    overlapped_us: float
    free_us: float
    bubble_us: float
    preparing_us: float
    stage_us: float | None
    place: Evidence
    communication_us: float | None = None
    group: str | None = None

    @property
    def step_us(self) -> float:
        """The three parts tile the step: that is how the profilers cut their overlap analysis."""
        return self.computing_us + self.exposed_us + self.free_us

    @property
    def bubble_in_step_us(self) -> float:
        """Receives that ran behind computation are no bubble."""
        return min(self.bubble_us, self.exposed_us)

    @property
    def waits_us(self) -> float:
        """Exposed communication without the bubble."""
        return self.exposed_us - self.bubble_in_step_us


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """A step of a rank, a row of msprof's step_trace; data_us is the wait for data."""

    rank: int
    iteration: str
    time_us: float
    data_us: float | None
    forward_backward_us: float | None
    place: Evidence


@dataclass(frozen=True, kw_only=True)
class Operator:
    """All launches of one type on one kind of core, of one rank.

    Attributes:
        core: cube, vector, cpu, communication or other.
        cube_share: of the matrix unit's capacity, weighted by time; None where it was not measured.
        blocks: cores that the longest launch ran on.
    """

    type: str
    core: str
    count: int
    total_us: float
    longest_us: float
    longest: Evidence
    cube_share: float | None = None
    blocks: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Time in which nothing ran on a device, and what stands on both sides."""

    rank: int
    gap_us: float
    start_us: float
    before: str
    after: str
    place: Evidence


@dataclass(frozen=True, kw_only=True)
class RankOperators:
    """What ran on a rank; `steps` is the number of different Step Ids, 0 where the file has none."""

    rank: int
    operators: tuple[Operator, ...]
    gaps: tuple[Gap, ...]
    steps: int
    span_us: float
    gaps_us: float
    file: str

    @property
    def total_us(self) -> float:
        return sum(operator.total_us for operator in self.operators)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Collectives of a rank, all steps together, milliseconds.

    Attributes:
        blamed_ms: what others waited for this rank: of each collective that it entered last, the median of the others'
            waiting less its own.
        by_group: group of ranks -> (elapsed, waited).
        transports: transport -> (MB, ms).
    """

    rank: int
    elapsed_ms: float
    waited_ms: float
    transit_ms: float
    blamed_ms: float
    last_in: int
    collectives: int
    p2p_ms: float
    by_group: dict[tuple[int, ...], tuple[float, float]] = field(default_factory=dict)
    transports: dict[str, tuple[float, float]] = field(default_factory=dict)
    worst: Evidence | None = None


@dataclass(frozen=True, kw_only=True)
class Link:
    """What one rank sent another one over one kind of wire.

    Attributes:
        mb: 1e6 bytes, all transfers together.
        message_mb: one transfer; None where the files have sums only.
    """

    source: int
    target: int
    transport: str
    mb: float
    ms: float
    message_mb: float | None
    place: Evidence

    @property
    def gb_s(self) -> float:
        """1e9 bytes a second; recomputed, the printed column is not read."""
        return self.mb / self.ms


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The peak of a rank's memory pool.

    Attributes:
        largest: (MB, operator) of what was alive at the peak.
    """

    rank: int
    component: str
    allocated_mb: float
    reserved_mb: float
    at_us: float
    largest: tuple[tuple[float, str], ...]
    place: Evidence


@dataclass(frozen=True, kw_only=True)
class Power:
    """A device's clock over time, from npu-smi samples.

    Attributes:
        busy: samples with power above the middle between least and most.
        low: of them, with a clock below 95 % of the highest.
        low_mhz: mean clock of those.
        hottest_c: of those.
    """

    device: int
    samples: int
    busy: int
    low: int
    high_mhz: float
    low_mhz: float
    hottest_c: float | None
    place: Evidence


@dataclass(frozen=True, kw_only=True)
class DataPipeline:
    """Queues of MindSpore's dataset pipeline on a rank.

    Attributes:
        empty_pct: how often the queue that feeds the device is empty.
        bottleneck: operator that holds the others up, "" where none stands out.
        batch_ms: time that a batch takes, None where it was not measured.
    """

    rank: int
    empty_pct: float | None
    bottleneck: str
    batch_ms: float | None
    place: Evidence


@dataclass(frozen=True, kw_only=True)
class SizeRow:
    """A size that hccl_test ran; `result` is success, failed or NULL."""

    bytes: int
    time_us: float
    printed_gb_s: float | None
    result: str
    line: int

    @property
    def gb_s(self) -> float:
        """1e9 bytes a second, recomputed."""
        return self.bytes / self.time_us / 1e3


@dataclass(frozen=True, kw_only=True)
class HcclTest:
    """One run of hccl_test; operation and ranks where the file or its name tells them."""

    file: str
    operation: str | None
    ranks: int | None
    rows: tuple[SizeRow, ...]


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Differences of a network port's counters between two captures; `seconds` where they have times."""

    device: str
    changes: dict[str, float]
    seconds: float | None
    captures: int
    place: Evidence


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that a folder says.

    Attributes:
        read: kind -> number of files.
        left_out: (name, reason).
        notes: what a reader should know about how the numbers came about.
    """

    steps: tuple[StepPart, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    operators: tuple[RankOperators, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    communication_steps: int = 0
    links: tuple[Link, ...] = ()
    link_steps: int = 0
    memory: tuple[Memory, ...] = ()
    power: tuple[Power, ...] = ()
    pipelines: tuple[DataPipeline, ...] = ()
    hccl_tests: tuple[HcclTest, ...] = ()
    counters: tuple[Counters, ...] = ()
    read: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
