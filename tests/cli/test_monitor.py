"""The verb: what is shown at fixed widths, plain text and lines, JSON, a terminal, HTTP, refusals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import pytest
from devices.npu_smi_texts import info_a2
from monitor.run_folder import write_checkpoint, write_log, write_rank
from prometheus_client.parser import text_string_to_metric_families

from msparallel.cli.main import main
from msparallel.cli.monitor_serve import address_of
from msparallel.cli.monitor_text import line_of, plain
from msparallel.devices import query
from msparallel.errors import UserError
from msparallel.monitor.captures import read_recording
from msparallel.monitor.job import JobWatch
from msparallel.monitor.snapshot import Watch

pytestmark = pytest.mark.pure


@pytest.fixture
def now_s():
    return time.time()


@pytest.fixture
def run(tmp_path, now_s):
    """A run at work on two devices."""
    folder = tmp_path / "run"
    write_log(folder, now_s=now_s)
    for rank in (0, 1):
        write_rank(folder, rank, now_s=now_s, pid=4711 + rank)
    os.utime(write_checkpoint(folder, 20) / "state.json", (now_s - 50, now_s - 50))
    return folder


@pytest.fixture
def captures(tmp_path):
    """Three moments of one host; the last with a device that is too hot."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for number, temperature in enumerate(("44", "45", "91")):
        processes = {0: [(4711, "python3.11", 28170)], 1: [(4712, "python3.11", 28170)]}
        text = info_a2((0, 1), temperature=temperature, hbm="63000 / 65536", processes=processes)
        (folder / f"capture_{number}.txt").write_text(text)
    return folder


def call(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["monitor", *map(str, arguments)])
    return end.value.code or 0


