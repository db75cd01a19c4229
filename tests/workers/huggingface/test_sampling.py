"""Sampling: random numbers that are uniform and each row's own, and top-k and top-p against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scaffolding_ext.workers.huggingface.engine_request import SamplingParams
from scaffolding_ext.workers.huggingface.sampling import _SPLITMIX_STEP, sample, uniforms

NEAR = 1e-4  # float32 may decide otherwise than float64 for numbers closer than this


def drawn(seeds, positions):
    seeds, positions = np.broadcast_arrays(np.asarray(seeds, np.uint64), np.asarray(positions, np.uint64))
    return uniforms(seeds.ravel().copy(), positions.ravel().copy())


# ---- random numbers


@pytest.mark.parametrize(
    ("seeds", "positions"),
    [
        (np.arange(20_000), 0),  # consecutive seeds at one position
        (7, np.arange(20_000)),  # one seed along a text
        (np.arange(20_000) * 2**40, 5),
        (np.arange(200)[:, None], np.arange(100)[None]),
    ],
    ids=["seeds", "positions", "high_bits", "both"],
)
def test_numbers_are_uniform(seeds, positions):
    """Chi-square over 100 bins, rejected at 1e-6 (nothing here is random, so a pass stays a pass)."""
    numbers = drawn(seeds, positions)
    assert 0 <= numbers.min() <= numbers.max() < 1
    assert len(np.unique(numbers)) == 20_000
    assert stats.chisquare(np.bincount((numbers * 100).astype(int), minlength=100)).pvalue > 1e-6


def test_no_seed_gives_a_shifted_copy_of_another():
    step = int(_SPLITMIX_STEP)  # what a position adds to the state of its row
    base = set(drawn([7], np.arange(200)))
    for distance in (1, -1, 5, step, -step, 5 * step):
        assert not base & set(drawn([(7 + distance) % 2**64], np.arange(200)))


def test_neighbours_are_uncorrelated():
    """Each correlation of n pairs scatters by 1 / sqrt(n) = 0.01; five of these are the tolerance."""
    grid = drawn(np.arange(101)[:, None], np.arange(101)[None]).reshape(101, 101)
    for one, other in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid, grid.T)):
        off_diagonal = ~np.eye(101, dtype=bool) if one.shape == (101, 101) else np.ones(one.shape, bool)
        assert abs(np.corrcoef(one[off_diagonal], other[off_diagonal])[0, 1]) < 0.05


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31)), min_size=1, max_size=8))
def test_a_number_does_not_depend_on_its_batch(rows):
    seeds, positions = zip(*rows, strict=True)
    together = drawn(seeds, positions)
    assert together.tolist() == [drawn([seed], [position])[0] for seed, position in rows]


# ---- drawing


def brute_force(logits, params, position):
    """The token by the definitions, in float64; None where a decision is too near a tie to ask for."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / params.temperature
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    kept = order[: params.top_k or len(order)]
    weights = np.exp(scaled - scaled.max())
    probabilities = weights[kept] / weights[kept].sum()
    before = np.cumsum(probabilities) - probabilities
    if params.top_p < 1 and np.abs(before - params.top_p).min() < NEAR:
        return None
    kept = [token for token, mass in zip(kept, before, strict=True) if mass < params.top_p] or kept[:1]
    final = np.zeros(len(scaled))
    final[kept] = weights[kept] / weights[kept].sum()
    cumulative = np.cumsum(final)
    number = drawn([params.seed & (2**64 - 1)], [position])[0]
    if np.abs(cumulative - number).min() < NEAR:
        return None
    return int(np.searchsorted(cumulative, number, side="right"))


_LOGITS = st.lists(st.integers(-6, 6), min_size=5, max_size=5)  # integers make ties, which the order must settle
_PARAMS = st.builds(
    SamplingParams,
    st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    st.integers(0, 7),
    st.sampled_from([1.0, 0.95, 0.8, 0.5, 0.1, 1e-6]),
    st.integers(-(2**70), 2**70),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_LOGITS, _PARAMS, st.integers(0, 4096)), min_size=1, max_size=6))
def test_drawn_tokens_are_those_of_brute_force(rows):
    logits = np.array([row[0] for row in rows], np.float32)
    params, positions = [row[1] for row in rows], [row[2] for row in rows]
    token_ids = sample(torch.from_numpy(logits), params, positions).token_ids
    for row, token in enumerate(token_ids):
        expected = brute_force(logits[row], params[row], positions[row])
        assert expected is None or token == expected
        alone = sample(torch.from_numpy(logits[row : row + 1]), [params[row]], [positions[row]])
        assert alone.token_ids == [token]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.1, 1.0, 4.0]),
    st.booleans(),
    st.lists(_PARAMS, min_size=1, max_size=6),
)
def test_drawn_tokens_are_those_of_brute_force_in_a_large_vocabulary(seed, spread, with_ties, params):
    """Flat and peaked rows of 300 tokens: borders among the candidates, beyond them, and between equal logits."""
    logits = np.random.default_rng(seed).normal(0, spread, (len(params), 300)).astype(np.float32)
    logits = np.round(logits) if with_ties else logits
    params = [p._replace(top_k=p.top_k * 20) for p in params]
    token_ids = sample(torch.from_numpy(logits), params, [5] * len(params)).token_ids
    for row, token in enumerate(token_ids):
        expected = brute_force(logits[row], params[row], 5)
        assert expected is None or token == expected
        assert sample(torch.from_numpy(logits[row : row + 1]), [params[row]], [5]).token_ids == [token]


def test_frequencies_follow_the_distribution():
    """Chi-square of 20,000 draws from five tokens, rejected at 1e-6 (seeded: a pass stays a pass)."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]]).expand(20_000, -1)
    for temperature in (0.7, 1.0, 1.5):
        params = [SamplingParams(temperature, 0, 1.0, seed) for seed in range(20_000)]
        counts = np.bincount(sample(logits, params, [3] * 20_000).token_ids, minlength=5)
        expected = torch.softmax(logits[0].double() / temperature, -1).numpy() * 20_000
        assert stats.chisquare(counts, expected).pvalue > 1e-6


def test_log_probabilities_are_those_of_the_unmodified_distribution():
    logits = torch.tensor([[0.0, 3.0, 1.0, -2.0], [1.0, 1.5, 0.0, 2.0]])
    params = [SamplingParams(0.2, 1, 0.5, 3), SamplingParams(1.0, 0, 1.0, 4)]
    sampled = sample(logits, params, [0, 0], num_logprobs=[2, 1])
    expected = torch.log_softmax(logits, -1)
    for row, (token, reported) in enumerate(zip(*sampled, strict=True)):
        likeliest = expected[row].topk(2 - row).indices.tolist()
        assert list(reported) == [*likeliest, *({token} - {*likeliest})]
        assert [entry.rank for entry in reported.values()][: 2 - row] == [1, 2][: 2 - row]
        for token_id, entry in reported.items():
            assert entry.logprob == pytest.approx(expected[row, token_id].item())
    assert sample(logits, params, [0, 0]) == (sampled.token_ids, [{}, {}])
    assert sample(logits, params, [0, 0], num_logprobs=[0, 3]).logprobs[0] == {}
    assert len(sample(logits, params, [0, 0], num_logprobs=[99, 0]).logprobs[0]) == 4
