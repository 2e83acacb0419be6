"""A parity fixture: arrays that Hugging Face made, and our model with the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor
from safetensors import safe_open

from msparallel.model.shape import ModelShape
from msparallel.model.transformer import TrainingModel, build_model
from msparallel.parallel_config import OpParallelConfig

FOLDER = Path(__file__).parents[1] / "fixtures"
BATCH = ("input_ids", "labels", "loss_weights", "position_ids", "segment_ids")
PADDED_ROWS = ("model.embed_tokens.weight", "lm_head.weight")


def load(kind: str) -> tuple[ModelShape, dict[str, np.ndarray]]:
    """The shape, with its vocabulary padded to 64, and all arrays."""
    with safe_open(FOLDER / f"hf_{kind}.safetensors", framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        shape = json.loads(file.metadata()["shape"])
    return ModelShape(**shape, vocab_multiple=64), arrays


def model_with_weights(
    shape: ModelShape,
    arrays: dict[str, np.ndarray],
    parallel: OpParallelConfig | None = None,
    compute_dtype: ms.Type = ms.float32,
) -> TrainingModel:
    """Our model holding the fixture's weights; the padding rows of the vocabulary get large values."""
    parallel = parallel or OpParallelConfig(sharded=False)
    model = build_model(shape, parallel, seq_length=arrays["input_ids"].shape[1], compute_dtype=compute_dtype)
    for parameter in model.get_parameters():
        value = arrays[f"weight.{parameter.name}"]
        if parameter.name in PADDED_ROWS:
            padding = np.full((shape.padded_vocab_size - shape.vocab_size, shape.hidden_size), 3.0, np.float32)
            value = np.concatenate([value, padding])
        parameter.set_data(Tensor(value, ms.float32))
    return model


def batch(arrays: dict[str, np.ndarray]) -> list[Tensor]:
    """The packed batch in the order of TrainingModel's inputs."""
    return [Tensor(arrays[name]) for name in BATCH]
