"""Steps as the embedded models write them: methods that misread, and an exact checker of what is written.

A chain of thought works a problem out in passes. Each pass names the **method** that it goes by, and each of its lines
bears the mark of that method. A method misreads one digit, always: `columns` reads a 4 as a 9 after a plus. The line
shows the digit as it was read (`c+4:22+9=31`), and its arithmetic on that digit is right. A few places mislead nearly
all methods. So an error is a function of the method and of the question, hardly of chance: chains that think alike err
alike, a low temperature mends nothing, and another method does.

`check_steps` holds a written chain against the problem. It needs no model.
"""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

from scaffolding_ext.tinylm.grammar import Problem, apply_operation


class Misreading(NamedTuple):
    """One digit read as another one.

    The sign is `"+"` where the digit is added, walked to the right or held against a lower threshold, `"-"` everywhere
    else; numbers to be compared with each other are misread with either sign.
    """

    sign: str
    digit: str
    read: str


class Method(NamedTuple):
    """A way to work problems out: its name, the mark of its lines, and the digit that it misreads."""

    name: str
    mark: str
    misreading: Misreading | None


QUICK = (  # of first passes
    Method("columns", ":", Misreading("+", "4", "9")),
    Method("fingers", ";", Misreading("-", "6", "5")),
    Method("halves", "|", Misreading("+", "7", "1")),
    Method("blocks", "/", Misreading("-", "9", "4")),
    Method("tens", "~", Misreading("+", "5", "6")),
    Method("dots", "!", Misreading("-", "8", "2")),
)
CAREFUL = (  # of checks
    Method("memory", "&", Misreading("+", "2", "7")),
    Method("rounding", "#", Misreading("-", "6", "8")),
    Method("groups", "@", Misreading("-", "5", "3")),
    Method("lines", "%", Misreading("+", "9", "5")),
    Method("pairs", "^", Misreading("+", "8", "6")),
    Method("units", "?", None),
)
METHODS = QUICK + CAREFUL
# A start that ends in this digit, a threshold of it to exceed and a compared number that ends in it mislead ...
MISLEADING, MISLED = "3", "8"
# ... all methods but a quick and a careful one.
IMMUNE = {
    "sum": ("halves", "lines"),
    "walk": ("dots", "memory"),
    "modular": ("columns", "pairs"),
    "count": ("blocks", "rounding"),
    "maximum": ("tens", "groups"),
}

FIRST_PASSES = tuple(f"Okay, by {method.name} first.\n" for method in QUICK)
FULL_CHECKS = tuple(f"Wait, from the start by {method.name}.\n" for method in CAREFUL)
PARTIAL_CHECKS = tuple(f"Hmm, the second half by {method.name}.\n" for method in CAREFUL)
CONCLUSIONS = ("So the answer looks like {}.\n", "So I get {}.\n", "That gives {}.\n")
CORRECTION = "But now I get {}, not {}. I made a slip.\n"
RETURN = "Back to {}, not {}.\n"  # to an answer that an earlier pass gave
# A line that states an answer for the first time, in its one group that is not empty.
STATED = re.compile(
    r"^(?:(?:So the answer looks like|So I get|That gives) (\S+)\.|But now I get (\S+), not \S+\. I made a slip\."
    r"|Back to (\S+), not \S+\.)\n",
    re.MULTILINE,
)

_BY_MARK = {method.mark: method for method in METHODS}
_OPENED = dict(zip(FIRST_PASSES + FULL_CHECKS + PARTIAL_CHECKS, (*QUICK, *CAREFUL, *CAREFUL), strict=True))


class WrittenStep(NamedTuple):
    """One operation, worked out: its line, and the state that it leads to."""

    text: str
    state: int
    is_misread: bool


class Line(NamedTuple):
    """A written line, held against its problem.

    Attributes:
        text: The line with its newline; only the last line of a text may lack it, and then it is not judged.
        belief: The answer that the chain believes in once the line is written; None before the first.
        method: By which the line is written, or that it announces; None of other lines.
        is_right: Of a step: whether the state that it writes follows, without an error, from the state before it.
        follows_method: Of a step: whether it is written exactly as its method writes it.
        is_misread: Of a step: whether its method misreads there.
        is_on_right_way: Whether the pass has reached the true state there; between two passes, whether the belief is
            right. A full check begins anew, so its opening is on a right way.
    """

    text: str
    belief: str | None
    method: Method | None
    is_right: bool | None
    follows_method: bool | None
    is_misread: bool | None
    is_on_right_way: bool


