"""The process that trains a MindFormers YAML alone: `python -m msparallel.simulate.mindformers_single REQUEST.json`.

In: a `SingleRequest`. Out, in its folder: what `truth.read_truth` reads, the batches of every step and their columns.
It is MindFormers' own step (trainer, model, optimizer, wrapper) without parallelism, run by MindSpore on this machine's
processor. What has no kernel there is replaced before the model is built: fused norms by MindFormers' own unfused ones,
a few primitives by the same mathematics in plain operators (`plain_operators`), gradients are MindSpore's; and Ascend's
overflow flag by none, which float32 does not need.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.compile.request import Request, write_json
from msparallel.errors import UserError
from msparallel.simulate.alone import Says, run_alone
from msparallel.simulate.mindformers_data import Drawing, draw, micro_batch_means
from msparallel.simulate.truth import FINAL, GRADIENTS, INITIAL, LOSSES_FILE, STATE

BATCHES_FILE, COLUMNS_FILE = "batches.safetensors", "columns.json"
UNEVEN, MEANS = "uneven", "uneven_means"
"""Folders of one step from the first values, whose rows count different numbers of tokens: averaged over all of them,
and each micro-batch by itself before the micro-batches are averaged."""


@dataclass(frozen=True, kw_only=True)
class SingleRequest:
    """Attributes:
    source, overrides, model_config: as in `compile.request.Request`.
    values: that make the file small, and that make it the training of one process.
    steps: to train.
    seed: of weights and tokens.
    micro_batches: of the cluster.
    """

    source: str
    overrides: list[str]
    values: dict[str, Any] = field(default_factory=dict)
    model_config: str | None = None
    steps: int
    seed: int
    micro_batches: int


def train_alone(request: SingleRequest, folder: Path, says: Says) -> None:
    """Train every step and write what came out; then a step with uneven rows, averaged in two ways."""
    says("importing MindSpore")
    import mindspore as ms

    from msparallel.compile.mindformers import build_mindformers, enter_folder

    source = str(Path(request.source).resolve())
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    enter_folder(folder)
    says("importing MindFormers")
    _replace_what_no_processor_has()
    says("building the model")
    built = build_mindformers(
        Request(
            source=source,
            kind="mindformers",
            overrides=request.overrides,
            values=request.values,
            model_config=request.model_config,
            world_size=1,
            folder=str(folder),
        )
    )
    step = _Step(built.graphs[0].cell, [name for name, role in built.roles.items() if role == "weight"], request.seed)
    like = {name: tensor.shape for name, tensor in zip(built.input_names, built.graphs[0].inputs, strict=True)}
    drawing = step.drawing(request.seed, like)
    batches = [draw(drawing, number) for number in range(request.steps)]
    _train(step, batches, folder, lambda number: says(f"step {number + 1} of {request.steps}"))
    uneven = draw(drawing, 0, uneven=True)
    if not uneven:
        return
    means = micro_batch_means(uneven, request.micro_batches)
    for name, batch in ((UNEVEN, uneven), (MEANS, means)):
        says(f"a step with uneven rows ({name})")
        (folder / name).mkdir()
        step.begin_again()
        _train(step, [batch], folder / name)


def _train(
    step: _Step, batches: list[dict[str, np.ndarray]], folder: Path, says: Callable[[int], None] = lambda number: None
) -> None:
    from safetensors.numpy import save_file

    save_file(step.initial, folder / INITIAL)
    save_file(step.state, folder / STATE)
    save_file({f"{i}.{name}": v for i, batch in enumerate(batches) for name, v in batch.items()}, folder / BATCHES_FILE)
    write_json(folder / COLUMNS_FILE, list(batches[0]))
    losses = []
    for number, batch in enumerate(batches):
        says(number)
        losses.append(step(batch))
        if number == 0:
            save_file(step.gradients(), folder / GRADIENTS)
    save_file(step.weights(), folder / FINAL)
    write_json(folder / LOSSES_FILE, {"losses": losses})


class _Step:
    """MindFormers' step with drawn weights.

    Attributes:
        initial: weight -> first value.
        state: other kept values that do not begin at zero.
    """

    def __init__(self, cell: Any, weights: list[str], seed: int):
        from mindformers.wrapper.wrapper import get_real_models
        from mindspore import Tensor

        cell.never = Tensor(False)  # what `no_overflow` gives
        cell.ascend_910a_target = cell.ascend_910b_target = False
        self._cell = cell
        self._config = get_real_models(cell).get_gpt_transformer_config()
        self._parameters = {parameter.name: parameter for parameter in cell.get_parameters()}
        self._first = {name: self._first_value(name, name in weights, seed) for name in self._parameters}
        self.initial = {name: self._first[name] for name in weights}
        self.state = {name: v for name, v in self._first.items() if name not in self.initial and v.any()}
        self.begin_again()

    def _first_value(self, name: str, weight: bool, seed: int) -> np.ndarray:
        from msparallel.model.initialize import normal_values

        parameter = self._parameters[name]
        if weight and parameter.ndim > 1:
            return normal_values(seed, name, tuple(parameter.shape), float(self._config.init_method_std))
        parameter.init_data()
        return parameter.asnumpy().copy()

    def begin_again(self) -> None:
        """Every kept value as it was before the first step."""
        from mindspore import Tensor

        for name, value in self._first.items():
            self._parameters[name].set_data(Tensor(value))

    def drawing(self, seed: int, like: Mapping[str, tuple[int, ...]]) -> Drawing:
        """How batches are drawn for this model."""
        config = self._config
        return Drawing(seed=seed, vocab_size=int(config.vocab_size), shapes=like, unused_token=config.pad_token_id)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> float:
        """Train one step; returns the loss."""
        from mindspore import Tensor

        loss = float(self._cell(*map(Tensor, batch.values()))[0].asnumpy().ravel()[0])
        if not math.isfinite(loss):
            raise UserError(f"The single process trains to a loss of {loss}. Try a lower lr_schedule.learning_rate.")
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        return {name: self._parameters[name].asnumpy().copy() for name in self.initial}

    def gradients(self) -> dict[str, np.ndarray]:
        """After the first step, as the optimizer got them: the first moment is (1 - beta1) times the gradient."""
        from msparallel.simulate.execution import FIRST_MOMENT

        factor = np.float32(1 / (1 - float(self._cell.optimizer.beta1.asnumpy().ravel()[0])))
        return {name: self._parameters[FIRST_MOMENT + name].asnumpy() * factor for name in self.initial}


def _replace_what_no_processor_has() -> None:
    """MindFormers looks these names up when a model is built."""
    from mindformers.parallel_core.training_graph import activation, loss_func
    from mindformers.parallel_core.training_graph.base_models.common import embeddings
    from mindformers.parallel_core.training_graph.tensor_parallel.layers import VocabParallelEmbedding
    from mindformers.parallel_core.training_graph.transformer import flash_attention, norm
    from mindformers.wrapper.wrapper import MFTrainOneStepCell
    from mindspore import ops

    from msparallel.simulate import plain_operators as plain

    norm.FusedRMSNorm, norm.FusedLayerNorm = norm.RMSNorm, norm.LayerNorm
    flash_attention.FlashAttentionScore = plain.PlainAttentionScore
    embeddings.rotary_pos_embedding.Outer = embeddings.yarn_rotary_pos_embedding.Outer = plain.PlainOuter
    loss_func.OneHotExt, loss_func.ZerosLikeExt = plain.PlainOneHot, ops.ZerosLike
    activation.Swiglu_op = plain.PlainSwiglu
    VocabParallelEmbedding.embedding_func = plain.plain_embedding
    MFTrainOneStepCell.get_overflow_status = plain.no_overflow


if __name__ == "__main__":
    sys.exit(run_alone(sys.argv[1], SingleRequest, train_alone))
