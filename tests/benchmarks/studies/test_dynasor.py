"""What the studies of the embedded models compute from chains, on chains made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks._lib import chains as lab
from benchmarks._lib.chain_replay import Outcome
from benchmarks._lib.recorded_chains import RecordedChain
from benchmarks._lib.replayed import cut_of_as_many
from benchmarks.studies import dynasor
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.looking import ProbeSchedule
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive
from scaffolding_ext.evaluation.run.datasets import Example

pytest.importorskip("torch")


def chain(num_tokens: int, answer: str, *beliefs: tuple[int, str]) -> Any:
    """A chain about a question whose answer is 7."""
    sample = Example("a", "?", "7", "sum")
    return lab.Chain(sample, [0], [1] * num_tokens, "", answer, [lab.Belief(*belief) for belief in beliefs])


def test_what_a_chain_believes_where() -> None:
    one = chain(100, "8", (30, "7"), (60, "8"))
    assert [one.believed_at(position) for position in (29, 30, 59, 60)] == [None, "7", "7", "8"]
    assert (one.is_right_at(0), one.is_right_at(-1), one.is_right) == (True, False, False)
    assert not chain(5, "7").is_right_at(0)


def test_looks_that_fall_beside_the_grid_are_put_on_it() -> None:
    positions = itertools.accumulate(dynasor.OnGrid(32, growth=1.2).gaps())
    assert list(itertools.islice(positions, 5)) == [32, 64, 96, 144, 208]  # 32, 64, 103, 150 and 206 tokens


def recorded(forced: Sequence[int], hedged: Sequence[bool] = ()) -> Any:
    """A chain whose answer is 7 when it is probed, and is 3 in the end."""
    looks = [
        Probe(Prefix(16 * (number + 1), "", None), "7", 7, number < len(hedged) and hedged[number])
        for number in range(len(forced))
    ]
    tokens = [3] * len(forced)
    return RecordedChain("a", looks, forced, tokens, tokens, 3, 7, 0, 90, 90, 0, 0)


@pytest.mark.parametrize(("heeds_hedges", "left_at"), [(True, 3), (False, 1)])
def test_hedges_are_heeded_or_not(heeds_hedges: bool, left_at: int) -> None:
    chains = [recorded([7] * 5, [True, True])]
    outcome = dynasor.play_variant(chains, dynasor.Variant(Consecutive(2), ProbeSchedule(16), heeds_hedges))
    assert outcome.exits.tolist() == [left_at]
    assert outcome.right.tolist() == [1.0]


def test_the_oracle_leaves_each_chain_at_its_first_right_answer() -> None:
    outcome = dynasor.oracle([recorded([1, 7, 7]), recorded([1, 2, 3])])
    assert outcome.exits.tolist() == [1, -1]
    assert outcome.right.tolist() == [1.0, 0.0]
    assert outcome.costs["decoded"].tolist() == [32 + 3, 90]


def outcome(tokens: float, num_right: int) -> Any:
    right = (np.arange(40) < num_right).astype(float)
    return Outcome(np.full(40, 0), right, right, right, right, {"decoded": np.full(40, tokens)})


def test_a_cut_is_level_with_itself_and_with_draws_by_lot_between_two() -> None:
    cuts = [outcome(100, 10), outcome(200, 30)]
    assert cut_of_as_many(cuts[1], cuts).right == pytest.approx(cuts[1].right)
    assert cut_of_as_many(outcome(150, 20), cuts).right.mean() == pytest.approx(0.5)
    assert cut_of_as_many(outcome(175, 20), cuts).right.mean() == pytest.approx(0.625)
    assert cut_of_as_many(outcome(175, 20), cuts).cost("decoded").mean() == pytest.approx(175)


@pytest.mark.parametrize(("tokens", "right"), [(150, 0.5), (250, 0.875), (300, 1.0)])
def test_neighbours_are_those_in_cost_where_a_later_cut_decodes_fewer_tokens(tokens: float, right: float) -> None:
    """A chain that ends by itself asks for no answer, so the whole one may decode less than a late cut."""
    level = cut_of_as_many(outcome(tokens, 20), [outcome(100, 10), outcome(300, 40), outcome(200, 30)])
    assert level.right.mean() == pytest.approx(right)
    assert level.cost("decoded").mean() == pytest.approx(tokens)
