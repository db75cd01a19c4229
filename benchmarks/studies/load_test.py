"""A load test of the embedded target: votes of 4 that arrive at shares of what the engine ends in a second.

    python -m benchmarks.studies.load_test --json > load_test.json

A crowd tells the capacity, right before the loads. At each load the same questions arrive by Poisson,
as `eval --arrival_rate` has them arrive; `--max_queue` bounds those that wait, so that a load above 1 ends in refusals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks._lib.command import benchmark, plotted, size
from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.run.load_test import draw_load, requests_of
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.evaluation.traffic.served_requests import traffic_figures
from scaffolding_ext.stack.config import StackConfig

LOADS = (0.5, 0.9, 1.2)
PLACES = 8


def config(num: int, max_tokens: int, seed: int, **evaluation: Any) -> StackConfig:
    """The stack, on so many held-out problems."""
    native = {"type": "NativeGenerationController", "args": {"sampling_params": {"max_tokens": max_tokens}}}
    args = {"default_sample_num": 4, "generation_controller": native}
    return StackConfig.model_validate(
        {
            "controller": {"type": "MajorityVoteController", "args": args},
            "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}},
            "dataset": {"source": "tinylm:held_out", "num_samples": num},
            "max_parallel_requests": PLACES,
            "seed": seed,
            "evaluation": evaluation,
        }
    )


def ended(stack: StackConfig) -> Session:
    """The stack's run, at its end."""
    session = Session.of(stack.for_run(), None)
    session.go(lambda message: None)
    return session


@benchmark("studies.load_test --json")
@size("--num_requests", 90, quick=6, help="Requests at each load.", least=4)
@size("--max_tokens", 200, quick=20, help="Budget of a chain.")
@click.option("--slo", default=4.0, show_default=True, help="Times the seconds of a request in the crowd's half.")
@plotted
def main(report: Report, num_requests: int, max_tokens: int, slo: float, plot_path: Path | None) -> None:
    """Shares in time, times and refusals at each load; bars: no request is lost, and none times out."""
    crowd = ended(config(num_requests, max_tokens, report.seed)).tally.columns()
    spans = crowd["ended_at"].max() - (crowd["ended_at"] - crowd["seconds"]).min()
    capacity, seconds = num_requests / float(spans), float(crowd["seconds"].mean())
    report.figure("requests a second, as many as there are places in flight", capacity)
    for load in LOADS:
        rate = load * capacity
        limits = {"arrival_rate": rate, "slo": slo * seconds, "max_queue": PLACES // 2}
        requests = requests_of(ended(config(num_requests, max_tokens, report.seed, **limits)).tally.columns())
        found, name = traffic_figures(requests), f"load {load:g}"
        assert found.in_time is not None
        report.figure(f"{name}: in time", *found.in_time)
        for what, values in (("seconds", found.seconds), ("first token", found.first_token)):
            for figure, estimate in values.items():
                report.figure(f"{name}: {what}, {figure}", *estimate)
        for figure, estimate in found.seconds_per_token.items():
            report.figure(f"{name}: seconds a token, {figure}", *estimate)
        report.figure(f"{name}: late", found.num_late)
        report.figure(f"{name}: refused", found.num_refused)
        report.figure(f"{name}: most in the system", found.most_queue)
        report.bar(f"{name}: requests without an answer or a refusal", found.num_failed, "<=", 0)
        if plot_path is not None and load == LOADS[-1]:
            draw_load(requests, slo * seconds, plot_path)


if __name__ == "__main__":
    main()
