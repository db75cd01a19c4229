"""A record's trace as steps on lanes, for Chrome's trace viewer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.documents import json_text, write_text
from scaffolding_ext.evaluation.compare.compared import PairedSample
from scaffolding_ext.evaluation.run.records import Record

MAIN = "main"
_MICROSECONDS = 1e6
_OF_EVERY_EVENT = ("event", "branch", "seconds")


class TimelineStep(NamedTuple):
    """A decision, and the work that led to it.

    Attributes:
        lane: The branch that decided: its path, with dots, or `"main"`.
        start: Seconds from the request's start to the end of the lane's previous step.
        end: Seconds to the decision.
        event: Kind of decision: `probe`, `stop`, `take_over`, `vote`, ...
        figures: Figures that it was based on.
    """

    lane: str
    start: float
    end: float
    event: str
    figures: dict[str, Any]


def steps_of(record: Record) -> list[TimelineStep]:
    """Return the steps of a record in order of time, with the request's end as the last.

    A branch's first step starts at the last one of the branch above it, or with the request. A kept sample of a vote is
    the last step of its lane.
    """
    steps: list[TimelineStep] = []
    ends: dict[str, float] = {}
    rounds = [(event["done"], event["seconds"]) for event in record.trace if event["event"] == "allocate"]
    for event in sorted(record.trace, key=lambda event: event["seconds"]):
        path = [str(number) for number in event["branch"]]
        lane = ".".join(path) or MAIN
        above = [".".join(path[:length]) or MAIN for length in range(len(path), -1, -1)]
        start = next((ends[name] for name in above if name in ends), 0.0)
        figures = {name: value for name, value in event.items() if name not in _OF_EVERY_EVENT}
        steps.append(TimelineStep(lane, start, event["seconds"], event["event"], figures))
        ends[lane] = event["seconds"]
    for index, sample in enumerate(record.samples or ()):
        began = max((seconds for size, seconds in rounds if size <= index), default=0.0)
        start = max(began, ends.get(str(index), 0.0))
        ends[str(index)] = max(start, began + (sample["seconds"] or 0.0))
        steps.append(TimelineStep(str(index), start, ends[str(index)], "sample", sample))
    steps.sort(key=lambda step: step.end)
    end = max(record.seconds["total"], *ends.values(), 0.0)
    return [*steps, TimelineStep(MAIN, ends.get(MAIN, 0.0), end, "failed" if record.error else "done", outcome(record))]


def lanes_of(steps: list[TimelineStep]) -> list[str]:
    """Return the lanes: main first, then branches by number, each followed by its sub-branches."""

    def place(lane: str) -> tuple[int, ...]:
        return () if lane == MAIN else tuple(map(int, lane.split(".")))

    return sorted({step.lane for step in steps}, key=place)


def outcome(record: Record) -> dict[str, Any]:
    if record.error is not None:
        return {"error": record.error.type, "message": record.error.message}
    return {"answer": record.answer, "exit_reason": record.exit_reason, "correct": record.correct}


def write_chrome_trace(path: str | os.PathLike[str], names: Sequence[str], samples: Sequence[PairedSample]) -> None:
    """Write traces for chrome://tracing and Perfetto: a process per sample, a thread per branch.

    Args:
        names: Of the runs, in the order of each sample's records.
        samples: Samples to write; every request starts at 0, because records have no start time.

    Raises:
        OutputError: It cannot be written.
    """
    document = {"traceEvents": list(_events(names, samples)), "displayTimeUnit": "ms"}
    write_text(path, json_text(document))


def _events(names: Sequence[str], samples: Sequence[PairedSample]) -> Iterator[dict[str, Any]]:
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
