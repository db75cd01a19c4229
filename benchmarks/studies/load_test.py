"""A load test of the embedded target: votes of 4 that arrive at shares of what the engine ends in a second.

    python -m benchmarks.studies.load_test --json > load_test.json

A crowd tells the capacity, right before the loads. At each load the same questions arrive by Poisson,
as `eval --arrival_rate` has them arrive; `--max_queue` bounds those that wait, so that a load above 1 ends in refusals.

At the largest load the same stack is served over HTTP, too, with a deadline. There the figures that the clients measure
stand beside those of the server's `/metrics`.
"""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchmarks._lib.command import benchmark, plotted, size
from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.run.load_test import draw_load, requests_of
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.evaluation.traffic.served_requests import ServedRequests, traffic_figures
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig

LOADS = (0.5, 0.9, 1.2)
PLACES = 8
SERVED = "vote"  # its name for clients
MOST_APART = 0.05  # of the mean times of clients and server
_METRIC = re.compile(r"^scaffolding_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


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


def client(url: str, served: StackConfig, max_tokens: int) -> StackConfig:
    """The stack of clients who ask a served stack each question once."""
    worker = {"base_url": url, "model": SERVED, "endpoint": "chat", "max_retries": 0}
    plain = {
        "controller": {
            "type": "NativeGenerationController",
            "args": {"sampling_params": {"max_tokens": max_tokens}},
        },
        "workers": {"generation": {"type": "OpenAIWorker", "args": worker}},
        "max_parallel_requests": 256,
    }
    return StackConfig.model_validate(served.model_dump() | plain)


def ended(stack: StackConfig) -> Session:
    """The stack's run, at its end."""
    session = Session.of(stack.for_run(), None)
    session.go(lambda message: None)
    return session


def requests_at(stack: StackConfig) -> ServedRequests:
    """What became of the stack's requests."""
    return requests_of(ended(stack).tally.columns())


def metrics_of(url: str) -> Counter[str]:
    """The sums of a server's metrics, by their names and, where these count, by the label that tells what."""
    with urllib.request.urlopen(f"{url}/metrics") as page:
        text = page.read().decode()
    found = Counter[str]()
    for name, labels, value in _METRIC.findall(text):
        kept = re.search(r'kept="(\w+)"', labels)
        found[f"{name} {kept[1]}" if kept else name] += float(value)
    return found


def study_served(report: Report, stack: StackConfig, max_tokens: int) -> None:
    """A run over HTTP: figures of the clients, and those of the server."""
    evaluation = stack.evaluation
    limits = Limits(max_queue=evaluation.max_queue)
    served = stack.model_copy(update={"deadline": evaluation.slo}).for_run()
    with FrontThread(Front([ServedStack(SERVED, build_stack(served), limits, config=served)], limits)) as front:
        requests = requests_at(client(f"{front.url}/v1", stack, max_tokens))
        server = metrics_of(front.url)
    ours, num = traffic_figures(requests), server["request_seconds_count"]
    pairs = {
        "answers": (ours.num_answered, num),
        "answers that were late": (ours.num_late, server["deadlines_total late"]),
        "refusals": (ours.num_refused, server["refusals_total"]),
        "seconds to the answer, mean": (ours.seconds["mean"].value, server["request_seconds_sum"] / max(1.0, num)),
    }
    for what, (theirs, own) in pairs.items():
        report.figure(f"served: {what}, by the clients", theirs)
        report.figure(f"served: {what}, by the server", own)
    theirs, own = pairs["seconds to the answer, mean"]
    report.bar(
        "served: answers and refusals of clients and server, difference",
        sum(abs(pairs[what][0] - pairs[what][1]) for what in ("answers", "refusals")),
        "<=",
        0,
    )
    report.bar(
        "served: mean seconds of clients by those of the server, less 1", abs(theirs / own - 1), "<=", MOST_APART
    )


@benchmark("studies.load_test --json")
@size("--num_requests", 90, quick=6, help="Requests at each load.", least=4)
@size("--max_tokens", 800, quick=20, help="Budget of a chain.")
@click.option("--slo", default=4.0, show_default=True, help="Times the seconds of a request in the crowd's half.")
@plotted
def main(report: Report, num_requests: int, max_tokens: int, slo: float, plot_path: Path | None) -> None:
    """Shares in time, times and refusals at each load; bars: no request is lost, and none times out."""
    crowd = ended(config(num_requests, max_tokens, report.seed)).tally.columns()
    spans = crowd["ended_at"].max() - (crowd["ended_at"] - crowd["seconds"]).min()
    capacity, seconds = num_requests / float(spans), float(crowd["seconds"].mean())
    report.figure("requests a second, as many as there are places in flight", capacity)
    report.figure("requests", num_requests)
    report.figure("objective, seconds", slo * seconds)
    for load in LOADS:
        rate = load * capacity
        limits = {"arrival_rate": rate, "slo": slo * seconds, "max_queue": PLACES // 2}
        stack = config(num_requests, max_tokens, report.seed, **limits)
        requests = requests_at(stack)
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
        report.figure(f"{name}: failed", found.num_failed)
        report.bar(f"{name}: requests without an answer or a refusal", found.num_failed, "<=", 0)
        if plot_path is not None and load == LOADS[-1]:
            draw_load(requests, slo * seconds, plot_path)
    study_served(report, stack, max_tokens)


if __name__ == "__main__":
    main()
