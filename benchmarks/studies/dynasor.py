"""What DynasorCoT's stopping is worth: against plain chains, fixed cuts, random exits and the oracle.

    python -m benchmarks.studies.dynasor --store FOLDER --plot_path frontier.png

*Live*: plain chains, DynasorCoT and the fixed cut that decodes as many tokens run the same problems with the same
seeds, in stream mode, 64 at once, drawn and greedy; plain chains and DynasorCoT take turns block by block, so that a
machine that gets slower slows both. Each of several seeds has problems and chains of its own; intervals are of all
together, and each seed is shown. *Replayed*: chains on some of the problems are recorded and looked at every few
tokens, so that any rule can be played on the same chains; what runs on beside a probe is not counted there. All rules,
and both sets of problems: `studies.stopping`.
"""

from __future__ import annotations

import functools
import operator
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.chain_replay import NEVER, Outcome, cut_at, fixed_cuts, play
from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import Figures, beside, drawing, frontier, point, points, ring
from benchmarks._lib.recorded_chains import RecordedChain
from benchmarks._lib.replayed import SPACING, cut_of_as_many, record_chains
from benchmarks._lib.report import Report
from benchmarks._lib.runs import CUT, DYNASOR, GREEDY, PLAIN, STACKS, Tally, add_side_by_side, side_by_side
from benchmarks._lib.store import kept
from scaffolding_ext import load_config
from scaffolding_ext.controllers.chain.looking import ProbeSchedule
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, Window
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.confidence import AnswerConfidence
from scaffolding_ext.controllers.chain.stopping.several import AllOf
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap, wilson_interval
from scaffolding_ext.stats.power import required_num_questions

NUM_BLOCKS = 4  # of live problems, between which the methods take turns
THRESHOLDS = range(2, 7)  # probes that must agree, where they are drawn
CONFIDENCES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # of the newest of two that agree, where they are drawn
AGREEING, CONFIDENT = "2 to 6 equal answers", "two equal answers, the newest with a confidence of 0.5 to 0.98"
DECODED_BAR, COMPUTED_BAR, SECONDS_BAR = 0.25, 0.15, 0.10
NON_INFERIORITY = -0.02  # points of accuracy that a saving may cost, for the sample size


class Variant(NamedTuple):
    """A rule and where it looks; hedges that it does not heed are taken out of the looks."""

    rule: StoppingRule
    schedule: ProbeSchedule
    heeds_hedges: bool = True


class OnGrid(ProbeSchedule):
    """A schedule whose looks are put off to where looks were recorded."""

    def gaps(self) -> Iterator[int]:
        seen, wanted = 0, 0
        for gap in super().gaps():
            wanted += gap
            position = max(seen + SPACING, round(wanted / SPACING) * SPACING)
            yield position - seen
            seen = position


# ---- live


def run_live(samples: Sequence[Example], bars: Progress, seed: int, model: str, store: Path | None) -> dict[str, Tally]:
    """Every method, drawn and greedy, on one seed's problems; from the store where it ran before."""
    tallies: dict[str, Tally] = {}
    for greedy in (False, True):

        def find(greedy: bool = greedy) -> dict[str, Any]:
            runs = side_by_side(samples, bars, seed=seed, model=model, greedy=greedy, num_blocks=NUM_BLOCKS)
            return {name: Tally.of(run)._asdict() for name, run in runs.items()}

        name = f"live_{seed}_{'greedy' if greedy else 'drawn'}"
        tallies |= {method: Tally(**tally) for method, tally in kept(store, name, find).items()}
    return tallies


