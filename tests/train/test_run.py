"""Whole runs on one process: what they write, and how they go on."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
import yaml
from tiny_recipe import arguments, environment, output, run, run_json, sections, write_recipe

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run: its folder and its result."""
    folder = tmp_path_factory.mktemp("reference")
    return folder, run_json(write_recipe(folder))


def test_a_run_learns_and_writes_what_it_says(reference):
    folder, result = reference
    assert len(result["losses"]) == 6 and result["losses"][-1] < result["losses"][0]
    assert [e["step"] for e in result["eval_losses"]] == [0, 3, 6]
    assert result["eval_losses"][-1]["loss"] < result["eval_losses"][0]["loss"]
    assert result["world_size"] == 1 and result["resumed_from"] is None and result["tokens_per_s"] > 0
    assert sorted(p.name for p in (output(folder) / "checkpoints").iterdir()) == ["step_000004", "step_000006"]
    assert (output(folder) / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (output(folder) / "tokenizer.json").exists()
    records = [json.loads(line) for line in (output(folder) / "log.jsonl").read_text().splitlines()]
    start = records[0]
    assert start["plan"]["world_size"] == 1 and len(start["corpus_sha256"]) == 64 and "mindspore" in start["versions"]
    trained = [record for record in records if record["event"] == "train"]
    assert [record["step"] for record in trained] == [1, 2, 3, 4, 5, 6]
    assert all(record["grad_norm"] > 0 and record["tokens_per_s"] > 0 for record in trained)
    assert [round(record["learning_rate"], 6) for record in trained[:2]] == [0.005, 0.01]
    assert [record["loss"] for record in trained] == result["losses"]


def test_the_map_of_the_checkpoint_is_public_and_holds_the_padded_vocabulary(reference):
    folder, _ = reference
    state = json.loads((output(folder) / "checkpoints" / "step_000006" / "state.json").read_text())
    assert state["format"] == "msparallel-checkpoint" and state["version"] == 1 and state["step"] == 6
    assert state["parameters"]["model.embed_tokens.weight"]["shape"] == [320, 16]
    assert state["state"]["vocab_size"] == 300 and state["state"]["padded_vocab_size"] == 320
    assert state["state"]["cutting"]["parallel.data_parallel"] == 1
    assert {"epoch", "position", "seed", "fingerprint"} <= set(state["state"]["data"])


def test_a_finished_run_says_so_and_how_to_go_on(reference):
    folder, result = reference
    done = run("run", folder / "tiny.yaml")
    assert done.returncode == 0
    assert "already trained to step 6; nothing was done" in done.stdout and "train.steps=12" in done.stdout
    again = run_json(folder / "tiny.yaml")
    assert again["losses"] == result["losses"] and again["eval_losses"] == result["eval_losses"]
    assert again["resumed_from"] == 6


def test_killed_at_random_moments_and_resumed_it_is_the_same_run(reference, tmp_path):
    """SIGKILL during a step (by the log), during compilation and start-up (by the clock), then to the end."""
    _, expected = reference
    path = write_recipe(tmp_path)
    log = output(tmp_path) / "log.jsonl"
    for moment in ("step 3", "start-up", "step 5"):
        process = subprocess.Popen(
            arguments("run", path), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if moment == "start-up":
            time.sleep(1.5)
        else:
            waited = '"event": "train"', f'"step": {moment[-1]},'
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                lines = log.read_text().splitlines() if log.exists() else []
                if any(all(part in line for part in waited) for line in lines):
                    break
                time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    result = run_json(path)
    assert result["losses"] == expected["losses"]
    assert result["eval_losses"] == expected["eval_losses"]
    assert result["resumed_from"] in (2, 4, 6)


def test_a_truncated_checkpoint_gives_way_to_the_one_before(reference, tmp_path):
    _, expected = reference
    path = write_recipe(tmp_path)
    run_json(path)
    damaged = output(tmp_path) / "checkpoints" / "step_000006" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    done = run("run", path, "--json")
    assert done.returncode == 0 and "is damaged and not used: model.safetensors has" in done.stderr
    result = json.loads(done.stdout)
    assert result["resumed_from"] == 4 and result["losses"] == expected["losses"]


def test_more_steps_go_on_and_say_that_the_schedule_changed(reference, tmp_path):
    path = write_recipe(tmp_path, optimizer__schedule="constant")
    first = run_json(path)
    done = run("run", path, "train.steps=8", "--json")
    assert done.returncode == 0 and "train.steps: 6 in the checkpoint, 8 now" in done.stderr
    result = json.loads(done.stdout)
    assert result["resumed_from"] == 6 and result["losses"][:6] == first["losses"] and len(result["losses"]) == 8
    whole = write_recipe(tmp_path, name="whole", optimizer__schedule="constant", train__steps=8)
    assert run_json(whole)["losses"] == result["losses"]


@pytest.mark.parametrize(
    "override", ["train.seed=2", "model.ffn_size=48", "train.seq_length=32", "train.global_batch_size=8"]
)
def test_another_run_than_the_checkpoints_is_refused(reference, override):
    folder, _ = reference
    done = run("run", folder / "tiny.yaml", "train.steps=8", override)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{override.partition('=')[0]}: " in done.stderr and "--fresh" in done.stderr


def test_other_data_than_the_checkpoints_is_refused(reference):
    folder, _ = reference
    done = run("run", folder / "tiny.yaml", "train.steps=8", "data.eval_fraction=0.2")
    assert done.returncode == 2 and "trained on other data" in done.stderr and "eval_fraction" in done.stderr


def test_fresh_starts_over_and_deletes_nothing(reference, tmp_path):
    _, expected = reference
    path = write_recipe(tmp_path)
    run_json(path)
    done = run("run", path, "--fresh", "--json")
    assert done.returncode == 0 and "tiny.old1" in done.stderr
    assert json.loads(done.stdout)["losses"] == expected["losses"]
    assert (output(tmp_path, "tiny.old1") / "checkpoints" / "step_000006" / "state.json").exists()


def test_accumulation_gives_the_same_losses(reference, tmp_path):
    _, expected = reference
    result = run_json(write_recipe(tmp_path, train__micro_batch_size=1))
    assert result["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert [e["loss"] for e in result["eval_losses"]] == pytest.approx(
        [e["loss"] for e in expected["eval_losses"]], rel=1e-5
    )


def test_tensorboard_events(tmp_path):
    run_json(write_recipe(tmp_path, train__tensorboard=True, train__steps=4))
    assert list((output(tmp_path) / "tensorboard").glob("events.out.tfevents.*"))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    path = write_recipe(tmp_path, optimizer__learning_rate=1e30, optimizer__clip_norm=0, train__steps=6)
    done = run("run", path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "The loss of step" in done.stderr and "optimizer.learning_rate=" in done.stderr


BAD = {
    "empty corpus": ({"data__corpus": "empty.txt"}, "empty.txt"),
    "missing corpus": ({"data__corpus": "nothing.txt"}, "nothing.txt"),
    "unreadable tokenizer": ({"data__tokenizer": "tokenizer.json"}, "tokenizer.json"),
    "vocabulary too small": ({"data__tokenizer": "byte", "model__vocab_size": 200}, "model.vocab_size"),
    "sequence longer than the data": ({"train__seq_length": 1_000_000}, "seq_length"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_before_anything_starts(tmp_path, case):
    changes, named = BAD[case]
    changes = {k: str(tmp_path / v) if str(v).endswith((".txt", ".json")) else v for k, v in changes.items()}
    recipe = sections(tmp_path, model__max_positions=2_000_000, **changes)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "tokenizer.json").write_text("{not JSON")
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(recipe))
    done = run("run", path)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr and "Traceback" not in done.stderr
    assert not output(tmp_path, "bad").exists()
