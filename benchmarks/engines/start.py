"""From the shell to the first token: what a command costs before the model says anything.

    python -m benchmarks.engines.start --other ../before    # beside other checkouts, in turn, in one run

A process of its own runs each command: the command line's help, and `run` on an embedded model for one token. CPU
seconds are those of the process; beside other work, wall-clock says how busy the machine was.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.provenance import commit
from benchmarks._lib.report import Report

QUESTION = "Start with 5. Apply a+3,b-2. Find the total."
ONE_TOKEN = ("--set", "controller.args.sampling_params.max_tokens=1")
COMMANDS = {"help": ("--help",), "run": ("run", QUESTION, "--config", "configs:native", *ONE_TOKEN)}


class Taken(NamedTuple):
    """Seconds of one command."""

    cpu: float
    wall: float


def taken(checkout: Path, arguments: Sequence[str]) -> Taken:
    """Run a command of a checkout.

    Raises:
        RuntimeError: It failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    command = [sys.executable, "-m", "scaffolding_ext", *arguments]
    process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} of {checkout} ended with {process.returncode}")
    return Taken(usage.ru_utime + usage.ru_stime, time.perf_counter() - began)


@benchmark("engines.start")
@size("--repetitions", 9, quick=2, help="Times that each command is run; the median counts.")
@click.option("--other", multiple=True, type=click.Path(exists=True, file_okay=False), help="Another checkout.")
def main(report: Report, repetitions: int, other: tuple[str, ...]) -> None:
    """Seconds from the shell to the first token. Intervals hold every repetition."""
    here = Path(__file__).resolve().parents[2]
    checkouts = [here, *(Path(path).resolve() for path in other)]
    names = {checkout: "here" if checkout == here else (commit(checkout) or "")[:7] for checkout in checkouts}
    del report.setting["other"]  # paths
    report.setting |= {"load": os.getloadavg()[0], "others": [commit(path) for path in checkouts[1:]]}
    found: dict[tuple[str, Path], list[Taken]] = {(name, path): [] for name in COMMANDS for path in checkouts}
    for repetition in track(range(repetitions), "rounds"):
        for checkout in checkouts[:: 1 if repetition % 2 == 0 else -1]:
            for name, arguments in COMMANDS.items():
                found[name, checkout].append(taken(checkout, arguments))
    for (name, checkout), values in found.items():
        for field in Taken._fields:
            seconds = [getattr(value, field) for value in values]
            label = f"{field}_seconds_{name}_{names[checkout]}"
            report.figure(label, statistics.median(seconds), min(seconds), max(seconds))
        if checkout != here:
            quotients = [mine.cpu / theirs.cpu for mine, theirs in zip(found[name, here], values, strict=True)]
            quotient = statistics.median(quotients)
            report.figure(f"cpu_{name}_here_by_{names[checkout]}", quotient, min(quotients), max(quotients))
            if name == "run":
                report.bar(f"CPU seconds of run, by those of {names[checkout]}", quotient, "<=", 0.5)


if __name__ == "__main__":
    main()
