"""Published runs as rows of a table, for tests."""

from __future__ import annotations

import csv
from pathlib import Path

from msparallel.planner.measured.cases import COLUMNS

LLAMA = {
    "source": "Ascend/MindSpeed-LLM branch 1.0.0 tests", "model": "llama2_tp2_pp4_vpp2_ptd", "profile": "atlas-900-a2",
    "device_count": "8", "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32", "ffn": "11008",
    "seq_len": "4096", "micro_batch": "1", "global_batch": "32", "dp": "1", "tp": "2", "pp": "4", "vpp": "4",
    "cp": "1", "ep": "1", "sequence_parallel": "yes", "recompute": "full/block/1", "zero": "0", "dtype": "bf16",
    "measured_metric": "memory_GiB", "component": "static", "value": "14.830",
    "value_by_rank": "14.799 14.799 13.731 13.731 13.731 13.731 14.830 14.830", "trust": "clean",
    "flags": "overlap-grad-reduce untie-embeddings-and-output-weights use-flash-attn swiglu",
}  # fmt: skip

MINDSPEED = "Ascend/MindSpeed-LLM branch {} tests/"
"""Baselines of its continuous integration: memory allocated after the first steps, GiB, and its scripts."""
STATIC = {
    "llama2_tp1_pp8_patch_gloo_ptd": (
        "2.0.0", {"pp": "8", "tp": "1", "vpp": "1", "global_batch": "1", "zero": "1", "recompute": "none"},
        "15.772 13.638 13.638 13.638 13.638 13.638 13.638 15.835",
    ),
    "llama2_tp2_pp4_vpp2_legacy": (
        "2.0.0", {"layers": "16", "vpp": "2", "global_batch": "16"},
        "8.010 8.010 6.942 6.942 6.942 6.942 8.041 8.041",
    ),
    "llama2_tp2_pp4_vpp2_swap": (
        "2.0.0", {"zero": "1", "flags": LLAMA["flags"] + " reuse-fp32-param swap-attention"},
        "13.169 13.169 12.224 12.224 12.224 12.224 13.200 13.200",
    ),
    "qwen15_7b_legacy_tp8_pp1_ptd": (
        "2.0.0", {"tp": "8", "pp": "1", "vpp": "1", "vocab": "151936", "seq_len": "8192", "micro_batch": "2",
                  "global_batch": "64", "recompute": "none"}, "18.310",
    ),
    "chatglm3_tp1_pp2_legacy": (
        "1.0.0", {"layers": "28", "kv_heads": "2", "ffn": "13696", "seq_len": "8192", "global_batch": "128", "dp": "4",
                  "tp": "1", "pp": "2", "vpp": "1", "zero": "1", "dtype": "fp16", "recompute": "none"},
        "24.134 24.259",
    ),
    "baichuan2_13b_tp8_pp1_mcore": (
        "2.0.0", {"layers": "2", "hidden": "5120", "heads": "40", "kv_heads": "40", "ffn": "13696", "tp": "8",
                  "pp": "1", "vpp": "1", "micro_batch": "2", "global_batch": "128", "recompute": "none"}, "4.757",
    ),
    "mixtral_tp1_pp4_ep2_drop_mcore": (
        "2.0.0", {"layers": "6", "kv_heads": "8", "ffn": "14336", "global_batch": "16", "dp": "2", "tp": "1",
                  "vpp": "1", "ep": "2", "zero": "1", "recompute": "none", "num_experts": "8", "top_k": "2",
                  "flags": LLAMA["flags"] + " num-layer-list=1,2,2,1"}, "13.751 24.630 24.630 13.813",
    ),
}  # fmt: skip
B200 = {
    "source": "MooreThreads/SimuMax docs/b200", "model": "llama3_70b", "profile": "b200-sxm", "layers": "12",
    "hidden": "8192", "heads": "64", "kv_heads": "8", "ffn": "28672", "vocab": "128256", "recompute": "none",
    "zero": "1", "component": "peak", "value_by_rank": "", "vpp": "1", "device_count": "8", "flags": "",
}  # fmt: skip
PEAKS = (
    ({"dp": "4", "tp": "1", "pp": "2", "global_batch": "16"}, "66.55"),
    ({"dp": "2", "tp": "4", "pp": "1", "global_batch": "8"}, "39.07"),
    ({"dp": "1", "tp": "8", "pp": "1", "global_batch": "8"}, "28.29"),
    ({"dp": "1", "tp": "1", "pp": "1", "cp": "8", "seq_len": "131072", "global_batch": "4"}, "147.99"),
)
"""Peaks of Megatron-LM that SimuMax measured on a node of eight B200, GiB."""


def static_row(name: str) -> dict[str, str]:
    branch, changes, values = STATIC[name]
    value = max(values.split(), key=float)
    row = {**LLAMA, "source": MINDSPEED.format(branch), "model": name, "device_count": "8"}
    return {**row, **changes, "value_by_rank": values, "value": value}


def written(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path
