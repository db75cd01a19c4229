"""Chains of thought: what is believed when, how rarely they slip, and how long they are."""

from __future__ import annotations

import itertools
import random
import re
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.tinylm import chains
from scaffolding_ext.tinylm.chains import CHECK_SLIP_RATE, MAX_NUM_LINES, SLIP_RATE, Segment, sample_chain
from scaffolding_ext.tinylm.grammar import CLOSE, KINDS, VERDICT, YES, Problem, apply_operation, sample_problem
from scaffolding_ext.tinylm.tokenizer import CONTEXT_LEN, END

untimed = settings(deadline=None)
seeds = st.integers(0, 2**63 - 1)
kinds = st.sampled_from(KINDS)
STEP = re.compile(r"^[a-z](?:[<>=+*LR,-]|\d)")


class Drawn(NamedTuple):
    problem: Problem
    chain: list[Segment]

    @property
    def first(self) -> int:
        """Index of the segment that states the first answer."""
        return next(i for i, segment in enumerate(self.chain) if segment.belief is not None)

    @property
    def is_right_at_first(self) -> bool:
        return self.chain[self.first].belief == self.problem.answer

    @property
    def is_right(self) -> bool:
        return self.chain[-1].belief == self.problem.answer


def draw(seed: int, kind: str | None = None) -> Drawn:
    rng = random.Random(seed)
    problem = sample_problem(rng, kind=kind)
    return Drawn(problem, sample_chain(problem, rng))


@pytest.fixture(scope="module")
def many() -> list[Drawn]:
    return [draw(seed) for seed in range(3_000)]


@untimed
@given(seeds, kinds)
def test_a_seed_gives_one_chain_and_leaves_the_global_generator_alone(seed: int, kind: str) -> None:
    before = random.getstate()
    assert draw(seed, kind) == draw(seed, kind)
    assert random.getstate() == before


@untimed
@given(seeds, kinds)
def test_beliefs_begin_with_the_first_answer_and_change_with_corrections_only(seed: int, kind: str) -> None:
    drawn = draw(seed, kind)
    assert drawn.chain[0].belief is None
    assert all(segment.belief is not None for segment in drawn.chain[drawn.first :])
    for before, after in itertools.pairwise(drawn.chain[drawn.first :]):
        corrected = "I made a slip" in after.text
        assert corrected == (before.belief != after.belief)
        if corrected:
            assert f"But now I get {after.belief}, not {before.belief}." in after.text


@untimed
@given(seeds, kinds)
def test_every_belief_is_written_where_it_is_stated(seed: int, kind: str) -> None:
    for before, segment in itertools.pairwise(draw(seed, kind).chain):
        if segment.belief != before.belief:
            assert re.search(rf"(?<![\d-]){re.escape(str(segment.belief))}[.,]", segment.text)


@untimed
@given(seeds, kinds)
def test_a_chain_without_slips_is_right_throughout(seed: int, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "SLIP_RATE", 0.0)
        patch.setattr(chains, "CHECK_SLIP_RATE", 0.0)
        drawn = draw(seed, kind)
    assert {segment.belief for segment in drawn.chain} == {None, drawn.problem.answer}
    state = drawn.problem.start
    for operation, segment in zip(drawn.problem.operations, drawn.chain[1:], strict=False):
        step = apply_operation(kind, operation, state, drawn.problem.parameter)
        assert segment.text == f"{step.line}{step.state}\n"
        state = step.state


@untimed
@given(seeds, st.sampled_from(("sum", "walk", "modular", "count")))
def test_where_every_step_slips_every_first_state_is_wrong(seed: int, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "SLIP_RATE", 1.0)
        drawn = draw(seed, kind)
    problem = drawn.problem
    right = apply_operation(kind, problem.operations[0], problem.start, problem.parameter)
    assert drawn.chain[1].text != f"{right.line}{right.state}\n"


def test_slips_are_as_rare_as_they_say(many: list[Drawn]) -> None:
    """In lines of sums, each within four standard deviations; a slip is one mistake that the step invites."""
    for rate, passes in ((SLIP_RATE, slice(0, 1)), (CHECK_SLIP_RATE, slice(1, None))):
        wrong: list[int] = []
        for problem, chain in many:
            if problem.kind == "sum":
                answered = next(i for i, segment in enumerate(chain) if segment.belief is not None)
                for segment in (chain[: answered + 1], chain[answered + 1 :])[passes][0]:
                    for left, sign, right, result in re.findall(r" (\d+)([+-])(\d)=(-?\d+)$", segment.text):
                        wrong.append(int(result) - int(left) - int(sign + right))
        share = sum(map(bool, wrong)) / len(wrong)
        assert abs(share - rate) < 4 * (rate * (1 - rate) / len(wrong)) ** 0.5
        assert set(wrong) <= {0, 1, 10, -10}


def test_thinking_on_mends_more_than_it_spoils_and_both_happen(many: list[Drawn]) -> None:
    mended = sum(drawn.is_right and not drawn.is_right_at_first for drawn in many)
    spoilt = sum(drawn.is_right_at_first and not drawn.is_right for drawn in many)
    assert mended > spoilt > len(many) // 100
    right = sum(drawn.is_right for drawn in many) / len(many)
    assert 0.6 < right < 0.95  # most chains end right, and a vote has something to mend


def test_the_length_of_a_chain_hardly_depends_on_its_problem(many: list[Drawn]) -> None:
    """Easy problems are doubted as long as hard ones are worked at, while first passes differ widely."""
    num_steps = np.array([drawn.problem.num_steps for drawn in many])
    lengths = np.array([len(drawn.chain) for drawn in many])
    firsts = np.array([drawn.first for drawn in many])
    assert np.corrcoef(num_steps, lengths)[0, 1] ** 2 < 0.25
    easy, hard = lengths[num_steps <= 3].mean(), lengths[num_steps >= 16].mean()
    assert 1 < easy / hard < 1.5
    assert np.quantile(firsts, 0.9) > 5 * np.quantile(firsts, 0.1)


@untimed
@given(seeds, kinds, st.integers(1, 60))
def test_a_chain_ends_where_its_lines_are_used_up(seed: int, kind: str, num_lines: int) -> None:
    rng = random.Random(seed)
    problem = sample_problem(rng, kind=kind)
    chain = sample_chain(problem, rng, num_lines)
    counted = [segment for segment in chain[1:] if not re.match(r"So |That gives|Again|I get|But now", segment.text)]
    assert len(counted) == max(problem.num_steps, num_lines)


def test_chains_fit_the_context(many: list[Drawn]) -> None:
    pytest.importorskip("transformers")
    from scaffolding_ext.prompting import load_tokenizer

    encode = load_tokenizer("tinylm/draft").backend_tokenizer.encode
    longest = 0
    for problem, chain in many[:1_000]:
        thinking = "".join(segment.text for segment in chain)
        reply = f"{CLOSE}{chain[-1].belief}}}.{VERDICT}{YES}{END}"
        sequence = f"<|user|>{problem.question}<|assistant|><think>\n{thinking}{reply}"
        longest = max(longest, len(encode(sequence, add_special_tokens=False).ids))
    assert MAX_NUM_LINES * 12 < longest <= CONTEXT_LEN
