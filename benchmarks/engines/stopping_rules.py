"""Every stopping rule on a real model and real prompts: does it run, and does it stop for its own reason?

    python -m benchmarks.engines.stopping_rules --model FOLDER --dataset math500.jsonl

Each rule watches the chains of the same prompts, drawn with the same seeds, and what its looks cost is counted. What it
would be worth on that model is not claimed: its thresholds are loose, so that short chains of a small model meet them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.report import Report
from benchmarks._lib.runs import Run, run_stack
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset

SPACING = 16
TURNS = ["So", "Now", "Then", "Therefore", "Next", "Wait", "Hmm", "First", "Let"]
FIXED = {"type": "ProbeSchedule", "args": {"chunk_size": SPACING}}
AT_TURNS = {"type": "ThoughtChanges", "args": {"step": 8, "words": TURNS}}
_AGREE = {"type": "consecutive", "args": {"threshold": 2}}
_CONFIDENT = {"type": "confidence", "args": {"threshold": 0.3}}
_SETTLED = {"type": "entropy", "args": {"variance": 0.3}}
_GIVE_UP = {"signal": "agreement", "most": 0.9, "midpoint": 48, "steepness": 0.1, "min_tokens": 48}


class Watch(NamedTuple):
    """How chains are watched.

    Attributes:
        rule: The rule.
        reasons: Exit reasons of its own, one of which must be seen.
        schedule: Where it looks.
        first_token: Whether its probes decode one token.
    """

    rule: dict[str, Any]
    reasons: tuple[str, ...] = ("certain",)
    schedule: dict[str, Any] = FIXED
    first_token: bool = False


WATCHES = {
    "consecutive": Watch(_AGREE),
    "consecutive, one token": Watch(_AGREE, first_token=True),
    "window": Watch({"type": "window", "args": {"threshold": 3, "share": 0.6}}),
    "total variation": Watch({"type": "total_variation", "args": {"window": 2, "tolerance": 0.5}}),
    "pattern": Watch({"type": "pattern", "args": {"pattern": r"= *\d"}}, ("pattern",)),
    "entropy": Watch(_SETTLED, ("entropy",)),
    "confidence": Watch(_CONFIDENT, ("confidence",)),
    "confidence at changes of thought": Watch(_CONFIDENT, ("confidence",), AT_TURNS),
    "confidence, closed": Watch(
        {"type": "confidence", "args": {"threshold": 0.3, "must_close": True}}, ("confidence",)
    ),
    "certainty": Watch({"type": "certainty", "args": {"threshold": 0.8, "window": 24}}, ("certainty",)),
    "give up, best": Watch({"type": "give_up", "args": {**_GIVE_UP, "answer": "best"}}, ("gave_up",)),
    "give up, none": Watch({"type": "give_up", "args": {**_GIVE_UP, "answer": "none"}}, ("gave_up",)),
    "any": Watch({"type": "any", "args": {"rules": [_CONFIDENT, _SETTLED]}}, ("confidence", "entropy")),
    "all": Watch({"type": "all", "args": {"rules": [_CONFIDENT, _SETTLED]}}, ("confidence+entropy",)),
}


def stack(model: str, watch: Watch, max_tokens: int, answer_tokens: int) -> dict[str, Any]:
    """A stack that watches chains."""
    probe = {
        "max_tokens": answer_tokens,
        "sampling_params": {"temperature": 0.0},
        "first_token": watch.first_token,
    }
    controller = {
        "max_tokens": max_tokens,
        "schedule": watch.schedule,
        "rule": watch.rule,
        "probe": {"type": "AnswerProbe", "args": probe},
        "sampling_params": {"temperature": 0.7},
    }
    return {
        "controller": {"type": "DynasorCoTController", "args": controller},
        "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": model, "max_batch_size": 40}}},
        "max_parallel_requests": 40,
    }


def add_run(report: Report, name: str, reasons: tuple[str, ...], run: Run) -> None:
    """How often a rule stopped for its reason, where, and what its looks cost."""
    records = run.records
    num_stopped = sum(record.exit_reason in reasons for record in records)
    probes = [event for record in records for event in record.trace if event["event"] == "probe"]
    stops = [event["position"] for record in records for event in record.trace if event["event"] == "stop"]
    report.share(f"{name}: stopped for its reason, share", num_stopped, len(records))
    if stops:
        report.figure(f"{name}: tokens at the stop", float(np.mean(stops)))
    report.figure(f"{name}: looks that asked, a chain", len(probes) / len(records))
    for kind in ("answer_tokens", "suffix_tokens"):
        if probes:
            report.figure(f"{name}: {kind} a look", float(np.mean([event[kind] for event in probes])))
    read = [record.ledger["by_purpose"].get("probe", {}).get("prefilled", 0) for record in records]
    report.figure(f"{name}: tokens read for probes, a chain", float(np.mean(read)))
    bounds = [event.get("entropy_is_bound", False) for event in probes if "entropy" in event]
    if bounds:
        report.figure(f"{name}: entropies that are bounds, share", float(np.mean(bounds)))
    report.figure(f"{name}: seconds", run.seconds)
    report.bar(f"{name}: chains stopped for its reason", num_stopped, ">=", 1)


@benchmark("engines.stopping_rules --model FOLDER --dataset math500.jsonl")
@size("--num_problems", 40, quick=4, help="Problems.")
@size("--max_tokens", 96, quick=96, help="Tokens of a chain.")
@click.option("--answer_tokens", default=8, show_default=True, help="Tokens of a probed answer.")
@click.option("--model", default="tinylm/draft", show_default=True, help="Folder of a model, or an embedded one.")
@click.option("--dataset", default=EMBEDDED, show_default=True, help="Where the problems come from.")
@click.option("--rule", "rules", type=click.Choice([*WATCHES]), multiple=True, help="A rule; all by default.")
def main(
    report: Report,
    num_problems: int,
    max_tokens: int,
    answer_tokens: int,
    model: str,
    dataset: str,
    rules: tuple[str, ...],
) -> None:
    """Each rule on the same prompts: how often it stops for its own reason, where, and what its looks cost."""
    drawn = {"num_samples": num_problems, "seed": report.seed} if dataset == EMBEDDED else {"limit": str(num_problems)}
    samples = load_dataset(dataset, **drawn)  # type: ignore[arg-type]
    with progress() as bars:
        for name in rules or WATCHES:
            config = stack(model, WATCHES[name], max_tokens, answer_tokens)
            add_run(
                report, name, WATCHES[name].reasons, run_stack(name, config, samples, bars, (f"seed={report.seed}",))
            )


if __name__ == "__main__":
    main()
