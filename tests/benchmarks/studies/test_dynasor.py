"""What the studies of the embedded models compute from chains, on chains made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks._lib import chains as lab
from benchmarks.studies import dynasor, tinylm
from scaffolding_ext.controllers.stopping import Consecutive
from scaffolding_ext.evaluation.datasets import Sample

pytest.importorskip("torch")


def chain(num_tokens: int, answer: str, *beliefs: tuple[int, str]) -> Any:
    """A chain about a question whose answer is 7."""
    sample = Sample("a", "?", "7", "sum")
    return lab.Chain(sample, [0], [1] * num_tokens, "", answer, [lab.Belief(*belief) for belief in beliefs])


def test_what_a_chain_believes_where() -> None:
    one = chain(100, "8", (30, "7"), (60, "8"))
    assert [one.believed_at(position) for position in (29, 30, 59, 60)] == [None, "7", "7", "8"]
    assert (one.is_right_at(0), one.is_right_at(-1), one.is_right) == (True, False, False)
    assert not chain(5, "7").is_right_at(0)


def test_a_cut_chain_costs_its_cut_and_a_shorter_one_is_left_alone() -> None:
    first, second, *_ = tinylm.CUTS
    tokens, right = tinylm.cut_outcomes([chain(second + 1, "7")], [["3", "7"]])
    assert tokens[0, :3].tolist() == [first + tinylm.FORCED_LEN, second + tinylm.FORCED_LEN, second + 1]
    assert right[0, :3].tolist() == [False, True, True]
    assert (tokens[0, 2:] == second + 1).all()


def test_looks_lie_on_the_grid_before_the_end() -> None:
    fixed = dynasor.Schedule(32, 32, 1.0)
    assert list(fixed.looks(100)) == [1, 3, 5]  # after 32, 64 and 96 tokens of a grid of 16
    growing = dynasor.Schedule(16, 16, 2.0)
    assert list(growing.looks(200)) == [0, 1, 3, 7]


@pytest.mark.parametrize(("heeds_hedges", "left_at"), [(True, 3), (False, 1)])
def test_a_replayed_chain_is_left_where_its_probes_agree(heeds_hedges: bool, left_at: int) -> None:
    said = [lab.Response(text, "7", 3) for text in ("7} hmm", "7} hmm", "7}", "7}", "7}")]
    replay = dynasor.Replay([chain(90, "3")], [said], [["7"] * len(said)])
    outcome = dynasor.play(replay, dynasor.Schedule(16, 16, 1.0, Consecutive(2), heeds_hedges))
    assert outcome.exits.tolist() == [left_at]
    assert outcome.right.tolist() == [1.0]
    spent = sum(response.num_tokens for response in said[: left_at + 1])
    assert outcome.tokens.tolist() == [(left_at + 1) * dynasor.GRID + dynasor.FORCED_LEN + spent]


def test_the_oracle_leaves_each_chain_at_its_first_right_answer() -> None:
    chains = [chain(60, "3"), chain(60, "3")]
    replay = dynasor.Replay(chains, [[], []], [["1", "7", "7"], ["1", "2", "3"]])
    outcome = dynasor.oracle(replay)
    assert outcome.exits.tolist() == [1, -1]
    assert outcome.right.tolist() == [1.0, 0.0]
    assert outcome.tokens.tolist() == [2 * dynasor.GRID + dynasor.FORCED_LEN, 60]


def test_a_cut_is_level_with_itself_and_with_draws_by_lot_between_two() -> None:
    def outcome(tokens: float, num_right: int) -> Any:
        right = (np.arange(40) < num_right).astype(float)
        return dynasor.Outcome(np.full(40, tokens), right, np.zeros(40, int))

    cuts = [outcome(100, 10), outcome(200, 30)]
    assert dynasor.cut_of_as_many(cuts[1], cuts) == pytest.approx(cuts[1].right)
    assert dynasor.cut_of_as_many(outcome(150, 20), cuts).mean() == pytest.approx(0.5)
    assert dynasor.cut_of_as_many(outcome(175, 20), cuts).mean() == pytest.approx(0.625)
