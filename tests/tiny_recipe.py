"""A recipe that trains in seconds on the text that the tests bring along, and how to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
CORPUS = REPO / "tests" / "data" / "sample_corpus.txt"


def sections(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """The recipe's sections; changes are given as section__key=value."""
    recipe: dict[str, dict[str, Any]] = {
        "model": {
            "num_layers": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "ffn_size": 32,
            "vocab_size": 300,
            "vocab_multiple": 64,
        },
        "parallel": {"mode": "stand_alone"},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
        "data": {"corpus": str(CORPUS), "cache_dir": str(folder / "cache"), "eval_fraction": 0.1},
        "train": {
            "global_batch_size": 4,
            "micro_batch_size": 4,
            "seq_length": 16,
            "steps": 6,
            "output_dir": str(folder / "output"),
            "checkpoint_interval": 2,
            "eval_interval": 3,
            "eval_sequences": 8,
            "sample_tokens": 4,
        },
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        recipe.setdefault(section, {})[key] = value
    return recipe


def write_recipe(folder: Path, name: str = "tiny", **changes: Any) -> Path:
    """Write the recipe; returns its path."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(sections(folder, **changes)))
    return path


def arguments(*words: object) -> list[str]:
    """Command line of `msparallel`."""
    return [sys.executable, "-c", "from msparallel.cli.main import main; main()", *map(str, words)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))}


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`msparallel ...` in a process of its own."""
    return subprocess.run(arguments(*words), capture_output=True, text=True, env=environment(), timeout=300, **options)


def run_json(*words: object) -> dict[str, Any]:
    """`msparallel run ... --json` that must succeed."""
    done = run("run", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def output(folder: Path, name: str = "tiny") -> Path:
    return folder / "output" / name
