"""The report page without a browser: what is in it, that hostile names are inert, and where it may be written."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report.searched_job import searched_job
from report.small_job import small_job

from msparallel.errors import RunError, UserError
from msparallel.hardware import load_hardware
from msparallel.report.dryrun_data import dryrun_data
from msparallel.report.page import DRY_RUN, check_target, page_html, write_page

pytestmark = pytest.mark.pure

HOSTILE = '</script><script>alert(1)</script><!-- <img src=x onerror="alert(2)"> & \u2028 \x1b[31m'


class Page(HTMLParser):
    """Tags with attributes, and the text of scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "script"

    def handle_data(self, text):
        if self.inside:
            self.scripts[-1] += text

    @property
    def document(self):
        return json.loads(self.scripts[0])


def page(job=None, **settings) -> Page:
    return Page(page_html(DRY_RUN, dryrun_data(job or small_job(), load_hardware("atlas_800t_a2"), **settings)))


def test_the_document():
    document = page(mindspore="2.9.0").document
    facts = {fact["label"]: fact["value"] for fact in document["facts"]}
    assert facts["mesh"] == "pp2 x dp2 x tp2" and facts["devices"] == "8 on 2 nodes x 4"
    assert facts["engine"] == "MindSpore 2.9.0" and facts["compiled ranks"] == "0, 4"
    assert [(device["node"], device["compiled"]) for device in document["devices"][3:5]] == [(0, False), (1, True)]
    assert document["devices"][6]["at"] == {"pp": 1, "dp": 1, "cp": 0, "tp": 0}
    assert document["memory"]["limit"] == 64 * 2**30
    assert [row["total"]["text"] for row in document["memory"]["rows"]] == ["1.00 GiB", "2.00 GiB"]


def test_slices_of_the_document():
    up = next(row for row in page().document["parameters"] if row["name"] == "model.layers.0-1.up_proj.weight")
    assert [slice_["text"] for slice_ in up["slices"]] == ["[0:4, :]", "[4:8, :]", "[8:12, :]", "[12:16, :]"]
    assert up["by_rank"] == [0, 2, 1, 3] * 2
    assert up["slices"][1]["box"] == [0.25, 0.5, 0.0, 1.0]
    embedding = next(row for row in page().document["parameters"] if row["name"] == "model.embed_tokens.weight")
    assert embedding["by_rank"] == [0, 1, 2, 3, -1, -1, -1, -1]


def test_a_stage_that_was_not_compiled_is_unknown_not_empty():
    job = small_job()
    job = type(job)(source=job.source, overrides=(), mesh=job.mesh, devices_per_node=4, ranks=job.ranks[:1])
    norm = next(row for row in page(job).document["parameters"] if row["name"] == "model.layers.0.norm.weight")
    assert norm["by_rank"] == [0, 0, 0, 0, -2, -2, -2, -2]


def test_hostile_names_are_inert():
    job = small_job(source=HOSTILE, overrides=(HOSTILE,), scope=HOSTILE, notes=(HOSTILE,))
    text = page_html(DRY_RUN, dryrun_data(job))
    found = Page(text)
    assert [tag for tag, _ in found.tags].count("script") == 2 and "img" not in [tag for tag, _ in found.tags]
    assert found.document["peaks"][0]["tensors"][0]["cell"] == HOSTILE.replace("\x1b", "\\x1b")
    assert "\x1b" not in text and "<!--" not in text and "alert(1)</script>" not in text


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded():
    found = page()
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [attrs for _, attrs in found.tags if "src" in attrs or "href" in attrs]
    assert "innerHTML" not in found.scripts[1] and "url(" not in page_html(DRY_RUN, dryrun_data(small_job()))


