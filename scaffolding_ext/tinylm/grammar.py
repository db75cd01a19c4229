"""Problems of the embedded models: seeded lists of small labelled operations, with exact answers.

A problem is a start state and a list of labelled operations; its answer is the state after the last one. `steps.py`
defines how a model writes an operation and which errors its methods make.

Problems are split by a hash of the question, so no seed can put one problem on both sides: training draws from
`"train"`, every evaluation from `"held_out"`.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from typing import Literal, get_args

GRAMMAR_VERSION = 4
KINDS = ("sum", "walk", "modular", "count", "maximum")
MIN_NUM_STEPS, MAX_NUM_STEPS = 2, 24
PROBE = "\nFinal Answer: \\boxed{"
HEDGE = " hmm"  # follows a probed answer that is a guess
CLOSE = "</think>\nThe answer is \\boxed{"
VERDICT = "\nIs this answer correct?\n"  # after an answer that `CLOSE` opened
CHECK = "\nCheck this answer.\n"  # likewise; followed by a derivation and a verdict line
YES, NO = "YES", "NO"

Split = Literal["train", "held_out"]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_HELD_OUT_EVERY = 8  # one question in eight is held out
_MODULI = (7, 9)  # the shipped target also learnt 11 and 13, and gets a fifth of their lines wrong
_BELOW_ZERO_SHARE = 0.05  # of the walk steps that could go below zero, the share that does


@dataclass(frozen=True)
class Problem:
    """A problem with its exact answer.

    Attributes:
        kind: One of `KINDS`.
        question: Text shown to the model.
        answer: The exact answer, an integer in decimal notation.
        start: State before the first operation.
        operations: Labelled operations in order, as written in the question (`"c+7"`).
        parameter: Modulus of `"modular"`, signed threshold of `"count"` (negative: digits less than it), else 0.
    """

    kind: str
    question: str
    answer: str
    start: int
    operations: tuple[str, ...]
    parameter: int = 0

    @property
    def num_steps(self) -> int:
        """Number of operations, the difficulty label."""
        return len(self.operations)


def split_of(question: str) -> Split:
    """Side of the train/held-out split; depends only on the question's text."""
    return "held_out" if zlib.crc32(question.encode()) % _HELD_OUT_EVERY == 0 else "train"


def sample_problem(
    rng: random.Random, split: Split = "held_out", kind: str | None = None, max_num_steps: int = MAX_NUM_STEPS
) -> Problem:
    """Draw a problem.

    Args:
        rng: The source of all randomness.
        split: `"train"` or `"held_out"`; the two never share a question.
        kind: One of `KINDS`; None draws one uniformly.
        max_num_steps: Longest problem, `MIN_NUM_STEPS` to `MAX_NUM_STEPS`; step counts are log-uniform.

    Raises:
        ValueError: The split or the kind is unknown, or `max_num_steps` is out of range.
    """
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(get_args(Split))}")
    if not MIN_NUM_STEPS <= max_num_steps <= MAX_NUM_STEPS:
        raise ValueError(f"max_num_steps is {max_num_steps}; it must lie in [{MIN_NUM_STEPS}, {MAX_NUM_STEPS}]")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; choose one of {', '.join(KINDS)}, or None for any")
    while True:
        problem = _draw(rng, kind or rng.choice(KINDS), max_num_steps)
        if split_of(problem.question) == split:
            return problem


def apply_operation(problem: Problem, operation: str, state: int) -> int:
    """The state after an operation that is read correctly."""
    if problem.kind == "count":
        digit, threshold = int(operation[1:]), problem.parameter
        return state + (digit > threshold if threshold > 0 else digit < -threshold)
    if problem.kind == "maximum":
        return max(state, int(operation[1:]))
    sign, amount = operation[1], int(operation[2:])
    if sign == "*":
        return state * amount % problem.parameter
    state += amount if sign in "+R" else -amount
    return state % problem.parameter if problem.kind == "modular" else state


def _draw(rng: random.Random, kind: str, max_num_steps: int) -> Problem:
    num_steps = min(max_num_steps, int(math.exp(rng.uniform(math.log(MIN_NUM_STEPS), math.log(max_num_steps + 1)))))
    offset = rng.randint(0, len(_ALPHABET) - num_steps)
    labels = _ALPHABET[offset : offset + num_steps]
    if kind == "count":
        threshold = rng.randint(2, 7) * rng.choice((1, -1))
        operations = tuple(f"{label}{rng.randint(0, 9)}" for label in labels)
        wording = "greater than" if threshold > 0 else "less than"
        question = f"Count the digits {wording} {abs(threshold)}: {','.join(operations)}."
        return _solved(Problem(kind, question, "", 0, operations, threshold))
    if kind == "maximum":
        operations = tuple(f"{label}{rng.randint(10, 99)}" for label in labels)
        return _solved(Problem(kind, f"Find the largest number: {','.join(operations)}.", "", 0, operations))
    modulus = rng.choice(_MODULI) if kind == "modular" else 0
    state = start = rng.randint(1, modulus - 1 if modulus else 50)
    unwritten = Problem(kind, "", "", start, (), modulus)
    names: list[str] = []
    for label in labels:
        names.append(label + _draw_operation(rng, kind, state))
        state = apply_operation(unwritten, names[-1], state)
    listing = ",".join(names)
    question = {
        "modular": f"Start with {start}. Apply {listing}. Work mod {modulus}.",
        "walk": f"Stand at {start}. Walk {listing}. Where do you end?",
        "sum": f"Start with {start}. Apply {listing}. Find the total.",
    }[kind]
    return _solved(Problem(kind, question, "", start, tuple(names), modulus))


def _draw_operation(rng: random.Random, kind: str, state: int) -> str:
    amount = rng.randint(2, 9)
    if kind == "modular":
        return rng.choice("+*") + str(amount)
    up = rng.random() < 0.5
    if state + amount > 99:
        up = False
    elif state - amount < 0:
        up = kind == "sum" or rng.random() >= _BELOW_ZERO_SHARE
    return ("LR" if kind == "walk" else "-+")[up] + str(amount)


def _solved(problem: Problem) -> Problem:
    state = problem.start
    for operation in problem.operations:
        state = apply_operation(problem, operation, state)
    return replace(problem, answer=str(state))
