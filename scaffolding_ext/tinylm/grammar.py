"""The seeded grammar that the embedded models learn: problems of one-hop labelled steps.

A problem is a start state and a list of labelled operations; its answer is the state after the last one. `chains.py`
writes chains of thought about them. Everything is drawn from the generator that is passed in.

Five kinds are derived: a step leads from one state to the next, and an answer is checked by deriving it again. The
sixth, `FIND`, is searched: of many numbers one meets all conditions, which is long to find and short to check. It is
drawn where it is named, so that the problems that are drawn without a name stay those of earlier editions.

Problems are split by a hash of their question, so that no seed can put one on both sides: training draws from
`"train"`, every evaluation from `"held_out"`.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

GRAMMAR_VERSION = 3
KINDS = ("sum", "walk", "modular", "count", "maximum")
FIND = "find"
ALL_KINDS = (*KINDS, FIND)
MIN_NUM_STEPS, MAX_NUM_STEPS = 2, 24
PROBE = "\nFinal Answer: \\boxed{"
HEDGE = " hmm"  # follows a probed answer that is a mere guess
CLOSE = "</think>\nThe answer is \\boxed{"
VERDICT = "\nIs this answer correct?\n"  # after an answer that `CLOSE` opened
CHECK = "\nCheck this answer.\n"  # likewise; a short derivation and a line with the verdict follow
STEP_VERDICT = "\nIs this step right?\n"  # after a line of thinking
YES, NO = "YES", "NO"

Split = Literal["train", "held_out"]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_HELD_OUT_EVERY = 8  # one question in eight is held out


@dataclass(frozen=True)
class Problem:
    """One problem with its verifier's answer.

    Attributes:
        kind: One of `ALL_KINDS`.
        question: The text that the model is shown.
        answer: The exact answer, an integer in decimal notation.
        start: The state before the first operation.
        operations: The labelled operations in order, as they stand in the question (`"c+7"`).
        parameter: The modulus of `"modular"`, the signed threshold of `"count"` (negative: digits less than it), else
            0.
        conditions: What the answer of `FIND` meets, such as `("odd", ">34", "<60")`; else none.
    """

    kind: str
    question: str
    answer: str
    start: int
    operations: tuple[str, ...]
    parameter: int = 0
    conditions: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        """The difficulty label: how many one-hop steps lead to the answer."""
        return len(self.operations)


class Step(NamedTuple):
    """One operation worked out: the line that shows it, up to its result, and the state that it leads to."""

    line: str
    state: int


def split_of(question: str) -> Split:
    """Which side of the train/held-out split a question is on; depends on nothing but its text."""
    return "held_out" if zlib.crc32(question.encode()) % _HELD_OUT_EVERY == 0 else "train"


def sample_problem(
    rng: random.Random, split: Split = "held_out", kind: str | None = None, max_num_steps: int = MAX_NUM_STEPS
) -> Problem:
    """Draw a problem.

    Args:
        rng: The source of all randomness.
        split: `"train"` or `"held_out"`; the two never share a question.
        kind: One of `ALL_KINDS`; drawn uniformly from `KINDS` where it is None.
        max_num_steps: Longest problem, `MIN_NUM_STEPS` to `MAX_NUM_STEPS`; the number of steps is log-uniform up to it.

    Raises:
        ValueError: The split or the kind is unknown, or `max_num_steps` is out of range.
    """
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(get_args(Split))}")
    if not MIN_NUM_STEPS <= max_num_steps <= MAX_NUM_STEPS:
        raise ValueError(f"max_num_steps is {max_num_steps}; it must lie in [{MIN_NUM_STEPS}, {MAX_NUM_STEPS}]")
    if kind is not None and kind not in ALL_KINDS:
        raise ValueError(f"unknown kind {kind!r}; choose one of {', '.join(ALL_KINDS)}, or None for any of {KINDS}")
    while True:
        problem = _draw(rng, kind or rng.choice(KINDS), max_num_steps)
        if split_of(problem.question) == split:
            return problem


def apply_operation(problem: Problem, operation: str, state: int) -> Step:
    """Work out one operation on a state, without a slip."""
    kind = problem.kind
    if kind == FIND:
        return judge(problem, operation, state)
    if kind == "count":
        digit, threshold = int(operation[1:]), abs(problem.parameter)
        counts = digit > threshold if problem.parameter > 0 else digit < threshold
        sign = ">" if problem.parameter > 0 else "<"
        return Step(f"{operation}{sign}{threshold} {'yes' if counts else 'no'} ", state + counts)
    if kind == "maximum":
        value = int(operation[1:])
        return Step(f"{operation}{'>' if value > state else '<'}{state} ", max(value, state))
    sign = {"L": "-", "R": "+"}.get(operation[1], operation[1])
    amount = int(operation[2:])
    value = state * amount if sign == "*" else state + amount if sign == "+" else state - amount
    line = f"{operation} {state}{sign}{amount}="
    return Step(f"{line}{value}>", value % problem.parameter) if kind == "modular" else Step(line, value)


def judge(problem: Problem, operation: str, state: int, slip: int | None = None) -> Step:
    """Hold a number against the conditions, up to the first that it does not meet; one that meets all is the new state.

    Args:
        problem: Of the kind `FIND`.
        operation: The labelled number.
        state: The number found so far, 0 for none.
        slip: Index of a condition that is judged the wrong way round.
    """
    value = int(operation[1:])
    line = f"{operation} "
    for index, condition in enumerate(problem.conditions):
        holds = meets(value, condition) != (index == slip)
        line += f"{condition} {'yes' if holds else 'no'} "
        if not holds:
            return Step(line, state)
    return Step(line, value)


def meets(value: int, condition: str) -> bool:
    """Whether a number is `"odd"` or `"even"`, or above (`">34"`) or under a bound."""
    if condition in ("odd", "even"):
        return value % 2 == (condition == "odd")
    bound = int(condition[1:])
    return value > bound if condition[0] == ">" else value < bound


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
    if kind == FIND:
        return _draw_search(rng, labels)
    modulus = rng.choice((7, 9, 11, 13)) if kind == "modular" else 0
    state = start = rng.randint(1, modulus - 1 if modulus else 50)
    unwritten = Problem(kind, "", "", start, (), modulus)
    names: list[str] = []
    for label in labels:
        names.append(label + _draw_operation(rng, kind, state))
        state = apply_operation(unwritten, names[-1], state).state
    listing = ",".join(names)
    question = {
        "modular": f"Start with {start}. Apply {listing}. Work mod {modulus}.",
        "walk": f"Stand at {start}. Walk {listing}. Where do you end?",
        "sum": f"Start with {start}. Apply {listing}. Find the total.",
    }[kind]
    return _solved(Problem(kind, question, "", start, tuple(names), modulus))


def _draw_search(rng: random.Random, labels: str) -> Problem:
    """Numbers of which one meets all conditions; about half of the others meet all but one."""
    low = rng.randint(12, 70)
    high = min(99, low + rng.randint(6, 40))
    conditions = (rng.choice(("odd", "even")), f">{low}", f"<{high}")
    by_num_met: dict[int, list[int]] = {}
    for value in range(10, 100):
        by_num_met.setdefault(sum(meets(value, condition) for condition in conditions), []).append(value)
    near, far = by_num_met[2], by_num_met[2] + by_num_met.get(1, [])
    values = [rng.choice(near if rng.random() < 0.5 else far) for _ in labels]
    values[rng.randrange(len(values))] = rng.choice(by_num_met[3])
    operations = tuple(f"{label}{value}" for label, value in zip(labels, values, strict=True))
    question = f"Find the {conditions[0]} number over {low} and under {high}: {','.join(operations)}."
    return _solved(Problem(FIND, question, "", 0, operations, conditions=conditions))


def _draw_operation(rng: random.Random, kind: str, state: int) -> str:
    amount = rng.randint(2, 9)
    if kind == "modular":
        return rng.choice("+*") + str(amount)
    if kind == "walk":
        return ("L" if state > 30 or (state > -30 and rng.random() < 0.6) else "R") + str(amount)
    up = rng.random() < 0.5
    if state + amount > 99:
        up = False
    elif state - amount < 0:
        up = True
    return ("+" if up else "-") + str(amount)


def _solved(problem: Problem) -> Problem:
    state = problem.start
    for operation in problem.operations:
        state = apply_operation(problem, operation, state).state
    return replace(problem, answer=str(state))
