"""Real reports from the field (../shared/data/bug_reports.csv): each is caught by a rule, or named as out of reach.

`CAUGHT`: row id -> the rule that catches it, on a recipe that shows the reported mistake. `OUT_OF_REACH` in
docs/out_of_reach.md: row id -> what else it takes. Every row is in exactly one of the two.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from msparallel.errors import RecipeError
from msparallel.recipe.load import load_text

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
REPORTS = ROOT.parent / "shared" / "data" / "bug_reports.csv"

TRAIN = "train: {global_batch_size: 64, micro_batch_size: 1, seq_length: 1024, dtype: bfloat16}\n"
CAUGHT = {
    # id: (rule, recipe)
    23: (
        "heads_over_model_parallel",  # 14 heads over 4
        "model: {preset: qwen2_0_5b}\nparallel: {mode: semi_auto_parallel, model_parallel: 4}\n"
        "serve: {weights: random}\ncluster: {hardware: atlas_800t_a2}\n",
    ),
    24: (
        "heads_over_model_parallel",  # 52 heads over 8
        "model: {num_layers: 60, hidden_size: 6656, num_heads: 52, ffn_size: 17920, vocab_size: 32000}\n"
        "parallel: {mode: semi_auto_parallel, model_parallel: 8}\n"
        "serve: {weights: random}\ncluster: {hardware: atlas_800t_a2}\n",
    ),
    49: (
        "layers_over_stages",  # layers not divisible by stages
        "model: {preset: qwen3_8b}\nparallel: {mode: semi_auto_parallel, pipeline_stages: 8}\n"
        + TRAIN + "cluster: {hardware: atlas_800t_a2}\n",
    ),
    50: (
        "layers_over_stages",  # 30 layers over 4 stages became 28 without a word
        "model: {preset: llama2_7b, num_layers: 30}\nparallel: {mode: semi_auto_parallel, pipeline_stages: 4}\n"
        + TRAIN + "cluster: {hardware: atlas_800t_a2}\n",
    ),
    51: (
        "micro_batches_fill_pipeline",  # the pipeline hangs with fewer micro-batches than stages
        "model: {preset: llama2_7b}\nparallel: {mode: semi_auto_parallel, pipeline_stages: 4}\n"
        "train: {global_batch_size: 2, micro_batch_size: 1, seq_length: 1024, dtype: bfloat16}\n"
        "cluster: {hardware: atlas_800t_a2}\n",
    ),
    52: (
        "auto_needs_devices",  # world size not divisible by the product of degrees
        "model: {preset: llama2_7b}\nparallel: {mode: semi_auto_parallel, data_parallel: auto, model_parallel: 4, "
        "pipeline_stages: 2}\n" + TRAIN + "cluster: {devices_per_node: 6, hardware: atlas_800t_a2}\n",
    ),
    54: (
        "degrees_match_devices",  # more ranks than visible devices
        "model: {preset: llama2_7b}\nparallel: {mode: semi_auto_parallel, data_parallel: 4, model_parallel: 2}\n"
        + TRAIN + "cluster: {devices_per_node: 4, hardware: atlas_800t_a2}\n",
    ),
    56: (
        "degrees_match_devices",  # two replicas of two devices each on two devices
        "model: {preset: qwen3_8b}\nparallel: {mode: semi_auto_parallel, data_parallel: 2, model_parallel: 2}\n"
        + TRAIN + "cluster: {devices_per_node: 2, hardware: atlas_800t_a2}\n",
    ),
    58: (
        "device_number_suits_mindspore",  # 7 devices with auto_parallel
        "model: {preset: gpt2_124m}\nparallel: {mode: auto_parallel, data_parallel: 7}\n"
        "train: {global_batch_size: 14, micro_batch_size: 1, seq_length: 1024, dtype: bfloat16}\n"
        "cluster: {hardware: atlas_800t_a2}\n",
    ),
    59: (
        "degrees_match_devices",  # the product of a strategy is not the number of devices
        "model: {preset: gpt2_124m}\nparallel: {mode: semi_auto_parallel, data_parallel: 2, model_parallel: 2}\n"
        + TRAIN + "cluster: {devices_per_node: 8, hardware: atlas_800t_a2}\n",
    ),
    64: (
        "device_number_suits_mindspore",  # 6 devices of a server
        "model: {preset: gpt2_124m}\nparallel: {mode: semi_auto_parallel, data_parallel: 6}\n"
        "train: {global_batch_size: 12, micro_batch_size: 1, seq_length: 1024, dtype: float16}\n"
        "cluster: {hardware: atlas_800_a1}\n",
    ),
    78: (
        "devices_over_expert_parallel",  # expert parallel size against card count
        "model: {preset: qwen3_30b_a3b}\nparallel: {mode: semi_auto_parallel, data_parallel: 16, expert_parallel: 32}\n"
        + TRAIN + "cluster: {hardware: atlas_900_a3}\n",
    ),
    88: (
        "degrees_match_devices",  # processes of all replicas (8) against world size (4)
        "model: {preset: llama2_7b}\nparallel: {mode: semi_auto_parallel, data_parallel: 2, model_parallel: 2, "
        "pipeline_stages: 2}\n" + TRAIN + "cluster: {devices_per_node: 4, hardware: atlas_800t_a2}\n",
    ),
}  # fmt: skip


def out_of_reach() -> dict[int, str]:
    """Row id -> reason, from the table in the docs."""
    text = (ROOT / "docs" / "out_of_reach.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return {int(number): reason for numbers, reason, _ in rows for number in numbers.split(",")}


@pytest.mark.parametrize("row", CAUGHT)
def test_report_is_caught(row: int) -> None:
    rule, text = CAUGHT[row]
    with pytest.raises(RecipeError) as caught:
        load_text(text, "r.yaml")
    assert rule in {problem.rule for problem in caught.value.problems}


@pytest.mark.skipif(not REPORTS.exists(), reason="the shared data folder is not here")
def test_every_report_is_caught_or_named_as_out_of_reach() -> None:
    with REPORTS.open(encoding="utf-8") as file:
        rows = {int(row["id"]) for row in csv.DictReader(file)}
    assert rows == CAUGHT.keys() | out_of_reach().keys()
    assert not CAUGHT.keys() & out_of_reach().keys()
