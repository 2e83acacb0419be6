"""A simulated MindFormers YAML as a person reads it at the terminal.

In: a MindFormersSimulation. Out: text as `simulate_text` writes it for recipes, and what a step does with rows that
count different numbers of tokens.

>>> print(mindformers_text(simulate_mindformers(config, steps=3)))
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from msparallel.cli.simulate_text import difference_lines, joined, loss_lines, verdict_lines
from msparallel.simulate.execution import Comparison
from msparallel.simulate.mindformers import MindFormersSimulation, averages_tokens
from msparallel.simulate.mindformers_shrink import KV_HEADS, MODEL
from msparallel.simulate.shrink import Changes

WHY_KV_HEADS = (
    "Every head has keys of its own: MindFormers takes float32 into its attention only with use_flash_attention false, "
    "and then not for keys that serve several heads."
)


def mindformers_text(found: MindFormersSimulation) -> str:
    """The whole report."""
    return joined([_head(found), loss_lines(found), difference_lines(found), _uneven(found), verdict_lines(found)])


def _head(found: MindFormersSimulation) -> list[str]:
    config = found.config
    lines = [
        f"{config.path}: {found.mesh}, {config.micro_batches} micro-batch{'es' * (config.micro_batches > 1)} a step, "
        "MindFormers' own step executed on this machine"
    ]
    if found.changes:
        lines += ["Changed for execution (what you type wins):", *_changed(found.changes)]
        if any(key in found.changes for key in KV_HEADS):
            lines.append(WHY_KV_HEADS)
    lines.append(
        "Tokens: drawn from the seed. One device: MindFormers' step without parallelism, with its unfused norms and "
        "plain attention."
    )
    return lines


def _changed(changes: Changes) -> Iterator[str]:
    """One line a section, as overrides; the model's long prefix stands once."""
    sections: dict[str, list[str]] = {}
    for key, value in changes.items():
        section, _, name = (MODEL[:-1], "", key[len(MODEL) :]) if key.startswith(MODEL) else key.partition(".")
        sections.setdefault(section, []).append(f"{name}={_written(value)}" if name else f"={_written(value)}")
    for section, words in sections.items():
        yield f"  {section}: {'  '.join(words)}" if words[0][0] != "=" else f"  {section}{words[0]}"


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _uneven(found: MindFormersSimulation) -> list[str]:
    """How the loss of sequences is averaged that count different numbers of tokens."""
    over_tokens, means = found.uneven_over_tokens, found.uneven_means
    if over_tokens is None or means is None:
        return []
    lines = ["A step whose sequences count different numbers of tokens (loss_mask), beside one device that averages"]
    if found.config.micro_batches == 1:
        return [*lines, f"  over all tokens   {_apart(over_tokens)}"]
    lines += [
        f"  over all tokens                                             {_apart(over_tokens)}",
        f"  each micro-batch over its tokens, then the micro-batches   {_apart(means)}",
    ]
    if not averages_tokens(found.config):
        lines.append(
            "  MindFormers' pipeline does the latter; calculate_per_token_loss=true has one average over all tokens."
        )
    return lines


def _apart(found: Comparison) -> str:
    if found.gradients is None:
        return "it would hang"
    return f"loss {found.max_rel_loss_error:.1e}, gradients {found.gradients.max_relative:.1e} apart"
