"""What there is to compile of a MindFormers training YAML.

In: a MindFormersConfig. Out: a Job: its mesh, the layers of each group, and one or two ways to compile it. Nothing here
imports MindSpore or MindFormers; what MindFormers itself refuses is told when it compiles.

>>> config = read_mindformers("pretrain_qwen3_32b_4k.yaml")  # doctest: +SKIP
>>> job = mindformers_job(config, "representative")  # doctest: +SKIP
>>> str(job.mesh), job.stage_layers, [v.stage_layers for v in job.variants]  # doctest: +SKIP
('pp4 x tp4 (16)', (15, 15, 17, 17), [(2, 2, 2, 2), (3, 3, 3, 3)])
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from msparallel.compile import depth
from msparallel.compile.dryrun import Depth, Job, Variant
from msparallel.compile.request import Request
from msparallel.errors import Problem, RecipeError, UserError, short
from msparallel.interop.mindformers import ENGINE_MODES, VERSION, MindFormersConfig
from msparallel.interop.mindformers_keys import MODEL
from msparallel.interop.model_names import EXPERT_NAMES, NAMES, TRAINED
from msparallel.model.presets import PRESETS
from msparallel.recipe.values import expectation, misfits

DEVICES_PER_NODE = 8
"""Devices of a machine: MindFormers' own default (DEVICE_NUM_PER_NODE); its files name no machine."""
BASE_BYTES = 1000 * 2**20
"""MindSpore and MindFormers imported, a network without layers compiled."""
LAYER_BYTES, EXPERTS_LAYER_BYTES = 56 * 2**20, 96 * 2**20
"""One layer, forward and backward, which all micro-batches share, as MindFormers builds its models (lazy inline);
measured 41 MiB for Qwen3, 85 MiB for DeepSeek-V3."""
UNSHARED_LAYER_BYTES = 110 * 2**20
"""The same for each micro-batch, with model_config.disable_lazy_inline."""
MOST_LAYERS = 10_000
TRAINING_MODELS = ("qwen3", "qwen3_moe", "telechat3", "telechat3_moe", "deepseek_v3")
"""model_types with a training graph in MindFormers 1.9.0 (`models/*/modeling_*_train.py`)."""
EXPERTS_NOTE = (
    "How many tokens an expert gets is only known in training: what depends on it is not counted among live values and "
    "in the messages that bring the tokens back."
)
_EXPERTS = ("num_experts", "n_routed_experts", "num_moe_experts")
_EXPERT_MODELS = ("qwen3_moe", "telechat3_moe", "deepseek_v3")
_MASKS = ("create_attention_mask", "create_compressed_eod_mask")
"""What makes MindFormers know a batch's columns, beside its loader of Megatron files."""
_UNLIKE = {
    "first_k_dense_replace": (None, 0, False), "moe_layer_freq": (None, 1), "mlp_only_layers": (None, []),
    "decoder_sparse_step": (None, 1), "num_nextn_predict_layers": (None, 0), "mtp_num_layers": (None, 0),
    "use_sliding_window": (None, False), "layer_types": (None, []), "window_attn_skip_freq": (None,),
    "nope_layer_interval": (None,),
}  # fmt: skip
"""Keys that make layers differ from each other, and the values with which they do not."""


def require_installed() -> None:
    """Raise UserError where MindFormers is not installed."""
    if find_spec("mindformers") is None:
        raise UserError(
            "A MindFormers YAML is compiled with MindFormers' own model, and MindFormers is not installed here.\n"
            "  Install it: pip install 'msparallel[mindformers]'\n"
            "  Without it: `msparallel import FILE.yaml -o recipe.yaml`, then `msparallel dryrun recipe.yaml`."
        )


