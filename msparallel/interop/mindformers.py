"""A MindFormers training YAML as one typed value.

In: the path of a YAML as `run_mindformer.py --config` takes it. Out: a `MindFormersConfig`: model, degrees, batch,
layers of each stage, optimizer shard, recompute, types, with the line of each key; side files that are named and absent
are notes, never errors. Names, defaults and arithmetic: MindFormers 1.9.0, `tools/register/template.py` (defaults),
`trainer/base_trainer.py` (batch), `parallel_core/training_graph/transformer/utils.py` (offset).

>>> config = read_mindformers("qwen3.yaml")  # doctest: +SKIP
>>> config.pipeline_stages, config.stage_layers(64)  # doctest: +SKIP
(4, (15, 15, 17, 17))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msparallel.errors import Problem, RecipeError
from msparallel.interop.mindformers_keys import MODEL
from msparallel.interop.mindformers_overrides import check_known, with_overrides, with_values
from msparallel.interop.mindformers_sections import looks_like_mindformers, top_level_keys
from msparallel.interop.typed_reader import TypedReader
from msparallel.interop.yaml_tree import Tree, read_tree
from msparallel.mesh import Mesh
from msparallel.recipe.load import read_text
from msparallel.recipe.schema import MOST_ROWS, MOST_WIDTH

VERSION = "1.9.0"
"""MindFormers version whose names, defaults and checks are followed."""
MODES = {
    0: "data_parallel", 1: "semi_auto_parallel", 2: "auto_parallel", 3: "hybrid_parallel",
    "DATA_PARALLEL": "data_parallel", "SEMI_AUTO_PARALLEL": "semi_auto_parallel", "AUTO_PARALLEL": "auto_parallel",
    "HYBRID_PARALLEL": "hybrid_parallel", "STAND_ALONE": "stand_alone", "MANUAL_PARALLEL": "stand_alone",
}  # fmt: skip
"""parallel.parallel_mode -> MindSpore's word (MindFormers, tools/utils.py)."""
ENGINE_MODES = ("semi_auto_parallel", "auto_parallel")
_MOST_DEGREE = 65_536
_MOST_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class MindFormersConfig:
    """Attributes:
    path: as the user wrote it.
    tree: every value of the file, with lines, overrides in it.
    changes: dotted key -> value, what is not as the file says it.
    run_mode, use_legacy, graph_mode: what the file is for; MindFormers takes use_legacy for true where it is absent.
    model_type: `qwen3` ..., from model_type or architectures; None where neither is known.
    model: names of the model's config -> values, the Hugging Face config below, the YAML's model_config over it.
    model_source: where the part below came from, empty where the YAML says everything.
    mode: MindSpore's parallel mode; stand_alone with use_parallel false.
    data_parallel ... expert_parallel: degrees as written.
    micro_batch_num, gradient_accumulation_steps: the first counts with a pipeline, the second without one.
    batch_size: sequences of one replica at a time. seq_length: tokens of a sequence.
    offset, pp_interleave_num: see `stage_layers`.
    optimizer_shard: False, True, or MindSpore's level. optimizer_shard_size, optimizer_shard_threshold_kib: None where
        unsaid.
    recompute: True, False, or MindFormers' lists. select_recompute: likewise, or patterns.
    compute_dtype, params_dtype: MindSpore's names.
    absent: `key -> what it names` for side files and data sets that are not on this machine.
    """

    path: str
    tree: Tree
    changes: Mapping[str, Any] = field(default_factory=dict)
    run_mode: str
    use_legacy: bool
    graph_mode: bool
    model_type: str | None
    model: Mapping[str, Any]
    model_source: str
    mode: str
    data_parallel: int
    model_parallel: int
    context_parallel: int
    pipeline_stages: int
    expert_parallel: int
    sequence_parallel: bool
    micro_batch_num: int
    gradient_accumulation_steps: int
    batch_size: int
    seq_length: int
    offset: int | list[Any]
    pp_interleave_num: int
    optimizer_shard: bool | str
    optimizer_shard_size: int | None
    optimizer_shard_threshold_kib: int | None
    recompute: Any
    select_recompute: Any
    compute_dtype: str
    params_dtype: str
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> Mapping[str, int]:
        """Dotted key -> line."""
        return self.tree.lines

    @property
    def mesh(self) -> Mesh:
        """Degrees that count in the file's mode; MindFormers sets the others to 1."""
        if self.mode in ENGINE_MODES:
            degrees = {"dp": self.data_parallel, "cp": self.context_parallel, "tp": self.model_parallel}
            return Mesh(pp=self.pipeline_stages, **degrees)
        return Mesh(dp=self.data_parallel if self.mode == "data_parallel" else 1)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one optimizer step: of the pipeline, or gradient accumulation."""
        if self.mode not in ENGINE_MODES:
            return 1
        return self.micro_batch_num if self.pipeline_stages > 1 else self.gradient_accumulation_steps

    @property
    def virtual_stages(self) -> int:
        """Groups of layers on each stage; pp_interleave_num counts only where interleaving is on."""
        interleaves = self.tree.get("parallel.pipeline_config.pipeline_interleave") is True
        return self.pp_interleave_num if interleaves and self.pipeline_stages > 1 else 1

    def stage_layers(self, num_layers: int) -> tuple[int, ...] | None:
        """Layers of each group in the order in which a sample passes them: stages x virtual_stages numbers.

        num_layers // groups, plus offset; None where offset has another shape or does not add up, which MindFormers
        refuses.
        """
        stages, virtual = self.pipeline_stages, self.virtual_stages
        groups = stages * virtual
        if groups == 1:
            return (num_layers,)
        share, rest = divmod(num_layers, groups)
        if groups > num_layers or not isinstance(self.offset, list):
            return (share,) * groups if not rest and self.offset == 0 and share else None
        rows = self.offset if self.offset and isinstance(self.offset[0], list) else [self.offset] * virtual
        if len(rows) != virtual or any(not isinstance(row, list) or len(row) != stages for row in rows):
            return None
        numbers = [number for row in rows for number in row]
        # MindFormers adds up offset as written, one row or several
        written = numbers if self.offset and isinstance(self.offset[0], list) else numbers[:stages]
        if any(type(number) is not int for number in numbers) or sum(written) != rest:
            return None
        layers = tuple(share + number for number in numbers)
        return layers if sum(layers) == num_layers and min(layers) >= 0 else None

    def problem(self, rule: str, key: str, message: str) -> Problem:
        """A Problem at a key of this file, or where else its value came from."""
        found = self.tree.get(key)
        if found is None and key.startswith(MODEL):
            found = self.model.get(key[len(MODEL) :])
        value = found if isinstance(found, (str, int, float, bool)) else None
        file, line = self.tree.place(key)
        return Problem(key=key, value=value, rule=rule, message=message, file=file, line=line)


def is_mindformers(path: str | Path) -> bool:
    """Whether a file is a MindFormers YAML, by its top-level keys; of text that is not YAML, by its lines.

    Raises:
        RecipeError: the file cannot be read.
    """
    text = read_text(Path(path))
    try:
        return looks_like_mindformers(read_tree(text, str(path)).values)
    except RecipeError:
        return looks_like_mindformers(top_level_keys(text))


def read_mindformers(
    path: str | Path,
    model_config: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> MindFormersConfig:
    """Read one file.

    Args:
        path: the YAML.
        model_config: a Hugging Face config that stands for the one in pretrained_model_dir.
        overrides: `section.key=value` over the file's own values, as a user types them.
        values: dotted key -> value over both, any key.

    Raises:
        RecipeError: the file cannot be read, is no MindFormers YAML, or holds values of a wrong type; all of them.
    """
    name = str(path)
    tree = read_tree(read_text(Path(path)), name)
    if not looks_like_mindformers(tree.values):
        raise RecipeError([Problem(
            key="file", value=None, rule="not_mindformers", file=name,
            message="This is not a MindFormers YAML: it has none of the sections run_mode, trainer, runner_config, "
            "parallel_config ... (at least two are needed to tell)."
        )])  # fmt: skip
    own_tree = tree
    tree, typed = with_overrides(tree, overrides)
    tree = with_values(tree, values or {})
    read = TypedReader(tree)
    if "base_config" in tree.values:
        read.problem("base_config", "base_config", "Files that build on others are not read; write one whole file.")
    absent: dict[str, str] = {}
    below, source = _model_below(read, model_config, absent)
    own = read.mapping(MODEL.rstrip("."))
    model = {**below, **own}
    tree = replace(tree, elsewhere={MODEL + name: source for name in below if name not in own} | dict(tree.elsewhere))
    if below:
        values = {**tree.values, "model": {**read.mapping("model"), "model_config": model}}
        read.tree = replace(tree, values=values)
    use_parallel = read.flag("use_parallel", False)
    mode = read.choice("parallel.parallel_mode", MODES, 1)
    dataset_length = read.whole("train_dataset.data_loader.config.seq_length", None, most=MOST_ROWS)
    config = MindFormersConfig(
        path=name,
        tree=tree,
        changes={**typed, **(values or {})},
        run_mode=read.text("run_mode", ""),
        use_legacy=read.flag("use_legacy", True),
        graph_mode=read.choice("context.mode", {0: True, 1: False, "GRAPH_MODE": True, "PYNATIVE_MODE": False}, 0),
        model_type=_model_type(model),
        model=model,
        model_source=source,
        mode=mode if use_parallel else "stand_alone",
        data_parallel=read.whole("parallel_config.data_parallel", 1, most=_MOST_DEGREE),
        model_parallel=read.whole("parallel_config.model_parallel", 1, most=_MOST_DEGREE),
        context_parallel=read.whole("parallel_config.context_parallel", 1, most=_MOST_DEGREE),
        pipeline_stages=read.whole("parallel_config.pipeline_stage", 1, most=_MOST_DEGREE),
        expert_parallel=read.whole("parallel_config.expert_parallel", 1, most=_MOST_DEGREE),
        sequence_parallel=read.flag("parallel_config.use_seq_parallel", False),
        micro_batch_num=read.whole("parallel_config.micro_batch_num", 1, most=MOST_WIDTH),
        gradient_accumulation_steps=read.whole("runner_config.gradient_accumulation_steps", 1, most=MOST_WIDTH),
        batch_size=read.whole("runner_config.batch_size", 1, most=MOST_WIDTH),
        seq_length=read.whole(MODEL + "seq_length", dataset_length or 4096, most=MOST_ROWS),
        offset=read.offset(MODEL + "offset"),
        pp_interleave_num=read.whole(MODEL + "pp_interleave_num", 1, most=1000),
        optimizer_shard=_shard(read),
        optimizer_shard_size=read.whole("parallel.parallel_optimizer_config.optimizer_weight_shard_size", None),
        optimizer_shard_threshold_kib=read.whole(
            "parallel.parallel_optimizer_config.parallel_optimizer_threshold", None, least=0
        ),
        recompute=read.recompute("recompute_config.recompute"),
        select_recompute=read.recompute("recompute_config.select_recompute"),
        compute_dtype=read.choice(MODEL + "compute_dtype", _DTYPES, "bfloat16"),
        params_dtype=read.choice(MODEL + "params_dtype", _DTYPES, "float32"),
        absent=absent,
    )
    _note_absent(read, absent)
    read.raise_problems()
    check_known(own_tree, typed, {*read.read, *(MODEL + name for name in below)})
    return config


_DTYPES = {
    "float32": "float32", "fp32": "float32", "float16": "float16", "fp16": "float16", "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}  # fmt: skip


def _shard(read: TypedReader) -> bool | str:
    """enable_parallel_optimizer with its level; gradient_accumulation_shard is MindSpore's older word for level2."""
    detail = "parallel.parallel_optimizer_config"
    on = read.flag("parallel.enable_parallel_optimizer", False)
    level = read.choice(f"{detail}.optimizer_level", {name: name for name in ("level1", "level2", "level3")}, None)
    cut_gradients = read.flag(f"{detail}.gradient_accumulation_shard", False)
    return on and (level or ("level2" if cut_gradients else True))