def add_live(report: Report, by_seed: dict[int, dict[str, Tally]]) -> None:
    """What was saved, at which accuracy, and how large an evaluation would have to be."""
    for seed, tallies in by_seed.items():
        for suffix in ("", GREEDY):
            ours, cut, whole = (tallies[name + suffix] for name in (DYNASOR, CUT, PLAIN))
            name = f"seed {seed}: {DYNASOR}{suffix}"
            report.difference(f"{name}: over the fixed cut, points", ours.correct, cut.correct, scale=100)
            report.difference(f"{name}: over whole chains, points", ours.correct, whole.correct, scale=100)
            report.saved(f"{name}: decoded saved", ours.decoded, whole.decoded)
    methods = next(iter(by_seed.values()))
    runs = {name: functools.reduce(operator.add, (each[name] for each in by_seed.values())) for name in methods}
    add_side_by_side(report, runs)
    plain, cut, dynasor = runs[PLAIN], runs[CUT], runs[DYNASOR]
    for suffix in ("", GREEDY):
        report.figure(
            f"{DYNASOR}{suffix}: fired",
            float(np.mean([e not in ("end", "length") for e in runs[DYNASOR + suffix].exits])),
        )
    for key, bar in (("decoded", DECODED_BAR), ("computed", COMPUTED_BAR), ("seconds", SECONDS_BAR)):
        saved = report.figures[f"{DYNASOR} against {PLAIN}: {key} saved"]["value"] or 0.0
        report.bar(f"{key} saved", saved, ">=", bar)
    lowest = report.figures[f"{DYNASOR} against {PLAIN}: accuracy, points"]["low"] or 0.0
    report.bar("accuracy against plain, points, lower end", lowest, ">=", 100 * NON_INFERIORITY)
    for name, other, bar in (("plain less 2 points", plain, NON_INFERIORITY), (CUT, cut, 0.0)):
        differences = np.array(dynasor.correct) - np.array(other.correct)
        if np.ptp(differences) > 0:
            needed = required_num_questions(differences, bar=bar, max_num_questions=100_000, rng=report.rng)
            if needed is not None:
                report.figure(f"questions for power 0.9 against {name}", needed)


# ---- replayed


def play_variant(chains: Sequence[RecordedChain], variant: Variant) -> Outcome:
    """What the chains would have become."""
    if not variant.heeds_hedges:
        chains = [chain._replace(looks=[look._replace(hedged=False) for look in chain.looks]) for chain in chains]
    return play(chains, variant.rule, variant.schedule)


def oracle(chains: Sequence[RecordedChain]) -> Outcome:
    """Each chain cut at its first look with a right answer; one that never has one is left alone."""
    return cut_at(
        chains, [next((look for look, own in enumerate(each.forced) if own == each.target), NEVER) for each in chains]
    )


def sure(threshold: int = 2, confidence: float = 0.9) -> AllOf:
    """The default rule, with other numbers."""
    return AllOf([Consecutive(threshold), AnswerConfidence(confidence)])


def variants(gap: int) -> dict[str, Variant]:
    """The rule as it is configured, each of its arguments changed by itself, and Dynasor's own rule."""
    base = Variant(AllOf(), ProbeSchedule(gap))
    return {
        "as configured": base,
        "one answer more must agree": base._replace(rule=sure(threshold=3)),
        "a confidence of 0.8": base._replace(rule=sure(confidence=0.8)),
        "a confidence of 0.95": base._replace(rule=sure(confidence=0.95)),
        "equal answers alone": base._replace(rule=Consecutive(2)),
        "confidence alone": base._replace(rule=AnswerConfidence(0.9)),
        "Dynasor's own, 4 equal answers": base._replace(rule=Consecutive(4)),
        "window of 5, 4 of which agree": base._replace(rule=Window(5, 0.8)),
        "hedges not heeded": base._replace(heeds_hedges=False),
        "geometric spacing, gaps growing by 1.2": base._replace(schedule=OnGrid(gap, growth=1.2)),
        "first probe four times as late": base._replace(schedule=ProbeSchedule(gap, 4 * gap)),
    }


