"""Steps as the embedded models write them, by methods that misread.

A chain of thought solves a problem in passes. Each pass names its **method**, and each of its lines bears the method's
mark. A method always misreads one digit: `columns` reads a 4 as a 9 after a plus. The line shows the digit as read
(`c+4:22+9=31`), and its arithmetic on that digit is right. A few places mislead nearly all methods. So an error depends
on the method and the question, hardly on chance: chains that think alike err alike, a low temperature does not help,
and another method does.
"""

from __future__ import annotations

from typing import NamedTuple

from scaffolding_ext.tinylm.grammar import Problem


class Misreading(NamedTuple):
    """One digit read as another.

    The sign is `"+"` if the digit is added, walked to the right or compared with a lower threshold, else `"-"`; numbers
    compared with each other are misread with either sign.
    """

    sign: str
    digit: str
    read: str


class Method(NamedTuple):
    """A way to solve problems: its name, the mark of its lines, and its misread digit."""

    name: str
    mark: str
    misreading: Misreading | None


QUICK = (  # for first passes
    Method("columns", ":", Misreading("+", "4", "9")),
    Method("fingers", ";", Misreading("-", "6", "5")),
    Method("halves", "|", Misreading("+", "7", "1")),
    Method("blocks", "/", Misreading("-", "9", "4")),
    Method("tens", "~", Misreading("+", "5", "6")),
    Method("dots", "!", Misreading("-", "8", "2")),
)
CAREFUL = (  # for checks
    Method("memory", "&", Misreading("+", "2", "7")),
    Method("rounding", "#", Misreading("-", "6", "8")),
    Method("groups", "@", Misreading("-", "5", "3")),
    Method("lines", "%", Misreading("+", "9", "5")),
    Method("pairs", "^", Misreading("+", "8", "6")),
    Method("units", "?", None),
)
METHODS = QUICK + CAREFUL
# A start or a compared number that ends in this digit, or a threshold of it to exceed, misleads ...
MISLEADING, MISLED = "3", "8"
# ... all methods except one quick and one careful one.
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
RETURN = "Back to {}, not {}.\n"  # to an answer of an earlier pass


class WrittenStep(NamedTuple):
    """One worked-out operation: its line and the resulting state."""

    text: str
    state: int
    is_misread: bool


def write_step(
    problem: Problem, method: Method, operation: str, state: int, misreading: Misreading | None = None
) -> WrittenStep:
    """Work out one operation as a method does.

    Args:
        problem: Problem of the operation.
        method: Method that decides which digit is misread.
        operation: Operation as written in the question.
        state: State before the operation.
        misreading: Replaces the method's misreading if given.
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


def _worked_out(
    kind: str, start_of_line: str, read: str, threshold: int, state: int, problem: Problem
) -> tuple[str, int]:
    """The line of an operation as read, and the resulting state."""
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
