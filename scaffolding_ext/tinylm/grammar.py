"""The seeded grammar that the embedded models learn: problems of one-hop labelled steps, and chains about them.

A problem is a start state and a list of labelled operations; its answer is the state after the last one. A chain works
through the operations, states an answer, doubts it a random number of times (muses, checks a part, starts over), now
and then slips, and corrects what it finds. Everything is drawn from the generator that is passed in.

Problems are split by a hash of their question, so that no seed can put one on both sides: training draws from
`"train"`, every evaluation from `"held_out"`.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

GRAMMAR_VERSION = 1
KINDS = ("sum", "walk", "modular", "count", "maximum", "choice")
MAX_NUM_STEPS = 24
PROBE = "\nFinal Answer: \\boxed{"
CLOSE = "</think>\nThe answer is \\boxed{"

Split = Literal["train", "held_out"]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_HELD_OUT_EVERY = 8  # one question in eight is held out
_MAX_CHAIN_STEPS = 48  # voluntary doubts end here, so that chains fit the context
_SLIP_RATE = 0.06
_CHECK_SLIP_RATE = 0.015

_OPENINGS = ("Okay, let me work step by step.\n", "Let me work through this.\n", "First I go step by step.\n")
_CONCLUSIONS = ("So the answer looks like {}.\n", "So I get {}.\n", "That gives {}.\n")
_MUSINGS = ("Hmm, is {0} right? I think {0} is right.\n", "Wait, is it really {0}? Yes, {0} seems fine.\n")
_PARTIAL_CHECKS = ("Hmm, let me check the last part.\n", "Wait, check the second half.\n")
_FULL_CHECKS = (
    "Wait, let me double check from the start.\n",
    "Let me verify everything again.\n",
    "Hmm, let me redo this.\n",
)
_CONFIRMATIONS = ("Again {}, good.\n", "I get {} again.\n")
_CORRECTION = "But now I get {}, not {}. I made a slip.\n"


@dataclass(frozen=True)
class Problem:
    """One problem with its verifier's answer.

    Attributes:
        kind: One of `KINDS`.
        question: The text that the model is shown.
        answer: The exact answer, an integer in decimal notation or, for `"choice"`, a letter A to D.
        start: The state before the first operation.
        operations: The labelled operations in order, as they stand in the question (`"c+7"`).
        parameter: The modulus of `"modular"`, the signed threshold of `"count"` (negative: digits less than it), else
            0.
        options: The values of the options A to D of `"choice"`, else empty.
    """

    kind: str
    question: str
    answer: str
    start: int
    operations: tuple[str, ...]
    parameter: int = 0
    options: tuple[int, ...] = ()

    @property
    def num_steps(self) -> int:
        """The difficulty label: how many one-hop steps lead to the answer."""
        return len(self.operations)


class Segment(NamedTuple):
    """A piece of a chain, and the answer believed once it is written (None before the first answer)."""

    text: str
    belief: str | None


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
        kind: One of `KINDS`; drawn uniformly where it is None.
        max_num_steps: Longest problem, 2 to `MAX_NUM_STEPS`; the number of steps is log-uniform from 2 on.

    Raises:
        ValueError: The kind is not one of `KINDS`, or `max_num_steps` is out of range.
    """
    if not 2 <= max_num_steps <= MAX_NUM_STEPS:
        raise ValueError(f"max_num_steps is {max_num_steps}; it must lie in [2, {MAX_NUM_STEPS}]")
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; choose one of {', '.join(KINDS)}, or None for any")
    while True:
        problem = _draw(rng, kind or rng.choice(KINDS), max_num_steps)
        if split_of(problem.question) == split:
            return problem


def sample_chain(problem: Problem, rng: random.Random) -> list[Segment]:
    """Draw a chain of thought that ends believing the true answer, after slips, doubts and corrections."""
    num_steps = problem.num_steps
    segments = [Segment(rng.choice(_OPENINGS), None)]
    lines, states = _derive(problem, rng, _SLIP_RATE, 0, problem.start)
    segments += [Segment(line, None) for line in lines]
    belief = _answer_of(problem, states[-1])
    segments.append(Segment(rng.choice(_CONCLUSIONS).format(_describe(problem, states[-1])), belief))
    num_doubts = rng.choices(range(8), weights=(14, 18, 18, 16, 12, 10, 7, 5))[0]
    num_written = num_steps
    while belief != problem.answer or (num_doubts > 0 and num_written < _MAX_CHAIN_STEPS):
        must_correct = num_doubts <= 0 or num_written >= _MAX_CHAIN_STEPS
        num_doubts -= 1
        draw = rng.random()
        if draw < 0.3 and not must_correct:
            segments.append(Segment(rng.choice(_MUSINGS).format(belief), belief))
            continue
        first = num_steps // 2 if draw < 0.6 and not must_correct else 0
        segments.append(Segment(rng.choice(_PARTIAL_CHECKS if first else _FULL_CHECKS), belief))
        slip_rate = 0.0 if must_correct else _CHECK_SLIP_RATE
        lines, tail = _derive(problem, rng, slip_rate, first, states[first - 1] if first else problem.start)
        segments += [Segment(line, belief) for line in lines]
        states = states[:first] + tail
        num_written += len(lines)
        found = _answer_of(problem, states[-1])
        if found == belief:
            segments.append(Segment(rng.choice(_CONFIRMATIONS).format(_describe(problem, states[-1])), belief))
        else:
            segments.append(Segment(_CORRECTION.format(_describe(problem, states[-1]), belief), found))
            belief, num_doubts = found, max(num_doubts, 1)
    return segments


