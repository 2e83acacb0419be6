"""Whether a cluster would take a manifest, and its jobs would ever run.

In: a file with Kubernetes objects, anybody's. Out: Checked: broken rules with their lines, and advice. The rules are
those that a schema cannot say: Volcano's admission (`volcano_rules.py`, `queue_rules.py`), what MindCluster's and
MindSpore's operators do (`operator_rules.py`), pods with NPUs and names (`pod_rules.py`). Field names and types are
for the API server: `kubectl apply --dry-run=server`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path as File

from msparallel.errors import Problem, RecipeError, UserError, short
from msparallel.schedule.operator_rules import ascendjob, msjob
from msparallel.schedule.pod_rules import names, pod_templates, pods
from msparallel.schedule.queue_rules import config_map, priority_class, queue
from msparallel.schedule.read_manifest import MAX_BYTES, Document, read_documents
from msparallel.schedule.rule import ADVICE
from msparallel.schedule.volcano_rules import volcano_job

RULES: dict[tuple[str, str], Callable[[Document], Iterator[Problem]]] = {
    ("batch.volcano.sh", "Job"): volcano_job,
    ("mindxdl.gitee.com", "AscendJob"): ascendjob,
    ("mindspore.gitee.com", "MSJob"): msjob,
    ("scheduling.volcano.sh", "Queue"): queue,
    ("scheduling.k8s.io", "PriorityClass"): priority_class,
    ("", "ConfigMap"): config_map,
}
"""Group and kind -> what only such an object must hold."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Attributes:
    objects: `Kind namespace/name` of each, and whether only its names have rules.
    problems: broken rules.
    advice: what works and is seldom meant.
    """

    objects: list[str]
    problems: list[Problem]
    advice: list[Problem]


def check_file(path: str) -> Checked:
    """Check a file, or stdin for `-`. Raises RecipeError where it is no manifest, UserError where it cannot be read."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with File(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{short(path)}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: has more than {MAX_BYTES // 2**20} MiB; a manifest is smaller.")
    try:
        return check_text(data.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"Byte {data[error.start]:#04x} is not UTF-8; a manifest is text."
        raise RecipeError(
            [Problem(key="file", value=None, rule="not_text", message=message, file=path, line=line)]
        ) from None


def check_text(text: str, file: str) -> Checked:
    """Check text. Raises RecipeError where it is no manifest."""
    documents = read_documents(text, file)
    found = [problem for document in documents for problem in check(document)]
    found += _twice(documents)
    return Checked(
        objects=[_title(document) for document in documents],
        problems=[problem for problem in found if problem.rule not in ADVICE],
        advice=[problem for problem in found if problem.rule in ADVICE],
    )


def check(document: Document) -> Iterator[Problem]:
    """Every rule that an object must hold."""
    yield from names(document)
    yield from pods(document)
    if rules := RULES.get((document.api, document.kind)):
        yield from rules(document)


def _title(document: Document) -> str:
    space = document.get("metadata", "namespace")
    place = f"{short(space, 63)}/" if space else ""
    known = (document.api, document.kind) in RULES or pod_templates(document)
    return (
        f"{short(document.kind or '?', 60)} {place}{short(document.name or '?', 253)}{'' if known else ' (names only)'}"
    )


def _twice(documents: list[Document]) -> Iterator[Problem]:
    """The same object in one file: the second takes the place of the first."""
    seen: dict[tuple[str, str, str, str], Document] = {}
    for document in documents:
        key = (document.api, document.kind, str(document.get("metadata", "namespace") or "default"), document.name)
        if document.name and key in seen:
            yield document.problem(
                ("metadata", "name"),
                "object_twice",
                f"A {short(document.kind, 60)} of this name "
                f"begins on line {seen[key].start} too; the second would take its place.",
            )
        seen.setdefault(key, document)
