"""The scheduler over an engine without a model: every request gets its own answer, whatever happens beside it."""

from __future__ import annotations

import asyncio
import random

import pytest
from fake_engine import FakeEngine, answer
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.serve.protocol import Decode, Prefill
from msparallel.serve.requests import Draining, Expired, QueueFull, Request
from msparallel.serve.scheduler import Scheduler

pytestmark = pytest.mark.pure


def run(test):
    """Runs a coroutine function that is given nothing."""
    return asyncio.run(asyncio.wait_for(test(), 60))


def scheduler(engine, **changes):
    return Scheduler(engine, **{"slots": 2, "length": 64, "chunk": 8, "most_waiting": 4} | changes)


async def collect(answering):
    return [choice.token async for choice in answering]


def test_many_requests_get_what_each_would_get_alone():
    async def test():
        engine, rng = FakeEngine(), random.Random(3)
        found = scheduler(engine, slots=3, most_waiting=100)
        loop = asyncio.create_task(found.run())
        prompts = [[rng.randrange(50) for _ in range(rng.randrange(1, 40))] for _ in range(40)]
        counts = [rng.randrange(1, 24) for _ in prompts]
        answers = [found.submit(Request(prompt=prompt, max_tokens=count))
                   for prompt, count in zip(prompts, counts, strict=True)]  # fmt: skip
        tokens = await asyncio.gather(*map(collect, answers))
        loop.cancel()
        assert tokens == [answer(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        assert {one.reason for one in answers} == {"length"}
        assert max(len(one.steps) for one in engine.asked if isinstance(one, Decode)) == 3
        assert max(len(one.tokens) for one in engine.asked if isinstance(one, Prefill)) == 8
        assert found.counts.finished == 40 and found.running == found.waiting == 0

    run(test)


def test_a_long_prompt_delays_the_others_by_a_piece_a_token():
    async def test():
        engine = FakeEngine(step_s=0.001)
        found = scheduler(engine)
        loop = asyncio.create_task(found.run())
        first = asyncio.create_task(collect(found.submit(Request(prompt=[1], max_tokens=60))))
        while len(engine.asked) < 3:
            await asyncio.sleep(0)
        await collect(found.submit(Request(prompt=list(range(40)), max_tokens=1)))
        assert not first.done()
        await first
        loop.cancel()
        kinds = "".join("p" if isinstance(one, Prefill) else "d" for one in engine.asked)
        assert kinds.count("p") == 6 and "pp" not in kinds

    run(test)


@pytest.mark.parametrize(
    ("at_once", "order"), [(1, "pd"), (2, "pdpd"), (3, "ppdpd"), (4, "ppdpdpd"), (8, "ppppdpdpdpdpd")]
)
def test_of_many_that_come_at_once_half_are_read_before_a_step(at_once, order):
    async def test():
        engine = FakeEngine()
        found = scheduler(engine, slots=8, most_waiting=8)
        answers = [found.submit(Request(prompt=[1, number], max_tokens=20)) for number in range(at_once)]
        loop = asyncio.create_task(found.run())
        await asyncio.gather(*map(collect, answers))
        loop.cancel()
        kinds = "".join("p" if isinstance(one, Prefill) else "d" for one in engine.asked)
        assert kinds.startswith(order) and "p" not in kinds[len(order) :]

    run(test)


def test_the_queue_is_bounded_and_says_when_to_come_again():
    async def test():
        found = scheduler(FakeEngine())
        for _ in range(6):  # two slots, four places
            found.submit(Request(prompt=[1], max_tokens=1))
        with pytest.raises(QueueFull) as refused:
            found.submit(Request(prompt=[1], max_tokens=1))
        assert refused.value.retry_after_s >= 1 and found.counts.refused == 1 and found.counts.accepted == 6

    run(test)


def test_clients_take_turns():
    async def test():
        engine, ended = FakeEngine(), []

        async def ask(found, client, number):
            await collect(found.submit(Request(prompt=[number + 1], max_tokens=2, client=client)))
            ended.append((client, number))

        found = scheduler(engine, slots=1, most_waiting=50)
        tasks = [asyncio.create_task(ask(found, "many", number)) for number in range(10)]
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(ask(found, "one", 0)))
        await asyncio.sleep(0.01)
        loop = asyncio.create_task(found.run())
        await asyncio.gather(*tasks)
        loop.cancel()
        assert ended.index(("one", 0)) <= 1
        assert [number for client, number in ended if client == "many"] == list(range(10))

    run(test)


def test_who_leaves_frees_the_slot_and_the_place_in_the_queue():
    async def test():
        engine = FakeEngine(step_s=0.001)
        found = scheduler(engine, slots=1)
        loop = asyncio.create_task(found.run())
        leaving = found.submit(Request(prompt=[1, 2], max_tokens=60))
        waiting = found.submit(Request(prompt=[3], max_tokens=60))
        behind = asyncio.create_task(collect(found.submit(Request(prompt=[4], max_tokens=3))))
        async for _ in leaving:
            break
        leaving.cancel()
        waiting.cancel()
        assert await behind == answer([4], 3)
        loop.cancel()
        assert found.counts.cancelled == 2 and found.waiting == 0
        assert sum(len(one.steps) for one in engine.asked if isinstance(one, Decode)) < 10

    run(test)


def test_stop_tokens_end_an_answer_and_are_not_in_it():
    async def test():
        found = scheduler(FakeEngine())
        loop = asyncio.create_task(found.run())
        whole = answer([5, 6], 20)
        place = next(place for place in range(3, 20) if whole[place] not in whole[:place])
        answering = found.submit(Request(prompt=[5, 6], max_tokens=20, stop_tokens=frozenset([whole[place]])))
        assert await collect(answering) == whole[:place] and answering.reason == "stop"
        loop.cancel()

    run(test)


def test_the_next_turn_of_a_conversation_reads_only_what_is_new():
    async def test():
        engine = FakeEngine()
        found = scheduler(engine)
        loop = asyncio.create_task(found.run())
        first = list(range(20))
        tokens = await collect(found.submit(Request(prompt=first, max_tokens=5)))
        await collect(found.submit(Request(prompt=[49, 48], max_tokens=2)))  # takes the other slot
        second = [*first, *tokens, 7, 7]
        answering = found.submit(Request(prompt=second, max_tokens=4))
        assert await collect(answering) == answer(second, 4)
        again = found.submit(Request(prompt=second, max_tokens=4))
        assert await collect(again) == answer(second, 4)
        loop.cancel()
        assert answering.reused_tokens == 24 and again.reused_tokens == len(second) - 1
        assert found.counts.reused_tokens == 24 + len(second) - 1

    run(test)


def test_a_request_that_waited_too_long_is_told():
    async def test():
        found = scheduler(FakeEngine(step_s=0.002), slots=1)
        loop = asyncio.create_task(found.run())
        first = asyncio.create_task(collect(found.submit(Request(prompt=[1], max_tokens=40))))
        with pytest.raises(Expired):
            await collect(found.submit(Request(prompt=[2], max_tokens=1, wait_s=0.01)))
        assert await first == answer([1], 40)
        loop.cancel()

    run(test)


def test_draining_finishes_what_was_let_in_and_takes_nothing_new():
    async def test():
        found = scheduler(FakeEngine(step_s=0.001), slots=1)
        loop = asyncio.create_task(found.run())
        tasks = [asyncio.create_task(collect(found.submit(Request(prompt=[n], max_tokens=5)))) for n in range(1, 5)]
        await asyncio.sleep(0)
        drained = asyncio.create_task(found.drain())
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            found.submit(Request(prompt=[1], max_tokens=1))
        await drained
        assert await asyncio.gather(*tasks) == [answer([n], 5) for n in range(1, 5)]
        loop.cancel()

    run(test)


def test_an_engine_that_dies_tells_everyone():
    async def test():
        found = scheduler(FakeEngine(fail_at=5), slots=1)
        tasks = [asyncio.create_task(collect(found.submit(Request(prompt=[n], max_tokens=9)))) for n in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="died"):
            await found.run()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, RuntimeError) for one in ended)
        with pytest.raises(RuntimeError):
            found.submit(Request(prompt=[1], max_tokens=1))

    run(test)


