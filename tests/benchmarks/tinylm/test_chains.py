"""Chains of thought: what is believed when, by which methods, how rarely they slip, and how long they are."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.tinylm import chains
from benchmarks.tinylm.chains import MAX_NUM_LINES, SLIP_RATE, Segment, sample_chain, written_check
from benchmarks.tinylm.steps import CAREFUL, FIRST_PASSES, FULL_CHECKS, QUICK, Line, check_steps
from benchmarks.tinylm.tokenizer import CONTEXT_LEN, END
from scaffolding_ext.tinylm.grammar import CHECK, CLOSE, KINDS, NO, VERDICT, YES, Problem, sample_problem

untimed = settings(deadline=None)
seeds = st.integers(0, 2**63 - 1)
kinds = st.sampled_from(KINDS)


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
        corrected = re.match(rf"(But now I get|Back to) {after.belief}, not {before.belief}\.", after.text)
        assert bool(corrected) == (before.belief != after.belief)


@untimed
@given(seeds, kinds)
def test_every_belief_is_written_where_it_is_stated(seed: int, kind: str) -> None:
    for before, segment in itertools.pairwise(draw(seed, kind).chain):
        if segment.belief != before.belief:
            assert re.search(rf"(?<![\d-]){re.escape(str(segment.belief))}[.,]", segment.text)


def ideal_chain(problem: Problem, seed: int) -> list[Line]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "SLIP_RATE", 0.0)
        text = "".join(segment.text for segment in sample_chain(problem, random.Random(seed)))
    return check_steps(problem, text)


@untimed
@given(seeds, kinds)
def test_without_slips_every_line_follows_its_method(seed: int, kind: str) -> None:
    problem = sample_problem(random.Random(seed), kind=kind)
    steps = [line for line in ideal_chain(problem, seed) if line.is_right is not None]
    assert steps
    assert all(line.follows_method for line in steps)
    assert all(line.is_right or line.is_misread for line in steps)


@untimed
@given(seeds, kinds)
def test_a_first_pass_is_quick_and_its_checks_are_careful(seed: int, kind: str) -> None:
    passes = [
        line.method
        for line in ideal_chain(sample_problem(random.Random(seed), kind=kind), seed)
        if line.method and line.is_right is None
    ]
    assert passes[0] in QUICK
    assert set(passes[1:]) <= set(CAREFUL)


@untimed
@given(seeds, kinds)
def test_until_two_passes_agree_checks_change_their_method_and_after_that_they_keep_it(seed: int, kind: str) -> None:
    problem, chain = draw(seed, kind)
    openings = [
        (line.method, segment.is_settled)
        for line, segment in zip(check_steps(problem, "".join(s.text for s in chain)), chain, strict=True)
        if line.method and line.is_right is None
    ]
    for (before, _), (after, is_settled) in itertools.pairwise(openings):
        assert (before == after) == is_settled


@untimed
@given(seeds, kinds)
def test_a_chain_is_settled_once_an_answer_is_found_twice(seed: int, kind: str) -> None:
    chain = draw(seed, kind).chain
    found: list[str] = []
    for segment in chain:
        if re.match(r"So |That gives|Again|I get|But now|Back to", segment.text):
            is_settled = segment.belief in found
            found.append(str(segment.belief))
            assert segment.is_settled == is_settled
            assert (segment.rival is None) == (is_settled or len(found) == 1)
        assert segment.belief == (found[-1] if found else None)


def test_all_methods_are_drawn_alike(many: list[Drawn]) -> None:
    """Of first passes; each share within four standard deviations."""
    first = Counter(chain[0].text for _, chain in many)
    assert set(first) == set(FIRST_PASSES)
    for number in first.values():
        assert abs(number / len(many) - 1 / 6) < 4 * (5 / 36 / len(many)) ** 0.5


def test_slips_are_as_rare_as_they_say(many: list[Drawn]) -> None:
    """In lines of methods that misread nothing there, within four standard deviations; a few slips change nothing."""
    slipped = [
        not line.follows_method
        for problem, chain in many
        if problem.kind in ("sum", "walk")
        for line in check_steps(problem, "".join(segment.text for segment in chain))
        if line.is_misread is False
    ]
    # A drawn digit is the digit itself in an eighth, and a drawn sign is the other one in a half.
    rate = SLIP_RATE * 7 / 16
    assert abs(sum(slipped) / len(slipped) - rate) < 4 * (rate * (1 - rate) / len(slipped)) ** 0.5


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
    counted = [
        segment for segment in chain[1:] if not re.match(r"So |That gives|Again|I get|But now|Back to", segment.text)
    ]
    assert len(counted) == max(problem.num_steps, num_lines)


def test_chains_fit_the_context(many: list[Drawn]) -> None:
    pytest.importorskip("transformers")
    from scaffolding_ext.prompts.tokenizers import load_tokenizer

    encode = load_tokenizer("tinylm/draft").backend_tokenizer.encode
    longest = 0
    for problem, chain in many[:1_000]:
        thinking = "".join(segment.text for segment in chain)
        belief = str(chain[-1].belief)
        check = CHECK + written_check(problem, belief, random.Random(0))
        reply = f"{CLOSE}{belief}}}.{max(check, VERDICT + YES, key=len)}{END}"
        sequence = f"<|user|>{problem.question}<|assistant|><think>\n{thinking}{reply}"
        longest = max(longest, len(encode(sequence, add_special_tokens=False).ids))
    assert MAX_NUM_LINES * 12 < longest <= CONTEXT_LEN


# ---- written checks


@untimed
@given(seeds, kinds, st.booleans())
def test_a_written_check_is_a_careful_pass_and_says_whether_it_leads_to_the_answer(
    seed: int, kind: str, is_right: bool
) -> None:
    problem = sample_problem(random.Random(seed), kind=kind)
    answer = problem.answer if is_right else "-99"
    derivation, _, verdict = written_check(problem, answer, random.Random(seed)).rpartition("\n")
    opening, *steps = check_steps(problem, derivation + "\n")
    assert opening.text in FULL_CHECKS
    assert {line.method for line in steps} == {opening.method}
    assert len(steps) == problem.num_steps
    leads_there = re.search(r"-?\d+$", derivation)
    assert leads_there
    assert verdict == (YES if leads_there[0] == answer else NO)
