"""A record's trace as steps on lanes: what a time line draws, and Chrome's trace viewer."""

from __future__ import annotations

from typing import Any, NamedTuple

from scaffolding_ext.evaluation.run.records import Record

MAIN = "main"
_OF_EVERY_EVENT = ("event", "branch", "seconds")


class Step(NamedTuple):
    """A decision, and the work that led to it.

    Attributes:
        lane: The branch that decided: its path, with dots, or `"main"`.
        start: Seconds from the request's start at which the lane's step before ended.
        end: Seconds at which the decision fell.
        event: What it was: `probe`, `stop`, `take_over`, `vote`, ...
        figures: What it was taken on.
    """

    lane: str
    start: float
    end: float
    event: str
    figures: dict[str, Any]


def steps_of(record: Record) -> list[Step]:
    """The steps of a record in order of time, with the request's end as the last.

    A branch's first step starts where the branch above it took its last one, or with the request.
    """
    steps: list[Step] = []
    ends: dict[str, float] = {}
    for event in sorted(record.trace, key=lambda event: event["seconds"]):
        path = [str(number) for number in event["branch"]]
        lane = ".".join(path) or MAIN
        above = [".".join(path[:length]) or MAIN for length in range(len(path), -1, -1)]
        start = next((ends[name] for name in above if name in ends), 0.0)
        figures = {name: value for name, value in event.items() if name not in _OF_EVERY_EVENT}
        steps.append(Step(lane, start, event["seconds"], event["event"], figures))
        ends[lane] = event["seconds"]
    end = max(record.seconds["total"], *ends.values(), 0.0)
    return [*steps, Step(MAIN, ends.get(MAIN, 0.0), end, "failed" if record.error else "done", outcome(record))]


def lanes_of(steps: list[Step]) -> list[str]:
    """The lanes, main first, then branches by their numbers, each followed by its own branches."""

    def place(lane: str) -> tuple[int, ...]:
        return () if lane == MAIN else tuple(map(int, lane.split(".")))

    return sorted({step.lane for step in steps}, key=place)


def outcome(record: Record) -> dict[str, Any]:
    """What a request ended with."""
    if record.error is not None:
        return {"error": record.error.type, "message": record.error.message}
    return {"answer": record.answer, "exit_reason": record.exit_reason, "correct": record.correct}
