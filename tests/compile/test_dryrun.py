"""`msparallel dryrun` from outside: every shipped recipe, bad input, a machine that lacks something, interruption."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from compiled import counts, dried, plan_of
from report.small_job import small_job
from tiny_recipe import arguments

from msparallel import native_library
from msparallel.cli import dryrun as dryrun_command
from msparallel.compile import library, ranks
from msparallel.compile.dryrun import dry_run, recipe_job
from msparallel.compile.request import PID_FILE, Request
from msparallel.errors import RunError, UserError
from msparallel.recipe.library import shipped_recipes

ANY = native_library.NativeLibrary(
    name="any", what="it", needs="C++17", sources=library.SOURCES, flags=()
)
LIBRARY = b"\x7fELF" + bytes(60)
LIBRARY += hashlib.sha256(LIBRARY).digest()
"""As one is kept."""
TINY = ("llama2_7b_dp2_tp2_pp2", "model.num_layers=2", "model.hidden_size=64", "model.num_heads=4", "model.ffn_size=64",
        "model.num_kv_heads=4", "model.head_dim=16", "model.vocab_size=256", "train.seq_length=32")  # fmt: skip


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments("dryrun", *words),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
    )


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr, done.stderr


def shallow(recipe: str) -> list[str]:
    """Words that leave two layers in each group of a shipped recipe."""
    plan = plan_of(recipe, small=False)
    groups = len(plan.stage_layers)
    if plan.shape.num_layers <= 2 * groups:
        return []
    stated = plan.recipe.stated("parallel.stage_layers")
    return [f"model.num_layers={2 * groups}", *([f"parallel.stage_layers={[2] * groups}"] if stated else [])]


def assert_holds_everything(recipe: str, words: list[str], depth: str = "full") -> None:
    """The stages of a recipe hold every parameter of the model, and their slices make up its weights."""
    plan = plan_of(recipe, *words, small=False)
    job = recipe_job(plan, depth)
    done = dry_run(job, job.stage_ranks(), progress=False)
    assert sorted(layer for report in done.ranks for layer in report.layers) == list(range(plan.shape.num_layers))
    whole = {p.name: p.part.shape for report in done.ranks for p in report.parameters if p.role == "weight"}
    assert sum(size(shape) for shape in whole.values()) == plan.shape.parameters()
    for report in done.ranks:
        assert report.weights_bytes and report.peak.bytes
        assert all(set(use.ranks) <= set(range(plan.world_size)) for use in report.collectives)


def size(shape) -> int:
    result = 1
    for length in shape:
        result *= length
    return result


SEARCHED = ("gpt2_124m_auto_load",)
"""Reads a file that another dry run writes: tested with it."""
SAMPLE = ("quickstart", "gpt_tiny_dp2_cpu", "qwen3_8b_serve_tp2", "llama2_7b_dp2_tp2_pp2", "moe_tiny_cpu")
RECIPES = [name for name in shipped_recipes() if name not in SEARCHED]


@pytest.mark.cpu
@pytest.mark.parametrize("recipe", SAMPLE)
def test_shipped_recipes_with_few_layers(recipe):
    assert_holds_everything(recipe, shallow(recipe))


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - set(SAMPLE)))
def test_every_other_shipped_recipe_with_few_layers(recipe):
    assert_holds_everything(recipe, shallow(recipe))


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_shipped_recipe_at_its_depth(recipe):
    assert_holds_everything(recipe, [], depth="auto")


@pytest.mark.cpu
def test_json_has_what_others_read(tmp_path):
    done = run(*TINY, "--rank", 5, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["world_size"] == 8 and document["mesh"] == {"pp": 2, "dp": 2, "cp": 1, "tp": 2}
    (rank,) = document["ranks"]
    assert (rank["rank"], rank["stage"], rank["layers"]) == (5, 1, [1])
    parameters = {p["name"]: p for p in rank["parameters"]}
    head = parameters["lm_head.weight"]
    assert (head["shape"], head["slice"], head["bounds"][0]) == ([256, 64], [128, 64], [128, 256])
    assert head["cut_by"] == [["tp"], []] and head["optimizer_shard"] == 1 and head["bytes"] == 128 * 64 * 4
    assert parameters["adam_m.lm_head.weight"]["role"] == "optimizer"
    assert rank["weights_bytes"] == sum(p["bytes"] for p in rank["parameters"] if p["role"] == "weight")
    assert {"op", "ranks", "bytes", "count", "links", "axes"} <= rank["collectives"][0].keys()
    assert rank["peak_live_bytes"] > 0 and rank["compile_s"] > 0


@pytest.mark.pure
def test_ranks_are_checked_before_anything_is_compiled():
    assert_refused(run("llama2_7b_dp2_tp2_pp2", "--rank", 8), 2, "--rank 8", "ranks 0 to 7")
    assert_refused(run("llama2_7b_dp2_tp2_pp2", "--rank", -1), 2, "-1")
    assert_refused(run("llama2_7b_dp2_tp2_pp2", "--stages", "--all-ranks"), 2, "exclude each other")
    assert_refused(run("llama2_7b_dp2_tp2_pp2", "parallel.model_parallel=3"), 2, "model_parallel")


@pytest.mark.pure
def test_a_strategy_file_that_is_missing_is_told_before_anything_is_compiled():
    done = run("gpt2_124m_auto_load", "parallel.strategy_load_file=/nowhere/strategy.json")
    assert_refused(done, 2, "/nowhere/strategy.json", "does not exist", "--save-strategy")


@pytest.mark.cpu
def test_a_machine_without_a_compiler(tmp_path):
    done = run(*TINY, "--rank", 0, MSPARALLEL_CACHE_DIR=str(tmp_path), CXX="no-such-compiler")
    assert_refused(done, 1, "CXX=no-such-compiler", "apt-get install g++")
    assert not list(tmp_path.glob("*.so"))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("compiler", "word"),
    [("false", "ended with code 1 and said nothing"), ("true", "ended well, and built no library")],
)
def test_a_compiler_that_fails(tmp_path, compiler, word):
    done = run(*TINY, "--rank", 0, MSPARALLEL_CACHE_DIR=str(tmp_path), CXX=shutil.which(compiler))
    assert_refused(done, 1, "could not build the simulated Ascend target", word)
    assert not list(tmp_path.iterdir())


@pytest.mark.pure
def test_a_compiler_with_arguments(monkeypatch):
    monkeypatch.setenv("CXX", "env LANG=C g++")
    assert ANY.compiler() == ["env", "LANG=C", "g++"]


@pytest.mark.cpu
def test_modules_of_the_working_folder_are_not_taken_for_ours(tmp_path, monkeypatch):
    for name in ("random", "json", "build", "mindspore"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is the module of the working folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    process = ranks.start_process("msparallel.compile.worker", log=tmp_path / "log", stdin=subprocess.PIPE)
    process.communicate(timeout=300)
    assert process.returncode == 0 and "working folder" not in (tmp_path / "log").read_text()


@pytest.mark.pure
def test_a_mindspore_that_nobody_has_tried(monkeypatch):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(library.importlib.metadata, "version", lambda name: "2.7.2")
    with pytest.raises(UserError, match=r"MindSpore 2\.7\.2 is installed.*made for 2\.9\.x and 2\.10\.x"):
        library.mindspore_version()
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="MindSpore is not installed"):
        library.mindspore_version()


@pytest.mark.pure
def test_a_cache_that_cannot_be_written_leaves_the_temporary_folder(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")  # no folder can be made below a file, for root neither
    monkeypatch.delenv("MSPARALLEL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(native_library.tempfile, "tempdir", str(tmp_path))
    built = []
    monkeypatch.setattr(native_library.NativeLibrary, "build", lambda self, target: built.append(target) or target)
    assert ANY.path().parent == tmp_path / f"msparallel-{os.getuid()}"
    monkeypatch.setenv("MSPARALLEL_CACHE_DIR", str(blocked / "cache"))
    with pytest.raises(RunError, match="MSPARALLEL_CACHE_DIR"):
        ANY.path()
    assert len(built) == 1


@pytest.mark.pure
def test_a_library_that_others_could_have_written_is_not_loaded(tmp_path):
    path = tmp_path / "library.so"
    path.write_bytes(LIBRARY)
    path.chmod(0o755)
    assert ANY.usable(path)
    path.chmod(0o777)
    assert not ANY.usable(path) and not ANY.usable(tmp_path / "absent.so")


@pytest.mark.pure
@pytest.mark.parametrize(
    "content",
    [b"", LIBRARY[:20], LIBRARY[:-1], bytes(len(LIBRARY)), LIBRARY.replace(b"ELF", b"ELG"), b"#!/bin/sh", None],
)
def test_a_broken_library_is_built_again(tmp_path, content):
    path = tmp_path / "library.so"
    if content is None:
        path.mkdir(mode=0o755)
    else:
        path.write_bytes(content)
        path.chmod(0o755)
    assert not ANY.usable(path)


@pytest.mark.pure
@pytest.mark.parametrize("version", ["2.9.0", "2.10", "2.9.0.post1", "2.10.0rc1"])
def test_versions_that_are_tried(monkeypatch, version):
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(library.importlib.metadata, "version", lambda name: version)
    assert library.mindspore_version() == version


@pytest.mark.pure
@pytest.mark.parametrize("version", [1, 2])
def test_cached_files_of_a_container_are_free_memory(tmp_path, monkeypatch, version):
    limit, used, statistics, cached = (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        *[
            (
                "memory/memory.limit_in_bytes",
                "memory/memory.usage_in_bytes",
                "memory/memory.stat",
                "total_inactive_file",
            )
        ],
    )[version - 1]
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text(f"{2**29}\n")
    (tmp_path / used).write_text(f"{2**29 - 2**20}\n")
    (tmp_path / statistics).write_text(f"anon 5\n{cached} {2**28}\nactive_file 9\n")
    monkeypatch.setattr(ranks, "CONTROL_GROUP", tmp_path)
    assert ranks.available_memory_bytes() == 2**28 + 2**20


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--time-limit", "nan"), "--time-limit"),
        (("--save-strategy", "file.txt"), "*.json"),
        (("--save-strategy", "file.json"), "no strategies to save; auto_parallel has"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_compiled(words, told):
    assert_refused(run(*TINY, *words), 2, told)


@pytest.mark.pure
def test_what_was_worked_out_is_told_also_where_the_report_cannot_be_written(tmp_path, monkeypatch):
    def full(*arguments):
        raise RunError("--report: no space left")

    monkeypatch.setattr("msparallel.compile.dryrun.dry_run", lambda *arguments, **options: small_job())
    monkeypatch.setattr("msparallel.report.page.write_page", full)
    words = [*TINY, "--json", "--report", str(tmp_path / "r.html")]
    done = CliRunner().invoke(dryrun_command.command, words, catch_exceptions=False)
    assert done.exit_code == 1 and done.stderr == "--report: no space left\n"
    assert json.loads(done.stdout)["world_size"] == small_job().world_size


@pytest.mark.cpu
def test_data_parallel_mode_names_its_sum(tmp_path):
    """Every rank holds the whole model, and the trainer adds gradients over the world."""
    report = dried("llama2_7b_dp2_tp2_pp2", "parallel.mode=data_parallel", "parallel.data_parallel=4",
                   "parallel.model_parallel=1", "parallel.pipeline_stages=1", "model.num_layers=2",
                   "train.global_batch_size=8").ranks[0]  # fmt: skip
    (use,) = report.collectives
    assert (use.op, use.ranks, use.axes, use.purpose) == ("AllReduce", (0, 1, 2, 3), ("dp",), "gradient")
    assert use.links == "inside a server" and use.total_bytes >= report.weights_bytes


@pytest.mark.cpu
@pytest.mark.parametrize("level", ["level1", "level2", "level3"])
def test_gradients_of_the_optimizer_shard_are_no_activations(level):
    report = dried("llama2_7b_dp2_tp2_pp2", "parallel.pipeline_stages=1", "parallel.model_parallel=1",
                   "parallel.data_parallel=4", "model.num_layers=2", "train.global_batch_size=8",
                   "parallel.optimizer_shard_threshold_kib=0",
                   f"parallel.optimizer_shard={level}").ranks[0]  # fmt: skip
    assert not [use for use in report.collectives if use.purpose == "backward" and use.bytes > 64]
    assert counts(report, "gradient")["ReduceScatter"] > 0 and counts(report, "weight")["AllGather"] > 0


@pytest.mark.pure
def test_too_little_memory_is_said_before_it_runs_out(monkeypatch):
    monkeypatch.setattr(ranks, "available_memory_bytes", lambda: 2 * 2**30)
    requests = [Request(source="r.yaml", overrides=[], world_size=2, folder="/nowhere")]
    with pytest.raises(RunError, match=r"expected to take 3\.0 GiB of memory, and 2\.0 GiB are free"):
        list(ranks.compile_ranks(requests, memory_bytes=3 * 2**30))


@pytest.mark.cpu
def test_a_compilation_that_takes_too_long_is_stopped():
    assert_refused(run(*TINY, "--rank", 0, "--time-limit", 0.5), 1, "has not ended after", "it is in:", "--time-limit")


@pytest.mark.cpu
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["ctrl_c", "sigterm", "hang_up"])
def test_interruption_leaves_nothing_behind(tmp_path, number):
    process = subprocess.Popen(
        arguments("dryrun", *(word for word in TINY if "layers" not in word), "model.num_layers=8"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )
    deadline = time.monotonic() + 60
    while not children(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = children(process.pid)
    assert workers
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not list(tmp_path.glob("msparallel-*"))


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


@pytest.mark.cpu
@pytest.mark.parametrize("victim", ["server", "fork"])
def test_a_compilation_that_is_killed_is_told(tmp_path, monkeypatch, victim):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    original = ranks._start

    def start_and_kill(server, request):
        worker = original(server, request)
        if victim == "fork":
            place = worker.folder / PID_FILE
            while not place.exists():
                time.sleep(0.05)
            os.kill(json.loads(place.read_text()), signal.SIGKILL)
        else:
            server.kill()
        return worker

    monkeypatch.setattr(ranks, "_start", start_and_kill)
    plan = plan_of(*TINY, small=False)
    with pytest.raises(RunError, match="rank 0 was killed by SIGKILL.*memory runs out"):
        dry_run(recipe_job(plan), [0], progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.cpu
def test_reuse_changes_nothing_that_is_counted(tmp_path):
    """The same step with one graph for all micro-batches, and with each written out."""
    script = Path(__file__).with_name("compile_reuse.py")
    results = []
    for reused in ("reused", "written_out"):
        folder = tmp_path / reused
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, str(script), reused, str(folder)],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parents[2], Path(__file__).parent))),
            },
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads(done.stdout.splitlines()[-1]))
    reused, written_out = results
    assert reused["functions"] > written_out["functions"]
    assert reused["collectives"] == written_out["collectives"]
    assert reused["products"] == written_out["products"]
    assert reused["live_bytes"] == pytest.approx(written_out["live_bytes"], rel=0.25)
