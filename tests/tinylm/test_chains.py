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
from scaffolding_ext.tinylm.chains import (
    CHECK_SLIP_RATE,
    MAX_NUM_LINES,
    SLIP_RATE,
    STATED,
    Segment,
    read_chain,
    sample_chain,
    written_check,
)
from scaffolding_ext.tinylm.grammar import (
    ALL_KINDS,
    CHECK,
    CLOSE,
    FIND,
    VERDICT,
    YES,
    Problem,
    apply_operation,
    sample_problem,
)
from scaffolding_ext.tinylm.tokenizer import CONTEXT_LEN, END

untimed = settings(deadline=None)
seeds = st.integers(0, 2**63 - 1)
kinds = st.sampled_from(ALL_KINDS)
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
    assert {segment.is_right for segment in drawn.chain} == {None, True}
    state = drawn.problem.start
    for operation, segment in zip(drawn.problem.operations, drawn.chain[1:], strict=False):
        step = apply_operation(drawn.problem, operation, state)
        assert segment.text == f"{step.line}{step.state}\n"
        state = step.state


@untimed
@given(seeds, st.sampled_from(("sum", "walk", "modular", "count")))
def test_where_every_step_slips_every_first_state_is_wrong(seed: int, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "SLIP_RATE", 1.0)
        drawn = draw(seed, kind)
    problem = drawn.problem
    right = apply_operation(problem, problem.operations[0], problem.start)
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
    from scaffolding_ext.prompts.prompting import load_tokenizer

    encode = load_tokenizer("tinylm/draft").backend_tokenizer.encode
    longest = 0
    for problem, chain in many[:1_000]:
        thinking = "".join(segment.text for segment in chain)
        belief = str(chain[-1].belief)
        check = CHECK + written_check(problem, belief, ("YES", "NO"))
        reply = f"{CLOSE}{belief}}}.{max(check, VERDICT + YES, key=len)}{END}"
        sequence = f"<|user|>{problem.question}<|assistant|><think>\n{thinking}{reply}"
        longest = max(longest, len(encode(sequence, add_special_tokens=False).ids))
    assert MAX_NUM_LINES * 12 < longest <= CONTEXT_LEN


# ---- searches, the labels of steps, and checks


def test_a_search_that_finds_nothing_guesses_and_a_check_that_finds_nothing_changes_nothing() -> None:
    """Where every judgement slips the one right number is never found; at best a near miss is taken for it."""
    guessed = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "SLIP_RATE", 1.0)
        patch.setattr(chains, "CHECK_SLIP_RATE", 1.0)
        for seed in range(200):
            problem, chain = draw(seed, FIND)
            found = {segment.text.split()[-1] for segment in chain if segment.is_right is not None}
            beliefs = {segment.belief for segment in chain} - {None}
            assert beliefs <= {operation[1:] for operation in problem.operations}
            if found == {"0"}:
                guessed += 1
                assert len(beliefs) == 1
    assert 3 <= guessed < 100


def holds(value: int, condition: str) -> bool:
    """What a condition says, read from its text."""
    if condition in ("odd", "even"):
        return ("even", "odd")[value % 2] == condition
    return (value > int(condition[1:])) if condition[0] == ">" else (value < int(condition[1:]))


def test_a_slip_of_a_search_is_one_judgement_the_wrong_way_round() -> None:
    for seed in range(100):
        for segment in draw(seed, FIND).chain:
            if segment.is_right is False:
                judged = re.findall(r"(odd|even|>\d+|<\d+) (yes|no)", segment.text)
                value = int(segment.text[1:3])
                wrong = [condition for condition, said in judged if holds(value, condition) != (said == "yes")]
                assert len(wrong) == 1


def test_steps_are_labelled_as_often_wrong_as_they_slip(many: list[Drawn]) -> None:
    """Over first passes of all kinds but `maximum`, whose first step cannot slip; four standard deviations."""
    labels = [
        segment.is_right
        for problem, chain in many
        if problem.kind != "maximum"
        for segment in itertools.takewhile(lambda segment: segment.belief is None, chain)
        if segment.is_right is not None
    ]
    share = labels.count(False) / len(labels)
    assert abs(share - SLIP_RATE) < 4 * (SLIP_RATE * (1 - SLIP_RATE) / len(labels)) ** 0.5