def _draw(rng: random.Random, kind: str, max_num_steps: int) -> Problem:
    num_steps = min(max_num_steps, int(math.exp(rng.uniform(math.log(2), math.log(max_num_steps + 1)))))
    offset = rng.randint(0, len(_ALPHABET) - num_steps)
    labels = _ALPHABET[offset : offset + num_steps]
    if kind == "count":
        threshold = rng.randint(2, 7) * rng.choice((1, -1))
        operations = tuple(f"{label}{rng.randint(0, 9)}" for label in labels)
        wording = "greater than" if threshold > 0 else "less than"
        question = f"Count the digits {wording} {abs(threshold)}: {','.join(operations)}."
        return _solved(kind, question, 0, operations, threshold)
    if kind == "maximum":
        operations = tuple(f"{label}{rng.randint(10, 99)}" for label in labels)
        return _solved(kind, f"Find the largest number: {','.join(operations)}.", 0, operations)
    modulus = rng.choice((7, 9, 11, 13)) if kind == "modular" else 0
    state = start = rng.randint(1, modulus - 1 if modulus else 50)
    names: list[str] = []
    for label in labels:
        names.append(label + _draw_operation(rng, kind, state))
        state = _apply(kind, names[-1], state, modulus)[1]
    operations = tuple(names)
    listing = ",".join(operations)
    if kind == "modular":
        return _solved(kind, f"Start with {start}. Apply {listing}. Work mod {modulus}.", start, operations, modulus)
    if kind == "walk":
        return _solved(kind, f"Stand at {start}. Walk {listing}. Where do you end?", start, operations)
    if kind == "sum":
        return _solved(kind, f"Start with {start}. Apply {listing}. Find the total.", start, operations)
    options = [state, *rng.sample([state + d for d in (-10, -2, -1, 1, 2, 10) if state + d >= 0], 3)]
    rng.shuffle(options)
    shown = " ".join(f"{value}={letter}" for letter, value in zip("ABCD", options, strict=True))
    question = f"Start with {start}. Apply {listing}. Choose: {shown}"
    return _solved(kind, question, start, operations, options=tuple(options))


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


def _solved(
    kind: str, question: str, start: int, operations: tuple[str, ...], parameter: int = 0, options: tuple[int, ...] = ()
) -> Problem:
    unsolved = Problem(kind, question, "", start, operations, parameter, options)
    state = start
    for operation in operations:
        state = _apply(kind, operation, state, parameter)[1]
    return Problem(kind, question, _answer_of(unsolved, state), start, operations, parameter, options)


def _apply(kind: str, operation: str, state: int, parameter: int) -> tuple[str, int]:
    """Write the line of one step and return it with the state after it."""
    if kind == "count":
        digit, threshold = int(operation[1:]), abs(parameter)
        counts = digit > threshold if parameter > 0 else digit < threshold
        return f"{operation}{'>' if parameter > 0 else '<'}{threshold} {'yes' if counts else 'no'} ", state + counts
    if kind == "maximum":
        value = int(operation[1:])
        return f"{operation}{'>' if value > state else '<'}{state} ", max(value, state)
    sign = {"L": "-", "R": "+"}.get(operation[1], operation[1])
    amount = int(operation[2:])
    value = state * amount if sign == "*" else state + amount if sign == "+" else state - amount
    line = f"{operation} {state}{sign}{amount}="
    return (f"{line}{value}>", value % parameter) if kind == "modular" else (line, value)


def _slip(
    kind: str, operation: str, line: str, before: int, after: int, parameter: int, rng: random.Random
) -> tuple[str, int]:
    """A plausible mistake: the line that would be written, and the wrong state it leads to."""
    if kind == "count":
        counts = after > before
        return line.replace("yes" if counts else "no", "no" if counts else "yes"), before + (not counts)
    if kind == "maximum":
        value = int(operation[1:])
        if before == 0:  # nothing to compare with yet
            return line, value
        return line.translate({ord("<"): ">", ord(">"): "<"}), min(value, before)
    if kind == "modular":
        return line, (after + rng.choice((1, -1))) % parameter
    return line, after + rng.choice((10, -10, 1, -1)) if after >= 10 else after + 1


def _derive(
    problem: Problem, rng: random.Random, slip_rate: float, first: int, state: int
) -> tuple[list[str], list[int]]:
    """Work through the operations from index `first`; return the lines and the state after each."""
    lines, states = [], []
    for operation in problem.operations[first:]:
        line, after = _apply(problem.kind, operation, state, problem.parameter)
        if rng.random() < slip_rate:
            line, after = _slip(problem.kind, operation, line, state, after, problem.parameter, rng)
        lines.append(f"{line}{after}\n")
        states.append(after)
        state = after
    return lines, states


def _answer_of(problem: Problem, state: int) -> str:
    if not problem.options:
        return str(state)
    nearest = min(range(len(problem.options)), key=lambda i: abs(problem.options[i] - state))
    return "ABCD"[nearest]


def _describe(problem: Problem, state: int) -> str:
    answer = _answer_of(problem, state)
    if not problem.options:
        return answer
    return f"{state}={answer}" if state in problem.options else f"{state}, near {answer}"
