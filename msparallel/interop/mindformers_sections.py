"""Which top-level keys are MindFormers' and which a recipe's.

In: the names of a YAML's sections. Out: whose file it is. Reads nothing, so that the recipe's own reader can ask.

>>> looks_like_mindformers(["model", "trainer", "runner_config"]), looks_like_mindformers(["model", "train"])
(True, False)
"""

from __future__ import annotations

from collections.abc import Iterable

OWN_SECTIONS = frozenset((
    "auto_trans_ckpt", "callbacks", "context", "load_checkpoint", "lr_schedule", "micro_batch_interleave_num",
    "parallel_config", "recompute_config", "run_mode", "runner_config", "runner_wrapper", "train_dataset",
    "train_dataset_task", "trainer", "use_legacy", "use_parallel",
))  # fmt: skip
"""Top-level keys that MindFormers has and recipes have not."""
RECIPE_SECTIONS = frozenset(("train", "data", "cluster", "serve"))
"""Top-level keys that recipes have and MindFormers has not."""


def looks_like_mindformers(sections: Iterable[str]) -> bool:
    """Whether keys are MindFormers': at least two that are only its own, and more than are only a recipe's."""
    names = set(sections)
    return len(names & OWN_SECTIONS) >= max(2, len(names & RECIPE_SECTIONS) + 1)
