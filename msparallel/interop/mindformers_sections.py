"""Which top-level keys are MindFormers' and which a recipe's.

In: the names of a YAML's sections. Out: whose file it is. Reads no YAML, so that the recipe's own reader can ask, also
about text that it cannot read.

>>> looks_like_mindformers(["model", "trainer", "runner_config"]), looks_like_mindformers(["model", "train"])
(True, False)
>>> top_level_keys("run_mode: train\ntrainer:\n  type: [[[\n")
['run_mode', 'trainer']
"""

from __future__ import annotations

import re
from collections.abc import Iterable

OWN_SECTIONS = frozenset((
    "auto_trans_ckpt", "callbacks", "context", "load_checkpoint", "lr_schedule", "micro_batch_interleave_num",
    "parallel_config", "recompute_config", "run_mode", "runner_config", "runner_wrapper", "train_dataset",
    "train_dataset_task", "trainer", "use_legacy", "use_parallel",
))  # fmt: skip
"""Top-level keys that MindFormers has and recipes have not."""
RECIPE_SECTIONS = frozenset(("train", "data", "cluster", "serve", "supervise"))
"""Top-level keys that recipes have and MindFormers has not."""


_KEY = re.compile(r"^([A-Za-z_]\w*)[ \t]*:", re.M)


def top_level_keys(text: str) -> list[str]:
    """Words that stand before a colon at the beginning of a line, whether or not the text is YAML."""
    return _KEY.findall(text)


def looks_like_mindformers(sections: Iterable[str]) -> bool:
    """Whether keys are MindFormers': at least two that are only its own, and more than are only a recipe's."""
    names = set(sections)
    return len(names & OWN_SECTIONS) >= max(2, len(names & RECIPE_SECTIONS) + 1)
