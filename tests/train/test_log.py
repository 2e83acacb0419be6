"""The log: what a kill may leave, and what a resumed run keeps."""

from __future__ import annotations

import json

import pytest

from msparallel.errors import RunError
from msparallel.train.log import RunLog, losses_of, perplexity, read_records

pytestmark = pytest.mark.pure


def write(path, steps, keep=0):
    log = RunLog(path, keep_steps=keep)
    log.append("start", recipe="r")
    for step in steps:
        log.train(step, losses=[float(step)], grad_norm=1.0)
        if step % 2 == 0:
            log.evaluation(step, step / 10)
    log.sync()
    return log


def test_records_come_back(tmp_path):
    log = write(tmp_path / "deep" / "log.jsonl", [1, 2, 3])
    assert log.losses == [1.0, 2.0, 3.0] and log.evaluations == [(2, 0.2)]
    records = read_records(log.path)
    assert [record["event"] for record in records] == ["start", "train", "train", "eval", "train"]
    assert records[3]["eval_perplexity"] == pytest.approx(perplexity(0.2))


def test_a_resumed_run_cuts_off_what_came_after_its_checkpoint(tmp_path):
    write(tmp_path / "log.jsonl", [1, 2, 3, 4]).close()
    log = write(tmp_path / "log.jsonl", [3, 4, 5], keep=2)
    assert log.losses == [1.0, 2.0, 3.0, 4.0, 5.0] and log.evaluations == [(2, 0.2), (4, 0.4)]
    steps = [record["step"] for record in read_records(log.path) if record["event"] == "train"]
    assert steps == [1, 2, 3, 4, 5]
    assert [record["event"] for record in read_records(log.path)].count("start") == 2


def test_a_run_without_a_checkpoint_starts_the_log_again(tmp_path):
    write(tmp_path / "log.jsonl", [1, 2, 3]).close()
    log = write(tmp_path / "log.jsonl", [1])
    assert log.losses == [1.0] and log.evaluations == []


def test_a_text_may_hold_any_character(tmp_path):
    log = write(tmp_path / "log.jsonl", [1])
    sample = "a\n\r\x0b\x1c\x85\u2028\u2029\u4f60"
    log.append("end", step=1, sample=sample)
    log.append("start", recipe="r")
    assert read_records(log.path)[-2]["sample"] == sample


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    log = write(tmp_path / "log.jsonl", [1, 2])
    log.append("end", step=2, sample="\u4f60\u597d")
    log.close()
    content = log.path.read_bytes()
    for length in range(len(content.splitlines(keepends=True)[0]), len(content)):
        log.path.write_bytes(content[:length])
        assert all(isinstance(record, dict) for record in read_records(log.path))


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    log = write(tmp_path / "log.jsonl", [1, 2])
    log.close()
    lines = log.path.read_text().splitlines()
    lines[1] = lines[1][:9]
    log.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"log\.jsonl:2"):
        read_records(log.path)


def test_losses_of_every_step_with_a_log_interval(tmp_path):
    log = RunLog(tmp_path / "log.jsonl", keep_steps=0)
    log.train(3, losses=[1.0, 2.0, 3.0])
    log.train(5, losses=[4.0, 5.0])
    assert log.losses == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert losses_of(read_records(log.path), 5) == log.losses
    assert losses_of(read_records(log.path), 6)[-1] is None


def test_values_that_json_cannot_hold_do_not_break_the_log(tmp_path):
    log = RunLog(tmp_path / "log.jsonl", keep_steps=0)
    log.evaluation(0, 800.0)
    assert read_records(log.path)[0]["eval_perplexity"] is None
    assert json.loads(log.path.read_text())["eval_loss"] == 800.0
