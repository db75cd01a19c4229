"""One budget for the votes of a data set: who gets the next sample."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.studies.real import evenness, spend
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.runner import EvaluationJob, failed_record
from scaffolding_ext.evaluation.run.vote_budget import Round, VoteBudget, next_round, unsettledness
from scaffolding_ext.request.ledger import Ledger

MANY = 10_000


def votes_of(*classes: list[int], length: int = 10, max_samples: int = 8) -> list[Votes]:
    return [Votes(each, max_samples, lengths=[length] * len(each)) for each in classes]


@st.composite
def data_sets(draw: st.DrawFn, most_questions: int = 9, most_samples: int = 5) -> list[LabelledVote]:
    """Questions with equally many samples; class 0 is right."""
    num_samples = draw(st.integers(2, most_samples))
    sample = st.tuples(st.integers(-1, 2), st.integers(1, 40))
    questions = draw(st.lists(st.lists(sample, min_size=num_samples, max_size=num_samples), min_size=1, max_size=9))
    return [
        LabelledVote(str(i), [c for c, _ in each], [c == 0 for c, _ in each], [length for _, length in each])
        for i, each in enumerate(questions[:most_questions])
    ]


def test_each_question_gets_one_sample_first_an_eighth_of_them_in_a_round() -> None:
    votes = votes_of(*[[0]] * 3, *[[]] * 13)
    assert next_round(votes, MANY) == Round([3, 4], False)


def test_the_least_settled_vote_comes_first_and_of_equals_the_shortest() -> None:
    long, short, settled, split = votes_of([0, 1], [0, 1], [0, 0], [0, 0, 1])
    short = Votes(short.classes, 8, lengths=[5, 6])
    votes = [settled, split, long, short]
    order = []
    for _ in votes:
        ((first,), is_last) = next_round(votes, MANY)
        assert not is_last
        order.append(first)
        votes[first] = Votes([0] * 8, 8, lengths=[10] * 8)  # nothing is left to draw
    assert order == [3, 2, 1, 0]
    assert next_round(votes, MANY) == Round([], True)


def test_even_spending_gives_the_fewest_samples_one_more() -> None:
    votes = votes_of([0, 1, 2], [0, 0], [0, 1])
    assert next_round(votes, MANY, evenness).questions == [1]


def test_a_vote_that_its_rule_calls_settled_gets_no_more() -> None:
    votes = votes_of([0, 0, 0], [0, 1, 1], max_samples=4)
    assert next_round(votes, MANY, rule=Curtailment()) == Round([1], False)
    assert next_round(votes_of([0, 0, 0], max_samples=4), MANY, rule=Curtailment()) == Round([], True)


def test_the_budget_ends_before_the_first_sample_that_it_would_not_pay_for() -> None:
    votes = votes_of(*[[0, 1]] * 16)
    spent = 16 * 2 * 10
    assert next_round(votes, spent + 20) == Round([0, 1], False)
    assert next_round(votes, spent + 19) == Round([0], True)
    assert next_round(votes, spent + 9) == Round([], True)


def test_a_budget_below_one_sample_a_question_is_refused_as_soon_as_that_is_known() -> None:
    with pytest.raises(ValueError, match="total_tokens: is 15; one sample for each of 16 questions takes about 16"):
        next_round(votes_of(*[[]] * 16), 15)
    votes = votes_of([0], [0], *[[]] * 14)
    assert next_round(votes, 160).questions == [2, 3]
    with pytest.raises(ValueError, match="takes about 160: give more tokens, or fewer questions"):
        next_round(votes, 159)


@given(votes=data_sets(), budgets=st.tuples(st.integers(1, 1500), st.integers(1, 1500)))
def test_a_larger_budget_begins_with_what_a_smaller_one_bought(
    votes: list[LabelledVote], budgets: tuple[int, int]
) -> None:
    least = sum(each.lengths[0] for each in votes)
    for claim in (unsettledness, evenness):
        sizes = [spend(votes, 100 * least + budget, claim) for budget in sorted(budgets)]
        assert all(few <= many for few, many in zip(*sizes, strict=True))


SHORTER_THAN_EXPECTED = [  # 12 tokens are left for the ninth question and the first, 5 + 7.5; the ninth takes 1
    LabelledVote(str(index), [0] * 3, [True] * 3, lengths)
    for index, lengths in enumerate([[5, 10, 10], *[[4, 4, 10]] * 6, [5, 5, 10], [5, 1, 10]])
]


@given(votes=data_sets(), extra=st.integers(0, 600))
@example(votes=SHORTER_THAN_EXPECTED, extra=0)
def test_even_spending_is_even_and_only_its_last_round_may_exceed_the_budget(
    votes: list[LabelledVote], extra: int
) -> None:
    longest = max(max(each.lengths) for each in votes)
    budget = longest * len(votes) + extra  # pays for one sample each, whatever the first ones are
    sizes = spend(votes, budget, evenness)
    assert max(sizes) - min(sizes) <= 1
    spent = sum(sum(each.lengths[:size]) for each, size in zip(votes, sizes, strict=True))
    of_a_round = longest * -(-len(votes) // 8)
    assert spent <= budget + of_a_round
    if min(sizes) < len(votes[0].classes):  # a last round is cut by what its samples are expected to take
        assert spent > budget - of_a_round


def test_a_vote_without_answers_has_failed_only_if_all_its_samples_have() -> None:
    question = Example("a", "2 + 2?", "4")
    budget = VoteBudget(MajorityVoteController(NativeGenerationController(), 2), [question], 100)
    cost = {"ledger": Ledger().to_json(), "seconds": {"total": 0.0}}
    failed = [dataclasses.replace(failed_record(EvaluationJob(question, n), ValueError()), **cost) for n in (0, 1)]
    budget.add(failed[0])
    budget.add(dataclasses.replace(failed[1], error=None, output="I do not know"))
    (vote,) = budget.votes()
    assert (vote.error, vote.output) == (None, "I do not know")