def _model_below(
    read: TypedReader, given: Mapping[str, Any] | None, absent: dict[str, str]
) -> tuple[Mapping[str, Any], str]:
    """The Hugging Face config that MindFormers would read from pretrained_model_dir, and where it came from."""
    folder = read.text("pretrained_model_dir", "") or read.text("model.pretrained_model_dir", "")
    if given is not None:
        return given, "--model-config"
    if not folder:
        return {}, ""
    file = Path(folder) / "config.json"
    found = read_json(file)
    if found is None:
        absent["pretrained_model_dir"] = str(file)
        return {}, ""
    return found, str(file)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None where there is no such file or it holds something else."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_CONFIG_BYTES + 1)
        found = json.loads(data) if len(data) <= _MOST_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError):  # ValueError: not JSON, not UTF-8, a zero byte in the path
        return None
    return found if isinstance(found, dict) else None


def _model_type(model: Mapping[str, Any]) -> str | None:
    """model_type, or what architectures stand for."""
    if isinstance(model.get("model_type"), str):
        return model["model_type"]
    named = model.get("architectures")
    first = named[0] if isinstance(named, list) and named else named
    return ARCHITECTURES.get(first) if isinstance(first, str) else None


ARCHITECTURES = {
    "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3_moe", "TeleChat3ForCausalLM": "telechat3",
    "TeleChat3MoeForCausalLM": "telechat3_moe", "DeepseekV3ForCausalLM": "deepseek_v3", "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe", "Qwen2ForCausalLM": "qwen2", "LlamaForCausalLM": "llama",
    "GPT2LMHeadModel": "gpt2", "GPT2Model": "gpt2",
}  # fmt: skip
"""Name of the model's class -> model_type."""


