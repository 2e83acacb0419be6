"""TensorBoard events, on request (`train.tensorboard: true`).

In: numbers by step. Out: an event file that `tensorboard --logdir output` shows.

>>> TensorBoard(Path("output/quickstart/tensorboard")).add(1, loss=8.3)
"""

from __future__ import annotations

from pathlib import Path

from msparallel.errors import UserError


class TensorBoard:
    """An event file in `folder`. Raises UserError where tensorboardX is not installed."""

    def __init__(self, folder: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise UserError(
                "train.tensorboard: true\n  The events are written by tensorboardX, which is not installed.\n"
                "  Try: pip install 'msparallel[tensorboard]', or train.tensorboard=false"
            ) from None
        self._writer = SummaryWriter(str(folder))

    def add(self, step: int, **values: float) -> None:
        """Numbers of one step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