@pytest.mark.parametrize(("prompt", "tokens"), [([], 1), ([1], 0), ([1] * 60, 5), ([1], 64)])
def test_what_has_no_room_is_no_request(prompt, tokens):
    with pytest.raises(ValueError, match="do not fit in 64"):
        scheduler(FakeEngine()).submit(Request(prompt=prompt, max_tokens=tokens))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 16))
def test_any_mix_of_arrivals_and_departures(seed, slots, chunk):
    async def test():
        rng = random.Random(seed)
        found = scheduler(FakeEngine(), slots=slots, chunk=chunk, most_waiting=3)
        loop = asyncio.create_task(found.run())
        told = {"refused": 0}

        async def ask(number):
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            shared = list(range(rng.randrange(12)))
            prompt, count = [*shared, number % 50, *[7] * rng.randrange(20)], rng.randrange(1, 20)
            leave = rng.randrange(1, 10) if rng.random() < 0.3 else 99
            try:
                answering = found.submit(Request(prompt=prompt, max_tokens=count, client=str(number % 3)))
            except QueueFull:
                told["refused"] += 1
                return
            tokens = []
            async for choice in answering:
                tokens.append(choice.token)
                if len(tokens) == leave:
                    break
            answering.cancel()
            assert tokens == answer(prompt, min(count, leave))

        await asyncio.gather(*(ask(number) for number in range(15)))
        for _ in range(5):
            await asyncio.sleep(0)
        loop.cancel()
        assert found.running == found.waiting == 0 and told["refused"] == found.counts.refused
        assert found.counts.accepted == found.counts.finished + found.counts.cancelled

    run(test)