def test_a_path_that_is_no_utf8_is_written(tmp_path):
    write_page(str(tmp_path / "r.html"), DRY_RUN, dryrun_data(small_job(source=os.fsdecode(b"a\xff.yaml"))))
    assert "a?.yaml" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_report_is_written_over_an_older_one_and_nothing_else(tmp_path):
    target, other = tmp_path / "r.html", tmp_path / "recipe.yaml"
    write_page(str(target), DRY_RUN, dryrun_data(small_job(source="old.yaml")))
    write_page(str(target), DRY_RUN, dryrun_data(small_job(source="new.yaml")))
    assert "new.yaml" in target.read_text(encoding="utf-8")
    other.write_text("model: {}\n", encoding="utf-8")
    with pytest.raises(UserError, match="is not a report of `msparallel dryrun`; it was left as it is"):
        write_page(str(other), DRY_RUN, dryrun_data(small_job()))
    assert other.read_text(encoding="utf-8") == "model: {}\n"


def bad_targets(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    return [
        tmp_path, tmp_path / "no" / "r.html", tmp_path / "file" / "r.html", tmp_path / "dangling", "/dev/null",
        tmp_path / ("x" * 300), "a\0b",
    ]  # fmt: skip


def test_what_cannot_be_written_is_one_message_before_the_work(tmp_path):
    for target in bad_targets(tmp_path):
        with pytest.raises(UserError, match="cannot be written") as error:
            check_target(str(target), DRY_RUN)
        assert error.value.exit_code == 2 and str(error.value).startswith("--report ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


def test_the_command_refuses_before_it_compiles(repo):
    words = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "msparallel",
        "dryrun",
        "quickstart",
        "--report",
        "/no/where.html",
    ]
    done = subprocess.run(words, cwd=repo, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    told = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert told == ["--report /no/where.html: cannot be written: there is no folder /no."]
    assert not re.search(r"\| +mindspore$", done.stderr, re.M), "nothing was built or compiled"


def test_a_refusal_that_only_writing_meets_is_a_message_too():
    with pytest.raises(UserError, match="^--report /proc/r.html: cannot be written: "):
        write_page("/proc/r.html", DRY_RUN, dryrun_data(small_job()))


def test_the_check_leaves_nothing_behind(tmp_path):
    check_target(str(tmp_path / "r.html"), DRY_RUN)
    assert not list(tmp_path.iterdir())


def test_a_search_is_in_the_document():
    search = page(searched_job()).document["search"]
    assert [form["form"] for form in search["costs"]] == ["chosen", "by hand"]
    assert [form["values"]["collective_bytes"] for form in search["costs"]] == ["13 MiB", "0 B"]
    assert [(row["cell"], row["op"], row["chosen"], row["by_hand"], row["same"]) for row in search["rows"]] == [
        ("up_proj, gate_proj", "MatMul", "input 4 x 1, weight 1 x 1", "input 2 x 1, weight 2 x 1", False),
        ("the layer", "Add", "each input 4 x 1", "each input 4 x 1", True),
        ("head", "Exp", "-", "2 x 2", False),
    ]
    assert page(small_job()).document["search"] is None
    refused = page(searched_job(refused="No such cut.")).document["search"]
    assert (refused["refused"], refused["rows"], len(refused["costs"])) == ("No such cut.", [], 1)


def test_a_search_in_json():
    document = searched_job().to_json()
    first = document["searched"][0]
    assert (first["layers"], first["cell"], first["op"]) == ("0-1", "up_proj", "MatMul")
    assert (first["chosen"], first["by_hand"], first["same"]) == ([[4, 1], [1, 1]], [[2, 1], [2, 1]], False)
    assert document["search"]["chosen"]["collective_bytes"] == 13 * 2**20
    assert (small_job().to_json()["searched"], small_job().to_json()["search"]) == ([], None)
    refused = searched_job(refused="No such cut.").to_json()
    assert refused["search"]["refused"] == "No such cut." and refused["search"]["by_hand"] is None
    assert {row["by_hand"] for row in refused["searched"]} == {None}


def test_a_disk_that_fills_leaves_the_older_page(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    write_page(str(target), DRY_RUN, dryrun_data(small_job()))
    older = target.read_bytes()

    def half(self, text, **how):
        with open(self, "w") as file:
            file.write(text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(RunError, match="No space left on device"):
        write_page(str(target), DRY_RUN, dryrun_data(small_job()))
    assert target.read_bytes() == older and list(tmp_path.iterdir()) == [target]
