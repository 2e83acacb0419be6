"""`serve` and `generate` as a user meets them: what cannot be, before anything starts; words and options."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from msparallel.cli.generate import split_words

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]


def run(*words: str, cwd: Path, stdin: bytes = b"", env: dict[str, str] | None = None) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    done = subprocess.run([sys.executable, "-m", "msparallel", *words], capture_output=True, cwd=cwd, input=stdin,
                          env=environment, timeout=60)  # fmt: skip
    assert b"Traceback" not in done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(("words", "code", "why"), [
    (("serve", "quickstart"), 2, "no `serve` section"),
    (("serve", "serve_tiny_cpu", "serve.weights=nowhere"), 2, "no Hugging Face folder"),
    (("serve", "serve_tiny_cpu", "model.vocab_size=200"), 2, "model.vocab_size=257"),
    (("serve", "serve_tiny_cpu", "serve.api_keys_file=nowhere"), 2, "cannot be read"),
    (("serve", "serve_tiny_cpu", "serve.host=no.such.host.invalid"), 2, "no such address"),
    (("serve", "serve_tiny_cpu", "serve.host=192.0.2.1"), 2, "Nothing can listen there"),
    (("serve", "serve_tiny_cpu", "serve.max_waiting=-1"), 2, "serve.max_waiting"),
    (("serve", "qwen3_8b_serve_tp1", "serve.weights=random"), 2, "Ascend 910B"),
    (("serve", "qwen3_8b_dp2_tp4", "serve.weights=random"), 2, "model_parallel only; this recipe's mesh is dp2 x tp4"),
    (("serve", "qwen3_8b_serve_tp1", "serve.weights=random", "model.attention=plain"), 2, "model.attention=auto"),
    (("generate", "quickstart", "def"), 2, "There is no checkpoint of quickstart yet"),
    (("generate", "serve_tiny_cpu", ""), 2, "PROMPT 1 is empty"),
    (("generate", "serve_tiny_cpu", "a", "--max-tokens", "1024"), 2, "together they may have 1024"),
    (("generate", "serve_tiny_cpu", "a", "--max-tokens", "0"), 2, "--max-tokens"),
    (("generate", "serve_tiny_cpu", "a", "--system", "b"), 2, "add --chat"),
    (("generate", "serve_tiny_cpu", "a", "--stop", ""), 2, "--stop is empty"),
    (("generate", "serve_tiny_cpu", "serve.weights=nowhere", "a"), 2, "no Hugging Face folder"),
])  # fmt: skip
def test_what_cannot_be(words, code, why, tmp_path):
    found, out, err = run(*words, cwd=tmp_path)
    assert (found, out) == (code, "") and why in err


def test_a_port_that_is_taken_is_exit_code_1(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out, err = run("serve", "serve_tiny_cpu", f"serve.port={port}", cwd=tmp_path)
    assert (code, out) == (1, "") and "Another program listens there" in err and str(port) in err


def test_a_kernel_without_a_hosts_kind_of_addresses_is_told(monkeypatch):
    from msparallel.errors import UserError
    from msparallel.serve.server import listen

    def none(*words):
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(UserError, match="not supported by protocol.\n  Try: serve.host=127.0.0.1"):
        listen("::1", 0)


def test_prompts_from_stdin_are_text(tmp_path):
    code, _, err = run("generate", "serve_tiny_cpu", cwd=tmp_path, stdin=b"\xff\xfe")
    assert code == 2 and "stdin is not UTF-8" in err
    code, _, err = run("generate", "serve_tiny_cpu", "-", cwd=tmp_path, stdin=b"a" * 1100)
    assert code == 2 and "the prompt has 1100" in err or "It has 1100 tokens" in err


@pytest.mark.parametrize("character", ["a", "é", "中"])
def test_more_than_a_prompt_from_stdin_is_refused_and_not_cut(tmp_path, character):
    data = (character.encode() * (9 << 20))[: 9 << 20]
    code, out, err = run("generate", "serve_tiny_cpu", cwd=tmp_path, stdin=data)
    assert (code, out) == (2, "") and "more than 8 MiB" in err


def test_keys_are_never_shown(tmp_path):
    (tmp_path / "keys").write_text("a-secret-of-this-test é\n")
    code, out, err = run("serve", "serve_tiny_cpu", "serve.api_keys_file=keys", cwd=tmp_path)
    assert code == 2 and "secret" not in out + err
    code, out, err = run("serve", "serve_tiny_cpu", cwd=tmp_path, env={"MSPARALLEL_API_KEYS": "secret"})
    assert code == 2 and "secret" not in out + err and "MSPARALLEL_API_KEYS" in err


@pytest.mark.parametrize(("words", "overrides", "prompts"), [
    (("serve.port=1", "a"), ["serve.port=1"], ["a"]), (("a", "serve.port=1"), [], ["a", "serve.port=1"]),
    (("x.y=1",), [], ["x.y=1"]), (("1 + 1 =", "="), [], ["1 + 1 =", "="]), ((), [], []),
    (("model.num_layers=2", "serve.port=1", "-"), ["model.num_layers=2", "serve.port=1"], ["-"]),
])  # fmt: skip
def test_which_words_are_prompts(words, overrides, prompts):
    assert split_words(words) == (overrides, prompts)
