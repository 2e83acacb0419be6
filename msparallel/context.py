"""A plan in MindSpore's own words: the keyword arguments of `set_auto_parallel_context`.

In: a Plan and a rank. Out: `context_kwargs`, the literal arguments, a pure function; `apply`, the only place of the
package that writes MindSpore's global context; `autoparallel_calls`, the same plan in the newer `AutoParallel` API.
Argument names and legal values: MindSpore 2.9, `mindspore/context.py` and `mindspore/parallel/auto_parallel.py`.

>>> from msparallel.plan import resolve
>>> from msparallel.recipe.load import load_recipe
>>> context_kwargs(resolve(load_recipe("llama2_7b_dp2_tp2_pp2")), rank=5)["pipeline_stages"]
2
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msparallel.plan import DEFAULT_SEARCH_MODE, Plan

BATCH_INPUTS = 5
"""Tensors of one batch: input_ids, labels, loss_weights, position_ids, segment_ids, all [batch, sequence]."""
SERVING_INPUT_DIMS = (2, 2, 1, 1, 2, 1, 1)
"""Dims of what a served model takes (`serve/paged_inputs.py`); every device has all of it."""
AUTOPARALLEL_MODE = {"semi_auto_parallel": "semi_auto"}


def context_kwargs(plan: Plan, rank: int = 0, *, serving: bool = False) -> dict[str, Any]:
    """Arguments of `mindspore.set_auto_parallel_context` for one rank.

    Args:
        serving: of a recipe that also trains, those of its server.

    Raises:
        IndexError: the plan has no such rank.
    """
    plan.mesh.coordinates(rank)  # the rank exists
    parallel = plan.recipe.parallel
    kwargs: dict[str, Any] = {"parallel_mode": parallel.mode, "device_num": plan.world_size, "global_rank": rank}
    if parallel.mode == "stand_alone":
        return kwargs
    # The loss is a sum over tokens already divided by their global number, so gradients are added, never averaged.
    kwargs["gradients_mean"] = False
    if not plan.shards:
        return kwargs
    kwargs["dataset_strategy"] = dataset_strategy(plan, serving=serving)
    kwargs["enable_alltoall"] = True
    if parallel.mode == "auto_parallel":
        kwargs["search_mode"] = parallel.search_mode or DEFAULT_SEARCH_MODE
    if plan.mesh.pp > 1:
        kwargs["pipeline_stages"] = plan.mesh.pp
        kwargs["pipeline_config"] = pipeline_config(plan)
    kwargs["enable_parallel_optimizer"] = bool(parallel.optimizer_shard)
    if parallel.optimizer_shard:
        kwargs["parallel_optimizer_config"] = parallel_optimizer_config(plan)
    kwargs["comm_fusion"] = comm_fusion(plan)
    files = {"load_file": parallel.strategy_load_file, "save_file": parallel.strategy_save_file}
    if any(files.values()):
        kwargs["strategy_ckpt_config"] = {key: file for key, file in files.items() if file}
    return kwargs


def dataset_strategy(plan: Plan, *, serving: bool = False) -> tuple[tuple[int, ...], ...]:
    """How the batch's tensors [batch, sequence] are cut: every replica reads its own rows. A server feeds its model
    whole, and so does a recipe that only serves."""
    if serving or plan.recipe.train is None:
        return tuple((1,) * dims for dims in SERVING_INPUT_DIMS)
    return ((plan.mesh.dp, 1),) * BATCH_INPUTS


def pipeline_config(plan: Plan) -> dict[str, Any]:
    """Interleaving, and the scheduler's name, which MindSpore reads only where interleaving is on."""
    parallel = plan.recipe.parallel
    return {
        "pipeline_interleave": parallel.virtual_stages > 1,
        "pipeline_scheduler": parallel.pipeline_schedule or "1f1b",
    }


def parallel_optimizer_config(plan: Plan) -> dict[str, Any]:
    """Level, threshold in KiB and group size of the optimizer shard."""
    parallel = plan.recipe.parallel
    level = "level1" if parallel.optimizer_shard is True else parallel.optimizer_shard
    threshold_kib = parallel.optimizer_shard_threshold_kib
    config = {"optimizer_level": level, "parallel_optimizer_threshold": 64 if threshold_kib is None else threshold_kib}
    if parallel.optimizer_shard_size is not None:
        config["optimizer_weight_shard_size"] = parallel.optimizer_shard_size
    return config


def comm_fusion(plan: Plan) -> dict[str, Any]:
    """Fusion of small collectives: off, MindSpore's choice, or buffers of a stated size in MiB."""
    choice = plan.recipe.parallel.comm_fusion
    if choice == "none":
        return {"openstate": False}
    fusion = {"mode": "auto", "config": None} if choice == "auto" else {"mode": "size", "config": choice}
    return {"openstate": True, **{name: dict(fusion) for name in ("allreduce", "allgather", "reducescatter")}}


def speed_up(plan: Plan) -> dict[str, Any]:
    """Content of the JSON file behind `ascend_config.parallel_speed_up_json_path`; empty where nothing asks for it."""
    return {"grad_computation_allreduce_overlap": True} if plan.recipe.parallel.overlap_gradients else {}


