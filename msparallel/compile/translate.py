"""MindSpore's words for what its engine refuses, in the terms of the file that the user wrote.

In: the request, the exception and the process's log. Out: an error with the file's line, the rule with its numbers and
a value that works; MindSpore's own sentence stays visible as evidence. A refusal that no entry of TABLE knows is told
in MindSpore's first sentence, with the place in the network and a file that holds the whole text.

>>> print(engine_error(request, "RuntimeError", text))
my.yaml:4  parallel.model_parallel: 4
  layers.mlp.gate_proj.matmul (MatMul): ffn_size 130 is cut over model_parallel 4, and 130 % 4 = 2.
  MindSpore, rank 0: Failure:operator MatMul init failed: MatMulInfo66: ... shape value 130 ... cannot be ...
  Try: parallel.model_parallel=2
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from msparallel.compile import explanations as explain
from msparallel.compile import mindformers_explanations as mindformers
from msparallel.compile.refusal import Refusal, read_refusal
from msparallel.compile.request import Request
from msparallel.compile.terms import read_terms
from msparallel.errors import RecipeError, UserError


def engine_error(request: Request, kind: str, text: str) -> UserError:
    """The error to show for an exception of MindSpore's.

    Args:
        request: what was compiled; its folder holds the process's log.
        kind, text: type and words of the exception.
    """
    log = Path(request.folder) / "log.txt"
    said = log.read_text(encoding="utf-8", errors="replace") if request.folder and log.exists() else ""
    refusal = read_refusal(kind, text, said)
    terms = read_terms(request)
    for speaker, table in SPEAKERS.items():
        for pattern, explanation in table:
            found = next(filter(None, map(pattern.search, refusal.words)), None)
            if found is not None:
                told = explanation(found, refusal, terms)
                evidence = f"{speaker}, rank {request.rank}: {_evidence(refusal, found.string)}"
                rule = explanation.__name__
                return RecipeError([terms.problem(told.name, rule, told.message, evidence, told.tries)])
    lines = _unknown(request, refusal, text, said)
    if explain.searches(terms):
        told = explain.result_of_search(terms)
        return RecipeError([terms.problem(told.name, "result_of_search", told.message, "\n  ".join(lines), told.tries)])
    speaker = "MindFormers" if _from_mindformers(said) else "MindSpore's engine"
    stated = f"{speaker} refuses rank {request.rank}; msparallel has no explanation for its words."
    return UserError("\n  ".join([request.source, stated, *lines]))


def _evidence(refusal: Refusal, words: str) -> str:
    """MindSpore's sentence, and the reason where the log gave one: the words that were understood, or the first."""
    reasons = [words] if words != refusal.sentence else [r for r in refusal.reasons if refusal.sentence not in r]
    return f"{refusal.sentence.rstrip('.')}: {reasons[0]}" if reasons else refusal.sentence


def _from_mindformers(log: str) -> bool:
    """Whether the exception was raised in MindFormers' own code."""
    frames = re.findall(r'^  File "([^"]+)", line \d+, in ', log, re.MULTILINE)
    return bool(frames) and "/mindformers/" in frames[-1]


