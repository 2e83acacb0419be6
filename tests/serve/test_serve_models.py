"""`msparallel serve` and `generate` with real engines: greedy answers over HTTP equal Hugging Face's, streamed or not,
alone and all at once; the engine's process ends with the server, and the server tells when it does not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
import yaml
from served import free_port, wait_until
from tiny_recipe import write_recipe

from msparallel.model.shape import ModelShape
from msparallel.recipe.schema import Model
from msparallel.serve.text_tokenizer import TextTokenizer
from msparallel.serve.token_text import Detokenizer
from msparallel.weights.hugging_face import HuggingFaceFolder

pytestmark = pytest.mark.cpu
REPO = Path(__file__).parents[2]
FOLDER = REPO / "tests" / "fixtures" / "generation"
MODELS = ("qwen3", "llama", "qwen2", "qwen3_moe")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO)}


def written_recipe(model: str, folder: Path, **serve_keys: object) -> tuple[Path, TextTokenizer]:
    """A recipe that serves a copy of a fixture, which has got a tokenizer."""
    copy = folder / model
    shutil.copytree(FOLDER / model, copy)
    with HuggingFaceFolder.open(copy) as found:
        shape = found.shape
    plain = TextTokenizer.bytes(shape.vocab_size)
    plain._plain.save(str(copy / "tokenizer.json"))
    (copy / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    keys = {field.name: value for field in fields(ModelShape)
            if field.name in Model.model_fields and (value := getattr(shape, field.name)) != field.default}  # fmt: skip
    serve = {"weights": str(copy), "port": free_port(), "max_concurrency": 4, "max_length": 160, **serve_keys}
    path = folder / f"{model}.yaml"
    path.write_text(yaml.safe_dump({"model": keys, "serve": serve}))
    return path, plain


@contextmanager
def serving(recipe: Path, cwd: Path):
    """(address, process) of `msparallel serve`, ready."""
    process = subprocess.Popen([sys.executable, "-m", "msparallel", "serve", str(recipe), "--json"], cwd=cwd, text=True,
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def engines(process: subprocess.Popen[str]) -> list[int]:
    """Processes that the server started."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in found]


async def ask_all(address: str, model: str, expected: dict, stream: bool) -> list[list[str]]:
    """Names of the tokens of every answer."""
    async with httpx.AsyncClient(timeout=300) as client:
        async def one(prompt: list[int], count: int) -> list[str]:
            body = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0,
                    "ignore_eos": True, "stream": stream}  # fmt: skip
            answer = await client.post(f"{address}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            if not stream:
                return answer.json()["choices"][0]["logprobs"]["tokens"]
            parts = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            told = [part["choices"][0]["logprobs"] for part in parts]
            return [name for logprobs in told if logprobs for name in logprobs["tokens"]]

        return await asyncio.gather(*(one(prompt, len(greedy)) for prompt, greedy
                                      in zip(expected["prompts"], expected["greedy"], strict=True)))  # fmt: skip


def named(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    def name(token: int) -> str:
        shown = tokenizer.text.name(token)
        try:
            return shown.decode()
        except UnicodeDecodeError:
            return f"bytes:\\x{shown[0]:02x}"

    return [name(token) for token in ids]


@pytest.mark.parametrize("model", MODELS)
def test_greedy_answers_are_hugging_faces(model, tmp_path):
    expected = json.loads((FOLDER / model / "expected.json").read_text())
    recipe, tokenizer = written_recipe(model, tmp_path)
    greedy = [named(tokenizer, ids) for ids in expected["greedy"]]
    with serving(recipe, tmp_path) as (told, process):
        address = told["address"]
        assert told["model"] == model
        for stream in (False, True):  # six at once, in four places
            assert asyncio.run(ask_all(address, model, expected, stream)) == greedy
        body = {"model": model, "prompt": expected["prompts"][2], "max_tokens": 64, "temperature": 0,
                "ignore_eos": True}  # fmt: skip
        text = httpx.post(f"{address}/v1/completions", json=body, timeout=300).json()["choices"][0]["text"]
        reading = Detokenizer(tokenizer.text)
        assert text == "".join([*map(reading.feed, expected["greedy"][2]), reading.end()])
        metrics = httpx.get(f"{address}/metrics").text
        assert 'msparallel_serve_requests_total{end="finished"} 13.0' in metrics
        children = engines(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert len(children) == 1 and not Path(f"/proc/{children[0]}").exists()


def test_an_engine_that_is_killed(tmp_path):
    recipe, _ = written_recipe("qwen3", tmp_path)
    with serving(recipe, tmp_path) as (told, process):
        address = told["address"]
        assert httpx.get(f"{address}/readyz").status_code == 200
        [engine] = engines(process)
        os.kill(engine, signal.SIGKILL)
        body = {"model": "qwen3", "prompt": "a", "max_tokens": 100}
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_ended"
        wait_until(lambda: httpx.get(f"{address}/healthz").status_code == 503)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        assert "was killed by signal 9" in process.stderr.read()


def test_weights_that_are_damaged_end_the_start(tmp_path):
    recipe, _ = written_recipe("qwen3", tmp_path)
    weights = tmp_path / "qwen3" / "model.safetensors"
    head = weights.read_bytes()
    weights.write_bytes(head.replace(b"model.norm.weight", b"model.norm.weighs"))
    done = subprocess.run([sys.executable, "-m", "msparallel", "serve", str(recipe)], cwd=tmp_path, text=True,
                          capture_output=True, env=environment(), timeout=300)  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "") and "model.norm.weight" in done.stderr
    assert "Traceback" not in done.stderr


def generated(*words: str, cwd: Path, stdin: str = "") -> str:
    done = subprocess.run([sys.executable, "-m", "msparallel", "generate", *words], cwd=cwd, text=True, input=stdin,
                          capture_output=True, env=environment(), timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate_from_the_newest_checkpoint_of_a_run(tmp_path):
    recipe = write_recipe(tmp_path)
    done = subprocess.run([sys.executable, "-m", "msparallel", "run", str(recipe), "train.seq_length=64"], cwd=tmp_path,
                          env=environment(), capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = [str(recipe), "train.seq_length=64", "the ", "a ", "--max-tokens", "8", "--temperature", "0"]
    told = json.loads(generated(*words, "--json", cwd=tmp_path))
    assert [one["prompt"] for one in told["answers"]] == ["the ", "a "]
    assert all(0 < one["answer_tokens"] <= 8 for one in told["answers"])
    shown = generated(*words, cwd=tmp_path)
    assert shown == "".join(one["prompt"] + one["text"] + "\n" for one in told["answers"])
    chat = generated(*words[:2], "--chat", "--json", "--max-tokens", "4", cwd=tmp_path, stdin="Hello\n")
    assert json.loads(chat)["answers"][0]["prompt"] == "Hello"
