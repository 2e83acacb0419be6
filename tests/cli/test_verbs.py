"""The command line as a user meets it: output, exit codes, streams; what must never be imported."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from msparallel.cli.main import VERBS, _input_error
from msparallel.cli.recipe_arguments import split_overrides
from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe, load_text

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
HEAVY = ("mindspore", "torch", "mindformers", "matplotlib", "tokenizers", "numpy")
BAD = "model:\n  preset: gpt_tiny\n  num_heads: 6\ntrain:\n  global_batch_size: 4\n  micro_batch_size: 3\n  stepz: 3\n"


def run(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    command = [sys.executable, "-m", "msparallel", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd or ROOT, timeout=60)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD, encoding="utf-8")
    return str(path)


def test_validate_success_prints_numbered_lines() -> None:
    done = run("validate", "quickstart", "llama2_7b_dp2_tp2_pp2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(".")[0].strip() for line in lines if line.startswith("  ")][:6] == ["1", "2", "3", "4", "5", "6"]
    assert "data_parallel 2 x micro_batch_size 1 x 8 micro-batches" in done.stdout


def test_validate_failure_tells_every_problem_and_nothing_else(bad: str) -> None:
    done = run("validate", bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    for place in (
        "bad.yaml:3  model.num_heads: 6",
        "bad.yaml:5  train.global_batch_size: 4",
        "bad.yaml:7  train.stepz",
    ):
        assert place in done.stderr
    assert done.stderr.rstrip().endswith("problems found, nothing was started.")


def test_validate_json_is_one_document_with_the_agreed_fields(bad: str) -> None:
    done = run("validate", "quickstart", bad, "--json")
    assert (done.returncode, done.stderr) == (2, "")
    problems = json.loads(done.stdout)["problems"]
    assert {"train.stepz", "train.global_batch_size", "model.num_heads"} <= {problem["key"] for problem in problems}
    for problem in problems:
        assert set(problem) == {"file", "line", "key", "value", "rule", "message", "suggestion"}
    good = run("validate", "quickstart", "--json")
    assert (good.returncode, json.loads(good.stdout)) == (0, {"problems": []})


def test_validate_several_recipes_keeps_the_good_ones_lines(bad: str) -> None:
    done = run("validate", bad, "quickstart")
    assert done.returncode == 2 and "quickstart.yaml:" in done.stdout and "bad.yaml:3" in done.stderr


def test_validate_overrides_apply_to_every_recipe() -> None:
    done = run("validate", "gpt_tiny_dp2_cpu", "gpt_tiny_dp4_cpu", "train.global_batch_size=7")
    assert done.returncode == 2 and done.stderr.count("command line  train.global_batch_size: 7") == 2


def test_suggestion_of_the_command_line_works_on_the_command_line() -> None:
    wrong = "parallel.model_parallel=3"
    problems = json.loads(run("validate", "llama2_13b_dp4_tp4_pp2", wrong, "--json").stdout)["problems"]
    assert problems and all(problem["suggestion"] for problem in problems)
    assert run("validate", "llama2_13b_dp4_tp4_pp2", *problems[0]["suggestion"].split()).returncode == 0


def test_note_says_that_devices_followed() -> None:
    done = run("validate", "llama2_7b_dp2_tp2_pp2", "parallel.data_parallel=1")
    assert done.returncode == 0 and "cluster.devices_per_node follows the degrees: 8 -> 4" in done.stdout
    shown = run("show", "llama2_7b_dp2_tp2_pp2", "parallel.data_parallel=1", "--json")
    assert json.loads(shown.stdout)["notes"] == ["cluster.devices_per_node follows the degrees: 8 -> 4"]


@pytest.mark.parametrize("name", shipped_recipes())
def test_show_prints_a_recipe_that_means_the_same(name: str) -> None:
    from msparallel.cli.report import recipe_yaml

    plan = resolve(load_recipe(name))
    again = resolve(load_text(recipe_yaml(plan), "again.yaml"))
    for field in ("shape", "mesh", "nodes", "devices_per_node", "hardware", "stage_layers", "global_batch_size",
                  "micro_batch_size", "micro_batch_num", "attention", "op_parallel"):  # fmt: skip
        assert getattr(again, field) == getattr(plan, field), field


def test_show_has_recipe_arithmetic_and_grid() -> None:
    done = run("show", "llama2_7b_dp2_tp2_pp2")
    assert done.returncode == 0
    for part in (
        "  num_layers: 32  ",
        "# layers: 32 over 2 stages: 16, 16",
        "# pp1  dp0  rank 4 5",
        "# mesh: pp2 x dp2 x tp2 (8)",
    ):
        assert part in done.stdout


def test_show_json_has_recipe_derived_and_context() -> None:
    document = json.loads(run("show", "llama2_7b_dp2_tp2_pp2", "--context", "--rank", "5", "--json").stdout)
    assert document["context"]["pipeline_stages"] == 2 and document["context"]["global_rank"] == 5
    assert document["derived"]["mesh"] == {"pp": 2, "dp": 2, "cp": 1, "tp": 2}
    assert document["recipe"]["parallel"]["micro_batch_num"] == 8


def test_show_context_prints_calls_of_either_api() -> None:
    assert "set_auto_parallel_context(" in run("show", "llama2_7b_dp2_tp2_pp2", "--context").stdout
    assert "AutoParallel" in run("show", "llama2_7b_dp2_tp2_pp2", "--context", "--api", "autoparallel").stdout


def test_show_rank_outside_the_mesh_is_a_usage_error() -> None:
    done = run("show", "quickstart", "--rank", "1")
    assert done.returncode == 2 and "has ranks 0 to 0" in done.stderr and "Traceback" not in done.stderr


def test_ls_names_recipes_and_presets() -> None:
    assert "quickstart  " in run("ls").stdout
    assert "qwen3_8b " in run("ls", "--presets").stdout
    rows = json.loads(run("ls", "--json").stdout)["recipes"]
    assert {row["name"] for row in rows} == set(shipped_recipes())
    presets = json.loads(run("ls", "--presets", "--json").stdout)["presets"]
    assert next(row for row in presets if row["name"] == "gpt_tiny")["shape"]["num_layers"] == 4


def test_cp_copies_and_says_what_next(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    done = run("cp", "quickstart", str(target))
    assert done.returncode == 0 and target.read_bytes() == shipped_recipes()["quickstart"].read_bytes()
    assert f"msparallel validate {target}" in done.stdout
    target.write_text("mine", encoding="utf-8")
    assert run("cp", "quickstart", str(target), "--no-clobber").returncode == 0
    assert target.read_text(encoding="utf-8") == "mine"
    assert run("cp", "quickstart", str(tmp_path)).returncode == 0
    assert (tmp_path / "quickstart.yaml").exists()


def test_cp_keeps_an_edited_copy(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    assert run("cp", "quickstart", str(target)).returncode == 0
    assert run("cp", "quickstart", str(target)).returncode == 0  # nothing would be lost
    target.write_text("mine", encoding="utf-8")
    for folder_or_file in (target, tmp_path):
        (tmp_path / "quickstart.yaml").write_text("mine", encoding="utf-8")
        done = run("cp", "quickstart", str(folder_or_file))
        assert done.returncode == 2 and "--force" in done.stderr and done.stdout == ""
    assert target.read_text(encoding="utf-8") == "mine"
    assert run("cp", "quickstart", str(target), "--force", "--no-clobber").returncode == 2
    assert run("cp", "quickstart", str(target), "--force").returncode == 0
    assert target.read_bytes() == shipped_recipes()["quickstart"].read_bytes()


@pytest.mark.parametrize("name", ["quickstart", "-x.yaml", "two words.yaml", "a.b=c", "plain"])
def test_cp_names_a_command_that_reads_the_copy(name: str, tmp_path: Path) -> None:
    done = run("cp", "--", "quickstart", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / name).write_text("train: {}\n", encoding="utf-8")  # so that the copy is told from the shipped recipe
    words = shlex.split(done.stdout.split("Next: msparallel ")[1])
    told = run(*words, cwd=tmp_path)
    assert told.returncode == 2 and f"{name}" in told.stderr and "needs a `model:` section" in told.stderr


@pytest.mark.parametrize(
    "words", [("cp", "quikstart", "x.yaml"), ("cp", "quickstart", "absent/x.yaml"), ("cp", "absent.yaml", "x.yaml")]
)
def test_cp_that_cannot_is_told_without_traceback(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and done.stderr and "Traceback" not in done.stderr


def test_schema_is_json_schema_of_all_sections() -> None:
    schema = json.loads(run("schema").stdout)
    sections = {"model", "parallel", "optimizer", "data", "train", "cluster", "serve", "supervise"}
    assert set(schema["properties"]) == sections
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Parallel"]["properties"]["model_parallel"]["description"]


@pytest.mark.parametrize(
    "words",
    [(), ("--help",), ("--version",), *[(verb, "--help") for verb in VERBS]],
)  # fmt: skip
def test_help_exits_well(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if words else 2)
    if words[-1:] == ("--help",):
        assert "msparallel" in done.stdout and ("$ msparallel" in done.stdout or len(words) == 1)


@pytest.mark.parametrize(
    "words",
    [
        ("nosuchverb",),
        ("validate",),
        ("validate", "train.steps=3"),
        ("show",),
        ("ls", "--nope"),
        ("show", "quickstart", "--api", "x"),
    ],
)
def test_bad_usage_is_two(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""


def test_misspelt_verb_says_what_was_meant() -> None:
    assert "Did you mean 'validate'" in run("valdate", "quickstart").stderr


def test_json_stays_one_document_where_show_fails(bad: str) -> None:
    done = run("show", bad, "--json")
    assert done.returncode == 2 and done.stderr == ""
    assert {problem["rule"] for problem in json.loads(done.stdout)["problems"]} >= {"unknown_key"}


LIGHT = [
    ("validate", "quickstart"),
    ("validate", "llama2_7b_dp2_tp2_pp2", "parallel.model_parallel=3"),
    ("show", "llama2_7b_dp2_tp2_pp2"),
    ("show", "qwen3_8b_dp2_tp4", "--context"),
    ("ls",),
    ("ls", "--presets"),
    ("schema",),
]


@pytest.mark.parametrize("words", LIGHT)
def test_reading_recipes_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom msparallel.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "env", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_odd_characters_in_a_poor_locale(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "model: {preset: gpt_tiny}\ntrain: {global_batch_size: 1, micro_batch_size: 1, sample_prompt: 定义 é}\n",
        encoding="utf-8",
    )
    for words in (
        ("validate", str(path)),
        ("show", str(path)),
        ("show", str(path), "--json"),
        ("validate", str(path), "train.dtype=定"),
    ):
        done = run(*words, env=env)
        assert done.returncode == (2 if "dtype" in words[-1] else 0) and "Traceback" not in done.stderr


def test_reader_that_closes_early_ends_quietly() -> None:
    command = f"'{sys.executable}' -m msparallel schema | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert done.stderr == "" and done.returncode in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_is_told_without_traceback() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "msparallel", "schema"]
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
        )
    assert done.returncode == 1 and "could not be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("recipe", "code"), [("quickstart", 0), ("quikstart", 2)])
def test_closed_streams_leave_the_exit_code(closed: str, recipe: str, code: int) -> None:
    command = f"'{sys.executable}' -m msparallel validate {recipe} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == code and "Traceback" not in done.stderr


def test_deleted_working_directory(tmp_path: Path) -> None:
    command = f"mkdir gone && cd gone && rmdir ../gone && '{sys.executable}' -m msparallel validate quickstart"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr and "quickstart.yaml:" in done.stdout


def test_interrupt_is_130_without_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "r.yaml"
    os.mkfifo(fifo)  # reading it waits, so the signal meets a command at work
    command = [sys.executable, "-m", "msparallel", "validate", str(fifo)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    writer = None
    while writer is None and process.poll() is None:
        try:
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # fails until the command reads
        except OSError:
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    if writer is not None:
        os.close(writer)
    assert process.returncode == 130 and stdout == "" and "Traceback" not in stderr


def test_no_colour_codes_in_any_output() -> None:
    for env in ({"NO_COLOR": "1"}, {}):
        assert "\x1b" not in run("validate", "quickstart", env=env).stdout


ODD = "\x1b[31m\x07\x9b\u202e"


@pytest.mark.parametrize(
    "words",
    [
        ("validate", f"{ODD}.yaml"),
        ("validate", ODD),
        ("validate", f"dir{ODD}/good.yaml"),
        ("show", f"dir{ODD}/good.yaml"),
        ("show", "quickstart", f'train.sample_prompt="a{ODD}"'),
        ("validate", "quickstart", f"train.dtype={ODD}"),
        ("validate", "quickstart", f"train.{ODD}=3"),
        ("validate", "quickstart", 'train.dtype="\\e[31m"'),
        ("show", "quickstart", "--context", 'train.output_dir="\\e[31m"'),
        (ODD,),
        ("ls", f"--{ODD}"),
        ("show", "quickstart", "--api", ODD),
        ("show", "quickstart", "--rank", ODD),
        ("cp", "quickstart", f"{ODD}.yaml"),
        ("cp", "quickstart", f"dir{ODD}/bad.yaml"),
        ("cp", "quickstart", f"dir{ODD}/good.yaml", "--no-clobber"),
        ("cp", "quickstart", f"no{ODD}/x.yaml"),
    ],
)
def test_control_characters_reach_no_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / f"dir{ODD}"
    folder.mkdir()
    (folder / "good.yaml").write_text(
        "model: {preset: gpt_tiny}\ntrain: {global_batch_size: 1, micro_batch_size: 1}\n", encoding="utf-8"
    )
    (folder / "bad.yaml").write_text("mine", encoding="utf-8")
    done = run(*words, cwd=tmp_path)
    told = done.stdout + done.stderr
    assert told and "Traceback" not in told and not set(ODD[:1] + ODD[-3:]) & set(told), ascii(told)


def test_a_line_feed_in_an_override_stays_in_the_comment() -> None:
    done = run("show", "quickstart", 'train.sample_prompt="a\n\nb"')
    assert done.returncode == 0 and "\\n" in done.stdout.splitlines()[0]
    assert load_text(done.stdout, "again.yaml").train.sample_prompt


def test_split_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.yaml").write_text("", encoding="utf-8")
    words = ["quickstart", "train.steps=10", "steps=10", "a=b.yaml", "x/y.z=1.yaml", "data.corpus=a/b.txt"]
    recipes, overrides = split_overrides(words)
    assert recipes == ["quickstart", "a=b.yaml", "x/y.z=1.yaml"]
    assert overrides == ["train.steps=10", "steps=10", "data.corpus=a/b.txt"]


def _commands(command, names=()):
    import click

    yield " ".join(names), command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _commands(command.get_command(click.Context(command), name), (*names, name))


def test_no_number_of_any_verb_takes_nan_or_infinity():
    import click

    from msparallel.cli.main import commands
    from msparallel.cli.numbers import Number

    seen = 0
    for name, command in _commands(commands):
        for option in command.params:
            assert option.type is not click.FLOAT and not (
                isinstance(option.type, click.FloatRange) and not isinstance(option.type, Number)
            ), f"{name} {option.name}"
            if isinstance(option.type, Number):
                seen += 1
                for text in ("nan", "inf", "-inf"):
                    with pytest.raises(click.BadParameter):
                        option.type.convert(text, option, None)
    assert seen > 5


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
TOLD = [
    ("schema",),
    ("ls", "--json"),
    ("ls", "--nope"),
    ("ls", "--nope", "--json"),
    ("validate", "nosuchrecipe"),
    ("validate", "nosuchrecipe", "--json"),
    ("ranktable", "check", "nosuchtable", "--json"),
]


@pytest.mark.parametrize("words", TOLD, ids=" ".join)
@pytest.mark.parametrize(
    "streams",
    [
        "| true",
        "2>&1 | true",
        "2> >(true)",
        ">&-",
        "2>&-",
        "<&- >&- 2>&-",
        pytest.param(">/dev/full", marks=FULL),
        pytest.param("2>/dev/full", marks=FULL),
        pytest.param(">/dev/full 2>&1", marks=FULL),
    ],
)
def test_a_stream_that_takes_nothing_is_no_traceback(words: tuple[str, ...], streams: str) -> None:
    command = f"{shlex.join([sys.executable, '-m', 'msparallel', *words])} {streams}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60
    )
    assert "Traceback" not in done.stderr + done.stdout and "Exception ignored" not in done.stderr
    assert done.returncode in (0, 1, 2)


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--nope"),
        ("nosuchverb",),
        ("validate",),
        ("plan", "quickstart", "--top", "x"),
        ("bench-serve", "http://127.0.0.1:1", "--seed", "x"),
        ("launch", "quickstart", "--print", "--check"),
        ("doctor", "--save", "x", "--until", "links"),
        ("queue-simulate",),
        ("ranktable", "make"),
        ("kubernetes", "--kind", "x"),
        ("queue-simulate", "--synthetic", "1", "--queue", "\x1b[31m"),
        ("convert", "x", "--to", "hugging-face", "-o", "y", "--max-shard-gb", "1e300"),
    ],
    ids=" ".join,
)
def test_bad_usage_with_json_is_one_document(words: tuple[str, ...]) -> None:
    done = run(*words, "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert list(json.loads(done.stdout)) == ["error"]


READ = [
    ("diagnose",),
    ("profile",),
    ("doctor", "--from"),
    ("monitor", "--once"),
    ("monitor", "--once", "--from"),
    ("ranktable", "check"),
    ("kubernetes", "--check"),
    ("queue-simulate",),
    ("convert", "--to", "hugging-face", "-o", "there"),
    ("validate",),
]


@pytest.mark.parametrize("name", ["a" * 300, "/" + "b/" * 3000, "loop", "loop/x"], ids=["name", "path", "loop", "in"])
@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_a_name_that_no_file_can_have_is_bad_input(words: tuple[str, ...], name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = run(*words, name, "--json" if words[0] != "validate" else "train.steps=1", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len(done.stderr) < 5000
    if words[0] != "validate":
        assert json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--until", "environment"),
        ("doctor", "--save", "x"),
        ("launch", "gpt_tiny_dp2_cpu", "--print"),
        ("supervise", "gpt_tiny_dp2_cpu"),
        ("profile", "."),
        ("ranktable", "check", "x"),
        ("kubernetes", "qwen3_8b_serve_tp1", "--pvc", "x", "-o", "x.yaml"),
        ("convert", ".", "--to", "hugging-face", "-o", "x"),
    ],
    ids=" ".join,
)
def test_a_folder_that_was_deleted_under_the_command(words: tuple[str, ...], tmp_path: Path) -> None:
    line = shlex.join([sys.executable, "-m", "msparallel", *words, "--json"])
    done = subprocess.run(
        ["bash", "-c", f"mkdir gone && cd gone && rmdir ../gone && exec {line}"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert json.loads(done.stdout)


def test_a_folder_that_others_own_is_bad_input(tmp_path: Path) -> None:
    told = _input_error(PermissionError(13, "Permission denied", "/root/config.json"))
    assert told is not None and (told.exit_code, str(told)) == (2, "/root/config.json: Permission denied.")
    assert _input_error(OSError(5, "Input/output error", "/x")) is None
    (tmp_path / "closed").mkdir(mode=0o000)
    if os.access(tmp_path / "closed", os.X_OK):  # root may
        return
    done = run("convert", str(tmp_path / "closed"), "--to", "hugging-face", "-o", "x", "--json")
    assert done.returncode == 2 and json.loads(done.stdout)["error"].endswith("Permission denied.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--until", "devices"),
        ("doctor", "--save", "saved"),
        ("monitor", "--once"),
        ("monitor", "--hosts", "hosts", "--once"),
        ("launch", "gpt_tiny_dp2_cpu", "cluster.nodes=2", "cluster.devices_per_node=1", "--hosts", "hosts", "--check"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_tool_that_is_being_asked_ends_with_the_verb(words, number, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("far_0 198.51.100.1\nfar_1 198.51.100.2\n")
    for name in ("npu-smi", "ssh"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 600\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "msparallel", *words, "--json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup's tests too
    )  # fmt: skip
    while not (tmp_path / "pids").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in told
    for pid in (tmp_path / "pids").read_text().split():
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