def speed_up_path(plan: Plan) -> Path:
    """Where `apply` writes the speed-up file."""
    assert plan.recipe.train is not None, "a rule holds overlap_gradients to training recipes"
    return Path(plan.recipe.train.output_dir) / plan.recipe.name / "parallel_speed_up.json"


def context_calls(plan: Plan, rank: int = 0) -> str:
    """The Python a MindSpore user would write for this rank."""
    lines = [
        "import mindspore as ms",
        "",
        "ms.set_context(mode=ms.GRAPH_MODE)",
        f"ms.set_device({device_arguments(plan, rank)})",
    ]
    if plan.world_size > 1:
        lines.append("ms.communication.init()")
    if speed_up(plan):
        path = str(speed_up_path(plan))
        lines.append(f"# {path!r} holds {json.dumps(speed_up(plan))}")
        lines.append(f'ms.set_context(ascend_config={{"parallel_speed_up_json_path": {path!r}}})')
    lines.append(_call("ms.set_auto_parallel_context", context_kwargs(plan, rank)))
    return "\n".join(lines)


def autoparallel_calls(plan: Plan) -> list[tuple[str, dict[str, Any]]]:
    """The plan as calls on `mindspore.parallel.auto_parallel.AutoParallel`, in order: (method, arguments).

    The first is the constructor without its network. Empty for modes that the new API does not know: it wraps a
    network for the engine, and stand_alone, data_parallel and hybrid_parallel do not use the engine.
    """
    if not plan.shards:
        return []
    kwargs = context_kwargs(plan)
    parallel = plan.recipe.parallel
    calls: list[tuple[str, dict[str, Any]]] = [
        ("AutoParallel", {"parallel_mode": AUTOPARALLEL_MODE.get(parallel.mode) or kwargs["search_mode"]}),
        ("dataset_strategy", {"config": kwargs["dataset_strategy"]}),
    ]
    if plan.mesh.pp > 1:
        config = kwargs["pipeline_config"]
        calls.append(("pipeline", {"stages": plan.mesh.pp, "interleave": config["pipeline_interleave"],
                                   "scheduler": config["pipeline_scheduler"]}))  # fmt: skip
    if parallel.optimizer_shard:
        config = kwargs["parallel_optimizer_config"]
        calls.append(("hsdp", {"shard_size": config.get("optimizer_weight_shard_size", -1),
                               "threshold": config["parallel_optimizer_threshold"],
                               "optimizer_level": config["optimizer_level"]}))  # fmt: skip
    calls.append(("comm_fusion", {"config": kwargs["comm_fusion"]}))
    # strategy_ckpt_config's counterparts; the *_operator_strategy_file methods read and write another kind of file.
    if parallel.strategy_load_file:
        calls.append(("load_param_strategy_file", {"file_path": parallel.strategy_load_file}))
    if parallel.strategy_save_file:
        calls.append(("save_param_strategy_file", {"file_path": parallel.strategy_save_file}))
    if speed_up(plan):
        calls.append(("transformer_opt", {"file_path": str(speed_up_path(plan))}))
    return calls


def autoparallel_text(plan: Plan, rank: int = 0) -> str:
    """`autoparallel_calls` as the Python a MindSpore user would write."""
    calls = autoparallel_calls(plan)
    if not calls:
        return (
            f"# AutoParallel wraps a network for MindSpore's engine; {plan.recipe.parallel.mode} does not use it.\n"
            + ("# Use the plain network: the trainer adds the gradients of all replicas itself.")
        )
    lines = ["import mindspore as ms", "from mindspore.parallel.auto_parallel import AutoParallel", ""]
    lines += [
        "ms.set_context(mode=ms.GRAPH_MODE)",
        f"ms.set_device({device_arguments(plan, rank)})",
        "ms.communication.init()",
    ]
    lines.append(_call("net = AutoParallel", calls[0][1], first="net"))
    lines += [_call(f"net.{name}", arguments) for name, arguments in calls[1:]]
    return "\n".join(lines)


def device_arguments(plan: Plan, rank: int) -> str:
    """Arguments of `set_device`: msrun gives device i of a node to its i-th worker."""
    return '"CPU"' if plan.hardware.target == "CPU" else f'"Ascend", {rank % plan.devices_per_node}'


def apply(plan: Plan, rank: int = 0, *, serving: bool = False) -> None:
    """Write the plan into MindSpore's global context; the only such write in the package.

    Joins the other ranks (`mindspore.communication.init`) where there are any, so it blocks until all have come.

    Args:
        serving: of a recipe that also trains, the context of its server.
    """
    import mindspore as ms
    from mindspore.communication import init

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.reset_auto_parallel_context()
    if plan.hardware.target == "CPU":
        ms.set_device("CPU")
    else:
        ms.set_device("Ascend", rank % plan.devices_per_node)
    if plan.world_size > 1:
        init()
    if speed_up(plan):
        path = speed_up_path(plan)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(speed_up(plan)), encoding="utf-8")
        ms.set_context(ascend_config={"parallel_speed_up_json_path": str(path)})
    ms.set_auto_parallel_context(**context_kwargs(plan, rank, serving=serving))


def _call(function: str, arguments: dict[str, Any], first: str = "") -> str:
    body = [f"    {first}," if first else "", *(f"    {name}={value!r}," for name, value in arguments.items())]
    return "\n".join([f"{function}(", *filter(None, body), ")"])
