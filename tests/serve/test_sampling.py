"""The next token: cuts against a plain definition, draws against their probabilities, seeds, batches, odd logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.serve.sampling import Sampling, choose

pytestmark = pytest.mark.pure


def _plain(logits, sampling):
    """Probabilities by the definition: sort, cut, normalise."""
    scores = logits.astype(np.float64) / sampling.temperature
    weights = np.exp(scores - scores.max())
    order = np.argsort(-scores, kind="stable")
    if sampling.top_k:
        weights[order[sampling.top_k :]] = 0
    if sampling.top_p < 1:
        share = np.cumsum(weights[order]) / weights.sum()
        weights[order[int(np.searchsorted(share, sampling.top_p)) + 1 :]] = 0
    return weights / weights.sum()


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.7), Sampling(temperature=1.5, top_k=3), Sampling(top_p=0.6), Sampling(top_k=4, top_p=0.8),
    Sampling(top_k=1000), Sampling(temperature=0.3, top_p=0.999),
])  # fmt: skip
def test_draws_follow_the_cut_distribution(sampling):
    logits = np.random.default_rng(1).standard_normal(12).astype(np.float32) * 2
    expected = _plain(logits, sampling)
    count = 4000
    drawn = [choose(logits[None], [(Sampling(**{**vars(sampling), "seed": seed}), 0)])[0].token
             for seed in range(count)]  # fmt: skip
    seen = np.bincount(drawn, minlength=12) / count
    assert not seen[expected == 0].any()
    assert np.abs(seen - expected).max() < 5 * np.sqrt(0.25 / count)


def test_top_p_over_a_flat_vocabulary_looks_beyond_its_first_look():
    logits = np.zeros((1, 5000), np.float32)
    drawn = {choose(logits, [(Sampling(top_p=0.5, seed=seed), 0)])[0].token for seed in range(2000)}
    assert max(drawn) < 2500 and max(drawn) > 2000


@pytest.mark.parametrize("top_k", [5000, 10**6])
def test_a_top_k_that_keeps_all_changes_nothing_of_top_p(top_k):
    """Beyond the first look: its tokens hold more than top_p, and are not all there is."""
    logits = np.random.default_rng(4).standard_normal((1, 5000)).astype(np.float32)
    for seed in range(200):
        without, keeps_all = (choose(logits, [(Sampling(top_k=kept, top_p=0.5, seed=seed), 0)]) for kept in (0, top_k))
        assert without == keeps_all


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300, 1e-9])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 2}])
def test_a_temperature_of_next_to_nothing_takes_the_likeliest(temperature, cut):
    logits = np.array([[-3.0, 12.0, 40.0, 7.0]], np.float32)
    assert choose(logits, [(Sampling(temperature=temperature, **cut), 0)])[0].token == 2


def test_greedy_takes_the_first_of_equals():
    assert choose(np.array([[1, 3, 3, 0]], np.float32), [(Sampling(temperature=0), 5)])[0].token == 1


def test_a_request_draws_the_same_whoever_is_beside_it():
    logits = np.random.default_rng(2).standard_normal((3, 50)).astype(np.float32)
    wanted = [(Sampling(seed=seed), 7) for seed in (1, 2, 3)]
    together = choose(logits, wanted)
    assert [choose(logits[row : row + 1], wanted[row : row + 1])[0] for row in range(3)] == together
    places = {choose(logits[:1], [(Sampling(seed=1), place)])[0].token for place in range(40)}
    assert len(places) > 5


def test_logprobs_are_the_models_own():
    logits = np.array([[1.0, 2.0, 0.5, -1.0]], np.float32)
    expected = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    choice = choose(logits, [(Sampling(temperature=0.1, top_k=1, logprobs=2), 0)])[0]
    assert choice.token == 1 and choice.logprob == pytest.approx(expected[1])
    assert choice.top == ((1, pytest.approx(expected[1])), (0, pytest.approx(expected[0])))
    assert choose(logits, [(Sampling(logprobs=0), 0)])[0].top == ()
    assert choose(logits, [(Sampling(), 0)])[0].logprob is None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=40),
    st.floats(0.01, 10), st.integers(0, 50), st.floats(0.001, 1), st.integers(0, 2**63 - 1), st.integers(0, 20),
)  # fmt: skip
def test_any_logits_and_settings_give_a_token_of_the_vocabulary(values, temperature, top_k, top_p, seed, logprobs):
    logits = np.array([values], np.float32)
    choice = choose(logits, [(Sampling(temperature, top_k, top_p, seed, logprobs), 3)])[0]
    assert 0 <= choice.token < len(values)
    if top_k == 1:
        assert logits[0, choice.token] == logits.max()