def _note_absent(read: TypedReader, absent: dict[str, str]) -> None:
    """Side files and data sets that the file names and this machine has not."""
    side = "context.ascend_config.parallel_speed_up_json_path"
    path = read.text(side, "")
    if path and speed_up(read.tree) is None:
        absent[side] = path
    data = read.tree.get("train_dataset.data_loader.config.data_path")
    paths = [text for text in data if isinstance(text, str) and "/" in text] if isinstance(data, list) else []
    missing = [text for text in paths if not any(_exists(text + end) for end in ("", ".bin"))]
    if missing:
        absent["train_dataset.data_loader.config.data_path"] = ", ".join(missing)


def speed_up_file(tree: Tree) -> Path | None:
    """The side file of parallel_speed_up_json_path, seen from the working directory, then from the YAML, in full; None
    where neither holds an object."""
    path = tree.get("context.ascend_config.parallel_speed_up_json_path")
    if not isinstance(path, str) or not path:
        return None
    places = (folder / path for folder in (Path(), Path(tree.file).parent))
    return next((place.resolve() for place in places if read_json(place) is not None), None)


def speed_up(tree: Tree) -> dict[str, Any] | None:
    """Content of `speed_up_file`."""
    file = speed_up_file(tree)
    return read_json(file) if file else None


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that is too long, or holds a zero byte
        return False
