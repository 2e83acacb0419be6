"""Greedy tokens equal Hugging Face's, one by one: alone, in a ragged batch, with prompts read in pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_recipe import write_recipe

pytestmark = pytest.mark.cpu
FOLDER = Path(__file__).parents[1] / "fixtures" / "generation"
MODELS = ("qwen3", "llama", "qwen2", "qwen3_moe")


@pytest.fixture(scope="module", params=MODELS)
def served(request):
    """An engine with the weights of a folder, and what Hugging Face generates."""
    import mindspore as ms

    from msparallel.serve.engine import Engine
    from msparallel.weights.hugging_face import HuggingFaceFolder

    ms.set_context(mode=ms.GRAPH_MODE)
    path = FOLDER / request.param
    with HuggingFaceFolder.open(path) as folder:
        engine = Engine(folder.shape, slots=4, length=160)
        engine.load(folder)
    return engine, json.loads((path / "expected.json").read_text())


def test_a_checkpoint_of_a_model_whose_head_is_its_embedding(tmp_path):
    """The engine's head is a matrix of its own; a checkpoint has none."""
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.serve.engine import Engine
    from msparallel.weights.checkpoint import TrainedCheckpoint
    from msparallel.weights.hugging_face import HuggingFaceFolder
    from msparallel.weights.source import check_same_model
    from msparallel.weights.to_checkpoint import to_checkpoint

    recipe = write_recipe(
        tmp_path, model__num_layers=2, model__hidden_size=32, model__num_heads=4, model__num_kv_heads=2,
        model__ffn_size=64, model__vocab_size=259, model__head_dim=16, model__qk_norm=True, model__tie_embeddings=True,
        model__rope_theta=1e6, model__max_positions=256,
    )  # fmt: skip
    plan, expected = resolve(load_recipe(recipe)), json.loads((FOLDER / "qwen3" / "expected.json").read_text())
    with HuggingFaceFolder.open(FOLDER / "qwen3") as folder:
        check_same_model(plan.shape, folder.shape, FOLDER)
        step = to_checkpoint(folder, plan, tmp_path / "checkpoints")
    engine = Engine(plan.shape, slots=1, length=160)
    with TrainedCheckpoint.open(step) as trained:
        engine.load(trained)
    assert _prefill(engine, 0, expected["prompts"][1], 128) == expected["greedy"][1][0]


def _prefill(engine, slot, prompt, chunk):
    for start in range(0, len(prompt), chunk):
        logits = engine.prefill(slot=slot, start=start, tokens=prompt[start : start + chunk])
    return int(logits.argmax())


def test_each_prompt_alone(served):
    from msparallel.serve.engine import Row

    engine, expected = served
    for number, (prompt, greedy) in enumerate(zip(expected["prompts"], expected["greedy"], strict=True)):
        slot = number % engine.slots
        tokens = [_prefill(engine, slot, prompt, 128)]
        while len(tokens) < len(greedy):
            row = Row(slot, len(prompt) + len(tokens) - 1, tokens[-1])
            tokens.append(int(engine.decode([row])[0].argmax()))
        assert tokens == greedy, f"prompt {number} of {len(prompt)} tokens"


def test_a_ragged_batch_that_requests_join_while_others_run(served):
    from msparallel.serve.engine import Row

    engine, expected = served
    chosen = {3 - slot: number for slot, number in enumerate((4, 0, 5, 2))}
    tokens: dict[int, list[int]] = {}
    waiting = list(chosen)
    while waiting or any(len(tokens[slot]) < 64 for slot in tokens):
        if waiting:
            slot = waiting.pop()
            tokens[slot] = [_prefill(engine, slot, expected["prompts"][chosen[slot]], 16)]
        running = [slot for slot in tokens if len(tokens[slot]) < 64]
        rows = [Row(slot, len(expected["prompts"][chosen[slot]]) + len(tokens[slot]) - 1, tokens[slot][-1])
                for slot in running]  # fmt: skip
        for slot, logits in zip(running, engine.decode(rows), strict=True):
            tokens[slot].append(int(logits.argmax()))
    assert {slot: tokens[slot] for slot in chosen} == {slot: expected["greedy"][n] for slot, n in chosen.items()}


def test_a_slot_that_another_request_left_full_is_as_good_as_new(served):
    engine, expected = served
    long, short = expected["prompts"][4], expected["prompts"][1]
    _prefill(engine, 0, long, 32)
    assert _prefill(engine, 0, short, 128) == expected["greedy"][1][0]


def test_learned_positions_may_all_be_served():
    """What only fills a batch up stands behind the last of them."""
    from msparallel.model.shape import ModelShape
    from msparallel.serve.buckets import Buckets
    from msparallel.serve.engine import Engine, Row
    from msparallel.weights.source import RandomWeights

    shape = ModelShape(num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, vocab_size=20, position="learned",
                       max_positions=12, norm="layer", activation="gelu")  # fmt: skip
    engine = Engine(shape, slots=3, length=12, sizes=Buckets((3,), (8,)))
    engine.load(RandomWeights(shape))
    engine.warm_up()
    prompt = [7, 3, 11, 2, 5, 1, 9, 4, 6, 8, 10, 12]
    whole = [engine.prefill(slot=0, start=start, tokens=prompt[start : start + 8]) for start in (0, 8)][-1]
    engine.prefill(slot=1, start=0, tokens=prompt[:8])
    one_by_one = [engine.decode([Row(1, place, prompt[place])]) for place in range(8, 12)][-1][0]
    assert abs(whole - one_by_one).max() < 1e-5