def mindformers_job(
    config: MindFormersConfig,
    how_deep: Depth = "auto",
    model_config: str | None = None,
    overrides: tuple[str, ...] = (),
) -> Job:
    """The job of a YAML.

    Args:
        how_deep: as for recipes; a model whose layers are not alike is always compiled in full.
        model_config: what stood in for the file's Hugging Face config: a preset, or a path.
        overrides: those that the config was read with.

    Raises:
        RecipeError: the file is not for training with MindFormers' current models, or names no layers.
        UserError: representative layers of a model whose layers are not alike, or of groups with too few.
    """
    _require_training(config)
    _require_columns(config)
    _require_sizes(config)
    mesh, layers = config.mesh, _stage_layers(config)
    unlike = _unlike_layers(config)
    if how_deep == "representative":
        _require_alike(config, layers, unlike)
    shallow = how_deep == "representative" or (how_deep == "auto" and depth.is_worth_it(layers) and not unlike)
    notes = []
    if shallow:
        notes.append(depth.note(layers))
    elif how_deep == "auto" and unlike and depth.is_worth_it(layers):
        notes.append(f"All layers were compiled, because they are not alike: {unlike}.")
    if _has_experts(config):
        notes.append(EXPERTS_NOTE)
    groups = len(layers)
    request = Request(
        source=config.path, kind="mindformers", overrides=list(overrides), world_size=mesh.size,
        model_config=_in_full(model_config),
    )  # fmt: skip
    numbers: tuple[int | None, ...] = depth.LAYERS_OF_A_GROUP if shallow else (None,)
    compiled = [layers if number is None else (number,) * groups for number in numbers]
    return Job(
        source=config.path,
        overrides=overrides,
        mesh=mesh,
        devices_per_node=min(DEVICES_PER_NODE, mesh.size),
        stage_layers=layers,
        variants=tuple(
            Variant(
                request=Request(**{**vars(request), "layers_of_a_group": number}),
                stage_layers=stage_layers,
                memory_bytes=compile_memory_bytes(config, sum(stage_layers)),
            )
            for number, stage_layers in zip(numbers, compiled, strict=True)
        ),
        notes=tuple(notes),
    )


def compile_memory_bytes(config: MindFormersConfig, layers: int) -> int:
    """Estimate for one rank with a number of layers; every rank holds those of all stages."""
    if config.model.get("disable_lazy_inline") is True:
        return BASE_BYTES + UNSHARED_LAYER_BYTES * layers * config.micro_batches
    return BASE_BYTES + (EXPERTS_LAYER_BYTES if _has_experts(config) else LAYER_BYTES) * layers


def _has_experts(config: MindFormersConfig) -> bool:
    return config.model_type in _EXPERT_MODELS or any(config.model.get(key) for key in _EXPERTS)


def _require_training(config: MindFormersConfig) -> None:
    """Raise RecipeError for what MindFormers' current training models do not take."""
    if config.run_mode not in ("train", "finetune"):
        told = "this file does something else" if config.run_mode else "this file states no run_mode"
        message = f"A dry run compiles a training step; {told}. Set run_mode to train or finetune."
        raise RecipeError([config.problem("not_training", "run_mode", message)])
    if config.use_legacy:
        message = (
            "MindFormers' legacy models (use_legacy true, which is what it takes where the key is absent) are not "
            f"compiled here. Those with a training graph of the current kind are {', '.join(TRAINING_MODELS)}; they "
            "need: use_legacy: False"
        )
        raise RecipeError([config.problem("legacy", "use_legacy", message)])
    if not config.graph_mode:
        message = "PyNative mode has no graph to compile. Set context.mode to 0."
        raise RecipeError([config.problem("pynative", "context.mode", message)])


def _require_columns(config: MindFormersConfig) -> None:
    """Raise RecipeError where nothing says of which columns a batch consists, whose shapes are compiled."""
    dataset = config.tree.get("train_dataset")
    told = "A training step has a batch: train_dataset states data_loader and input_columns, the batch's columns."
    if not isinstance(dataset, dict) or not dataset:
        raise RecipeError([config.problem("no_columns", "train_dataset", told)])
    columns, loader = dataset.get("input_columns"), dataset.get("data_loader")
    if (
        "input_columns" not in dataset
        and isinstance(loader, dict)
        and (loader.get("type") == "BlendedMegatronDatasetDataLoader" or any(map(loader.get, _MASKS)))
    ):
        return  # MindFormers knows them
    if not isinstance(columns, list) or not columns or not all(isinstance(name, str) for name in columns):
        told = "input_columns takes a list of names, such as [input_ids, labels, loss_mask, position_ids]."
        raise RecipeError([config.problem("no_columns", "train_dataset.input_columns", told)])


