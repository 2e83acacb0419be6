"""A folder of profiles -> what it says and what to do about it.

In: a folder, and a recipe or a machine. Out: a `Profile`: the view, and findings in order of gain.

>>> profile(Path("prof")).findings[0].rule  # doctest: +SKIP
'slow_rank_computes'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msparallel.errors import UserError, printable
from msparallel.hardware import Hardware
from msparallel.profiling.device_rules import clocks, memory
from msparallel.profiling.files import reasons_by_count
from msparallel.profiling.finding import Finding, in_order
from msparallel.profiling.link_rules import links_below_hardware, slow_links
from msparallel.profiling.measured import Measured
from msparallel.profiling.network_rules import hccl_tests, ports
from msparallel.profiling.operator_rules import low_cube_use, on_ai_cpu
from msparallel.profiling.rank_rules import blamed_rank, slow_node, slow_ranks, uneven_stages
from msparallel.profiling.read import read_folder
from msparallel.profiling.recipe_changes import Recipes
from msparallel.profiling.step_rules import bubble, data_pipeline, free, sums, waiting
from msparallel.profiling.view import View, view_of

# `waiting` and `free` come last: they leave out what slow ranks and links, and missing data, explain.
RULES: tuple[Callable[[View], list[Finding]], ...] = (
    sums, slow_ranks, blamed_rank, uneven_stages, slow_links, links_below_hardware, hccl_tests, ports, data_pipeline,
    bubble, on_ai_cpu, low_cube_use, clocks, memory,
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """Attributes:
    findings: errors first, then by what they could gain.
    """

    view: View
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Whether a device computed something wrong."""
        return any(finding.severity == "error" for finding in self.findings)


def judge(view: View) -> Profile:
    """Every rule on a view."""
    found = [finding for rule in RULES for finding in rule(view)]
    found += waiting(view, _most(found, "slow_rank", "slow_link")) + free(view, _most(found, "waits_for_data"))
    return Profile(view, in_order([*found, *slow_node(view, found)]))


def _most(found: list[Finding], *rules: str) -> float:
    """The largest gain of these rules: they overlap, so that they are not added."""
    return max((one.gain or 0.0 for one in found if one.rule.startswith(rules)), default=0.0)


def profile(root: Path, *, recipes: Recipes | None = None, hardware: Hardware | None = None,
            told: Callable[[int], object] = lambda count: None) -> Profile:  # fmt: skip
    """Read a folder and judge it; `told` hears bytes as they are read.

    Raises:
        UserError: where there is no such folder, nothing in it can be read, or the recipe is another job's.
        RecipeError: where the recipe breaks a rule.
    """
    plan = recipes.plan() if recipes is not None else None
    measured = read_folder(root, told)
    if not measured.read:
        raise UserError(_nothing(root, measured))
    return judge(view_of(measured, plan=plan, hardware=hardware, recipes=recipes))


def _nothing(root: Path, measured: Measured) -> str:
    lines = [f"{printable(str(root))}: nothing here is a profile that can be read."]
    for reason, count, name in reasons_by_count(list(measured.left_out))[:8]:
        more = f" and {count - 1:,} more" if count > 1 else ""
        lines.append(f"  {printable(name)[:100]}{more}: {printable(reason)}")
    return "\n".join([*lines, _LOOKED_FOR])


_LOOKED_FOR = (
    "Looked for: step_trace_time.csv, kernel_details.csv, op_summary, op_statistic, communication.json, "
    "communication_matrix.json, memory tables, minddata_pipeline, hccl_test output, hccn_tool -stat, a power trace. "
    "They stand in ASCEND_PROFILER_OUTPUT of each rank; name a folder above all ranks."
)
