"""Every stopping rule on a real model and real prompts: does it run, and does it stop for its own reason?

    python -m benchmarks.engines.stopping_rules --model FOLDER --dataset math500.jsonl

Each rule watches the chains of the same prompts, drawn with the same seeds, and what its looks cost is counted. What it
would be worth on that model is not claimed: its thresholds are loose, so that short chains of a small model meet them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.report import Report
from benchmarks._lib.runs import Run, run_stack
from scaffolding_ext.evaluation.datasets import EMBEDDED, load_dataset

SPACING = 16
TURNS = ["So", "Now", "Then", "Therefore", "Next", "Wait", "Hmm", "First", "Let"]
_CONFIDENCE, _ENTROPY = (
    {"type": "confidence", "args": {"threshold": 0.6}},
    {"type": "entropy", "args": {"variance": 0.3}},
)
_GIVE_UP = {"signal": "agreement", "most": 0.9, "midpoint": 48, "steepness": 0.1, "min_tokens": 48}
# By name: the rule, and the reason for which it must stop some chain.
RULES: dict[str, tuple[Any, str]] = {
    "consecutive": ({"type": "consecutive", "args": {"threshold": 2}}, "certain"),
    "window": ({"type": "window", "args": {"threshold": 3, "share": 0.6}}, "certain"),
    "total variation": ({"type": "total_variation", "args": {"window": 2, "tolerance": 0.5}}, "certain"),
    "pattern": ({"type": "pattern", "args": {"pattern": r"= *\d"}}, "pattern"),
    "entropy": (_ENTROPY, "entropy"),
    "confidence": (_CONFIDENCE, "confidence"),
    "confidence, closed": ({"type": "confidence", "args": {"threshold": 0.3, "must_close": True}}, "confidence"),
    "certainty": ({"type": "certainty", "args": {"threshold": 0.8, "window": 24}}, "certainty"),
    "give up, best": ({"type": "give_up", "args": {**_GIVE_UP, "answer": "best"}}, "gave_up"),
    "give up, none": ({"type": "give_up", "args": {**_GIVE_UP, "answer": "none"}}, "gave_up"),
    "any": ({"type": "any", "args": {"rules": [_CONFIDENCE, _ENTROPY]}}, "confidence"),
    "all": ({"type": "all", "args": {"rules": [_CONFIDENCE, _ENTROPY]}}, "confidence+entropy"),
}
FIXED = {"type": "ProbeSchedule", "args": {"chunk_size": SPACING}}
AT_TURNS = {"type": "ThoughtChanges", "args": {"step": 8, "words": TURNS}}


def stack(
    model: str, rule: Any, schedule: Any, max_tokens: int, answer_tokens: int, first_token: bool
) -> dict[str, Any]:
    """A stack that stops chains by a rule."""
    probe = {"max_tokens": answer_tokens, "sampling_params": {"temperature": 0.0}, "first_token": first_token}
    controller = {
        "max_tokens": max_tokens,
        "schedule": schedule,
        "rule": rule,
        "probe": {"type": "AnswerProbe", "args": probe},
        "sampling_params": {"temperature": 0.7},
    }
    return {
        "controller": {"type": "DynasorCoTController", "args": controller},
        "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": model, "max_batch_size": 40}}},
        "max_parallel_requests": 40,
    }


def add_rule(report: Report, name: str, reason: str, run: Run) -> None:
    """How often a rule stopped for its reason, where, and what its looks cost."""
    records = run.records
    reasons = Counter(record.exit_reason for record in records)
    probes = [event for record in records for event in record.trace if event["event"] == "probe"]
    stops = [event["position"] for record in records for event in record.trace if event["event"] == "stop"]
    report.share(f"{name}: stopped for its reason, share", reasons[reason], len(records))
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
    report.bar(f"{name}: chains stopped for its reason", reasons[reason], ">=", 1)


@benchmark("engines.stopping_rules --model FOLDER --dataset math500.jsonl")
@size("--num_problems", 40, quick=4, help="Problems.")
@size("--max_tokens", 96, quick=96, help="Tokens of a chain.")
@click.option("--answer_tokens", default=8, show_default=True, help="Tokens of a probed answer.")
@click.option("--model", default="tinylm/draft", show_default=True, help="Folder of a model, or an embedded one.")
@click.option("--dataset", default=EMBEDDED, show_default=True, help="Where the problems come from.")
@click.option("--rule", "rules", type=click.Choice([*RULES]), multiple=True, help="A rule that is run; all by default.")
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
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        name: (RULES[name][1], stack(model, RULES[name][0], FIXED, max_tokens, answer_tokens, False))
        for name in rules or RULES
    }
    if not rules:
        at_turns = stack(model, _CONFIDENCE, AT_TURNS, max_tokens, answer_tokens, False)
        first = stack(model, RULES["consecutive"][0], FIXED, max_tokens, answer_tokens, True)
        runs |= {
            "confidence at changes of thought": ("confidence", at_turns),
            "consecutive, one token": ("certain", first),
        }
    with progress() as bars:
        for name, (reason, config) in runs.items():
            add_rule(report, name, reason, run_stack(name, config, samples, bars, (f"seed={report.seed}",)))


if __name__ == "__main__":
    main()
