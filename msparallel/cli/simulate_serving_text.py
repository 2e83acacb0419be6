"""A simulated server as a person reads it at the terminal.

In: a ServingSimulation. Out: text without colours: what was executed, every request's tokens, how far logits are apart,
the verdict.

>>> print(serving_text(simulate_serving(plan, tokens=8)))
"""

from __future__ import annotations

from itertools import groupby

from msparallel.cli.columns import fit, table, terminal_width
from msparallel.errors import printable
from msparallel.recipe.override import format_override
from msparallel.simulate.serving import LOGIT_LIMIT, ServingSimulation

MOST_TOKENS = 12
"""Of an answer, in the table."""


def serving_text(found: ServingSimulation, width: int | None = None) -> str:
    """The whole report."""
    width = terminal_width(width)
    sections = [_head(found), _answers(found, width), _differences(found), _verdict(found)]
    lines = [line for section in sections if section for line in [*section, ""]][:-1]
    return printable("\n".join(part for line in lines for part in fit(line, width)))


def _head(found: ServingSimulation) -> list[str]:
    plan = found.plan
    serve = plan.recipe.serve
    assert serve is not None, "it was a server"
    lines = [f"{plan.recipe.path}: {plan.mesh}, {serve.max_concurrency} requests of at most {serve.max_length} tokens "
             "at once, executed on this machine"]  # fmt: skip
    if found.changes:
        lines.append("Changed for execution (what you type wins):")
        for _, alike in groupby(sorted(found.changes), key=lambda key: key.partition(".")[0]):
            lines.append("  " + "  ".join(format_override(key, found.changes[key]) for key in alike))
    lines.append("Graphs: Ascend's (ReshapeAndCache, PagedAttention), compiled in float16, executed in float32. One "
                 "device: plain attention in float32. Weights and prompts: drawn.")  # fmt: skip
    return lines


def _answers(found: ServingSimulation, width: int) -> list[str]:
    if not found.cluster:
        return []
    rows = [("request", "prompt", "answer of one device", "of the cluster")]
    for number, (one, other) in enumerate(zip(found.single, found.cluster, strict=True)):
        told = " ".join(map(str, one.tokens[:MOST_TOKENS])) + " ..." * (len(one.tokens) > MOST_TOKENS)
        differs = next(
            (place for place, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)) if a != b), None
        )
        same = "the same" if differs is None else f"differs from token {differs + 1}: {other.tokens[differs]}"
        rows.append((str(number), f"{one.prompt} token{'s' * (one.prompt > 1)}", told, same))
    return ["Answers, the most likely token each time", *table(rows, width, right={0, 1})]


def _differences(found: ServingSimulation) -> list[str]:
    if not found.cluster:
        return []
    apart = "equal, bit by bit" if found.replicas_apart == 0 else f"up to {found.replicas_apart:.1e} apart"
    lines = [f"Logits               largest relative difference {found.max_rel_logit_error:.1e} of a step"]
    return lines + ([f"Logits of all ranks  {apart}"] if found.plan.world_size > 1 else [])


def _verdict(found: ServingSimulation) -> list[str]:
    if found.deadlock:
        return [str(found.deadlock)]
    if found.same:
        return ["The strategy answers the same as one device, token for token."]
    return ["The strategy does NOT answer the same as one device. Allowed here: no other token, logits "
            f"{LOGIT_LIMIT:.0e} relative."]  # fmt: skip
