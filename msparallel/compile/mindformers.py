"""The training step that MindFormers builds from one of its YAMLs, put together by MindFormers' own trainer.

In: a Request of kind `mindformers`; the simulated target's process. Out: the step's cell with placeholder inputs, what
each kept value is for, and notes on what stands in for something of MindFormers' trainer.
MindFormers reads the file, builds model, optimizer and wrappers; three things it does not get to do: start
communication, read data, set an Ascend device up. Whatever it writes goes into the request's folder.

>>> built = build_mindformers(request)  # doctest: +SKIP
>>> built.graphs[0].cell.cls_name  # doctest: +SKIP
'MFPipelineWithLossScaleCell'
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import yaml
from mindspore import Tensor, nn
from mindspore.nn.utils import no_init_parameters

from msparallel.compile.build import Built
from msparallel.compile.request import STRATEGY_FILE, Request, Role
from msparallel.interop.mindformers import ARCHITECTURES, MindFormersConfig, read_json, read_mindformers, speed_up_file
from msparallel.interop.mindformers_keys import MODEL
from msparallel.interop.mindformers_overrides import with_values
from msparallel.interop.model_names import load_model_config
from msparallel.train.assemble import StepGraph

UNKNOWN_STEPS = 1000
"""Steps of the learning-rate schedule where the YAML leaves them to a data set whose size it does not name."""
SIDE_FILE = "parallel_speed_up_json_path"


def build_mindformers(request: Request) -> Built:
    """Let MindFormers put the step of a YAML together for the request's rank.

    Raises what MindFormers raises where it refuses the file.
    """
    given = load_model_config(request.model_config) if request.model_config else None
    read = read_mindformers(request.source, given, request.overrides, request.values)
    side_file, source = speed_up_file(read.tree), Path(request.source).resolve()
    model_folder = Path(read.model_source).resolve().parent if given is None and read.model_source else None
    folder = Path(request.folder).resolve()
    enter_folder(folder)
    import mindformers
    from mindformers.tools.register import MindFormerConfig
    from mindformers.trainer.build_trainer import build_trainer

    notes = [
        f"Put together by MindFormers {mindformers.__version__}; data sets, checkpoints and callbacks are left out, "
        "and the batch is zeros."
    ]
    config = MindFormerConfig(str(_config_file(read, source, request.layers_of_a_group, folder)))
    if given is not None:
        model_folder = _written_model(given, folder)
    if model_folder is not None:
        config.pretrained_model_dir = str(model_folder)
    _apply_context(config, request, side_file, notes)
    trainer = build_trainer(config.trainer)
    columns, config = _read_batch(trainer, config, notes)
    network = _network(trainer, config, columns)
    with no_init_parameters():
        optimizer = trainer.create_optimizer_scheduler(network, set())
        step = trainer.create_model_wrapper(network, optimizer).set_train()
    graph = StepGraph(cell=step, inputs=_inputs(config, _seq_length(trainer)), executions=1)
    names = list(config.train_dataset.input_columns)
    return Built(graphs=[graph], roles=_roles(step, network, optimizer), notes=notes, input_names=names)


def enter_folder(folder: Path) -> None:
    """Make MindFormers, not yet imported, keep logs, strategies, checkpoints and temporary files in a folder."""
    os.environ.update(LOCAL_DEFAULT_PATH=str(folder / "output"), LOG_MF_PATH=str(folder / "output" / "log"))
    os.chdir(folder)
    tempfile.tempdir = str(folder)


def _config_file(read: MindFormersConfig, source: Path, layers_of_a_group: int | None, folder: Path) -> Path:
    """The file itself; where a value or the number of layers is another, a file with those in a folder.

    MindFormers checks and fills a file in while it reads it, by run_mode and use_legacy: later is too late for changes.
    """
    changes = dict(read.changes)
    if layers_of_a_group is not None:
        layers = layers_of_a_group * read.pipeline_stages * read.virtual_stages
        changes |= {MODEL + "num_hidden_layers": layers, MODEL + "offset": 0}
    if not changes:
        return source
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(with_values(read.tree, changes).values, sort_keys=False), encoding="utf-8")
    return path


def _written_model(model: dict[str, Any], folder: Path) -> Path:
    """A Hugging Face config in a folder as MindFormers reads it; it builds the class that architectures names."""
    place = folder / "model"
    place.mkdir()
    names = [name for name, kind in ARCHITECTURES.items() if kind == model.get("model_type")]
    model = {"architectures": names[:1], **model}
    (place / "config.json").write_text(json.dumps(model), encoding="utf-8")
    return place


def _apply_context(config: Any, request: Request, side_file: Path | None, notes: list[str]) -> None:
    """MindFormers' and MindSpore's contexts, as `build_context` sets them up, without a device or communication."""
    from mindformers.core.context.build_context import Context, MFContextOperator, MSContextOperator, _MSContextApplier
    from mindformers.core.context.parallel import ParallelOperator
    from mindformers.core.context.validators import execute_validator

    execute_validator(config)
    context = Context.__new__(Context)
    context.config, context.rank_id, context.device_num = config, request.rank, request.world_size
    context.mf_ctx_opr = MFContextOperator(config)
    device = context.ms_ctx_opr = MSContextOperator.__new__(MSContextOperator)
    device.config, device.context_applier = config, _MSContextApplier()
    # What the device and its memory pool would be told has no meaning here; the mode is read again by the trainer.
    device.context_applier.mode = ms.GRAPH_MODE
    ms.set_context(mode=ms.GRAPH_MODE)  # importing MindFormers may have changed it
    _apply_side_file(config, device.context_applier, side_file, notes)
    context._initialized = True
    if not config.use_parallel:
        context.parallel_opr = None
        return
    operator = context.parallel_opr = ParallelOperator(config)
    kwargs = {**operator.parallel_ctx, "device_num": request.world_size, "global_rank": request.rank}
    kwargs.pop("strategy_ckpt_save_file", None)
    files = dict(kwargs.pop("strategy_ckpt_config", None) or {})
    files.pop("save_file", None)  # a dry run leaves nothing where the run will write
    if request.save_strategy:
        files["save_file"] = STRATEGY_FILE
    if files.keys() - {"only_trainable_params"}:
        kwargs["strategy_ckpt_config"] = files
    operator._set_ms_auto_parallel_context(**kwargs)
    operator._set_ms_parallel()


def _apply_side_file(config: Any, applier: Any, side_file: Path | None, notes: list[str]) -> None:
    """The file of parallel_speed_up_json_path; without it MindSpore's defaults hold."""
    path = ((config.context or {}).get("ascend_config") or {}).get(SIDE_FILE)
    if side_file is not None:
        found = read_json(side_file) or {}
        applier.dataset_broadcast_opt_level = int(found.get("dataset_broadcast_opt_level", 0))
        ms.set_context(ascend_config={SIDE_FILE: str(side_file)})
    elif path:
        notes.append(f"context.ascend_config.{SIDE_FILE}: {path} is not there; MindSpore's defaults are taken for it.")


