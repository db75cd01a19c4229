"""Branches with fewer verdicts: what a skip gate and a layer exit change, beside a random skip and plainer methods.

    python -m benchmarks.studies.branching --num_problems 1000 --store runs/branching --plot_path runs/branching.png

Every branch of every problem is written and judged once, at full depth, and each verdict is looked at after every
layer; then all methods choose among the same branches, so all have decoded the same tokens. Thresholds are fitted to
the first part of the problems and judged on the rest. Intervals are 95 %: of accuracies from resampling whole problems,
of shares Wilson's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, progress, size, stored, track
from benchmarks._lib.drawing import Figures, drawing, of, rows
from benchmarks._lib.report import Report
from benchmarks._lib.runs import run_stack
from benchmarks._lib.store import kept
from scaffolding_ext.answers import group
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.calibrate.branching_run import BranchedProblem, calibrate, run_branches, same_answer
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.protocol.branching import LayerExit
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

BLOCK = 50  # problems that are run and stored together
GREEDY_AT_ONCE = 64  # chains
FULL, SKIP, EXIT, BOTH, RANDOM = "full verification", "skip gate", "layer exit", "skip gate and exit", "random skip"
MEDIAN = "layer exit, the paper's median rule"
VOTE, MEAN_LOGPROB, FIRST = "vote", "best by mean log-probability", "one branch"
WEIGHED = "vote weighed by mean log-probability"  # the default
ONE_GREEDY = "one chain, greedy"
NUM_STEPS = 25  # of each threshold of the curve

Choice = Callable[[BranchedProblem], int]
"""Gives the branch that a method chooses for a problem."""


class Method(NamedTuple):
    """The results of a method on each problem."""

    choices: list[int]
    problems: Sequence[BranchedProblem]

    @property
    def ids(self) -> list[str]:
        return [problem.id for problem in self.problems]

    @property
    def right(self) -> list[float]:
        return [float(p.is_right[choice]) for p, choice in zip(self.problems, self.choices, strict=True)]

    def changed(self, base: Method) -> list[bool]:
        """True for each problem whose answer is another than a base's."""
        pairs = zip(self.problems, self.choices, base.choices, strict=True)
        return [not same_answer(p.answers[own], p.answers[other]) for p, own, other in pairs]


def elected(problem: BranchedProblem, weights: Sequence[float] | None = None) -> int:
    """The first branch with the answer that most branches have, or the largest sum of weights."""
    classes = group(problem.answers)
    winner = vote(classes, weights)
    return classes.index(winner) if winner >= 0 else 0


def most_confident(problem: BranchedProblem) -> int:
    return int(np.argmax(problem.confidences))


def skipping(gate: ConfidenceGate, otherwise: Choice) -> Choice:
    """The gate's leader where it has one."""

    def choose(problem: BranchedProblem) -> int:
        leader = gate.leader(problem.confidences)
        return otherwise(problem) if leader is None else leader

    return choose


def leaving(rule: LayerExit | None) -> Choice:
    """The choice by verdicts that are read where they have settled."""

    def choose(problem: BranchedProblem) -> int:
        if rule is None:
            return problem.chosen()
        layers = rule.layers(problem.entropies)
        return problem.chosen(np.array(problem.layer_scores)[np.arange(len(layers)), layers - 1].tolist())

    return choose


def methods(calibration: BranchingCalibration, problems: Sequence[BranchedProblem], seed: int) -> dict[str, Method]:
    """Every method on the problems; the random skip skips as often as the calibrated gate."""
    gate, rule = calibration.skip_gate, calibration.layer_exit
    rng = np.random.default_rng(seed)
    rate = float(np.mean([gate.leader(problem.confidences) is not None for problem in problems]))
    choices: dict[str, Choice] = {
        FULL: BranchedProblem.chosen,
        SKIP: skipping(gate, BranchedProblem.chosen),
        EXIT: leaving(rule),
        MEDIAN: leaving(calibration.median_exit),
        BOTH: skipping(gate, leaving(rule)),
        RANDOM: lambda problem: most_confident(problem) if rng.random() < rate else problem.chosen(),
        "paper's gate": skipping(ConfidenceGate(), BranchedProblem.chosen),
        "verdict without confidence": lambda problem: problem.chosen(weighs_confidence=False),
        "most confident branch": most_confident,
        VOTE: elected,
        WEIGHED: lambda problem: elected(problem, problem.mean_probabilities),
        MEAN_LOGPROB: lambda problem: int(np.argmax(problem.mean_probabilities)),
        FIRST: lambda problem: 0,
    }
    return {name: Method([choose(problem) for problem in problems], problems) for name, choose in choices.items()}


def add_methods(report: Report, found: dict[str, Method]) -> None:
    """Accuracy of each method, and how it differs from full verification."""
    for name, method in found.items():
        report.difference(f"{name}: accuracy, %", method.right, questions=method.ids, scale=100)
        if name != FULL:
            changed = method.changed(found[FULL])
            report.share(f"{name}: answers changed", sum(changed), len(changed))
            report.difference(
                f"{name} against {FULL}: accuracy, points", method.right, found[FULL].right, method.ids, scale=100
            )
    for name in (VOTE, MEAN_LOGPROB, FIRST):
        report.difference(
            f"{WEIGHED} against {name}: accuracy, points",
            found[WEIGHED].right,
            found[name].right,
            found[FULL].ids,
            scale=100,
        )
    for name in (SKIP, BOTH):
        report.bar(f"{name}: answers changed", float(np.mean(found[name].changed(found[FULL]))), "<=", 0.005)


