"""Whatever the degrees, a virtual cluster answers what one device answers; and what is wrong is seen."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from msparallel.model.cache_blocks import Blocks
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.serve import paged_batches
from msparallel.simulate import serving
from msparallel.simulate.kernels import KERNELS
from msparallel.simulate.requests import Answer, answered, prompts_of
from msparallel.simulate.serving import ServingSimulation, shrunk_server, simulate_serving

TP1, TP2 = "qwen3_8b_serve_tp1", "qwen3_8b_serve_tp2"
MOE = ("model.preset=qwen3_30b_a3b",)
CASES = {
    "qwen3-tp2": (TP2,),
    "qwen3-tp1": (TP1,),
    "qwen3-tp4": (TP2, "parallel.model_parallel=4"),
    "llama2-tp2": (TP2, "model.preset=llama2_7b"),
    "llama2-70b-tp4": (TP2, "model.preset=llama2_70b", "parallel.model_parallel=4"),
    "biases-tp2": (TP2, "model.preset=qwen2_7b"),
    "tied-tp2": (TP2, "model.tie_embeddings=true"),
    "gpt2-tp2": (TP2, "model.preset=gpt2_124m", "serve.max_length=48"),
    "whole-vocabulary-tp2": (TP2, "parallel.vocab_parallel=false"),
    "experts-tp1": (TP1, *MOE),
    "experts-tp2": (TP2, *MOE, "parallel.expert_parallel=2"),
    "experts-tp4": (TP2, *MOE, "parallel.expert_parallel=4", "parallel.model_parallel=4"),
    "one-request": (TP2, "serve.max_concurrency=1"),
    "long": (TP2, "serve.max_length=100"),
}
SAMPLE = ("qwen3-tp2",)


def plan_of(recipe: str, *words: str) -> Plan:
    return resolve(load_recipe(recipe, words))


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in CASES]
)
def test_a_cluster_answers_what_one_device_answers(name):
    found = simulate_serving(plan_of(*CASES[name]), tokens=8, progress=False)
    assert found.deadlock is None and found.replicas_apart == 0
    assert [one.tokens for one in found.cluster] == [one.tokens for one in found.single]
    assert len(found.cluster) > found.plan.recipe.serve.max_concurrency
    assert {len(one.tokens) for one in found.cluster} == {8}
    assert found.max_rel_logit_error <= 1e-5 and found.same


class Proof:
    """Graphs of two ranks, compiled once, and what one device answers."""

    def __init__(self, patch: pytest.MonkeyPatch):
        kept = {}

        def keep(name):
            original = getattr(serving, name)

            def call(*arguments, **words):
                kept[name] = (arguments, original(*arguments, **words))
                return kept[name][1]

            patch.setattr(serving, name, call)

        for name in ("_compiled", "read_answers", "answered"):
            keep(name)
        self.found = simulate_serving(plan_of(*CASES["qwen3-tp2"]), tokens=6, progress=False)
        patch.undo()
        (self.plan, self.form, *_), self.programs = kept["_compiled"]
        (engine, self.prompts), _ = kept["answered"]
        self.sizes = engine._sizes

    def again(self) -> ServingSimulation:
        """The cluster's answers once more, beside the same ones of one device."""
        engine = serving.VirtualEngine(self.programs, self.plan, self.form, self.sizes)
        slots, chunk = self.plan.recipe.serve.max_concurrency, self.sizes.chunks[-1]
        answers = answered(engine, self.prompts, tokens=6, slots=slots, chunk=chunk)
        return ServingSimulation(
            plan=self.plan, changes={}, single=self.found.single, cluster=tuple(answers),
            replicas_apart=engine.replicas_apart, deadlock=None, seconds={},
        )  # fmt: skip


@pytest.fixture(scope="module")
def proof():
    with pytest.MonkeyPatch.context() as patch:
        return Proof(patch)


def kernel_instead(op, change):
    """KERNELS with one that gets other inputs."""
    original = KERNELS[op]

    def kernel(call):
        inputs = list(call.inputs)
        change(inputs)
        return original(type(call)(call.op, tuple(inputs), call.attributes, call.type))

    return {**KERNELS, op: kernel}


def no_mask(inputs):
    if inputs[7] is not None:
        inputs[7] = np.zeros_like(inputs[7])


def one_token_less(inputs):
    inputs[4] = np.maximum(inputs[4] - 1, 1)


def next_row(inputs):
    inputs[4] = np.minimum(inputs[4] + 1, inputs[2].shape[0] * inputs[2].shape[1] - 1)


def other_scale(inputs):
    inputs[11] *= 1.001


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("op", "change"),
    [("PagedAttention", no_mask), ("PagedAttention", one_token_less), ("ReshapeAndCache", next_row),
     ("PagedAttention", other_scale)],
)  # fmt: skip
def test_what_a_kernel_does_otherwise_is_seen(proof, monkeypatch, op, change):
    assert proof.again().same
    monkeypatch.setattr("msparallel.simulate.cluster.KERNELS", kernel_instead(op, change))
    found = proof.again()
    assert not found.same and found.max_rel_logit_error > 1e-5


@pytest.mark.cpu
@pytest.mark.parametrize("what", ["positions", "fillers written to the slot's next rows", "the next slot's blocks"])
def test_what_is_fed_wrongly_is_seen(proof, monkeypatch, what):
    prefill = paged_batches.prefill_inputs

    def other(blocks: Blocks, *, slot, start, tokens, chunk):
        if what == "the next slot's blocks":
            fed = list(prefill(blocks, slot=slot, start=start, tokens=tokens, chunk=chunk))
            fed[4] = (fed[4] + blocks.of_a_slot) % blocks.count
            return tuple(fed)
        fed = list(prefill(blocks, slot=slot, start=start, tokens=tokens, chunk=chunk))
        if what == "positions":
            fed[1] = fed[1] - (fed[1] > 0)
        else:
            fed[3] = np.where(fed[3] == blocks.spare_row, blocks.row(slot, 0), fed[3])
        return tuple(fed)

    monkeypatch.setattr(paged_batches, "prefill_inputs", other)
    assert not proof.again().same


