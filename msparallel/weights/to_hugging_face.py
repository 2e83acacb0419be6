"""A training checkpoint, whole or in slices -> a Hugging Face folder.

In: a TrainedCheckpoint and its shape. Out: config.json, safetensors (several files and an index where they are large),
and the tokenizer's files. Tensors pass one by one, so memory does not grow with the model. Nothing is rounded but by
the dtype that is asked for.

>>> to_hugging_face(trained, shape_of_checkpoint(trained), Path("hf"), dtype="bfloat16")  # doctest: +SKIP
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from msparallel.errors import UserError
from msparallel.interop.model_names import model_config
from msparallel.model.shape import ModelShape
from msparallel.planner.shards import layer_parameters, norm_parameters
from msparallel.weights.checkpoint import TrainedCheckpoint
from msparallel.weights.fresh_folder import fresh_folder, write_json
from msparallel.weights.hugging_face import EMBEDDING, HEAD
from msparallel.weights.write_tensors import Planned, write_tensors

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
MOST_SHARD_BYTES = 5 * 10**9
"""Hugging Face's own limit for a file."""
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
              "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model")  # fmt: skip
"""Files that belong to a model and are copied as they are."""
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
            "qwen3_moe": "Qwen3MoeForCausalLM"}  # fmt: skip
Progress = Callable[[int], object]


def to_hugging_face(
    source: TrainedCheckpoint, shape: ModelShape, target: Path, *, dtype: str = "float32",
    most_bytes: int = MOST_SHARD_BYTES, companions: Path | None = None, progress: Progress = lambda count: None,
) -> Path:  # fmt: skip
    """Write config.json, safetensors and what stands in `companions` of a tokenizer. Returns `target`.

    Args:
        dtype: float32, bfloat16 or float16.
        most_bytes: of one file; more than one make an index.

    Raises:
        UserError: `target` holds something, or the model has no counterpart there.
        RunError: it cannot be written.
    """
    kind, shapes = _model_type(shape), _our_shapes(shape)
    planned = [_planned(source, shape, shapes, name, DTYPES[dtype]) for name in _their_names(shape, shapes)]
    config = model_config(shape, kind) | {"architectures": [_CLASSES[kind]], "hidden_act": "silu", "dtype": dtype}
    with fresh_folder(target, sum(one.size_bytes for one in planned)) as partial:
        if companions is not None:
            for path in (companions / name for name in COMPANIONS):
                if path.is_file():
                    shutil.copyfile(path, partial / path.name)
        write_json(partial / "config.json", config)
        _write_shards(partial, planned, most_bytes, progress)
    return target


def _model_type(shape: ModelShape) -> str:
    """Of Hugging Face's models the one that computes the same. Raises UserError where none does."""
    gated = shape.position == "rope" and shape.norm == "rms" and shape.activation == "swiglu"
    if shape.num_experts:
        found = "qwen3_moe" if shape.qk_norm and not shape.attention_bias else ""
    else:
        found = "qwen3" if shape.qk_norm else "qwen2" if shape.attention_bias and not shape.output_bias else "llama"
    if not gated or not found or (shape.qk_norm and shape.attention_bias) or (shape.ffn_bias and found != "llama"):
        raise UserError("This model (positions, norms or biases) is none of Hugging Face's Llama, Qwen2, Qwen3 and "
                        "Qwen3-MoE; only those are written.")  # fmt: skip
    return found


def _their_names(shape: ModelShape, shapes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Names of the weights there; experts one by one."""
    for name in shapes:
        if ".experts." in name:
            layer, _, matrix = name.rpartition(".experts.")
            yield from (f"{layer}.experts.{expert}.{matrix}.weight" for expert in range(shape.num_experts))
        else:
            yield name


def _our_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Our name -> whole shape, with the vocabulary padded."""
    table = (shape.padded_vocab_size, shape.hidden_size)
    found = {EMBEDDING: table}
    for layer in range(shape.num_layers):
        found |= {f"model.layers.{layer}.{name}": whole for name, whole, _ in layer_parameters(shape)}
    found |= {f"model.{name}": whole for name, whole, _ in norm_parameters(shape, "norm")}
    return found if shape.tie_embeddings else {**found, HEAD: table}


def _planned(
    source: TrainedCheckpoint, shape: ModelShape, shapes: dict[str, tuple[int, ...]], name: str, dtype: str
) -> Planned:
    ours, expert = name, None
    if ".experts." in name:
        layer, _, rest = name.partition(".experts.")
        number, matrix, _ = rest.split(".")
        ours, expert = f"{layer}.experts.{matrix}", int(number)
    whole = shapes[ours]
    bounds = [(0, size) for size in whole]
    if ours in (EMBEDDING, HEAD):
        bounds[0] = (0, shape.vocab_size)  # the padding is ours alone
    if expert is not None:
        bounds[0] = (expert, expert + 1)
    sizes = tuple(stop - start for start, stop in bounds)
    wanted = sizes if expert is None else sizes[1:]
    return Planned(name, dtype, wanted, lambda: source.read(ours, bounds, whole).reshape(wanted))


def _write_shards(folder: Path, planned: list[Planned], most_bytes: int, progress: Progress) -> None:
    """One file, or as many as `most_bytes` asks for and an index."""
    shards: list[list[Planned]] = [[]]
    filled = 0
    for one in planned:
        if shards[-1] and filled + one.size_bytes > most_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(one)
        filled += one.size_bytes
    if len(shards) == 1:
        write_tensors(folder / "model.safetensors", planned, progress)
        return
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(folder / name, shard, progress)
        placed |= dict.fromkeys((one.name for one in shard), name)
    total = sum(one.size_bytes for one in planned)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
    write_json(folder / "model.safetensors.index.json", index)
