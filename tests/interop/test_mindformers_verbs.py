"""`msparallel import` and `export` as a user meets them: streams, files, exit codes, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from interop.mindformers_files import GONE, write

from msparallel.cli.main import main
from msparallel.interop.model_names import preset_config
from msparallel.recipe.load import load_recipe, load_text

pytestmark = pytest.mark.pure


@pytest.fixture
def call(capsys):
    """Exit code, stdout and stderr of `msparallel WORDS`."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        told = capsys.readouterr()
        assert "Traceback" not in told.err + told.out
        return end.value.code or 0, told.out, told.err

    return run


def test_the_recipe_goes_to_stdout_and_the_rest_to_stderr(call, tmp_path):
    code, out, err = call("import", write(tmp_path))
    assert code == 0
    assert load_text(out, "r.yaml").parallel.pipeline_stages == 2
    assert "parallel_config.gradient_aggregation_group: 4" in err


def test_a_file_is_written_and_never_overwritten_by_chance(call, tmp_path):
    source, target = write(tmp_path), tmp_path / "recipe.yaml"
    code, out, _ = call("import", source, "-o", target)
    assert code == 0 and f"Next: msparallel validate {target}" in out
    first = target.read_text()
    assert load_recipe(target).parallel.model_parallel == 4
    assert call("import", source, "-o", target)[0] == 0  # the same text
    code, _, err = call("import", source, "-o", target, "train.seed=77")
    assert code == 2 and "--force" in err and target.read_text() == first
    assert call("import", source, "-o", target, "train.seed=77", "--force")[0] == 0
    assert load_recipe(target).train.seed == 77


def test_json_is_one_document(call, tmp_path):
    code, out, err = call("import", write(tmp_path), "--json")
    document = json.loads(out)
    assert code == 0 and not err
    assert set(document) == {"recipe", "carried", "not_carried", "absent", "model_source", "output"}
    assert {"key", "line", "value", "kind", "reason"} == set(document["not_carried"][0])
    code, out, _ = call("import", write(tmp_path, {"run_mode": "predict"}), "--json")
    assert code == 2 and json.loads(out)["problems"][0]["rule"] == "not_training"


FAULTS = {
    "alias": "a: *nowhere\n", "tab": "a:\n\tb: 1\n", "second document": "---\na: 1\n", "tag": "a: !!python/none x\n",
    "depth": "a: " + "[" * 30 + "]" * 30 + "\n", "quote": "a: 'b\n", "bracket": "a: [b\n", "colon": "a: b: c\n",
    "merge key": "a: {<<: {b: 1}}\n", "control character": "a: \x07\n", "twice indented": "a: 1\n   b: 2\n",
    "many values": "a: &a [1, 2]\nb: &b [" + "*a, " * 150 + "]\nc: [" + "*b, " * 150 + "]\n",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_yaml_is_told_with_its_line_by_every_verb_that_takes_such_files(call, tmp_path, fault):
    path = write(tmp_path)
    lines = len(path.read_text().splitlines())
    path.write_text(path.read_text() + FAULTS[fault])
    told = [call(verb, path) for verb in ("import", "dryrun")]
    assert told[0] == told[1] and told[0][0] == 2
    line = int(told[0][2].partition(f"{path}:")[2].partition(" ")[0])
    assert lines < line <= lines + 3
    assert "This is a MindFormers YAML, not a recipe" not in told[0][2]


@pytest.mark.parametrize(("source", "words"), [
    ("no_such_preset", "neither a preset nor a config.json"), ("qwen3_8", "Did you mean the preset qwen3_8b?"),
    ("broken.json", "this is not JSON"), ("list.json", "holds one object"), ("\x00", "neither a preset"),
])  # fmt: skip
def test_a_model_config_that_is_none(call, tmp_path, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    Path("list.json").write_text("[]")
    code, _, err = call("import", write(tmp_path), "--model-config", source)
    assert code == 2 and words in err


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_model_config_from_a_file(call, tmp_path, as_folder):
    (tmp_path / "config.json").write_text(json.dumps(preset_config("llama3_8b")))
    bare = write(tmp_path, {"model.model_config": {"offset": 0}, "pretrained_model_dir": GONE})
    code, out, _ = call("import", bare, "--model-config", tmp_path if as_folder else tmp_path / "config.json")
    assert code == 0 and "preset: llama3_8b" in out


def test_a_file_that_is_not_there(call, tmp_path):
    code, _, err = call("import", tmp_path / "none.yaml")
    assert code == 2 and "There is no such file" in err
    assert call("import", tmp_path)[0] == 2
    assert call("import", write(tmp_path), "-o", tmp_path / "no" / "such" / "folder.yaml")[0] == 2
    assert call("import", write(tmp_path), "-o", tmp_path)[0] == 2


def test_export_prints_or_writes(call, tmp_path):
    code, out, err = call("export", "qwen3_32b_tp4_pp4", "--to", "mindformers")
    assert code == 0 and not err and "\nparallel_config:" in out and "#   data.corpus" in out
    code, out, _ = call("export", "qwen3_32b_tp4_pp4", "--to", "mindformers", "-o", tmp_path / "m.yaml")
    assert code == 0 and "MindFormers has no word for it" in out and (tmp_path / "m.yaml").is_file()
    code, out, _ = call("export", "qwen3_32b_tp4_pp4", "--to", "mindformers", "--json", "parallel.recompute=selective")
    document = json.loads(out)
    assert code == 0 and set(document) == {"yaml", "not_exported", "output", "to"}
    assert "select_recompute: [self_attention" in document["yaml"]
    assert call("export", "gpt2_124m_dp8", "--to", "mindformers")[0] == 2
    assert call("export", "qwen3_32b_tp4_pp4", "--to", "megatron")[0] == 2
    assert call("export", "qwen3_32b_tp4_pp4")[0] == 2


def test_neither_verb_imports_a_framework(tmp_path):
    heavy = ("mindspore", "mindformers", "torch", "transformers", "numpy", "matplotlib", "tokenizers")
    path, recipe = write(tmp_path), tmp_path / "r.yaml"
    code = "import sys\nfrom msparallel.cli.main import _run\n"
    code += f"assert _run(['import', {str(path)!r}, '-o', {str(recipe)!r}]) == 0\n"
    code += f"assert _run(['export', {str(recipe)!r}, '--to', 'mindformers']) == 0\n"
    code += f"print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
