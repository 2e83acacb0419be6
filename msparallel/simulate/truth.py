"""The single process that a cluster is compared with: started beside the compilations, waited for, read.

In: the module that trains alone and what it is asked. Out: `Truth`, what it left in its folder.

>>> with training_alone("msparallel.simulate.single", request, folder) as process:
...     wait(process, folder)
...     read_truth(folder).losses
(5.545177, 5.501234)
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tqdm import tqdm

from msparallel.compile.ranks import POLL_S, kill, last_words, raise_failure, start_process
from msparallel.compile.request import write_json

LOSSES_FILE = "losses.json"
INITIAL, GRADIENTS, FINAL = "initial.safetensors", "gradients.safetensors", "final.safetensors"
STATE = "state.safetensors"


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What one process computed, all tensors whole.

    Attributes:
        losses: of every step.
        initial, final: weights before the first and after the last step.
        gradients: of the first step, as the optimizer got them.
        state: kept values besides weights that do not begin at zero.
    """

    losses: tuple[float, ...]
    initial: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    final: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray] = field(default_factory=dict)


@contextmanager
def training_alone(module: str, request: Any, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of `module` with a request (a dataclass) in a folder of its own; it is gone afterwards."""
    folder.mkdir()
    write_json(folder / "request.json", asdict(request))
    process = start_process(module, str(folder / "request.json"), log=folder / "log.txt")
    try:
        yield process
    finally:
        kill(process)


def wait(process: subprocess.Popen[bytes], folder: Path, progress: bool = True, doing: str = "Training alone") -> None:
    """Until it is done. Raises RunError or UserError where it failed, with its words."""
    with tqdm(desc=doing, bar_format="{desc} {postfix}", leave=False, disable=None if progress else True) as bar:
        while process.poll() is None:
            bar.set_postfix_str(last_words(folder))
            time.sleep(POLL_S)
    if process.returncode:
        raise_failure("The single process", process.returncode, folder, folder / "log.txt")


def read_truth(folder: Path) -> Truth:
    """What the process left in a folder."""
    told = json.loads((folder / LOSSES_FILE).read_text(encoding="utf-8"))
    state = folder / STATE
    return Truth(
        losses=tuple(told["losses"]),
        initial=load_file(folder / INITIAL),
        gradients=load_file(folder / GRADIENTS),
        final=load_file(folder / FINAL),
        state=load_file(state) if state.exists() else {},
    )