class _NoData:
    """Stands for the data set where MindFormers asks how long it is."""

    def __init__(self, steps: int):
        self._steps = steps

    def get_dataset_size(self) -> int:
        return self._steps


def _read_batch(trainer: Any, config: Any, notes: list[str]) -> tuple[list[str] | None, Any]:
    """Batch, columns and steps as the trainer works them out; returns construct_args_key and the config in use."""
    from mindformers.tools.check_rules import check_rules
    from mindformers.trainer.utils import check_runner_config

    config = trainer._train_dataset_preprocess(config)
    columns = config.train_dataset.pop("construct_args_key", None)
    config = trainer.set_config(config, True)
    sizes = config.train_dataset.data_loader.sizes if config.train_dataset.data_loader else None
    steps = int(sizes[0]) // trainer.global_batch_size if sizes else 0
    if not steps:
        steps = UNKNOWN_STEPS
        notes.append(f"The size of the data set is not known; the learning rate's schedule is made for {steps} steps.")
    trainer.train_dataset = _NoData(steps)
    check_runner_config(config, trainer.train_dataset)
    check_rules(config, mode="train", dataset=trainer.train_dataset)
    return columns, config


def _network(trainer: Any, config: Any, columns: list[str] | None) -> nn.Cell:
    """Model and the cells around it, without values."""
    network = trainer.create_network_without_param_init(
        default_args={
            "parallel_config": config.parallel_config,
            "moe_config": config.moe_config,
            "dataset_config": config.train_dataset,
            "calculate_per_token_loss": getattr(config, "calculate_per_token_loss", False),
            "batch_size": config.runner_config.mini_batch_size,
        }
    )
    if columns is not None:
        network = trainer.warp_data_order_with_tool_cells(network, columns)
    network = trainer.wrap_network_with_tool_cells(network)
    trainer.set_network(network, is_train=True)
    return network


def _seq_length(trainer: Any) -> int:
    """Tokens of a sequence in the model that was built."""
    return int(trainer.real_model.get_gpt_transformer_config().seq_length)


def _inputs(config: Any, length: int) -> tuple[Tensor, ...]:
    """Zeros for the columns of one rank's batch; MindFormers' data sets give every column as int32."""
    rows = config.runner_config.batch_size
    loader = config.train_dataset.data_loader or {}
    documents = (loader.get("config") or {}).get("eod_pad_length") or loader.get("compressed_eod_mask_length") or 128
    shapes = {"attention_mask": (rows, 1, length, length), "actual_seq_len": (rows, documents)}
    columns = config.train_dataset.input_columns
    # Memory that nobody writes is never taken from the machine: masks of long sequences are large.
    return tuple(Tensor.from_numpy(np.zeros(shapes.get(name, (rows, length)), np.int32)) for name in columns)


def _roles(step: nn.Cell, network: nn.Cell, optimizer: nn.Cell) -> dict[str, Role]:
    """What each kept value of the step is for."""
    weights: dict[str, Role] = {parameter.name: "weight" for parameter in network.trainable_params()}
    sums: dict[str, Role] = {p.name: "gradient" for p in getattr(step, "accu_grads", ()) or ()}
    others = [*optimizer.get_parameters(), *step.get_parameters()]
    state: dict[str, Role] = {p.name: "optimizer" for p in others if p.name not in weights and p.name not in sums}
    return weights | state | sums
