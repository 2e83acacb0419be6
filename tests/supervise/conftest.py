"""What tests of supervised runs share."""

import json
import subprocess

import pytest
from inject import STEPS, losses, recipe
from tiny_recipe import arguments, environment


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> list[float]:
    """Losses of the run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    environ = {**environment(), "OMP_NUM_THREADS": "1"}  # how sums are parted over threads changes their last bits
    words = arguments("run", recipe(folder, STEPS), "--json")
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["losses"] == losses(folder)
    return losses(folder)
