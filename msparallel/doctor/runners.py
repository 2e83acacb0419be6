"""The rungs that run something on this machine: a collective, the smallest recipe, your recipe.

In: how many devices this machine has; a recipe. Out: a Rung each. MindSpore is imported in processes of their own only,
which end with this one, and after a bounded time.

>>> run_collective(0).told  # doctest: +SKIP
'2 processes on the CPU summed 4,096 numbers (AllReduce, float32): every one got 3, as it must be'
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from msparallel.devices.query import Answer, run_tool
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.doctor.finding import Evidence, Finding
from msparallel.doctor.ladder import Rung
from msparallel.errors import RecipeError, UserError, printable, short
from msparallel.launch.devices import check_devices
from msparallel.launch.msrun import free_port, own_msrun, worker_environment
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe

COLLECTIVE_S = 300.0
SMALLEST_S = 900.0
ELEMENTS = 4096
CPU_WORKERS = 2
SMALLEST = "gpt_tiny_dp2_cpu"
STEPS = 2


def run_collective(devices: int, timeout_s: float = COLLECTIVE_S) -> Rung:
    """An AllReduce over this machine's devices under msrun, or over two processes where it has none."""
    if find_spec("mindspore") is None:
        return Rung(name="collective", state="not_possible",
                    told=f"MindSpore is not installed for this Python ({platform.python_version()})")  # fmt: skip
    if devices == 1:
        return Rung(name="collective", state="not_possible", told="this machine has one device, and nobody to reduce "
                                                                  "with")
    workers, target = (devices, "Ascend") if devices else (CPU_WORKERS, "CPU")
    with tempfile.TemporaryDirectory(prefix="msparallel_doctor_") as made:
        folder = Path(made)
        command = [own_msrun(), "--worker_num", workers, "--local_worker_num", workers, "--master_port", free_port(),
                   "--log_dir", folder / "logs", "--join", True, "--cluster_time_out", 120, "python", "-m",
                   "msparallel.doctor.allreduce_worker", folder, target, ELEMENTS]  # fmt: skip
        environment = worker_environment(0 if devices else workers)
        try:
            answer = run_tool([str(word) for word in command], timeout_s=timeout_s, environment=environment)
        except DeviceUnavailable as error:
            return _collective_broken(folder, workers, f"{error} Nothing came back.")
        return _collective(folder, workers, target, answer)