@untimed
@given(seeds, kinds)
def test_a_chain_is_read_back_from_its_text(seed: int, kind: str) -> None:
    """Every answer that is stated, and every step with its label."""
    problem, chain = draw(seed, kind)
    text = "".join(segment.text for segment in chain)
    read = read_chain(problem, text)
    assert "".join(segment.text for segment in read) == text
    labelled = [(segment.text, segment.is_right) for segment in chain if segment.is_right is not None]
    assert [(segment.text, segment.is_right) for segment in read if segment.is_right is not None] == labelled
    stated = [segment.belief for segment in chain if STATED.match(segment.text)]
    assert [segment.belief for segment in read if STATED.match(segment.text)] == stated
    assert read[-1].belief == chain[-1].belief


def test_what_a_model_writes_astray_is_read_as_wrong() -> None:
    problem = Problem("sum", "Start with 5. Apply a+3,b-2. Find the total.", "6", 5, ("a+3", "b-2"))
    thinking = "a+3 5+3=8\nb-9 8-9=-1\nc+1 1\nSo I get 1.\nHmm, let me redo this.\na+3\nb-2 5-2=3\nAnd so"
    read = read_chain(problem, thinking)
    assert [segment.is_right for segment in read] == [True, False, False, None, None, False, False, None]
    assert read[-1].belief == "1"
    assert read_chain(problem, "") == []


def test_a_step_that_is_left_out_is_one_mistake() -> None:
    operations = ("a+3", "b-2", "c+1", "d+4")
    problem = Problem("sum", "Start with 5. Apply a+3,b-2,c+1,d+4. Find the total.", "11", 5, operations)
    skipped = "a+3 5+3=8\nc+1 8+1=9\nd+4 9+4=13\nSo I get 13.\n"
    twice = "Hmm, let me redo this.\na+3 5+3=8\na+3 8+3=11\nb-2 11-2=9\nWait, check the second half.\nc+1 9+1=10\n"
    labels = [segment.is_right for segment in read_chain(problem, skipped + twice)]
    assert labels == [True, False, True, None, None, True, False, True, None, True]


CHECKED = {
    "sum": ("Start with 47. Apply d+8,e+3. Find the total.", 47, ("d+8", "e+3"), "d+8=55,e+3=58"),
    "walk": ("Stand at 2. Walk dL8,eR3. Where do you end?", 2, ("dL8", "eR3"), "dL8=-6,eR3=-3"),
    "modular": ("Start with 8. Apply d+4,e*3. Work mod 13.", 8, ("d+4", "e*3"), "d+4=12>12,e*3=36>10"),
    "count": ("Count the digits less than 7: d7,e2.", 0, ("d7", "e2"), "d7 no 0,e2 yes 1"),
    "maximum": ("Find the largest number: d60,e12.", 0, ("d60", "e12"), "d60>60,e12>60"),
}
PARAMETERS = {"modular": 13, "count": -7}


@pytest.mark.parametrize("kind", CHECKED)
def test_a_check_derives_the_answer_in_short_and_gives_a_verdict(kind: str) -> None:
    question, start, operations, derivation = CHECKED[kind]
    answer = re.split(r"[ =>]", derivation)[-1]
    problem = Problem(kind, question, answer, start, operations, PARAMETERS.get(kind, 0))
    assert written_check(problem, answer, ("YES", "NO")) == f"{derivation}\nYES"
    assert written_check(problem, "99", ("YES", "NO")) == f"{derivation}\nNO"


def test_a_check_of_a_search_holds_the_answer_alone_against_the_conditions() -> None:
    question = "Find the odd number over 20 and under 40: a31,b45."
    problem = Problem(FIND, question, "31", 0, ("a31", "b45"), conditions=("odd", ">20", "<40"))
    assert written_check(problem, "31", ("YES", "NO")) == "=31 odd yes >20 yes <40 yes\nYES"
    assert written_check(problem, "45", ("YES", "NO")) == "=45 odd yes >20 yes <40 no\nNO"


@untimed
@given(seeds, kinds)
def test_a_check_is_short(seed: int, kind: str) -> None:
    problem = draw(seed, kind).problem
    check = written_check(problem, problem.answer, ("YES", "NO"))
    assert len(check) <= (40 if kind == FIND else 12 * problem.num_steps + 4)