def add_replayed(report: Report, chains: Sequence[RecordedChain], gap: int) -> dict[str, list[Outcome]]:
    """Frontiers, and what each rule is worth; returns the curves to draw."""
    cuts = fixed_cuts(chains)
    full = cuts[-1]
    outcomes = {name: play_variant(chains, variant) for name, variant in variants(gap).items()}
    dealt_out = report.rng.permutation(outcomes["as configured"].exits).tolist()
    outcomes["random exit at the same rate"] = cut_at(chains, dealt_out)
    outcomes["oracle"] = oracle(chains)
    report.difference("replayed, plain: accuracy", full.right)
    report.difference("replayed, plain: decoded tokens", full.costs["decoded"])
    for name, outcome in outcomes.items():
        report.difference(f"replayed, {name}: accuracy against plain, points", outcome.right, full.right, scale=100)
        report.saved(f"replayed, {name}: decoded saved", outcome.costs["decoded"], full.costs["decoded"])
        level = cut_of_as_many(outcome, cuts)
        report.difference(f"replayed, {name}: over fixed cuts, points", outcome.right, level.right, scale=100)
        report.figure(f"replayed, {name}: fired", float(np.mean(outcome.exits >= 0)))
    agreeing = [play(chains, Consecutive(number), ProbeSchedule(gap)) for number in THRESHOLDS]
    confident = [play(chains, sure(confidence=each), ProbeSchedule(gap)) for each in CONFIDENCES]
    return {"fixed cuts": cuts, AGREEING: agreeing, CONFIDENT: confident} | {
        name: [outcomes[name]] for name in ("random exit at the same rate", "oracle", "as configured")
    }


def plot(figures: Figures, curves: dict[str, list[Outcome]], path: Path) -> None:
    """Accuracy against decoded tokens: what ran live, drawn and greedy, and what was replayed."""
    with drawing(path, 1, 2, figsize=(13, 4.6)) as (_, (live, replayed)):
        frontier(live, figures, [name + suffix for suffix in ("", GREEDY) for name in STACKS], default=DYNASOR)
        live.set_title("Live: what lies further left decodes less,\nwhat lies higher is right more often")
        beside(live)
        cuts = [_place(outcome) for outcome in curves["fixed cuts"]]
        tokens = [each.value for each, _ in cuts]
        replayed.plot(tokens, [each.value for _, each in cuts], color="0.4", label="fixed cuts")
        replayed.fill_between(tokens, *zip(*((each.low, each.high) for _, each in cuts), strict=True), color="0.85")
        for name in (AGREEING, CONFIDENT):
            places = [_place(outcome) for outcome in curves[name]]
            points(replayed, [each.value for each, _ in places], [each for _, each in places], name)
        for name in ("random exit at the same rate", "oracle"):
            point(replayed, *_place(curves[name][0]), name)
        ring(replayed, *(each.value for each in _place(curves["as configured"][0])))
        replayed.set(xlabel="decoded tokens a problem, probes counted", ylabel="accuracy, %")
        replayed.set_title("Replayed: a rule is worth its probes where it lies above\nthe band of fixed cuts")
        beside(replayed)


def _place(outcome: Outcome) -> tuple[Estimate, Estimate]:
    """Mean decoded tokens, and accuracy in per cent."""
    decoded, number = outcome.costs["decoded"], len(outcome.right)
    tokens = paired_bootstrap(decoded, np.zeros(number), rng=np.random.default_rng(0))
    accuracy = (float(outcome.right.mean()), *wilson_interval(int(outcome.right.sum()), number))
    return tokens, Estimate(*(100 * end for end in accuracy))


@benchmark("studies.dynasor --num_problems 1000 --plot_path frontier.png")
@size("--num_problems", 1000, quick=24, help="Live problems of each seed.", least=2)
@size("--num_seeds", 5, quick=1, help="Seeds of the live part, from --seed on.")
@size("--num_replayed", 400, quick=12, help="Of them those that are replayed.", least=2)
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@stored
@plotted
def main(
    report: Report,
    num_problems: int,
    num_seeds: int,
    num_replayed: int,
    model: str,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Decoded, computed and wall-clock savings of DynasorCoT, drawn and greedy, and the worth of its rules."""
    gap = int(load_config("configs:dynasor_cot").controller.args["chunk_size"])
    with tempfile.TemporaryDirectory() as folder:
        chains = record_chains((store or Path(folder)) / "chains", model, num_replayed, report.seed)
    by_seed: dict[int, dict[str, Tally]] = {}
    with progress() as bars:
        for seed in range(report.seed, report.seed + num_seeds):
            samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
            by_seed[seed] = run_live(samples, bars, seed, model, store)
    add_live(report, by_seed)
    curves = add_replayed(report, chains, gap)
    if plot_path is not None:
        plot(report.figures, curves, plot_path)


if __name__ == "__main__":
    main()
