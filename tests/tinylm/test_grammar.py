"""The grammar: seeded, split without overlap, right by an independent solver, and short enough for the context."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.tinylm.grammar import (
    CLOSE,
    KINDS,
    MAX_NUM_STEPS,
    Problem,
    Segment,
    sample_chain,
    sample_problem,
    split_of,
)
from scaffolding_ext.tinylm.tokenizer import CONTEXT_LEN, END

untimed = settings(deadline=None)  # a busy machine fails no test
seeds = st.integers(0, 2**63 - 1)
kinds = st.sampled_from(KINDS)
splits = st.sampled_from(("train", "held_out"))


def solve(question: str) -> str:
    """Answer a question from its text alone; shares no code with the grammar."""
    if match := re.fullmatch(r"Count the digits (greater|less) than (\d): (.+)\.", question):
        threshold = int(match[2])
        digits = [int(entry[1:]) for entry in match[3].split(",")]
        counted = [d for d in digits if (d > threshold if match[1] == "greater" else d < threshold)]
        return str(len(counted))
    if match := re.fullmatch(r"Find the largest number: (.+)\.", question):
        return str(max(int(entry[1:]) for entry in match[1].split(",")))
    if match := re.fullmatch(r"Stand at (\d+)\. Walk (.+)\. Where do you end\?", question):
        moves = [(entry[1], int(entry[2:])) for entry in match[2].split(",")]
        right = sum(amount for direction, amount in moves if direction == "R")
        return str(int(match[1]) + right - sum(amount for direction, amount in moves if direction == "L"))
    match = re.fullmatch(r"Start with (\d+)\. Apply (.+?)\. (Find the total|Work mod \d+|Choose: .+?)\.?", question)
    assert match is not None, question
    value = int(match[1])
    for entry in match[2].split(","):
        amount = int(entry[2:])
        value = {"+": value + amount, "-": value - amount, "*": value * amount}[entry[1]]
    if match[3].startswith("Work mod"):
        return str(value % int(match[3].split()[-1]))  # the residue of the whole is that of its parts
    if match[3].startswith("Choose"):
        (letter,) = re.findall(rf"(?<!\d){value}=([ABCD])", match[3])
        return str(letter)
    return str(value)


def chain_of(problem: Problem, seed: int) -> list[Segment]:
    return sample_chain(problem, random.Random(seed))


# ---- problems


@untimed
@given(seeds, splits, st.none() | kinds)
def test_a_seed_gives_one_problem_and_one_chain(seed: int, split: str, kind: str | None) -> None:
    once, again = random.Random(seed), random.Random(seed)
    problem = sample_problem(once, split, kind)
    assert problem == sample_problem(again, split, kind)
    assert sample_chain(problem, once) == sample_chain(problem, again)
    assert once.getstate() == again.getstate()


@untimed
@given(seeds)
def test_the_global_generator_is_left_alone(seed: int) -> None:
    before = random.getstate()
    chain_of(sample_problem(random.Random(seed)), seed)
    assert random.getstate() == before


@untimed
@given(seeds, seeds, kinds)
def test_the_splits_share_no_question(one: int, other: int, kind: str) -> None:
    trained, held = random.Random(one), random.Random(other)
    train = {sample_problem(trained, "train", kind, 3).question for _ in range(4)}
    held_out = {sample_problem(held, "held_out", kind, 3).question for _ in range(4)}
    assert not train & held_out
    assert {split_of(question) for question in train} == {"train"}
    assert {split_of(question) for question in held_out} == {"held_out"}


def test_one_question_in_eight_is_held_out() -> None:
    """Over 4,000 texts the share is within four standard deviations of an eighth: 0.0209."""
    share = sum(split_of(f"question {i}") == "held_out" for i in range(4_000)) / 4_000
    assert abs(share - 1 / 8) < 0.0209


def test_the_split_of_a_question_never_changes() -> None:
    """The models that ship were trained on this split; another one would put their training data into evaluations."""
    sides = [split_of(f"Start with {i}. Apply a+3,b-2. Find the total.") for i in range(1, 25)]
    assert [i for i, side in enumerate(sides, 1) if side == "held_out"] == [1, 14, 22]


@untimed
@given(seeds, kinds, splits)
def test_the_answer_is_the_independent_solvers(seed: int, kind: str, split: str) -> None:
    problem = sample_problem(random.Random(seed), split, kind)
    assert problem.kind == kind
    assert solve(problem.question) == problem.answer


@untimed
@given(seeds, kinds, st.integers(2, MAX_NUM_STEPS))
def test_the_number_of_steps_keeps_its_bounds(seed: int, kind: str, max_num_steps: int) -> None:
    problem = sample_problem(random.Random(seed), "train", kind, max_num_steps)
    assert 2 <= problem.num_steps <= max_num_steps
    assert ",".join(problem.operations) in problem.question
    assert len({operation[0] for operation in problem.operations}) == problem.num_steps  # every label once


@untimed
@given(seeds)
def test_the_options_hold_the_answer_once(seed: int) -> None:
    problem = sample_problem(random.Random(seed), kind="choice")
    assert len(set(problem.options)) == 4
    assert min(problem.options) >= 0
    total = problem.start + sum(int(operation[1:]) for operation in problem.operations)
    assert problem.options.count(total) == 1
    assert problem.answer == "ABCD"[problem.options.index(total)]


@untimed
@given(seeds, kinds)
def test_only_choices_have_options_and_only_two_kinds_a_parameter(seed: int, kind: str) -> None:
    problem = sample_problem(random.Random(seed), kind=kind)
    assert bool(problem.options) == (kind == "choice")
    assert bool(problem.parameter) == (kind in ("modular", "count"))


def test_every_kind_is_drawn_where_none_is_named() -> None:
    rng = random.Random(0)
    assert {sample_problem(rng).kind for _ in range(100)} == set(KINDS)


def test_the_longest_problems_are_drawn() -> None:
    rng = random.Random(0)
    assert max(sample_problem(rng).num_steps for _ in range(300)) == MAX_NUM_STEPS


@pytest.mark.parametrize("max_num_steps", [-1, 1, MAX_NUM_STEPS + 1])
def test_a_bound_out_of_range_is_refused(max_num_steps: int) -> None:
    with pytest.raises(ValueError, match=rf"max_num_steps is {max_num_steps}; it must lie in \[2, 24\]"):
        sample_problem(random.Random(0), max_num_steps=max_num_steps)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 'riddle'; choose one of sum, walk"):
        sample_problem(random.Random(0), kind="riddle")


# ---- chains


@untimed
@given(seeds, kinds)
def test_a_chain_ends_believing_the_true_answer(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    problem = sample_problem(rng, kind=kind)
    chain = sample_chain(problem, rng)
    assert chain[-1].belief == problem.answer
    assert chain[0].belief is None


@untimed
@given(seeds, kinds)
def test_beliefs_begin_with_the_first_answer_and_change_with_corrections_only(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    chain = sample_chain(sample_problem(rng, kind=kind), rng)
    first = next(i for i, segment in enumerate(chain) if segment.belief is not None)
    assert all(segment.belief is not None for segment in chain[first:])
    for before, after in itertools.pairwise(chain[first:]):
        corrected = "I made a slip" in after.text
        assert corrected == (before.belief != after.belief)
        if corrected:
            assert f"not {before.belief}." in after.text


@untimed
@given(seeds, kinds)
def test_every_belief_is_written_where_it_is_stated(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    chain = sample_chain(sample_problem(rng, kind=kind), rng)
    for before, segment in itertools.pairwise(chain):
        if segment.belief != before.belief:
            assert re.search(rf"(?<!\d){re.escape(str(segment.belief))}[.,]", segment.text)


@untimed
@given(seeds)
def test_the_last_line_of_a_chain_of_sums_leads_to_the_answer(seed: int) -> None:
    rng = random.Random(seed)
    problem = sample_problem(rng, kind="sum")
    text = "".join(segment.text for segment in sample_chain(problem, rng))
    lines = re.findall(r"^[a-z][+-]\d (\d+)([+-])(\d)=(-?\d+)$", text, re.MULTILINE)
    assert len(lines) >= problem.num_steps
    assert lines[-1][3] == problem.answer


def test_slips_are_rare_and_happen() -> None:
    """6 % of the first lines of chains are wrong, within four standard deviations of 2,000 draws: 0.0213."""
    rng = random.Random(0)
    wrong = 0
    for _ in range(2_000):
        chain = sample_chain(sample_problem(rng, kind="sum"), rng)
        left, sign, right, result = re.findall(r" (\d+)([+-])(\d)=(-?\d+)", chain[1].text)[0]
        wrong += int(left) + int(sign + right) != int(result)
    assert abs(wrong / 2_000 - 0.06) < 0.0213


def test_chains_fit_the_context() -> None:
    pytest.importorskip("transformers")
    from scaffolding_ext.prompting import load_tokenizer

    encode = load_tokenizer("tinylm/draft").backend_tokenizer.encode
    rng = random.Random(0)
    longest = 0
    for _ in range(1_500):
        problem = sample_problem(rng, "train")
        chain = "".join(segment.text for segment in sample_chain(problem, rng))
        sequence = f"<|user|>{problem.question}<|assistant|><think>\n{chain}{CLOSE}{problem.answer}}}.{END}"
        longest = max(longest, len(encode(sequence, add_special_tokens=False).ids))
    assert longest <= CONTEXT_LEN
    assert longest > CONTEXT_LEN // 2  # the context is no larger than it has to be
