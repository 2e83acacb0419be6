"""What tests of several nodes share."""

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def package(tmp_path_factory, repo: Path) -> Path:
    """A copy of the package that nobody edits meanwhile: nodes tell the digest of its files."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("msparallel", "recipes"):
        shutil.copytree(repo / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="session")
def packaged(package: Path) -> dict[str, str]:
    """The environment of a program that uses the copy."""
    return {**os.environ, "PYTHONPATH": str(package)}
