"""What setup.cfg says is true of the tree."""

import configparser
import subprocess
import sys

import pytest

pytestmark = pytest.mark.pure


def test_every_package_is_listed(repo):
    config = configparser.ConfigParser()
    config.read(repo / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {".".join(path.parent.relative_to(repo).parts) for path in (repo / "msparallel").rglob("*.py")}
    assert listed == found | {"msparallel._recipes"}


PURE = ["errors", "mesh", "plan", "context", "parallel_config", "hardware", "recipe.load", "recipe.rules",
        "model.shape",
        "model.presets", "launch.msrun", "planner.shards", "report.page", "cli.main"]  # fmt: skip


def test_nothing_that_reads_a_recipe_imports_mindspore():
    code = "import sys\n" + "".join(f"import msparallel.{name}\n" for name in PURE)
    code += "from msparallel.plan import resolve\nfrom msparallel.recipe.load import load_recipe\n"
    code += "resolve(load_recipe('llama2_7b_dp2_tp2_pp2'))\n"
    code += "print([name for name in ('mindspore', 'matplotlib', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_small_enough_to_read(repo):
    long = {str(path.relative_to(repo)): lines for path in (repo / "msparallel").rglob("*.py")
            if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400}  # fmt: skip
    assert not long