@pytest.mark.cpu
def test_a_rank_with_another_rank_s_weights_is_seen(proof, monkeypatch):
    read = serving.DrawnWeights.read

    def other(self, name, bounds=None, whole=None):
        if name.endswith("layers.1.mlp.up_proj.weight") and bounds[0][0] == 0:
            bounds = [(size - stop, size - start) for (start, stop), size in zip(bounds, whole, strict=True)]
        return read(self, name, bounds, whole)

    monkeypatch.setattr(serving.DrawnWeights, "read", other)
    assert not proof.again().same


@pytest.mark.cpu
def test_a_rank_that_comes_to_no_sum_hangs_and_is_named(proof, monkeypatch):
    run = serving.Cluster.run

    def alone(self, graph, inputs):
        self.programs = {rank: program for rank, program in self.programs.items() if rank == 0}
        return run(self, graph, inputs)

    monkeypatch.setattr(serving.Cluster, "run", alone)
    with pytest.raises(serving.Deadlock, match="would hang"):
        proof.again()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "msparallel", "simulate", *words], capture_output=True, text=True, timeout=600
    )


@pytest.mark.cpu
def test_the_verb():
    done = run(TP1, "--tokens", "4", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["same"] is True and document["world_size"] == 1 and document["deadlock"] is None
    assert all(one["single"] == one["cluster"] and len(one["single"]) == 4 for one in document["requests"])
    assert document["shrunk_to"]["serve.max_length"] == 48 and document["max_rel_logit_error"] <= 1e-5


@pytest.mark.slow
@pytest.mark.cpu
def test_the_verb_for_a_person():
    done = run(TP2, "--tokens", "4")
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for told in ("answers the same as one device, token for token.", "Logits of all ranks equal, bit by bit",
                 "compiled in float16, executed in float32"):  # fmt: skip
        assert told in printed, told


@pytest.mark.pure
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((TP2, "--steps", "2"), "a recipe that serves has --tokens"),
        ((TP2, "--report", "r.html"), "a recipe that serves has --tokens"),
        (("llama2_7b_dp2_tp2_pp2", "--tokens", "2"), "training has --steps"),
        ((TP2, "--timeline"), "no `train` section"),
    ],
)
def test_what_cannot_be_asked(words, told):
    done = run(*words)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.pure
def test_what_was_typed_stays_and_the_rest_is_small():
    small, changes = shrunk_server(plan_of(TP2, "serve.max_length=64", "model.head_dim=16"))
    assert small.recipe.serve.max_length == 64 and small.shape.head_dim == 16
    assert not {"serve.max_length", "model.head_dim"} & changes.keys()
    assert small.mesh.tp == 2 and small.shape.num_kv_heads == 4 and small.shape.num_heads == 8
    assert small.shape.qk_norm and small.shape.num_layers == 2


class Echo:
    """Answers with the number of the slot, and checks that no two requests share one."""

    def __init__(self, vocab: int):
        self.vocab, self.seen, self.most = vocab, {}, 0

    def logits(self, token):
        return np.eye(self.vocab, dtype=np.float32)[token]

    def prefill(self, *, slot, start, tokens):
        assert start == 0 or self.seen[slot] == start
        self.seen[slot] = start + len(tokens)
        return self.logits(tokens[-1])

    def decode(self, batch):
        assert len({row.slot for row in batch}) == len(batch)
        self.most = max(self.most, len(batch))
        for row in batch:
            assert self.seen[row.slot] == row.position
            self.seen[row.slot] += 1
        return np.stack([self.logits((row.token + 1) % self.vocab) for row in batch])


@pytest.mark.pure
@pytest.mark.parametrize("slots", [1, 3, 6])
def test_requests_come_beside_each_other_and_take_slots_again(slots):
    prompts = prompts_of(vocab_size=50, slots=slots, length=48, tokens=8)
    lengths = [len(prompt) for prompt in prompts]
    assert len(prompts) > slots and 40 in lengths and 1 in lengths and max(lengths) <= 40
    engine = Echo(50)
    answers = answered(engine, prompts, tokens=8, slots=slots, chunk=16)
    assert engine.most == slots
    for prompt, one in zip(prompts, answers, strict=True):
        assert one.tokens == tuple((prompt[-1] + step) % 50 for step in range(8))


@pytest.mark.pure
def test_logits_are_compared_up_to_the_first_other_token():
    def answer(*rows):
        logits = np.array(rows, np.float32)
        return Answer(3, tuple(logits.argmax(-1).tolist()), logits)

    plan = plan_of(TP2)

    def compared(one, other, apart=0.0):
        return ServingSimulation(
            plan=plan, changes={}, single=(one,), cluster=(other,), replicas_apart=apart, deadlock=None, seconds={}
        )

    same = answer([1, 0], [0, 2], [3, 0])
    assert compared(same, same).same and not compared(same, same, apart=1e-9).same
    near = compared(same, answer([1, 0], [0, 2.002], [3, 0]))
    assert near.same_tokens and not near.same and near.max_rel_logit_error == pytest.approx(1e-3, rel=1e-3)
    other = compared(same, answer([1, 0], [2, 0], [0, 90]))
    assert not other.same_tokens and other.max_rel_logit_error == pytest.approx(2**0.5)
