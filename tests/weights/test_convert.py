"""Weights keep every bit through every form: Hugging Face, whole checkpoints, slices of any plan."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from msparallel.cli.main import main
from msparallel.errors import UserError
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.weights.checkpoint import TrainedCheckpoint, shape_of_checkpoint
from msparallel.weights.fresh_folder import fresh_folder
from msparallel.weights.hugging_face import HuggingFaceFolder
from msparallel.weights.source import open_weights, read_finite
from msparallel.weights.tensor_file import TensorFile
from msparallel.weights.to_checkpoint import to_checkpoint
from msparallel.weights.to_hugging_face import to_hugging_face
from msparallel.weights.write_tensors import Planned, write_tensors

pytestmark = pytest.mark.pure
FOLDER = Path(__file__).parents[1] / "fixtures" / "generation"
MODELS = ("qwen3", "llama", "qwen2", "qwen3_moe")
RECIPE = """
model: {{num_layers: 2, hidden_size: 32, num_heads: 4, num_kv_heads: 2, ffn_size: 64, vocab_size: 259,
         vocab_multiple: 64, attention: plain, {more}}}
parallel: {{{parallel}}}
data: {{}}
optimizer: {{}}
train: {{micro_batch_size: 1, seq_length: 32, steps: 5, global_batch_size: 8}}
{cluster}
"""
MORE = {
    "qwen3": "head_dim: 16, qk_norm: true, tie_embeddings: true, rope_theta: 1000000.0, max_positions: 256",
    "llama": "norm_eps: 1.0e-5, max_positions: 256",
    "qwen2": "attention_bias: true, rope_theta: 1000000.0, max_positions: 256",
    "qwen3_moe": "head_dim: 16, qk_norm: true, rope_theta: 1000000.0, max_positions: 256, num_experts: 6, "
                 "experts_per_token: 2, expert_ffn_size: 24",
}  # fmt: skip
ENGINE = "cluster: {hardware: atlas_800t_a2}"
PLANS = {
    "one": ("mode: stand_alone", ""),
    "dp2_tp2_pp2": ("mode: semi_auto_parallel, data_parallel: 2, model_parallel: 2, pipeline_stages: 2, "
                    "micro_batch_num: 4", ENGINE),
    "dp8_shard": ("mode: semi_auto_parallel, data_parallel: 8, optimizer_shard: true, "
                  "optimizer_shard_threshold_kib: 0", ENGINE),
    "dp4_tp2_whole_vocabulary": ("mode: semi_auto_parallel, data_parallel: 4, model_parallel: 2, "
                                 "vocab_parallel: false", ENGINE),
}  # fmt: skip


def plan_of(tmp_path, model: str, name: str):
    parallel, cluster = PLANS[name]
    if model == "qwen3_moe" and name == "dp2_tp2_pp2":
        parallel += ", expert_parallel: 2"
    path = tmp_path / f"{model}_{name}.yaml"
    path.write_text(RECIPE.format(more=MORE[model], parallel=parallel, cluster=cluster))
    return resolve(load_recipe(str(path)))


def weights(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= {name: (str(value.dtype), value.shape, value.tobytes()) for name, value in load_file(path).items()}
    return found


CASES = [(model, plan) for model in MODELS for plan in PLANS if (model, plan) != ("qwen3", "dp2_tp2_pp2")]
"""A tied head cannot be cut into stages."""


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_hugging_face_to_any_plan_and_back(tmp_path, model, plan):
    with HuggingFaceFolder.open(FOLDER / model) as folder:
        step = to_checkpoint(folder, plan_of(tmp_path, model, plan), tmp_path / "checkpoints")
    assert step.name == "step_000000"
    with TrainedCheckpoint.open(step) as trained:
        to_hugging_face(trained, shape_of_checkpoint(trained), tmp_path / "hf", most_bytes=60_000)
    assert weights(tmp_path / "hf") == weights(FOLDER / model)
    with HuggingFaceFolder.open(tmp_path / "hf") as again, HuggingFaceFolder.open(FOLDER / model) as first:
        assert again.shape == first.shape


def test_a_single_file_comes_back_as_the_same_bytes(tmp_path):
    with HuggingFaceFolder.open(FOLDER / "qwen3") as folder:
        step = to_checkpoint(folder, plan_of(tmp_path, "qwen3", "dp8_shard"), tmp_path / "checkpoints")
    with TrainedCheckpoint.open(step) as trained:
        to_hugging_face(trained, shape_of_checkpoint(trained), tmp_path / "hf")
    digests = {hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
               for folder in (tmp_path / "hf", FOLDER / "qwen3")}  # fmt: skip
    assert len(digests) == 1


def test_bfloat16_stands_in_float32_and_comes_back(tmp_path):
    source = tmp_path / "bf16"
    source.mkdir()
    (source / "config.json").write_bytes((FOLDER / "qwen3" / "config.json").read_bytes())
    with TensorFile(FOLDER / "qwen3" / "model.safetensors") as file:
        planned = [Planned(name, "BF16", file.shape(name), lambda name=name: file.read(name)) for name in file.names()]
        write_tensors(source / "model.safetensors", planned)
    with HuggingFaceFolder.open(source) as folder:
        step = to_checkpoint(folder, plan_of(tmp_path, "qwen3", "dp8_shard"), tmp_path / "checkpoints")
    with TrainedCheckpoint.open(step) as trained:
        to_hugging_face(trained, shape_of_checkpoint(trained), tmp_path / "hf", dtype="bfloat16")
    assert (tmp_path / "hf" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def _trained(tmp_path, model="llama", plan="one"):
    """A checkpoint with moments that are not zero, step 3."""
    with HuggingFaceFolder.open(FOLDER / model) as folder:
        step = to_checkpoint(folder, plan_of(tmp_path, model, plan), tmp_path / "source")
    values = load_file(step / "optimizer.safetensors")
    rng = np.random.default_rng(5)
    planned = [Planned(name, "I32" if name == "global_step" else "F32", value.shape,
                       lambda value=value: np.full(1, 3, np.int32) if value.dtype == np.int32 else
                       rng.standard_normal(value.shape).astype(np.float32))
               for name, value in values.items()]  # fmt: skip
    digest = write_tensors(step / "optimizer.safetensors", planned)
    state = json.loads((step / "state.json").read_text())
    state["step"], state["files"]["optimizer.safetensors"]["sha256"] = 3, digest
    (step / "state.json").write_text(json.dumps(state))
    return step.rename(step.with_name("step_000003"))


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "one"])
@pytest.mark.parametrize("model", ["llama", "qwen3_moe"])
def test_a_checkpoint_moves_from_plan_to_plan_with_its_optimizer(tmp_path, model, plan):
    first = _trained(tmp_path, model)
    kinds = ("model", "optimizer")
    with TrainedCheckpoint.open(first, kinds) as source:
        cut = to_checkpoint(source, plan_of(tmp_path, model, plan), tmp_path / "cut")
        state = source.state
    assert cut.name == "step_000003" and len(list(cut.glob("rank_*"))) == 8
    with TrainedCheckpoint.open(cut, kinds) as source:
        assert {key: value for key, value in source.state.items() if key not in ("cutting", "recipe")} == {
            key: value for key, value in state.items() if key not in ("cutting", "recipe")
        }
        back = to_checkpoint(source, plan_of(tmp_path, model, "one"), tmp_path / "back")
    for kind in kinds:
        before, after = load_file(first / f"{kind}.safetensors"), load_file(back / f"{kind}.safetensors")
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def test_slices_are_those_that_the_planner_says(tmp_path):
    from msparallel.planner.shards import predict_shards

    plan = plan_of(tmp_path, "llama", "dp8_shard")
    with HuggingFaceFolder.open(FOLDER / "llama") as folder:
        step = to_checkpoint(folder, plan, tmp_path / "checkpoints")
        whole = folder.read("model.layers.1.mlp.down_proj.weight")
    for rank in range(8):
        part = predict_shards(plan, rank)["model.layers.1.mlp.down_proj.weight"].part
        held = load_file(step / f"rank_{rank:04d}" / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
        np.testing.assert_array_equal(held, whole[tuple(slice(*bound) for bound in part.bounds)])


def run(*words: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["convert", *words])
    told = capsys.readouterr()
    return end.value.code or 0, told.out, told.err


def test_the_verb_says_what_it_wrote_and_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan_of(tmp_path, "llama", "dp8_shard")
    code, out, _ = run(str(FOLDER / "llama"), "--to", "llama_dp8_shard.yaml", capsys=capsys)
    assert code == 0 and out == ("Written to output/llama_dp8_shard/checkpoints/step_000000.\n"
                                 "Next: msparallel run llama_dp8_shard.yaml\n")  # fmt: skip
    code, out, _ = run("output/llama_dp8_shard", "--to", "hugging-face", "-o", "hf", "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["written"] == "hf" and weights(Path("hf")) == weights(FOLDER / "llama")
    code, _, err = run("output/llama_dp8_shard", "--to", "hugging-face", "-o", "hf", capsys=capsys)
    assert code == 2 and "It holds something already" in err
    code, _, err = run(str(FOLDER / "llama"), "--to", "llama_dp8_shard.yaml", capsys=capsys)
    assert code == 2 and "It is there already" in err


@pytest.mark.parametrize(("words", "told"), [
    (["nowhere", "--to", "hugging-face", "-o", "x"], "no Hugging Face folder"),
    ([str(FOLDER / "llama"), "--to", "hugging-face", "-o", "x"], "Hugging Face folder already"),
    ([str(FOLDER / "llama"), "--to", "hugging-face"], "needs -o FOLDER"),
    ([str(FOLDER / "llama"), "--to", "quickstart"], "model.hidden_size is 256 in the recipe and 32 there"),
    ([str(FOLDER / "llama"), "--to", "qwen3_8b_serve_tp1"], "has no `train` section"),
    ([str(FOLDER / "llama"), "--to", "quickstart", "--dtype", "bfloat16"], "a checkpoint has float32"),
    ([str(FOLDER / "llama"), "--to", "quickstart", "--max-shard-gb", "5"], "a checkpoint has two for each rank"),
    ([str(FOLDER / "llama"), "--to", "nothing_like_it"], "nothing_like_it"),
])  # fmt: skip
def test_what_cannot_be_converted_is_refused(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words, capsys=capsys)
    assert (code, out) == (2, "") and told in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [
    {"slice": [[0, 32]]}, {"slice": [[0, 5], [0, 32], [0, 1]]}, {"slice": [[0, 10**9], [0, 32]]}, {"slice": [[-5, 0]]},
    {"slice": 7}, {"slice": [[0]]}, {"shape": [32]}, {"shape": [1, 1]}, {"shape": "ab"}, {"shape": [float("inf")]},
    {"slice": None, "shape": None}, {"file": None, "slice": []},
])  # fmt: skip
def test_a_description_that_is_damaged_is_told(tmp_path, change):
    step = _trained(tmp_path)
    state = json.loads((step / "state.json").read_text())
    state["parameters"]["model.layers.0.self_attn.q_proj.weight"] |= change
    (step / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="description of model.layers.0.self_attn.q_proj.weight is damaged"):
        TrainedCheckpoint.open(step)


@pytest.mark.parametrize("target", ["llama_one.yaml", "hugging-face"])
def test_a_file_where_a_folder_is_to_be(tmp_path, monkeypatch, capsys, target):
    monkeypatch.chdir(tmp_path)
    step = _trained(tmp_path)
    Path("file").write_text("mine")
    code, out, err = run(str(step), "--to", target, "-o", "file/x", capsys=capsys)
    assert (code, out) == (1, "") and "It cannot be written: Not a directory" in err
    assert Path("file").read_text() == "mine"


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    step = _trained(tmp_path)
    code, _, err = run(str(step), "--to", "llama_one.yaml", "train.seed=9", "-o", "x", capsys=capsys)
    assert code == 2 and "train.seed: 1 in the checkpoint, 9 in the recipe" in err


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("target", ["llama_one.yaml", "hugging-face"])
def test_a_damaged_checkpoint_is_refused_and_gets_no_digest_of_its_own(tmp_path, monkeypatch, capsys, target, file):
    monkeypatch.chdir(tmp_path)
    step = _trained(tmp_path)
    content = bytearray((step / file).read_bytes())
    content[-5] ^= 1
    (step / file).write_bytes(content)
    code, out, err = run(str(step), "--to", target, "-o", "x", capsys=capsys)
    assert (code, out) == (2, "") and file in err and "another content than when it was written" in err
    assert not Path("x").exists()
    if file == "model.safetensors":
        shape = plan_of(tmp_path, "llama", "one").shape
        open_weights(str(step), shape)
        with pytest.raises(UserError, match="another content"):
            open_weights(str(step), shape, to_read=True)


def test_a_checkpoint_of_another_model_is_refused_with_every_number(tmp_path):
    other = plan_of(tmp_path, "qwen2", "one").shape
    with pytest.raises(UserError, match="model.head_dim is 8 in the recipe and 16 there") as told:
        open_weights(str(_trained(tmp_path, "qwen3")), other)
    assert "model.tie_embeddings is false in the recipe and true there" in str(told.value)


class _Wrong:
    def read(self, name, bounds=None, whole=None):
        return np.array([1.0, np.nan, np.inf, 2.0], np.float32)


def test_values_that_are_no_numbers_are_refused_by_name():
    with pytest.raises(UserError, match=r"model.norm.weight\n  2 of 4 values are NaN or infinite"):
        read_finite(_Wrong(), "model.norm.weight")


def test_integers_are_no_weights(tmp_path):
    folder = tmp_path / "quantised"
    folder.mkdir()
    (folder / "config.json").write_bytes((FOLDER / "llama" / "config.json").read_bytes())
    for path in (FOLDER / "llama").glob("*.safetensors*"):
        content = path.read_bytes()
        assert path.suffix == ".json" or b'"F32"' in content
        (folder / path.name).write_bytes(content.replace(b'"F32"', b'"I32"') if path.suffix != ".json" else content)
    with HuggingFaceFolder.open(folder) as opened, pytest.raises(UserError, match=r"dtype I32.*Quantised"):
        opened.read("model.norm.weight")


def test_folders_of_others_beside_the_target_stay(tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    host = socket.gethostname()
    mine = [tmp_path / "x.partial", tmp_path / f".x.{host}-{os.getppid()}.partial", tmp_path / ".x.other-1.partial",
            tmp_path / f".x.{host}-words.partial"]  # fmt: skip
    killed = tmp_path / f".x.{host}-{int(ended.stdout)}.partial"
    for folder in (*mine, killed):
        folder.mkdir()
        (folder / "content").write_text("content")
    with fresh_folder(tmp_path / "x", 10) as partial:
        (partial / "new").write_text("new")
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x" / "new").read_text() == "new"
    assert all((folder / "content").exists() for folder in mine) and not killed.exists()
    assert len(list(tmp_path.iterdir())) == len(mine) + 1


def test_a_tokenizer_comes_along_to_where_a_run_will_be_and_takes_no_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan_of(tmp_path, "qwen2", "one")
    source = tmp_path / "source"
    source.mkdir()
    for path in (FOLDER / "qwen2").iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    (source / "tokenizer.json").write_text("theirs")
    (source / "generation_config.json").write_text("{}")
    assert run(str(source), "--to", "qwen2_one.yaml", capsys=capsys)[0] == 0
    made = Path("output/qwen2_one")
    assert (made / "tokenizer.json").read_text() == "theirs" and (made / "generation_config.json").exists()
    assert run(str(source), "--to", "qwen2_one.yaml", "train.output_dir=b", capsys=capsys)[0] == 0
    other = Path("c/qwen2_one")
    other.mkdir(parents=True)
    (other / "tokenizer.json").write_text("mine")
    assert run(str(source), "--to", "qwen2_one.yaml", "train.output_dir=c", capsys=capsys)[0] == 0
    assert (other / "tokenizer.json").read_text() == "mine" and not (other / "generation_config.json").exists()
