"""A record's trace as steps on lanes, for the time line of the report and for Chrome's trace viewer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.documents import json_text, write_text
from scaffolding_ext.evaluation.compare.compared import KeptSample
from scaffolding_ext.evaluation.run.records import Record

MAIN = "main"
_MICROSECONDS = 1e6
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


def write_chrome_trace(path: str | os.PathLike[str], names: Sequence[str], samples: Sequence[KeptSample]) -> None:
    """Write traces in Chrome's format, which chrome://tracing and Perfetto open: a process a sample, a thread a branch.

    Args:
        path: The file.
        names: Of the runs, in the order of each sample's records.
        samples: What to write; every request starts at 0, since records do not say when they began.

    Raises:
        OutputError: It cannot be written.
    """
    document = {"traceEvents": list(_events(names, samples)), "displayTimeUnit": "ms"}
    write_text(path, json_text(document))


def _events(names: Sequence[str], samples: Sequence[KeptSample]) -> Iterator[dict[str, Any]]:
    process = 0
    for sample in samples:
        for name, record in zip(names, sample.records, strict=True):
            process += 1
            steps = steps_of(record)
            threads = {lane: number for number, lane in enumerate(lanes_of(steps))}
            title = f"{sample.key.id}/{sample.key.epoch} {name}"
            yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
            for lane, thread in threads.items():
                yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": lane}}
            for step in steps:
                yield {
                    "ph": "X",
                    "cat": "decision",
                    "name": step.event,
                    "pid": process,
                    "tid": threads[step.lane],
                    "ts": step.start * _MICROSECONDS,
                    "dur": (step.end - step.start) * _MICROSECONDS,
                    "args": step.figures,
                }
