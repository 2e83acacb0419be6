"""A node says what it has, before a job starts: `python -m msparallel.launch.preflight REQUEST`.

In: a Request as JSON. Out: one line of JSON, the node's Facts. Nothing imports MindSpore. Node 0 writes a marker file
into output_dir and listens where MindSpore's scheduler will, until its input ends; the other nodes look for the marker
and connect. Whatever a pre-flight made is taken away again.

>>> corpus_digest([Path("a.txt")])  # doctest: +SKIP
'6b86b273ff34'
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msparallel
from msparallel.errors import UserError
from msparallel.launch.connect import has_address
from msparallel.launch.preflight_devices import devices_here, memory_available_bytes
from msparallel.launch.preflight_facts import MARKER, Facts, Request, request_from
from msparallel.launch.preflight_lock import holders
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import find_recipe, load_recipe

HOLD_S = 600
"""Longest that node 0 waits for the others; the launcher closes its input earlier."""
CONNECT_S = 5.0
_MOST_TEXT = 2000


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 where the node answered, whatever the answer is."""
    try:
        request = request_from(arguments[0] if arguments else "")
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with contextlib.ExitStack() as made:
        facts, listener = _facts(request, made)
        print(json.dumps(facts.to_json()), flush=True)
        if request.node_rank == 0:
            _hold(listener, request.token)
    return 0


def _facts(request: Request, made: contextlib.ExitStack) -> tuple[Facts, socket.socket | None]:
    told = own_facts()
    sha256, plan, recipe_problem = _recipe(request)
    told |= {"recipe_sha256": sha256, "recipe_problem": recipe_problem}
    if plan is not None and plan.recipe.train is not None:
        output = Path(plan.recipe.train.output_dir).absolute()
        told |= {"output_dir": str(output), "held": holders(output / plan.recipe.name)}
        told |= _folder(request, output, made) | _corpus(plan)
        told["devices"], told["devices_problem"] = devices_here(plan)
    network, listener = _network(request, made)
    return Facts(**{**told, **network, "time": time.time()}), listener


def own_facts() -> dict:
    """What depends on no recipe."""
    try:
        mindspore = importlib.metadata.version("mindspore")
    except importlib.metadata.PackageNotFoundError:
        mindspore = ""
    return {
        "msparallel": msparallel.__version__,
        "source": source_digest(),
        "python": platform.python_version(),
        "mindspore": mindspore,
        "host_name": socket.gethostname(),
        "memory_bytes": memory_available_bytes(),
        "cores": len(os.sched_getaffinity(0)),
        "cann": os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME") or "",
    }


def source_digest(folder: Path = Path(msparallel.__file__).parent) -> str:
    """Of the package's Python files: two checkouts of one version need not be the same."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\n{len(data)}\n".encode() + data)
    return digest.hexdigest()[:12]


def corpus_digest(files: Sequence[Path]) -> str:
    """Of the files' sizes, in reading order: cheap, and different where a copy is old or not whole."""
    sizes = [path.stat().st_size for path in files]
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:12]


def recipe_digest(recipe: str) -> str:
    """SHA-256 of the file. Raises RecipeError or OSError where it cannot be read."""
    return hashlib.sha256(find_recipe(recipe).read_bytes()).hexdigest()


def _recipe(request: Request) -> tuple[str, Plan | None, str]:
    digest = ""
    try:
        digest = recipe_digest(request.recipe)
        return digest, resolve(load_recipe(request.recipe, request.overrides)), ""
    except (UserError, OSError) as error:
        return digest, None, str(error)[:_MOST_TEXT]


def _corpus(plan: Plan) -> dict[str, str]:
    from msparallel.data.corpus import corpus_files

    try:
        return {"corpus": corpus_digest(corpus_files(plan.recipe.data.corpus))}
    except (UserError, OSError) as error:
        return {"corpus_problem": str(error)[:_MOST_TEXT]}


def _folder(request: Request, output: Path, made: contextlib.ExitStack) -> dict:
    """Write into output_dir; look for node 0's marker."""
    told: dict = {}
    own, marker = output / f"{MARKER}{request.token}.{request.node_rank}", output / f"{MARKER}{request.token}.0"
    try:
        if request.node_rank == 0:
            made.enter_context(_folder_made(output))
        elif not output.is_dir():
            return {"output_problem": "there is no such folder on this node"}
        told["marker"] = request.node_rank == 0 or marker.exists()
        made.callback(own.unlink, missing_ok=True)
        own.write_text(request.token, encoding="utf-8")
        status = os.statvfs(output)
        told["free_bytes"] = status.f_bavail * status.f_frsize
    except OSError as error:
        told |= {"output_problem": f"it cannot be written: {error.strerror}", "marker": False}
    return told


@contextlib.contextmanager
def _folder_made(folder: Path) -> Iterator[None]:
    """The folder, for as long as this lasts; what had to be made and is still empty goes away again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for path in missing:
            try:
                path.rmdir()
            except OSError:  # no longer empty
                break


def _network(request: Request, made: contextlib.ExitStack) -> tuple[dict, socket.socket | None]:
    try:
        found = socket.getaddrinfo(request.master_addr, request.master_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a host"
        return {"master_problem": f"{request.master_addr} means no address on this node ({reason})"}, None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    told = {"addresses": addresses, "has_master": has_address(addresses[0])}
    place = f"{addresses[0]}:{request.master_port}"
    if request.node_rank == 0:
        listener = made.enter_context(socket.socket(found[0][0]))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(found[0][4])
            listener.listen(1024)
        except OSError as error:
            return {**told, "master_problem": f"The scheduler cannot listen on {place} ({error.strerror})"}, None
        return told, listener
    try:
        with socket.create_connection(found[0][4][:2], timeout=CONNECT_S) as connection:
            answer = connection.recv(len(request.token))
    except TimeoutError:
        return {
            **told,
            "master_problem": f"No answer from {place} within {CONNECT_S:g} s: no route, or a firewall",
        }, None
    except OSError as error:
        return {**told, "master_problem": f"{place} cannot be reached ({error.strerror})"}, None
    if answer.decode("ascii", "replace") != request.token:
        return {**told, "master_problem": f"Something else than node 0 answers at {place}"}, None
    return told, None


def _hold(listener: socket.socket | None, token: str) -> None:
    """Keep the marker, and tell every caller the token, until the launcher closes our input."""
    deadline = time.monotonic() + HOLD_S
    with selectors.SelectSelector() as selector:  # also takes an input that is a file
        if listener is not None:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if listener is None or key.fileobj is not listener:
                    return  # the launcher sends nothing: this is the end of its pipe
                with contextlib.suppress(OSError):  # the caller has gone again
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(CONNECT_S)
                        connection.sendall(token.encode("ascii"))
                        connection.recv(1)  # who closes first keeps the port for a while; the scheduler needs ours


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