class Last:
    def __init__(self, folder):
        self.recording = read_recording(folder)

    def machines(self, now_s):
        return self.recording.machines(len(self.recording.moments) - 1)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal_and_all_is_there(captures, run, now_s, width):
    text = plain(Watch(Last(captures), JobWatch(run, is_here=lambda pid: True)).at(now_s), width=width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("910B2", "OK", "91", "61.5/64", "rank 0", "rank 1", "tiny  dp2 (2)  running", "step 40 of 100",
                  "loss 6.0000 at step 40", "4,096 tokens/s", "2 min 00 s left", "checkpoint of step 20, 50 s ago",
                  "8.0000 (0)", "2 of 2 ranks, all at step 40", "! NPU 0: 91 C, the limit is 85: check the fans",
                  "! NPU 1: 96.1% of its memory is in use"):  # fmt: skip
        assert words in text, text
    assert ("gradient norm 0.7" in text) == (width == 120)
    assert "\x1b" not in text


def test_a_narrow_and_low_screen_shows_what_is_wrong_first(tmp_path, now_s):
    from rich.console import Console

    from msparallel.cli.monitor_text import Screen

    text = info_a2(range(16)).replace("| 13     910B2               | OK  ", "| 13     910B2               | Alarm")
    (tmp_path / "node.txt").write_text(text)
    for rank in range(64):
        write_rank(tmp_path / "run", rank, now_s=now_s, age_s=900 if rank == 40 else 1)
    snapshot = Watch(Last(tmp_path), JobWatch(tmp_path / "run")).at(now_s)
    console = Console(width=80, height=24, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Screen(snapshot))
    shown = console.export_text()
    assert "! 13" in shown and "Alarm" in shown and "more devices" in shown
    assert re.search(r"!40 +silent", shown) and "and 56 more ranks" in shown
    assert "rank 40: says nothing for 15 min 00 s (step 40, step)" in shown


def test_without_unicode_only_ascii(captures, run, monkeypatch, now_s):
    class Ascii:
        encoding = "ascii"

    snapshot = Watch(Last(captures), JobWatch(run)).at(now_s)
    monkeypatch.setattr(sys, "stdout", Ascii())
    assert plain(snapshot, width=80).isascii() and line_of(snapshot).isascii()


def test_names_that_would_colour_or_mean_markup_are_text(tmp_path, now_s):
    run = tmp_path / "run"
    write_log(run, now_s=now_s)
    (run / "log.jsonl").write_text((run / "log.jsonl").read_text().replace('"tiny"', '"[red]a\\u001b[2J[/]"'))
    write_rank(run, 0, now_s=now_s, state="failed", text="[bold]no\x1b]0;title\x07[/nothing]")
    text = plain(Watch(None, JobWatch(run)).at(now_s), width=120)
    assert "[red]a\\x1b[2J[/]" in text and "[bold]no\\x1b]0;title\\x07[/nothing]" in text


def test_a_pipe_gets_plain_text_once_and_lines_with_an_interval(captures, run, capsys):
    assert call("--from", captures) == 0
    text = capsys.readouterr().out
    assert "91" in text and "\x1b" not in text
    assert call("--from", captures, "--interval", "0.1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.search(r"(\d+)-\1 C", line)[1] for line in lines] == ["44", "45", "91"]
    assert "! NPU 0: 91 C" in lines[2]
    assert call(run, "--from", captures, "--once") == 0
    assert "step 40 of 100" in capsys.readouterr().out


def test_json_is_one_document_with_the_last_capture(captures, run, capsys):
    assert call(run, "--from", captures, "--json") == 0
    out = capsys.readouterr()
    told = json.loads(out.out)
    assert out.err == ""
    (host,) = told["hosts"]
    assert [device["temperature_c"] for device in host["devices"]] == [91, 91]
    assert host["devices"][1]["processes"] == [{"pid": 4712, "name": "python3.11", "memory_mib": 28170, "rank": 1}]
    job = told["job"]
    assert (job["state"], job["step"], job["steps"], job["losses"][-1]) == (
        "running", 40, 100, {"step": 40, "loss": 6.0})  # fmt: skip
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    assert {problem["where"] for problem in told["problems"]} == {"NPU 0", "NPU 1"}


@pytest.fixture
def no_tool(monkeypatch):
    monkeypatch.setattr(query, "NPU_SMI", ("npu-smi-of-no-machine",))


def test_no_npu_here_a_run_alone_and_neither(run, capsys, no_tool):
    assert call(run) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no Ascend driver" in text and "step 40 of 100" in text
    assert call() == 1
    assert "Name a run to watch" in capsys.readouterr().err
    assert call("quickstart", f"train.output_dir={run.parent}/none", "--json") == 0
    told = json.loads(capsys.readouterr().out)["job"]
    assert (told["state"], told["steps"], told["recipe"]) == ("not started", 480, "quickstart")


def test_hosts_that_do_not_answer_are_problems_and_nothing_to_watch_is_exit_code_1(run, tmp_path, capsys, no_tool):
    (tmp_path / "hosts.txt").write_text("node_0\nnode_1\n")
    reach = tmp_path / "reach"
    reach.write_text("#!/bin/sh\necho \"connect to $1: no route\r\"; exit 255\n")
    reach.chmod(0o755)
    words = ["--hosts", tmp_path / "hosts.txt", "--remote-shell", reach]
    assert call(*words, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [(one["severity"], one["where"], one["text"]) for one in told["problems"]] == [
        ("error", name, f"reach to {name}: connect to {name}: no route (exit code 255)")
        for name in ("node_0", "node_1")
    ]
    for more in (["--once"], ["--textfile", tmp_path / "x.prom", "--once"]):
        assert call(*words, *more) == 1
    assert "no route (exit code 255)" in capsys.readouterr().out
    assert call(run, *words, "--json") == 0  # the run is seen
    assert len(json.loads(capsys.readouterr().out)["problems"]) >= 2
    (tmp_path / "table").write_text(info_a2((0,)))
    reach.write_text(f"#!/bin/sh\n[ $1 = node_1 ] && exec cat {tmp_path}/table\nexit 255\n")
    assert call(*words, "--json") == 0
    assert [one["where"] for one in json.loads(capsys.readouterr().out)["problems"]] == ["node_0"]


def test_refusals(run, tmp_path, capsys, no_tool):
    (tmp_path / "empty").mkdir()
    for words, message in [
        (["quickstrat"], "Did you mean `quickstart`"),
        ([tmp_path / "empty"], "No run is in this folder"),
        ([tmp_path], f"Runs below it: {run}"),
        ([tmp_path / "not" / "there"], "There is no such folder. A run that has not started yet has none"),
        ([run, "train.steps=3"], "changes a recipe"),
        (["qwen3_8b_serve_tp1"], "no `train` section"),
        (["--from", tmp_path / "none"], "cannot be read"),
        (["--from", "a" * 300], "cannot be read"),
        (["a" * 300], "recipe"),
        (["a\x1b[31m"], "a\\x1b[31m"),
        (["--hosts", tmp_path / "none"], "none"),
        (["--from", "a", "--hosts", "b"], "not both"),
        (["--remote-shell", "ssh"], "no list of hosts"),
        ([run, "--textfile", "x.txt"], "end in .prom"),
        ([run, "--prometheus", "x:y:1"], "port from 1 to 65535"),
        ([run, "--interval", "0"], "0.1<=x<=86400"),
    ]:
        assert call(*words) == 2, words
        assert message in capsys.readouterr().err, words
    assert call(run, "--json", "--prometheus", "1") == 2
    assert "Give one of them" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("text", ["", "0", "65536", "x", "-1", ":1", "[::1", "a b:1", "-o:1", "h:1:2", "9" * 9])
def test_addresses_that_are_none(text):
    with pytest.raises(UserError):
        address_of(text)


def test_metrics_in_a_file_and_where_it_cannot_be_written(run, tmp_path, capsys, no_tool):
    path = tmp_path / "x.prom"
    assert call(run, "--textfile", path, "--once") == 0
    names = {family.name for family in text_string_to_metric_families(path.read_text())}
    assert {"msparallel_step", "msparallel_loss", "msparallel_devices_up"} <= names
    assert call(run, "--textfile", tmp_path / "none" / "x.prom", "--once") == 2
    assert "cannot be written" in capsys.readouterr().err


def _start(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-m", "msparallel", "monitor", *map(str, arguments)], env=environment,
                            text=True, **options)  # fmt: skip


def test_metrics_are_served_on_this_machine_only_read_at_each_scrape_and_end_with_ctrl_c(run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = _start(run, "--prometheus", port, stderr=subprocess.PIPE)
    try:
        assert process.stderr.readline() == f"Metrics at http://127.0.0.1:{port}/metrics; Ctrl-C ends it.\n"
        listening = [line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"]  # noqa: SIM115
        assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]

        def step():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                found = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
            return found["msparallel_step"].samples[0].value

        assert step() == 40
        for rank in (0, 1):
            write_rank(run, rank, now_s=time.time(), step=41)
        time.sleep(1.2)
        assert step() == 41
        assert call(run, "--prometheus", port) == 1
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def _watched(tmp_path, *arguments, environment=None, seconds=0.0, until="", ends_with=signal.SIGINT):
    """(exit code, all that a terminal of 80 x 24 got) of `monitor` until it said `until`, then a signal."""
    import fcntl
    import termios

    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    variables |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1", **(environment or {})}
    process = subprocess.Popen([sys.executable, "-m", "msparallel", "monitor", *map(str, arguments)], env=variables,
                               stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path)  # fmt: skip
    os.close(terminal)
    out, deadline, told = b"", time.monotonic() + 60, False
    while time.monotonic() < deadline:
        if select.select([main_end], [], [], 0.1)[0]:
            try:
                data = os.read(main_end, 65_536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            out += data
        if not told and until.encode() in out:
            told = True
            process.send_signal(ends_with)
    os.close(main_end)
    return process.wait(60), out.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_a_terminal_the_table_stays_in_place_and_a_signal_gives_the_cursor_back(tmp_path, run, number):
    code, out = _watched(tmp_path, run, "--interval", "0.2", until="step 40 of 100", ends_with=number)
    assert code == 0, out
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1 and "Traceback" not in out
    assert out.rindex("\x1b[?25h") > out.rindex("step 40 of 100")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_is_asked_for_plain_text_gets_it_once(tmp_path, run, environment):
    code, out = _watched(tmp_path, run, environment=environment, until="never said")
    assert code == 0 and "\x1b" not in out and out.count("step 40 of 100") == 1


def test_a_recording_in_a_terminal_ends_after_its_last_moment(tmp_path, captures):
    code, out = _watched(tmp_path, "--from", captures, "--interval", "0.1", until="never said")
    assert code == 0 and "91 C, the limit is 85" in out


def test_a_run_that_vanishes_is_no_end(tmp_path, run):
    process = _start(run, "--interval", "0.2", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert "step 40/100" in process.stdout.readline()
        run.rename(tmp_path / "moved")
        for _ in range(5):
            line = process.stdout.readline()
        assert "tiny: running" in line and process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_help_is_fast_to_import():
    code = "import sys, msparallel.cli.monitor; print([m for m in ('rich', 'prometheus_client', 'numpy', 'mindspore') "
    done = subprocess.run([sys.executable, "-c", code + "if m in sys.modules])"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("page", ["25_monitor.md", "25_monitor.zh-CN.md"])
def test_the_page_quotes_what_is_printed(repo, page, capsys, monkeypatch):
    monkeypatch.chdir(repo)
    monkeypatch.setenv("COLUMNS", "100")
    text = (repo / "docs" / page).read_text(encoding="utf-8")
    quoted = re.findall(r"^```console\n\$ msparallel monitor (--from [^\n]*)\n(.*?)^```$", text, re.M | re.S)
    assert len(quoted) == 2
    for words, output in quoted:
        assert call(*words.split()) == 0
        assert capsys.readouterr().out == output


def test_metrics_that_page_and_alerts_name_exist(repo, run, captures, now_s):
    from prometheus_client import generate_latest

    from msparallel.monitor.metrics import registry_of

    registry = registry_of(lambda: Watch(Last(captures), JobWatch(run)).at(now_s))
    there = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
    there.add("msparallel_devices_sample_age_seconds")  # of a recording that says when it was made
    alerts = (repo / "launch/monitor/alerts.yml").read_text()
    assert set(re.findall(r"msparallel_\w+", alerts)) <= there
    for page in ("25_monitor.md", "25_monitor.zh-CN.md"):
        text = (repo / "docs" / page).read_text(encoding="utf-8")
        table = text[text.index("`msparallel_...`") :].split("\n\n")[0]
        named = set(re.findall(r"`([a-z_]+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))
        assert {f"msparallel_{name}" for name in named} == there


def test_the_examples_for_prometheus_are_yaml_of_their_shape(repo):
    import yaml

    rules = yaml.safe_load((repo / "launch/monitor/alerts.yml").read_text())["groups"][0]["rules"]
    assert all({"alert", "expr", "for", "labels", "annotations"} == set(rule) for rule in rules) and len(rules) == 4
    scrape = yaml.safe_load((repo / "launch/monitor/prometheus.yml").read_text())
    assert scrape["rule_files"] == ["alerts.yml"] and scrape["scrape_configs"][0]["job_name"] == "msparallel"
