"""Problems: seeded, split without overlap, and right by an independent solver."""

from __future__ import annotations

import random
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.tinylm.grammar import (
    KINDS,
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
@given(seeds, seeds, kinds)
def test_the_splits_share_no_question(one: int, other: int, kind: str) -> None:
    trained, held = random.Random(one), random.Random(other)
    train = {sample_problem(trained, "train", kind, 3).question for _ in range(4)}
    held_out = {sample_problem(held, "held_out", kind, 3).question for _ in range(4)}
    assert not train & held_out
    assert {split_of(question) for question in train} == {"train"}
    assert {split_of(question) for question in held_out} == {"held_out"}


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


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown split 'test'; choose one of train, held_out"):
        sample_problem(random.Random(0), "test")  # type: ignore[arg-type]


def test_held_out_problems_never_change() -> None:
    """Committed figures are of these problems; a change of the draw would make them incomparable."""
    rng = random.Random(90)
    drawn = [sample_problem(rng).question for _ in range(200)]
    assert drawn[0] == "Find the largest number: e38,f81,g48,h96,i96,j36,k97,l32."
    assert zlib.crc32("".join(drawn).encode()) == 3676200230