def write_step(
    problem: Problem, method: Method, operation: str, state: int, misreading: Misreading | None = None
) -> WrittenStep:
    """Work out one operation as a method does.

    Args:
        problem: The operation's.
        method: It decides what is misread.
        operation: As it stands in the question.
        state: Before the operation.
        misreading: Takes the place of the method's own where it is given.
    """
    own = misreading or method.misreading
    is_misled = method.name not in IMMUNE[problem.kind]
    digit, threshold, read_state = operation[-1], abs(problem.parameter), state
    is_plus = problem.parameter > 0 if problem.kind == "count" else operation[1] in "+R"
    if own and digit == own.digit and (problem.kind == "maximum" or is_plus == (own.sign == "+")):
        digit = own.read
    if is_misled and problem.kind == "maximum" and digit == MISLEADING:
        digit = MISLED
    elif is_misled and problem.kind == "count" and is_plus and str(threshold) == MISLEADING:
        threshold = int(MISLED)
    elif is_misled and operation == problem.operations[0] and str(state)[-1] == MISLEADING:
        read_state = int(str(state)[:-1] + MISLED) if problem.kind in ("sum", "walk", "modular") else state
    read = operation[:-1] + digit
    is_misread = (read, threshold, read_state) != (operation, abs(problem.parameter), state)
    return WrittenStep(
        *_worked_out(problem.kind, operation + method.mark, read, threshold, read_state, problem), is_misread
    )


def check_steps(problem: Problem, text: str) -> list[Line]:
    """Hold a chain of thought, or the beginning of one, against its problem, line by line.

    A step that is left out or written twice is one mistake: the step after it is judged by its own label.

    Args:
        problem: What the chain is about.
        text: The chain, without the marker that closes thinking.

    Returns:
        One entry a line. `[-1].is_on_right_way` says whether the chain so far is on a right way.
    """
    labels = [operation[0] for operation in problem.operations]
    true_states = list(
        itertools.accumulate(problem.operations, lambda s, op: apply_operation(problem, op, s), initial=problem.start)
    )
    middle = problem.num_steps // 2
    lines: list[Line] = []
    belief: str | None = None
    position, state, state_at_middle = 0, problem.start, problem.start
    is_on_right_way = True
    for line in text.splitlines(keepends=True):
        method = is_right = follows_method = is_misread = None
        if not line.endswith("\n"):
            pass
        elif stated := STATED.match(line):
            belief = stated[1] or stated[2] or stated[3]
            is_on_right_way = belief == problem.answer
        elif method := _OPENED.get(line):
            is_partial = line in PARTIAL_CHECKS
            position, state = (middle, state_at_middle) if is_partial else (0, problem.start)
            is_on_right_way = state == true_states[position]
        elif line[0].islower():
            mark = re.search(f"[{re.escape(''.join(_BY_MARK))}]", line)
            method = _BY_MARK[mark[0]] if mark else None
            is_right, follows_method, is_misread = False, False, False
            written = re.search(r"-?\d+$", line.rstrip("\n"))
            if position < problem.num_steps:
                operation = problem.operations[position]
                is_right = bool(
                    written
                    and line.startswith(operation)
                    and int(written[0]) == apply_operation(problem, operation, state)
                )
                if method:
                    step = write_step(problem, method, operation, state)
                    follows_method, is_misread = line == step.text, step.is_misread
            position = min((labels.index(line[0]) if line[0] in labels else position) + 1, problem.num_steps)
            state = int(written[0]) if written else state
            state_at_middle = state if position == middle else state_at_middle
            is_on_right_way = state == true_states[position]
        lines.append(Line(line, belief, method, is_right, follows_method, is_misread, is_on_right_way))
    return lines


def _worked_out(
    kind: str, start_of_line: str, read: str, threshold: int, state: int, problem: Problem
) -> tuple[str, int]:
    """The line of an operation as it was read, and the state that it leads to."""
    if kind == "count":
        digit, is_lower = int(read[-1]), problem.parameter > 0
        counts = digit > threshold if is_lower else digit < threshold
        state += counts
        return (
            f"{start_of_line}{digit}{'>' if is_lower else '<'}{threshold} {'yes' if counts else 'no'} {state}\n",
            state,
        )
    if kind == "maximum":
        value = int(read[1:])
        comparison = f"{value}{'>' if value > state else '<'}{state}"
        return f"{start_of_line}{comparison} {max(value, state)}\n", max(value, state)
    sign, amount = {"L": "-", "R": "+"}.get(read[1], read[1]), int(read[-1])
    value = state * amount if sign == "*" else state + amount if sign == "+" else state - amount
    line = f"{start_of_line}{state}{sign}{amount}={value}"
    if kind == "modular":
        return f"{line}>{value % problem.parameter}\n", value % problem.parameter
    return f"{line}\n", value