def _unknown(request: Request, refusal: Refusal, text: str, log: str) -> list[str]:
    """What can be said of words that no entry knows: themselves, their place, and a file that holds all of them."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix=f"msparallel-refused-rank-{request.rank}-", suffix=".txt", delete=False
    ) as file:
        file.write(f"{refusal.kind}: {text}\n\n{log}")
    speaker = "MindFormers" if _from_mindformers(log) else "MindSpore"
    lines = [
        f"{speaker}, rank {request.rank}: {refusal.kind}: {_evidence(refusal, refusal.sentence)}",
        f"Where: {refusal.where}" if refusal.where else "",
        f"The whole text is in {file.name}",
    ]
    return list(filter(None, lines))


Entry = tuple[re.Pattern[str], explain.Explain]


def _entry(pattern: str, explanation: explain.Explain) -> Entry:
    return re.compile(pattern), explanation


TABLE: tuple[Entry, ...] = (
    # First, because below them the log holds what the search tried in vain.
    _entry(r"No available strategy for: |Auto-parallel strategy search failed", explain.search_found_nothing),
    _entry(r"shape value (?P<number>\d+) at dim index \d+ cannot be divisible by strategy value (?P<pieces>\d+)",
           explain.uneven_cut),
    _entry(r"input shape is not divisible. The input shape is (?P<number>\d+), but the slice number is (?P<pieces>\d+)",
           explain.uneven_cut),
    _entry(r"The strategy is (?P<strategy>.*?), it requires (?P<pieces>\d+) devices, but the device number of this "
           r"stage is (?P<devices>\d+)", explain.more_pieces_than_devices),
    _entry(r"The strategy is (?P<strategy>.*?), the value of strategy must be the power of 2, but get (?P<pieces>\d+)",
           explain.odd_number_of_pieces),
    _entry(r"strategy (?:size|len): \d+ is not equal to inputs|Invalid strategy for mat_a|'s size ?\d+ is not equal to "
           r"dataset_strategy|input shapes size is not equal to dataset strategy size|value of strategy must be larger "
           r"than 0", explain.strategy_of_another_shape),
    _entry(r"dimensions? can not be split, but the strategy is|The strategy corresponding to axis dimension\(\d+\) is "
           r"not 1", explain.whole_dimension),
    _entry(r"device_num' must be divisible by 8, or equal to 1, 2 or 4, but got the value of device_num: \d+",
           explain.unsuitable_device_number),
    _entry(r"'device_num' must be divided by 'split_stage_num', but got the device_num : (?P<devices>\d+) ?and the "
           r"split_stage_num : (?P<stages>\d+)", explain.devices_over_stages),
    _entry(r"The device_num (?P<stated>\d+) set in the context is not consist with (?P<devices>\d+) devices",
           explain.device_number_of_the_launch),
    _entry(r"requires the device num be the power of 2", explain.search_without_power_of_two),
    _entry(r"need to broadcast\..*got input1.shape = (?P<first>\[.*?\]) and input2.shape = (?P<second>\[.*?\])",
           explain.shapes_that_do_not_fit),
    _entry(r"accumulate of x_shape must be equal to out_shape, but got x_shape: [^{]*(?P<first>\{.*?\}), and "
           r"out_shape: [^{]*(?P<second>\{.*?\})", explain.shapes_that_do_not_fit),
    _entry(r"input dimensions must be equal, but got (?P<first>'x1_col': \d+) and (?P<second>'x2_row': \d+)",
           explain.shapes_that_do_not_fit),
    _entry(r"the type of 'x2' should be same as 'x1', but got 'x1' with type (?P<first>\S+) and 'x2' with type "
           r"(?P<second>[^.\s]+)", explain.mixed_types),
    _entry(r"Stage num is (?P<stages>\d+) (?:which )?is not equal to stage used: (?P<used>\d+)",
           explain.stage_without_layers),
    _entry(r"PreNode's stage:(?P<before>\d+) is larger than NextNode's stage:(?P<after>\d+)", explain.stages_backwards),
    _entry(r"The size of micro_batch must be greater than or equal to stage_num", explain.too_few_micro_batches),
    _entry(r"batch data must be split into micro batch along one dimension", explain.too_few_micro_batches),
    _entry(r"dimension shape of input\((?P<rows>\d+)\) must be divided by micro size\((?P<count>\d+)\)",
           explain.batch_over_micro_batches),
    _entry(r"For optimizer level 2/3, only support with lazy_inline", explain.shard_level_needs_shared_layers),
    _entry(r"with interleave, should enable lazy_inline", explain.interleave_needs_shared_layers),
    _entry(r"pointer\[grad_accu\] is null", explain.accumulation_is_missing),
    _entry(r"optimizer_weight_shard_size (?P<size>\d+) should not exceed the device num (?P<devices>\d+)",
           explain.shard_larger_than_devices),
    _entry(r"json\.exception\.\w+|CheckPoint file is not found|Load strategy checkpoint failed",
           explain.unreadable_strategies),
    _entry(r"Can not find the loss cnode", explain.no_scalar_loss),
)  # fmt: skip
"""Words of MindSpore -> who explains them; the first entry that is found counts."""

MINDFORMERS_TABLE: tuple[Entry, ...] = (
    _entry(r"num_attention_heads \((?P<number>\d+)\) must be a multiple of tensor_model_parallel_size "
           r"\((?P<pieces>\d+)\)", explain.uneven_cut),
    _entry(r"got kv_num_heads is (?P<number>\d+), tensor_parallel is (?P<pieces>\d+)", explain.uneven_cut),
    _entry(r"numerator\((?P<number>\d+)\) is not divisible by denominator\((?P<pieces>\d+)\)", explain.uneven_cut),
    _entry(r"^(?P<number>\d+) is not divisible by (?P<pieces>\d+)", explain.uneven_cut),
    _entry(r"total_model_size\((?P<stated>\d+)\).*not equal to world_size \((?P<devices>\d+)\)",
           explain.device_number_of_the_launch),
    _entry(r"sum of `offset` \(|offset.shape\[-1\] should equal", mindformers.layers_of_stages),
    _entry(r"data_parallel (?P<degree>\d+) should be equal to dataset_strategy\[0\]\[0\] (?P<rows>\d+)",
           mindformers.batch_cut_otherwise),
    _entry(r"The config '(?P<section>\w+)' gets an unexpected key: (?P<key>[^'\"]+)", mindformers.unknown_key),
    _entry(r"The config '(?P<section>\w+)' is missing a required key: (?P<key>\w+)", mindformers.missing_key),
    _entry(r"is mapped by multiple source keys: (?P<names>\[.*?\]) current convert is (?P<key>\w+):",
           mindformers.one_thing_twice),
)  # fmt: skip
"""The same for what MindFormers checks before MindSpore is asked."""

SPEAKERS = {"MindSpore": TABLE, "MindFormers": MINDFORMERS_TABLE}
