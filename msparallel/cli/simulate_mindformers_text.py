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
    return joined([
        _head(found), loss_lines(found), difference_lines(found) + _stale_copies(found), _as_stored(found),
        _uneven(found), verdict_lines(found),
    ])  # fmt: skip


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


def _stale_copies(found: MindFormersSimulation) -> list[str]:
    """Why copies are apart, where that is how MindSpore shares a weight between stages."""
    tied = found.config.model.get("tie_word_embeddings") is True
    if not found.replicas_apart or not tied or found.mesh.pp == 1:
        return []
    return [
        "  tie_word_embeddings: the first stage sends its word embeddings to the last in every step, and updates them; "
        "what",
        "  the last stage keeps of its own is never read, and a checkpoint of that stage holds it.",
    ]


def _as_stored(found: MindFormersSimulation) -> list[str]:
    """What weights are on this strategy whose rows ranks read in another order."""
    if found.as_stored is None:
        return []
    kinds = sorted({name.split(".")[-2] for name in found.reordered})
    return [
        f"Compared with the rows of {' and '.join(kinds)} put in the order in which MindFormers' ranks read them: with "
        "these",
        f"weights as one device has them, each rank takes its share for a whole, and the model is another one: "
        f"{_apart(found.as_stored)}.",
        "Weights that go from one model_parallel to another must be put in order as well.",
    ]


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
        lines.append("  MindFormers does the latter: micro-batches count alike, whatever they hold.")
    return lines


def _apart(found: Comparison) -> str:
    if found.gradients is None:
        return "it would hang"
    return f"loss {found.max_rel_loss_error:.1e}, gradients {found.gradients.max_relative:.1e} apart"
