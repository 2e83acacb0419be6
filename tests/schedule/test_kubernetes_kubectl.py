"""kubectl's own YAML reader takes what is written here for what it is. `kubectl kustomize` needs no cluster."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from msparallel.schedule.yaml_text import Noted, dump, plain

pytestmark = [
    pytest.mark.pure,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here; the rest of the tests needs none"),
]
ODD = [
    *("no", "Yes", "y", "on", "1e3", "0x10", "012", "0o7", "1_0", "12:30:45", "2001-01-01", ".5", ".inf", "~", "null"),
    *("", " ", "a: b", "a #b", "- a", "=", "<<", "#x", "&a", "*a", "!a", "%a", "@a", "`a", "'a'", '"a"', "{a}", "[a]"),
    *("a:", "a\n  b\n", "a\n\n", "x \ny", "\ta\n", "\n", "a\tb", "$(A)", "$$", "汉字", "é", "\\n", "a\\", "8", "-1"),
    *("+1", "/x", "# a recipe\n\nmodel:\n  preset: x   # why\n\n"),
]


class Reader(yaml.SafeLoader):
    """Of what kubectl prints: it leaves `=` and `<<` without quotes."""


for tag in ("value", "merge"):
    Reader.add_constructor(f"tag:yaml.org,2002:{tag}", yaml.SafeLoader.construct_yaml_str)


def read(folder: Path, *texts: str) -> list[dict[str, Any]]:
    """What kubectl reads of manifests."""
    names = [f"{at}.yaml" for at in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": names}))
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, Reader))


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def test_the_examples(tmp_path: Path, repo: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((repo / "launch" / "kubernetes").glob("*.yaml"))]
    ours = by_name([one for text in texts for one in yaml.safe_load_all(text)])
    assert len(ours) == 16 and by_name(read(tmp_path, *texts)) == ours


def test_odd_values(tmp_path: Path) -> None:
    data = {f"key_{at}": Noted(text, "a reason") if at % 2 else text for at, text in enumerate(ODD)}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd"}, "data": data}
    assert read(tmp_path, dump(made)) == [plain(made)]