def add_greedy(
    report: Report, config: StackConfig, judged: set[str], num_problems: int, default: Method, store: Path | None
) -> None:
    """One greedy chain of each problem that is judged: what branches have to beat."""
    arguments = config.controller.args
    sampling = arguments["sampling_params"] | {"temperature": 0.0, "max_tokens": arguments["max_tokens"]}
    chain = {"type": "NativeGenerationController", "args": {"sampling_params": sampling}}
    stack = config.resolved() | {"controller": chain, "max_parallel_requests": GREEDY_AT_ONCE}
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)

    def find() -> dict[str, list[float]]:
        with progress() as bars:
            run = run_stack(ONE_GREEDY, stack, [sample for sample in samples if sample.id in judged], bars)
        return {record.id: [float(bool(record.correct)), record.ledger["total"]["decoded"]] for record in run.records}

    chains = kept(store, f"greedy_seed{report.seed}_{num_problems}_{len(judged)}", find)
    right, decoded = zip(*(chains[name] for name in default.ids), strict=True)
    report.difference(f"{ONE_GREEDY}: accuracy, %", right, questions=default.ids, scale=100)
    report.difference(f"{ONE_GREEDY}: decoded tokens", decoded)
    tokens = [sum(problem.num_tokens) for problem in default.problems]
    report.difference("all branches: decoded tokens", tokens)
    report.difference(f"{WEIGHED} against {ONE_GREEDY}: accuracy, points", default.right, right, default.ids, scale=100)


def depth_of(rule: LayerExit | None, problems: Sequence[BranchedProblem]) -> float:
    """The mean share of the layers that a verdict runs through."""
    if rule is None:
        return 1.0
    return float(np.mean([rule.layers(p.entropies).mean() / len(p.entropies[0]) for p in problems]))


def plot(figures: Figures, path: Path) -> None:
    """Draw the accuracy of every method."""
    ending = ": accuracy, %"
    accuracies = {name.removesuffix(ending): of(figures, name) for name in figures if name.endswith(ending)}
    with drawing(path, figsize=(7.5, 4.8)) as (_, axes):
        rows(axes, {name: each for name, each in accuracies.items() if each is not None}, default=WEIGHED)
        axes.set(xlabel="accuracy, % (95 %)")
        axes.set_title("Accuracy of each way to choose\n(bold, ring: the default)")


def measured(config: StackConfig, num_problems: int, seed: int, store: Path | None) -> list[BranchedProblem]:
    """Branches and verdicts of the first problems, in blocks that are kept."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    problems: list[BranchedProblem] = []
    for start in track(range(0, num_problems, BLOCK), "blocks"):
        path = None if store is None else store / f"seed{seed}_{start}.json"
        if path is not None and path.exists():
            rows = json.loads(path.read_text(encoding="utf-8"))[: num_problems - start]
            problems += [BranchedProblem(**row) for row in rows]
            continue
        block = run_branches(config, samples[start : start + BLOCK])
        problems += block
        if path is not None and len(block) == BLOCK:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps([problem._asdict() for problem in block]))
    return problems


@benchmark("studies.branching --num_problems 1000 --store runs/branching --plot_path runs/branching.png")
@size("--num_problems", 1000, quick=6, help="Held-out problems.", least=4)
@size("--num_fit", 250, quick=3, help="Of these, those that thresholds are fitted to.", least=1)
@size("--branching_factor", 8, quick=3, help="Branches a problem.", least=2)
@size("--max_tokens", 1200, quick=80, help="Budget of a branch.")
@click.option("--target", default="tinylm/target", show_default=True, help="Embedded model or folder.")
@click.option("--parallel", type=click.IntRange(min=1), default=8, show_default=True, help="Problems at once.")
@stored
@plotted
def main(
    report: Report,
    num_problems: int,
    num_fit: int,
    branching_factor: int,
    max_tokens: int,
    target: str,
    parallel: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Branches with fewer verdicts, against all of them, a random skip, a vote and mean log-probabilities."""
    overrides: dict[str, Any] = {
        "controller.args.branching_factor": branching_factor,
        "controller.args.max_tokens": max_tokens,
        "workers.generation.args.model": target,
        "max_parallel_requests": parallel,
        "seed": report.seed,
    }
    config = load_config("configs:kv_share_branching", [f"{key}={value}" for key, value in overrides.items()])
    problems = measured(config, num_problems, report.seed, store)
    names = list(dict.fromkeys(problem.id for problem in problems))
    fitted = frozenset(names[:num_fit])
    fit = [problem for problem in problems if problem.id in fitted]
    test = [problem for problem in problems if problem.id not in fitted]
    report.figure("problems that are judged", len(names) - len(fitted))
    calibration = calibrate(fit, model=target, dataset="tinylm:held_out", seed=report.seed)
    gate, rule = calibration.skip_gate, calibration.layer_exit
    report.figure("calibrated gate: least confidence", gate.least)
    report.figure("calibrated gate: relative lead", gate.gap)
    report.figure("calibrated exit: entropy", rule.max_entropy if rule else 0.0)
    report.figure("calibrated exit: change", rule.max_change if rule else 0.0)
    report.figure("calibrated exit: first layer", rule.min_layer if rule else 0)
    report.figure("calibrated exit: layers", depth_of(rule, test))
    read = np.concatenate([rule.layers(p.entropies) < len(p.entropies[0]) if rule else [False] for p in test])
    report.share("calibrated exit: verdicts read early", int(read.sum()), len(read))
    found = methods(calibration, test, report.seed)
    add_methods(report, found)
    add_greedy(report, config, {problem.id for problem in test}, num_problems, found[WEIGHED], store)
    report.share(f"{SKIP}: skip rate", sum(gate.leader(p.confidences) is not None for p in test), len(test))
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