def _require_sizes(config: MindFormersConfig) -> None:
    """Raise RecipeError for numbers of the model that no model has: those that a recipe does not take either."""
    names = {ours: theirs for theirs, ours in (NAMES | EXPERT_NAMES).items() if config.model.get(theirs) is not None}
    bad = misfits("model", {ours: config.model[theirs] for ours, theirs in names.items()})
    if bad:
        raise RecipeError([
            config.problem("wrong_type", MODEL + names[ours], f"{names[ours]} takes {expectation('model', ours)}.")
            for ours in sorted(bad)
        ])  # fmt: skip


def _stage_layers(config: MindFormersConfig) -> tuple[int, ...]:
    """Layers of each group at full depth."""
    key = next((name for name in ("num_hidden_layers", "num_layers") if name in config.model), "num_hidden_layers")
    number = config.model.get(key)
    if config.model_type not in (None, *TRAINING_MODELS):
        message = (
            f"MindFormers {VERSION} has no training graph for {short(config.model_type, 40)}; it trains "
            f"{', '.join(TRAINING_MODELS)}."
        )
        named = "model_type" if "model_type" in config.model else "architectures"
        raise RecipeError([config.problem("architecture", MODEL + named, message)])
    if config.model_type is None or number is None:
        raise RecipeError([_no_shape(config)])
    if type(number) is not int or not 0 < number <= MOST_LAYERS:
        message = f"{key} takes a whole number from 1 to {MOST_LAYERS}."
        raise RecipeError([config.problem("value", MODEL + key, message)])
    if config.mode not in ENGINE_MODES:
        return (number,)
    layers = config.stage_layers(number)
    if layers is None:
        stages, virtual = config.pipeline_stages, config.virtual_stages
        groups = stages * virtual
        message = (
            f"{number} layers over {stages} stages x {virtual} are {number // groups} each and {number % groups} over; "
            f"offset must be a list of {stages} numbers (or {virtual} such lists) that add up to {number % groups}."
        )
        raise RecipeError([config.problem("offset", MODEL + "offset", message)])
    return layers


def _no_shape(config: MindFormersConfig) -> Problem:
    folder = config.absent.get("pretrained_model_dir")
    if folder:
        told, key = f"The model's numbers stand in {folder}, which is not on this machine. ", "pretrained_model_dir"
    else:
        told, key = "The file names no model with a number of layers. ", "model"
    return config.problem(
        "no_shape", key, told + "Name a Hugging Face config.json or a preset: --model-config qwen3_8b."
    )


def _unlike_layers(config: MindFormersConfig) -> str:
    """Why few layers cannot stand for all, empty where they can."""
    found = [f"{key} {config.model[key]}" for key, alike in _UNLIKE.items() if config.model.get(key) not in alike]
    if found:
        return ", ".join(found)
    if config.model_type not in TRAINED:
        return f"{config.model_type} begins with dense layers where first_k_dense_replace does not say 0"
    if not isinstance(config.recompute, (bool, type(None))):
        return "recompute_config.recompute counts layers"
    chosen = config.select_recompute
    patterns = isinstance(chosen, list) and all(isinstance(pattern, str) for pattern in chosen)
    if not patterns and not isinstance(chosen, (bool, type(None))):
        return "recompute_config.select_recompute counts layers"
    swap = config.tree.get("swap_config.swap")
    return "swap_config.swap names layers" if swap is True else ""


def _require_alike(config: MindFormersConfig, layers: tuple[int, ...], unlike: str) -> None:
    if unlike:
        raise UserError(f"{config.path}\n  --depth representative: layers are not alike ({unlike}). Try: --depth full")
    if min(layers) <= max(depth.LAYERS_OF_A_GROUP):
        raise UserError(
            f"--depth representative: groups of {', '.join(map(str, layers))} layers; it compiles "
            f"{max(depth.LAYERS_OF_A_GROUP)} of each and needs more than that. Try: --depth full"
        )


def _in_full(model_config: str | None) -> str | None:
    """A path that means the same in another folder."""
    if model_config is None or model_config in PRESETS:
        return model_config
    return str(Path(model_config).resolve())
