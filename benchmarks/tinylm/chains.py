"""Chains of thought that the embedded models learn from; they overthink as real reasoning models do.

A chain takes a quick method, works through the operations and states an answer; then it doubts. Until two passes have
agreed, a doubt starts over by a careful method, as far as the chain's length allows; once two have, the chain is
settled, and doubts only confirm. A chain ends once it has written a number of lines that is drawn for it and hardly
depends on the problem. What is then believed is the answer, right or wrong.

Reference: Chen et al., "Do NOT think that much for 2+3=?" (arXiv 2412.21187), on how long real models doubt easy
problems.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from benchmarks.tinylm.steps import (
    CAREFUL,
    CONCLUSIONS,
    CORRECTION,
    FIRST_PASSES,
    FULL_CHECKS,
    PARTIAL_CHECKS,
    QUICK,
    RETURN,
    Method,
    Misreading,
    write_step,
)
from scaffolding_ext.tinylm.grammar import NO, YES, Problem

MIN_NUM_LINES, MAX_NUM_LINES = 30, 44  # steps, musings and openings of checks in a chain: about 500 tokens
SLIP_RATE = 0.006  # of the lines: a digit misread by chance
MUSING_SHARE = 0.2  # of the doubts before a chain is settled
SETTLED_MUSING_SHARE, SETTLED_PARTIAL_SHARE = 0.5, 0.3  # of the doubts after that; the others start over

_MUSINGS = ("Hmm, is {0} right? I think {0} is right.\n", "Wait, is it really {0}? Yes, {0} seems fine.\n")
_CONFIRMATIONS = ("Again {}, good.\n", "I get {} again.\n")


class Segment(NamedTuple):
    """A line of a chain.

    Attributes:
        text: The line with its newline.
        belief: The answer that is believed once the line is written; None before the first.
        is_settled: Whether two passes have agreed on that answer.
        rival: The answer before a correction that is not settled yet.
    """

    text: str
    belief: str | None
    is_settled: bool = False
    rival: str | None = None


def sample_chain(problem: Problem, rng: random.Random, num_lines: int | None = None) -> list[Segment]:
    """Draw a chain of thought.

    Args:
        problem: What the chain is about.
        rng: The source of all randomness.
        num_lines: Steps, musings and openings of checks after which the chain ends; drawn where None.
    """
    num_lines = rng.randint(MIN_NUM_LINES, MAX_NUM_LINES) if num_lines is None else num_lines
    method = rng.choice(QUICK)
    segments = [Segment(FIRST_PASSES[QUICK.index(method)], None)]
    states = _derive(problem, rng, method, segments)
    belief = str(states[-1])
    segments.append(Segment(rng.choice(CONCLUSIONS).format(belief), belief))
    seen = {belief}
    is_settled, rival = False, None
    num_written = problem.num_steps
    while num_written < num_lines:
        first = _draw_check(problem.num_steps, num_lines - num_written, is_settled, rng)
        num_written += 1
        if first is None:
            segments.append(Segment(rng.choice(_MUSINGS).format(belief), belief, is_settled, rival))
            continue
        if not is_settled:
            method = rng.choice([careful for careful in CAREFUL if careful != method])
        opening = (PARTIAL_CHECKS if first else FULL_CHECKS)[CAREFUL.index(method)]
        segments.append(Segment(opening, belief, is_settled, rival))
        states = states[:first] + _derive(problem, rng, method, segments, states[:first])
        num_written += problem.num_steps - first
        found = str(states[-1])
        is_settled = found in seen
        rival = None if is_settled else belief
        if found == belief:
            text = rng.choice(_CONFIRMATIONS).format(found)
        else:
            text = (RETURN if is_settled else CORRECTION).format(found, belief)
        segments.append(Segment(text, found, is_settled, rival))
        belief = found
        seen.add(found)
    return segments


def written_check(problem: Problem, answer: str, rng: random.Random) -> str:
    """The reply to `CHECK`: a pass by a careful method, and whether it leads to the answer.

    Args:
        problem: What the answer is to.
        answer: What is checked.
        rng: Draws the method, and slips.
    """
    method = rng.choice(CAREFUL)
    segments = [Segment(FULL_CHECKS[CAREFUL.index(method)], answer)]
    states = _derive(problem, rng, method, segments)
    return "".join(segment.text for segment in segments) + (YES if str(states[-1]) == answer else NO)


def _draw_check(num_steps: int, num_lines_left: int, is_settled: bool, rng: random.Random) -> int | None:
    """The operation from which the next doubt checks, or None where it only muses or no check fits into the chain."""
    musing_share = SETTLED_MUSING_SHARE if is_settled else MUSING_SHARE
    draw = rng.random()
    if draw < musing_share:
        return None
    first = num_steps // 2 if is_settled and draw < musing_share + SETTLED_PARTIAL_SHARE else 0
    fitting = [start for start in (first, num_steps // 2) if num_steps - start < num_lines_left]
    return fitting[0] if fitting else None


def _derive(
    problem: Problem, rng: random.Random, method: Method, segments: list[Segment], known: list[int] | None = None
) -> list[int]:
    """Append a line for each operation that `known` states do not cover yet; return the states after those lines."""
    known = known or []
    state = known[-1] if known else problem.start
    doubt = segments[-1]
    found = []
    for operation in problem.operations[len(known) :]:
        is_slip = rng.random() < SLIP_RATE
        slip = Misreading(rng.choice("+-"), operation[-1], str(rng.randint(2, 9))) if is_slip else None
        step = write_step(problem, method, operation, state, slip)
        segments.append(doubt._replace(text=step.text))
        found.append(step.state)
        state = step.state
    return found
