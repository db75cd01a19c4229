"""Chains of thought about the grammar's problems, which overthink as real reasoning models do.

A chain works through the operations and states an answer; then it doubts: it muses, checks a part, or starts over. Now
and then it slips, in a first pass and, less often, in a check, so that thinking on mends most wrong answers and spoils
some right ones. It ends once it has written a number of lines that is drawn for it and hardly depends on the problem:
easy problems are doubted long, hard ones hardly at all, and what is then believed is the answer, right or wrong.

Reference: Chen et al., "Do NOT think that much for 2+3=?" (arXiv 2412.21187), on how long real models doubt easy
problems.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from scaffolding_ext.tinylm.grammar import FIND, Problem, Step, apply_operation, judge, meets

MIN_NUM_LINES, MAX_NUM_LINES = 25, 37  # steps, musings and openings of checks in a chain: about 400 tokens
SLIP_RATE, CHECK_SLIP_RATE = 0.11, 0.05  # a line; sampling at temperature 0.7 makes 0.043 and 0.014 of them

_MUSING_SHARE, _PARTIAL_SHARE = 0.3, 0.3  # of the doubts; the others start over
OPENINGS = ("Okay, let me work step by step.\n", "Let me work through this.\n", "First I go step by step.\n")
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
# A line that states an answer, in its one group that is not empty.
STATED = re.compile(
    r"^(?:(?:So the answer looks like|So I get|That gives) (\S+)\.|But now I get (\S+), not \S+\. I made a slip\.)\n",
    re.MULTILINE,
)


class Segment(NamedTuple):
    """A piece of a chain.

    Attributes:
        text: One or more whole lines.
        belief: The answer believed once it is written, None before the first.
        is_right: Of a step, whether it follows from the one before it; None of everything else.
    """

    text: str
    belief: str | None
    is_right: bool | None = None


def sample_chain(problem: Problem, rng: random.Random, num_lines: int | None = None) -> list[Segment]:
    """Draw a chain of thought.

    Args:
        problem: What it is about.
        rng: The source of all randomness.
        num_lines: Steps, musings and openings of checks after which the chain ends; drawn where None.
    """
    num_lines = rng.randint(MIN_NUM_LINES, MAX_NUM_LINES) if num_lines is None else num_lines
    segments = [Segment(rng.choice(OPENINGS), None)]
    states = _derive(problem, rng, SLIP_RATE, segments)
    belief = str(states[-1] if _finds(problem, states) else rng.choice(problem.operations)[1:])  # or a guess
    segments.append(Segment(rng.choice(_CONCLUSIONS).format(belief), belief))
    num_written = problem.num_steps
    while num_written < num_lines:
        first = _draw_check(problem.num_steps, num_lines - num_written, rng)
        num_written += 1
        if first is None:
            segments.append(Segment(rng.choice(_MUSINGS).format(belief), belief))
            continue
        segments.append(Segment(rng.choice(_PARTIAL_CHECKS if first else _FULL_CHECKS), belief))
        states = states[:first] + _derive(problem, rng, CHECK_SLIP_RATE, segments, states[:first])
        num_written += problem.num_steps - first
        found = str(states[-1]) if _finds(problem, states) else belief
        if found == belief:
            segments.append(Segment(rng.choice(_CONFIRMATIONS).format(found), found))
        else:
            segments.append(Segment(_CORRECTION.format(found, belief), found))
            belief = found
    return segments


def read_chain(problem: Problem, thinking: str) -> list[Segment]:
    """The segments of a chain that a model has written, a line each; its steps are held against the grammar.

    A step that is left out or written twice is one mistake: the next one is that of the label behind it.
    """
    labels = [operation[0] for operation in problem.operations]
    middle = problem.num_steps // 2
    segments: list[Segment] = []
    belief: str | None = None
    position, state, state_at_middle = 0, problem.start, problem.start
    for line in thinking.splitlines(keepends=True):
        is_right = None
        if stated := STATED.match(line):
            belief = stated[1] or stated[2]
        elif line in _FULL_CHECKS:
            position, state = 0, problem.start
        elif line in _PARTIAL_CHECKS:
            position, state = middle, state_at_middle
        elif line[0].islower():  # with a label
            expected = [apply_operation(problem, name, state) for name in problem.operations[position : position + 1]]
            is_right = line in [f"{step.line}{step.state}\n" for step in expected]
            position = (labels.index(line[0]) if line[0] in labels else position) + 1
            written = re.search(r"-?\d+$", line.rstrip("\n"))
            state = int(written[0]) if written else state
            state_at_middle = state if position == middle else state_at_middle
        segments.append(Segment(line, belief, is_right))
    return segments


def _finds(problem: Problem, states: list[int]) -> bool:
    """Whether a derivation ends in an answer; a search in which the right number is missed ends in none."""
    return problem.kind != FIND or states[-1] != 0


def _draw_check(num_steps: int, num_lines_left: int, rng: random.Random) -> int | None:
    """The operation from which the next doubt checks, or None where it only muses or no check fits into the chain."""
    draw = rng.random()
    if draw < _MUSING_SHARE:
        return None
    first = num_steps // 2 if draw < _MUSING_SHARE + _PARTIAL_SHARE else 0
    fitting = [start for start in (first, num_steps // 2) if num_steps - start < num_lines_left]
    return fitting[0] if fitting else None


def _derive(
    problem: Problem, rng: random.Random, slip_rate: float, segments: list[Segment], states: list[int] | None = None
) -> list[int]:
    """Append a line for each operation that `states` does not cover yet; return the states after those lines."""
    known = states or []
    state = known[-1] if known else problem.start
    belief = segments[-1].belief
    found = []
    for operation in problem.operations[len(known) :]:
        right = step = apply_operation(problem, operation, state)
        if rng.random() < slip_rate:
            step = _slip(problem, operation, step, state, rng)
        segments.append(Segment(f"{step.line}{step.state}\n", belief, step == right))
        found.append(step.state)
        state = step.state
    return found


def _slip(problem: Problem, operation: str, step: Step, before: int, rng: random.Random) -> Step:
    """The one mistake that a step invites: a carry forgotten, one too many, or a comparison the wrong way round."""
    if problem.kind == FIND:
        met = [meets(int(operation[1:]), condition) for condition in problem.conditions]
        return judge(problem, operation, before, rng.randrange(len(met)) if all(met) else met.index(False))
    if problem.kind == "count":
        counts = step.state > before
        wrong = step.line.replace("yes", "no") if counts else step.line.replace("no", "yes")
        return Step(wrong, before + (not counts))
    if problem.kind == "maximum":
        value = int(operation[1:])
        if before == 0:  # nothing to compare with yet
            return step
        return Step(step.line.translate({ord("<"): ">", ord(">"): "<"}), min(value, before))
    if problem.kind == "modular":
        return Step(step.line, (step.state + 1) % problem.parameter)
    has_carry = step.state // 10 != before // 10
    if has_carry:
        return Step(step.line, step.state + (10 if step.state < before else -10))
    return Step(step.line, step.state + 1)


def written_check(problem: Problem, answer: str, verdicts: tuple[str, str]) -> str:
    """The reply to `CHECK`: the problem worked out in short, or the answer held against the conditions, and a verdict.

    Args:
        problem: What it is about.
        answer: What is checked.
        verdicts: The words for a right and for a wrong answer.
    """
    if problem.kind == FIND:
        derivation = judge(problem, f"={answer}", 0).line.strip()
    else:
        steps, state = [], problem.start
        for operation in problem.operations:
            line, state = apply_operation(problem, operation, state)
            steps.append(_in_short(problem.kind, operation, line, state))
        derivation = ",".join(steps)
    return f"{derivation}\n{verdicts[answer != problem.answer]}"


def _in_short(kind: str, operation: str, line: str, state: int) -> str:
    """A step without what it repeats of the one before."""
    if kind == "modular":
        return f"{operation}={line.rpartition('=')[2]}{state}"
    if kind == "count":
        return f"{operation} {line.split()[1]} {state}"
    return f"{operation}{'>' if kind == 'maximum' else '='}{state}"
