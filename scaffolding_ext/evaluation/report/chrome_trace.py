"""Traces in Chrome's trace format, which chrome://tracing and Perfetto open: a process a sample, a thread a branch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.compare.kept_samples import KeptSample
from scaffolding_ext.evaluation.report.timeline import lanes_of, steps_of

_MICROSECONDS = 1e6


def write_chrome_trace(path: str | os.PathLike[str], names: Sequence[str], samples: Sequence[KeptSample]) -> None:
    """Write the traces of samples.

    Args:
        path: The file.
        names: Of the runs, in the order of each sample's records.
        samples: What to write; every request starts at 0, since records do not say when they began.

    Raises:
        OutputError: It cannot be written.
    """
    document = {"traceEvents": list(_events(names, samples)), "displayTimeUnit": "ms"}
    write_text(path, json.dumps(document))


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
