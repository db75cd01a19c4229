"""Problems: seeded, split without overlap, and right by an independent solver."""

from __future__ import annotations

import math
import random
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.tinylm.grammar import (
    KINDS,
    MAX_NUM_STEPS,
    MIN_NUM_STEPS,
    apply_operation,
    sample_problem,
    split_of,
)

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
    match = re.fullmatch(r"Start with (\d+)\. Apply (.+?)\. (Find the total|Work mod \d+)\.", question)
    assert match is not None, question
    value = int(match[1])
    for entry in match[2].split(","):
        amount = int(entry[2:])
        value = {"+": value + amount, "-": value - amount, "*": value * amount}[entry[1]]
    if match[3].startswith("Work mod"):
        return str(value % int(match[3].split()[-1]))  # the residue of the whole is that of its parts
    return str(value)


# ---- problems


@untimed
@given(seeds, splits, st.none() | kinds)
def test_a_seed_gives_one_problem(seed: int, split: str, kind: str | None) -> None:
    once, again = random.Random(seed), random.Random(seed)
    assert sample_problem(once, split, kind) == sample_problem(again, split, kind)
    assert once.getstate() == again.getstate()


@untimed
@given(seeds)
def test_the_global_generator_is_left_alone(seed: int) -> None:
    before = random.getstate()
    sample_problem(random.Random(seed))
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
@given(seeds, kinds, st.integers(MIN_NUM_STEPS, MAX_NUM_STEPS))
def test_the_number_of_steps_keeps_its_bounds(seed: int, kind: str, max_num_steps: int) -> None:
    problem = sample_problem(random.Random(seed), "train", kind, max_num_steps)
    assert MIN_NUM_STEPS <= problem.num_steps <= max_num_steps
    assert ",".join(problem.operations) in problem.question
    assert len({operation[0] for operation in problem.operations}) == problem.num_steps  # every label once


@untimed
@given(seeds, kinds)
def test_two_kinds_have_a_parameter(seed: int, kind: str) -> None:
    problem = sample_problem(random.Random(seed), kind=kind)
    assert bool(problem.parameter) == (kind in ("modular", "count"))


def test_every_kind_is_drawn_where_none_is_named() -> None:
    rng = random.Random(0)
    assert {sample_problem(rng).kind for _ in range(100)} == set(KINDS)


def test_the_longest_problems_are_drawn() -> None:
    rng = random.Random(0)
    assert max(sample_problem(rng).num_steps for _ in range(300)) == MAX_NUM_STEPS


@pytest.mark.parametrize("max_num_steps", [-1, MIN_NUM_STEPS - 1, MAX_NUM_STEPS + 1])
def test_a_bound_out_of_range_is_refused(max_num_steps: int) -> None:
    with pytest.raises(ValueError, match=rf"max_num_steps is {max_num_steps}; it must lie in \[2, 24\]"):
        sample_problem(random.Random(0), max_num_steps=max_num_steps)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown split 'test'; choose one of train, held_out"):
        sample_problem(random.Random(0), "test")  # type: ignore[arg-type]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 'riddle'; choose one of sum, walk"):
        sample_problem(random.Random(0), kind="riddle")


def test_the_number_of_steps_is_log_uniform() -> None:
    """As many problems of 2 to 6 steps as of 7 to 24, since 25 / 7 is about 7 / 2; four deviations of 3,000 draws."""
    rng = random.Random(0)
    short = sum(sample_problem(rng).num_steps < 7 for _ in range(3_000)) / 3_000
    assert abs(short - math.log(7 / 2) / math.log(25 / 2)) < 0.0365


def test_held_out_problems_never_change() -> None:
    """Committed figures are of these problems; a change of the draw would make them incomparable."""
    rng = random.Random(90)
    drawn = [sample_problem(rng).question for _ in range(200)]
    assert drawn[0] == "Find the largest number: e38,f81,g48,h96,i96,j36,k97,l32."
    assert zlib.crc32("".join(drawn).encode()) == 3676200230


def test_walks_seldom_lead_below_zero() -> None:
    rng = random.Random(0)
    states = []
    for _ in range(500):
        problem = sample_problem(rng, kind="walk")
        states.append(problem.start)
        for operation in problem.operations:
            states.append(apply_operation(problem, operation, states[-1]))
    assert 0 < sum(state < 0 for state in states) < 0.02 * len(states)
    assert max(states) <= 99