def _collective(folder: Path, workers: int, target: str, answer: Answer) -> Rung:
    told: list[dict] = []
    for rank in range(workers):
        try:
            told.append(json.loads((folder / f"rank_{rank}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            cause = f"Rank {rank} of {workers} ended without an answer; msrun's exit code is {answer.code}."
            return _collective_broken(folder, workers, cause)
    for rank, one in enumerate(told):
        if "error" in one:
            return _collective_broken(folder, workers, f"Rank {rank} of {workers}: {short(one['error'], 300)}")
    wanted = workers * (workers + 1) / 2
    for one in told:
        if one["least"] != wanted or one["most"] != wanted or one["size"] != workers:
            return _collective_broken(folder, workers,
                                      f"Rank {one['rank']} got {one['least']:g} to {one['most']:g} of {one['size']} "
                                      f"ranks; {wanted:g} is right.")  # fmt: skip
    where = f"{workers} devices" if target == "Ascend" else f"{workers} processes on the CPU"
    return Rung(name="collective", state="passed",
                told=f"{where} summed {ELEMENTS:,} numbers (AllReduce, float32): every one got {wanted:g}, as it must "
                     "be")  # fmt: skip


def _collective_broken(folder: Path, workers: int, cause: str) -> Rung:
    evidence = [line for name in (*(f"worker_{rank}.log" for rank in range(workers)), "scheduler.log")
                for line in _last_errors(folder / "logs" / name)]  # fmt: skip
    return Rung(name="collective", state="broken", told="AllReduce failed", findings=(Finding(
        rule="collective_failed", severity="error", evidence=tuple(evidence), root_cause=cause,
        remedy="The first error of the first rank that failed is the cause; others wait for it. With devices: "
               "`hccn_tool -tls -g` the same everywhere, HCCL_* the same everywhere, no other job on the devices. "
               "`msparallel diagnose DIR` reads a folder of logs."),))  # fmt: skip


def _last_errors(log: Path, most: int = 2) -> list[Evidence]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = [(number, line) for number, line in enumerate(lines, 1) if re.search(r"Error|ERROR|E[A-Z]\d{4}", line)]
    return [Evidence(log.name, number, line) for number, line in (found[:most] or list(enumerate(lines, 1))[-most:])]


def run_smallest(devices: int, timeout_s: float = SMALLEST_S) -> Rung:
    """The shipped recipe `gpt_tiny_dp2_cpu` for two steps: as it is on the CPU, or over all devices."""
    if find_spec("mindspore") is None:
        return Rung(name="smallest", state="not_possible",
                    told=f"MindSpore is not installed for this Python ({platform.python_version()})")  # fmt: skip
    overrides = ["optimizer.warmup_steps=0", f"train.steps={STEPS}"]
    if devices:  # not yet run on hardware
        overrides += ["cluster.hardware=atlas_800t_a2", "train.dtype=bfloat16", f"parallel.data_parallel={devices}",
                      f"train.global_batch_size={2 * devices}"]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="msparallel_doctor_") as made:
        words = ["run", SMALLEST, *overrides, f"train.output_dir={made}", "--json"]
        command = [sys.executable, "-m", "msparallel", *words]
        try:
            answer = run_tool(command, timeout_s=timeout_s, environment=worker_environment(0),
                              with_stderr=False)  # fmt: skip
        except DeviceUnavailable as error:
            return _smallest_broken(str(error))
    losses: list[float] = []
    try:
        told = json.loads(answer.text)
        losses = told["losses"] if isinstance(told.get("losses"), list) else []
        said = told.get("error") or "; ".join(problem["message"] for problem in told.get("problems", ()))
    except (ValueError, AttributeError, KeyError, TypeError):
        said = ""
    if answer.code or len(losses) != STEPS or not all(0 < loss < 1000 for loss in losses):
        return _smallest_broken(said or f"It ended with exit code {answer.code} after {len(losses)} of {STEPS} steps.")
    where = f"{devices} devices" if devices else f"{CPU_WORKERS} processes on the CPU"
    return Rung(name="smallest", state="passed",
                told=f"{SMALLEST}, {STEPS} steps on {where}: loss {losses[0]:.4f}, {losses[-1]:.4f}")  # fmt: skip


def _smallest_broken(said: str) -> Rung:
    return Rung(name="smallest", state="broken", told=f"{SMALLEST} failed", findings=(Finding(
        rule="smallest_recipe_failed", severity="error", evidence=(Evidence(SMALLEST, 1, said.split("\n")[0]),),
        root_cause=f"The shipped recipe {SMALLEST} does not train here: {printable(short(said, 1500))}",
        remedy=f"msparallel run {SMALLEST} shows all of it. Until it runs, no other recipe will."),))  # fmt: skip


def run_recipe(name: str, overrides: Sequence[str], refused: RecipeError | None, devices_known: bool) -> Rung:
    """Your recipe: every rule, does it fit on paper, are the devices here."""
    if refused is not None:
        found = tuple(Finding(rule=problem.rule, severity="error",
                              root_cause=f"{problem.key}: {problem.message}",
                              remedy=f"Try: {problem.suggestion}" if problem.suggestion else "Change the recipe there.",
                              evidence=(Evidence(problem.file or name, problem.line or 1,
                                                 f"{problem.key}: {short(problem.value)}"),))
                      for problem in refused.problems)  # fmt: skip
        return Rung(name="recipe", state="broken", told=f"{name} breaks {len(found)} rules", findings=found)
    plan = resolve(load_recipe(name, overrides))
    try:
        check_devices(plan)
    except UserError as error:
        if devices_known:
            return _recipe_broken(plan, "recipe_devices", str(error).split("\n")[0],
                                  "Lower cluster.devices_per_node and the "
                                  "degrees, or run it where the devices are.")  # fmt: skip
    fit = _fit(plan)
    return fit if isinstance(fit, Rung) else Rung(name="recipe", state="passed", told=f"{name}: every rule holds; "
                                                                                      f"{fit}")


def _fit(plan: Plan) -> Rung | str:
    if plan.hardware.target == "CPU":
        return "it trains on the CPU, where memory is not planned"
    from msparallel.planner.estimate import estimate
    from msparallel.planner.memory import GIB
    from msparallel.planner.workload import workload_of

    if plan.recipe.train is None:
        from msparallel.planner.serving import serving_memory

        served = serving_memory(plan)
        if served.fits:
            return "it fits on paper"
        return _recipe_broken(plan, "recipe_does_not_fit", "On paper it does not fit into a device.",
                              f"msparallel plan {plan.recipe.path} says what takes the memory.")  # fmt: skip
    found = estimate(workload_of(plan), plan.hardware)
    need, limit = found.fullest.high_bytes / GIB, found.limit_bytes / GIB
    if not found.fits:
        return _recipe_broken(plan, "recipe_does_not_fit",
                              f"On paper its fullest stage needs up to {need:.1f} GiB of {limit:.0f} GiB.",
                              f"msparallel plan {plan.recipe.path} says "
                              "what takes the memory, and what would fit.")  # fmt: skip
    return f"on paper its fullest stage needs up to {need:.1f} GiB of {limit:.0f} GiB"


def _recipe_broken(plan: Plan, rule: str, cause: str, remedy: str) -> Rung:
    return Rung(name="recipe", state="broken", told=f"{plan.recipe.name}: {cause}", findings=(Finding(
        rule=rule, severity="error", root_cause=cause, remedy=remedy,
        evidence=(Evidence(plan.recipe.path, 1, plan.recipe.name),)),))  # fmt: skip


