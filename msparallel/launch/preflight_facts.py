"""What the launcher asks of a node before a job starts, and what the node answers: two JSON documents.

In: a Request, Facts. Out: their JSON, and back; what another machine sent is checked field by field.

>>> facts_from(json.loads(json.dumps(facts.to_json()))) == facts
True
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_type_hints

from msparallel.errors import UserError, short

FORMAT = 1
MOST_BYTES = 256 * 1024
"""Of an answer; one of a node with 16 devices has 2 KB."""
MARKER = ".msparallel-preflight-"
"""Begin of the name of a file that a pre-flight writes into output_dir and takes away again."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Attributes:
    recipe, overrides: as the node's part of the job will get them.
    node_rank, nodes: of this node, of the job.
    master_addr, master_port: where MindSpore's scheduler will listen.
    token: of this pre-flight; part of the names of its marker files.
    """

    recipe: str
    overrides: tuple[str, ...]
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int
    token: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def request_from(text: str) -> Request:
    """Raises UserError for what no launcher of this version sent."""
    try:
        value = json.loads(text)
        request = Request(**{**value, "overrides": tuple(value["overrides"])})
        texts = (request.recipe, *request.overrides, request.master_addr, request.token)
        numbers = (request.node_rank, request.nodes, request.master_port)
        if not all(isinstance(text, str) for text in texts) or any(type(number) is not int for number in numbers):
            raise ValueError("other types")
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError("The pre-flight's request is not of this version of msparallel.") from None
    if not request.token.isascii() or not request.token.isalnum():
        raise UserError("The pre-flight's token is not made of letters and digits.")
    return request


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a node says of itself. Texts of problems are empty where there is none.

    Attributes:
        msparallel, source: version, and the first 12 digits of the SHA-256 over the package's Python files.
        python, mindspore: versions; mindspore is empty where it is not installed.
        host_name: what msrun's workers take for their node.
        recipe_sha256: of the file's bytes; empty where it is not there.
        recipe_problem: why the recipe cannot be used on this node.
        output_dir: as the node resolves it; output_problem: why it cannot be written.
        held: who trains or supervises in the run's folder now.
        marker: whether node 0's marker file is seen in output_dir (on node 0: was written).
        free_bytes: for output_dir; None where it cannot be told.
        corpus: digest of the sizes of the corpus's files; corpus_problem: why it cannot be read.
        addresses: what master_addr means on this node; has_master: one of them is a network card's here.
        master_problem: on node 0, why the scheduler cannot listen; elsewhere, why it cannot be reached.
        devices_problem: why the devices cannot be used; devices: in a word or two, what is there.
        memory_bytes: of the host, available.
        cores: that processes of this login may use.
        cann: ASCEND_HOME_PATH or ASCEND_TOOLKIT_HOME, which CANN's set_env.sh sets.
        time: Unix seconds when the answer was written.
    """

    msparallel: str
    source: str
    python: str
    mindspore: str
    host_name: str
    recipe_sha256: str = ""
    recipe_problem: str = ""
    output_dir: str = ""
    output_problem: str = ""
    held: tuple[str, ...] = ()
    marker: bool = False
    free_bytes: int | None = None
    corpus: str = ""
    corpus_problem: str = ""
    addresses: tuple[str, ...] = ()
    has_master: bool = False
    master_problem: str = ""
    devices: str = ""
    devices_problem: str = ""
    memory_bytes: int | None = None
    cores: int = 0
    cann: str = ""
    time: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


def facts_from(value: Any) -> Facts:
    """Raises ValueError for what is not an answer of this version: a field that is missing, unknown or of another
    type."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError("no answer of this version")
    given = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items() if key != "format"}
    names = {field.name for field in fields(Facts)}
    if set(given) != names:
        raise ValueError(f"other fields: {short(', '.join(sorted(set(given) ^ names)))}")
    for name, kind in get_type_hints(Facts).items():
        kinds = tuple(getattr(one, "__origin__", one) for one in (get_args(kind) or (kind,)) if one is not Ellipsis)
        if kind == tuple[str, ...]:
            right = isinstance(given[name], tuple) and all(isinstance(item, str) for item in given[name])
        elif kind is float:
            right = isinstance(given[name], (int, float)) and not isinstance(given[name], bool)
        elif kind is bool:
            right = isinstance(given[name], bool)
        else:
            right = isinstance(given[name], kinds) and not isinstance(given[name], bool)
        if not right:
            raise ValueError(f"{name} is {short(given[name], 40)!r}")
    return Facts(**given)
