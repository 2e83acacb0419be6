"""Rows of measurements as workloads: what is read, what is skipped, and that a bad cell costs its own row only."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_rows import LLAMA, written

from msparallel.errors import UserError
from msparallel.hardware import load_hardware
from msparallel.planner.measured.cases import COLUMNS, Case, read_cases
from msparallel.planner.measured.evaluate import evaluate
from msparallel.planner.measured.families import family_of
from msparallel.planner.stack import MINDFORMERS, MINDFORMERS_HALF, torchtitan

pytestmark = pytest.mark.pure

def read_one(tmp_path: Path, **changes: str) -> Case:
    cases, skipped = read_cases(written(tmp_path / "cases.csv", {**LLAMA, **changes}))
    assert not skipped, skipped
    return cases[0]


def reason(tmp_path: Path, **changes: str) -> str:
    cases, skipped = read_cases(written(tmp_path / "cases.csv", {**LLAMA, **changes}))
    assert not cases
    return skipped[0].reason


def test_a_row_says_what_was_run(tmp_path: Path) -> None:
    case = read_one(tmp_path)
    work = case.work
    assert (case.row, case.family, case.metric, case.hardware) == (2, "llama2", "model_state", "atlas_900_a2")
    assert str(work.mesh) == "pp4 x tp2 (8)" and work.virtual_stages == 4 and work.stage_layers == (2,) * 16
    assert (work.micro_batch_size, work.micro_batch_num, work.global_batch_size) == (1, 32, 32)
    assert work.shape.vocab_size == 32000 and not work.shape.tie_embeddings and work.sequence_parallel
    assert case.value_by_stage == (14.799, 13.731, 13.731, 14.830)
    assert case.is_dense and case.plain and work.overlap_gradients and not work.overlap_tensor


@pytest.mark.parametrize(
    ("written_as", "flags", "kind", "layers"),
    [
        ("none", "", "none", None),
        ("none (scripts: --recompute-num-layers 0)", "", "none", None),
        ("activation_function", "", "none", None),
        ("full", "", "full", None),
        ("full AC", "", "full", None),
        ("full/uniform/1", "", "full", None),
        ("full/block/1", "", "full", (4, 4, 4, 4)),
        ("full/block/1", "enable-recompute-layers-per-pp-rank", "full", (1, 1, 1, 1)),
        ("full/block/70", "", "full", (8, 8, 8, 8)),
        ("full per-stage [8, 8, 3, 0]", "", "full", (8, 8, 3, 0)),
        ("select [8, 4, 4, 1]", "", "selective", (8, 4, 4, 1)),
        ("selective", "", "selective", None),
    ],
)
def test_recompute_is_read_in_all_its_spellings(tmp_path, written_as, flags, kind, layers) -> None:
    work = read_one(tmp_path, recompute=written_as, flags=flags).work
    assert (work.recompute, work.recomputed_layers) == (kind, layers)


def test_layers_of_stages(tmp_path: Path) -> None:
    plain = {"vpp": "1", "recompute": "none"}
    assert read_one(tmp_path, **plain, flags="num-layer-list=7,8,8,9").work.stage_layers == (7, 8, 8, 9)
    assert read_one(tmp_path, **plain, notes="offset=[-1, 0, 0, 1]").work.stage_layers == (7, 8, 8, 9)
    assert read_one(tmp_path, **plain, flags="noop-layers=0,31").work.stage_layers == (7, 8, 8, 7)
    assert "no whole numbers" in reason(tmp_path, **plain, flags="num-layer-list")
    assert "30 layers in 4 groups" in reason(tmp_path, **plain, layers="30")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trust": "suspect"}, "trust: suspect"),
        ({"trust": "dryrun"}, "trust: dryrun"),
        ({"model": "deepseek_v3_mcore"}, "feature: multi-head latent attention (MLA)"),
        ({"model": "tune_llama2_tp1_pp1_lora_ptd"}, "feature: low-rank adapters (LoRA)"),
        ({"model": "dpo_qwen3_8b_tp2"}, "feature: a second model beside the trained one"),
        ({"flags": "swap-optimizer"}, "feature: state that is kept on the host"),
        ({"model": "mamba2_2.7b"}, "feature: state-space or linear attention layers"),
        ({"measured_metric": "mfu", "dtype": "bf16+fp8"}, "feature: matrix products in 8 bits (fp8)"),
        ({"measured_metric": "mfu", "profile": "unknown-ascend"}, "hardware: unknown-ascend has no profile"),
        ({"measured_metric": "mfu", "profile": ""}, "column profile: empty"),
        ({"measured_metric": "watts"}, "column measured_metric: 'watts'"),
        ({"component": "activations"}, "column component: 'activations'"),
        ({"layers": "many"}, "column layers: 'many' is no whole number"),
        ({"layers": "0"}, "column layers: 0 must be at least 1"),
        ({"value": "fast"}, "column value: 'fast' is no number"),
        ({"value": "-3"}, "column value: -3 must be from 1e-6 to 1e12"),
        ({"value_by_rank": "1 2 3"}, "column value_by_rank: 3 values for 4 stages"),
        ({"micro_batch": ""}, "column micro_batch: empty"),
        ({"vpp": ""}, "column vpp: empty"),
        ({"device_count": "16"}, "column device_count: 16, but the degrees are for pp4 x tp2 (8)"),
        ({"global_batch": "33", "dp": "2", "device_count": "16"}, "column global_batch: 33"),
        ({"recompute": "select per-stage e.g. [20,8]/[20,0]"}, "column recompute:"),
        ({"model": "nameless", "vocab": ""}, "column vocab: empty"),
        ({"tp": "3", "device_count": ""}, "column tp: 32 heads cannot be cut over 3 devices"),
        ({"ep": "2"}, "column ep: 2 for 0 experts on 2 devices of a stage"),
        ({"dp": "1000000", "device_count": "", "global_batch": "1000000"}, "columns dp, tp, pp, cp: 8000000 devices"),
        ({"pp": "64", "device_count": "", "value_by_rank": ""}, "column layers: 32 layers in 256 groups"),
        ({"hidden": "4097"}, "column heads: 4097 (hidden) is no multiple of 32"),
        ({"kv_heads": "1000"}, "column kv_heads: 32 (heads) is no multiple of 1000"),
        ({"value": "inf"}, "column value: inf must be from 1e-6"),
        ({"value_by_rank": "1 nan 3 4"}, "column value_by_rank: 1 nan 3 4 must be from 1e-6"),
        ({"value": "1e-320"}, "column value: 1e-320 must be from 1e-6"),
        ({"measured_metric": "mfu", "value": "0.4", "profile": "atlas-800-a1"}, "hardware: atlas_800_a1 does not mul"),
        ({"zero": "4"}, "column zero: '4' is none of 0, 1, 2, 3"),
        ({"zero": "1e3"}, "column zero: '1e3' is none of 0, 1, 2, 3"),
        ({"zero": "2.5"}, "column zero: '2.5' is none of 0, 1, 2, 3"),
        ({"sequence_parallel": "maybe"}, "column sequence_parallel: 'maybe' is neither yes nor no"),
        ({"num_experts": "8", "top_k": "9"}, "column top_k: 9 of 8 experts"),
        ({"recompute": "full per-stage [1, , 2]"}, "column recompute: '1, , 2' are no whole numbers"),
        ({"flags": "kv-channels=²"}, "flag kv-channels: '²' are no whole numbers"),
        ({"flags": "kv-channels=0"}, "flag kv-channels: 0 is no width of a head"),
        ({"flags": "kv-channels=128,128"}, "flag kv-channels: 128,128 is no width of a head"),
        ({"flags": "num-layer-list=2,2,x"}, "flag num-layer-list: '2,2,x' are no whole numbers"),
        ({"flags": "noop-layers=x"}, "flag noop-layers: 'x' are no whole numbers"),
        ({"flags": "noop-layers=32"}, "flag noop-layers: layer 32 of 32"),
        ({"notes": "offset=[1-2]"}, "offset: '1-2' are no whole numbers"),
    ],
)
def test_a_row_that_cannot_be_used_names_rule_and_column(tmp_path, changes, told) -> None:
    assert reason(tmp_path, **changes).startswith(told)


def test_a_bad_cell_costs_its_own_row_only(tmp_path: Path) -> None:
    cases, skipped = read_cases(written(tmp_path / "c.csv", {**LLAMA, "heads": "x"}, LLAMA, {**LLAMA, "tp": "x"}))
    assert [case.row for case in cases] == [3]
    assert [(row.row, row.reason.split(":")[0]) for row in skipped] == [(2, "column heads"), (4, "column tp")]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda head, body: f"{head},layers\n{body},999\n", "names column layers twice"),
        (lambda head, body: f"{head};\n{body}".replace(",", ";"), "parted by ';'"),
        (lambda head, body: f"{head}\n{body}".replace(",", "\t"), "parted by '\\t'"),
        (lambda head, body: f'{head}\n"{body}\n', "line 2 or below it is no CSV"),
        (lambda head, body: f"{head}\n{'x' * 200_000},{body}\n", "field limit"),
        (lambda head, body: "\n\n", "names none of the columns"),
        (lambda head, body: "", "names none of the columns"),
    ],
)
def test_a_file_that_is_no_table_is_told(tmp_path: Path, change, told: str) -> None:
    path = written(tmp_path / "c.csv", LLAMA)
    csv.field_size_limit(2**17)  # Python's own; an imported library may have raised it
    head, body = path.read_text().strip().split("\n")
    path.write_text(change(head, body))
    with pytest.raises(UserError, match=r"c\.csv: ") as caught:
        read_cases(path)
    assert told in str(caught.value)


def test_a_table_is_read_however_its_lines_end_and_begin(tmp_path: Path) -> None:
    path = written(tmp_path / "c.csv", LLAMA)
    csv.field_size_limit(2**17)  # Python's own; an imported library may have raised it
    head, body = path.read_text().strip().split("\n")
    for text in (f"\ufeff{head}\n{body}", f"{head}\r\n{body}\r\n", f"{head}\n\n{body}\n\n",
                 f"{head.replace(',', ' , ')}\n{body},stray,cells\n"):  # fmt: skip
        path.write_bytes(text.encode())
        cases, skipped = read_cases(path)
        assert len(cases) == 1 and not skipped
    path.write_text(head + "\n")
    assert read_cases(path) == ([], [])


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(COLUMNS),
        st.sampled_from(
            ["", "x", "-1", "0", "1", "2", "3", "64", "1e9", "nan", "1.5", "½", "²", "[2, 2]", "[ , ]", "[1-2]", "2="]
            + [f"{flag}={value}" for flag in ("kv-channels", "noop-layers", "num-layer-list") for value in "0²,"]
            + ["offset=[,]", "offset=[1-2]", "full/block/0", "1(weight_shard_size=0)"]
        )
        | st.text(max_size=8),
        max_size=4,
    )
)
def test_no_cell_breaks_the_evaluation(changes: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        found = evaluate(written(Path(folder) / "c.csv", {**LLAMA, **changes}, LLAMA))
    assert [row.case.row for row in found.rows][-1] > 2 and len(found.rows) + len(found.skipped) == 2
    json.dumps(found.to_json(), allow_nan=False)


def test_what_a_family_knows_stands_in_for_empty_cells(tmp_path: Path) -> None:
    mixtral = {"model": "mixtral-8x7b", "num_experts": "", "top_k": "", "ffn": "14336", "ep": "2"}
    shape = read_one(tmp_path, **mixtral).work.shape
    assert (shape.num_experts, shape.experts_per_token, shape.expert_ffn_size) == (8, 2, 14336)
    shape = read_one(tmp_path, model="Qwen3-30B-A3B", num_experts="64", top_k="4", ffn="6144").work.shape
    assert (shape.num_experts, shape.experts_per_token, shape.expert_ffn_size) == (64, 4, 768)


def test_a_missing_column_is_named_where_a_row_needs_it(tmp_path: Path) -> None:
    without = tuple(column for column in COLUMNS if column != "ffn")
    _, skipped = read_cases(written(tmp_path / "c.csv", LLAMA, columns=without))
    assert skipped[0].reason == "column ffn: not in the file"
    cases, _ = read_cases(written(tmp_path / "d.csv", LLAMA, columns=tuple(c for c in COLUMNS if c != "vocab")))
    assert cases[0].work.shape.vocab_size == 32000


def test_a_file_that_is_no_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_cases(tmp_path / "absent.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="names none of the columns"):
        read_cases(tmp_path / "other.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match="not a text file"):
        read_cases(tmp_path / "bytes.csv")


def test_rates_become_seconds_of_a_step(tmp_path: Path) -> None:
    time = {"value_by_rank": "", "component": ""}
    rate = read_one(tmp_path, **time, measured_metric="tokens_per_s_per_device", value="2048")
    assert rate.measured_s == pytest.approx(32 * 4096 / 8 / 2048)
    tflops = read_one(tmp_path, **time, measured_metric="tflops_per_device", value="100")
    layer = 8 * 4096**2 + 6 * 4096 * 11008
    whole = 32 * 4096 * 3 * (32 * (layer + 4 * 4096 * 4096) + 2 * 4096 * 32000)
    assert tflops.measured_s == pytest.approx(whole / 8 / 1e14)
    newer = {"measured_metric": "tflops_per_device", "source": "Ascend/MindSpeed-LLM branch master x"}
    half = 32 * 4096 * 3 * (32 * (layer + 2 * 4096 * 4096) + 2 * 4096 * 32000)
    assert read_one(tmp_path, **time, **newer, value="100").measured_s == pytest.approx(half / 8 / 1e14)
    mfu = read_one(tmp_path, **time, measured_metric="mfu", value="0.5")
    peak = load_hardware("atlas_900_a2").matrix.tflops["bfloat16"] * 1e12
    assert mfu.measured_s == pytest.approx(whole / 8 / (0.5 * peak))
    assert read_one(tmp_path, **time, measured_metric="step_time_s", value="7.5").measured_s == 7.5


def test_a_rate_beyond_the_peak_is_no_measurement_of_the_device(tmp_path: Path) -> None:
    rate = {"value_by_rank": "", "component": "", "measured_metric": "tokens_per_s_per_device"}
    layer = 8 * 4096**2 + 6 * 4096 * 11008 + 2 * 4096 * 4096
    token_flops = 3 * (32 * layer + 2 * 4096 * 32000)
    most = load_hardware("atlas_900_a2").matrix.tflops["bfloat16"] * 1e12 / token_flops
    assert read_one(tmp_path, **rate, value=f"{most * 0.999}").tflops == pytest.approx(353.9 * 0.999)
    assert reason(tmp_path, **rate, value=f"{most * 1.01}") == "rate: 357 TFLOP/s a device, more than its peak, 353.9"


def test_stacks_follow_source_and_flags(tmp_path: Path) -> None:
    simple = {"pp": "1", "vpp": "1", "dp": "4", "recompute": "none", "value_by_rank": ""}
    assert read_one(tmp_path, **simple, source="mindformers HEAD").work.stack is MINDFORMERS
    notes = "yaml: fine_grain_interleave=2 param_init=bfloat16"
    halves = read_one(tmp_path, **simple, source="mindformers HEAD", notes=notes).work
    assert not halves.overlap_tensor and halves.stack is MINDFORMERS_HALF
    titan = read_one(tmp_path, **simple, source="pytorch/torchtitan x", zero="3(FSDP2)").work
    assert titan.stack == torchtitan() and titan.optimizer_shard == "level3" and titan.sequence_parallel
    fused = read_one(tmp_path, **simple, source="pytorch/torchtitan x", zero="3(FSDP2)", notes="2D + Async TP").work
    assert fused.overlap_tensor and not fused.stack.keeps_gathered
    te = read_one(tmp_path, **simple, source="MooreThreads/SimuMax docs").work.stack
    assert te.transformer_engine and te.optimizer_bytes == 12
    fp16 = read_one(tmp_path, **simple, dtype="fp16").work.stack
    assert (fp16.weight_bytes, fp16.gradient_bytes, fp16.optimizer_bytes) == (2, 2, 16)
    less = "o2-optimizer o2-gradient reuse-fp32-param"
    old = read_one(tmp_path, **simple, flags=less, source="Ascend/MindSpeed-LLM branch 2.0.0 t").work.stack
    new = read_one(tmp_path, **simple, flags=less, source="Ascend/MindSpeed-LLM master t").work.stack
    assert (old.gradient_bytes, old.optimizer_bytes) == (2, 6) and (new.gradient_bytes, new.optimizer_bytes) == (4, 6)


@pytest.mark.parametrize(
    ("model", "name", "vocab"),
    [
        ("LLaMA 33B", "llama", 32000),
        ("llama3_1_8b", "llama3", 128256),
        ("glm3_6b_32k", "chatglm", 65024),
        ("Qwen2 72B 4K", "qwen2", 152064),
        ("qwen15_7b_legacy_tp8_pp1_ptd", "qwen1.5", 151936),
        ("deepseek-33b", "deepseek", 32256),
        ("Gemma 2B", "gemma", 256000),
        ("never-heard-of 3B", "never", 0),
    ],
)
def test_families_by_name(model: str, name: str, vocab: int) -> None:
    assert (family_of(model).name, family_of(model).vocab_size) == (name, vocab)
