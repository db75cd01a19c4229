"""What stopping by agreeing probes is worth: against plain chains, fixed cuts, random exits and the oracle.

    python -m benchmarks.studies.dynasor --num_problems 1000 --plot_path frontier.png

*Live*: plain chains, DynasorCoT and the fixed cut that decodes as many tokens run the same problems with the same
seeds, in stream mode, 64 at once; plain chains and DynasorCoT take turns block by block, so that a machine that gets
slower slows both. *Replayed*: chains of some of the problems are probed and forced to answer every few tokens, so that
any rule can be read off the same chains; what runs on beside a probe is not counted there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks._lib.lab import Chain, Lab, Response
from benchmarks._lib.report import Bar, Report, report_options
from benchmarks.studies.demo import CUT, DYNASOR, PLAIN, Run, matching_budget, run_method
from scaffolding_ext.controllers.chain import Prefix, Probe
from scaffolding_ext.controllers.chain.probe import HEDGE_WORDS
from scaffolding_ext.controllers.stopping import Consecutive, Rule, Window
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.maths.statistics import (
    Estimate,
    paired_bootstrap,
    paired_bootstrap_ratio,
    required_num_questions,
)
from scaffolding_ext.stack.load import load_config

Floats = npt.NDArray[np.float64]

HEDGES = frozenset(HEDGE_WORDS)
NUM_BLOCKS = 4  # of live problems, between which the methods take turns
REPLAY_BLOCK = 40  # questions whose chains stay in the prefix cache while they are asked about
GRID = 16  # tokens between replayed looks
MAX_REPLAYED = 640  # tokens; the few longer chains are left alone beyond
FORCED_LEN = 4  # tokens that a forced answer costs, about
DECODED_BAR, COMPUTED_BAR, SECONDS_BAR = 0.25, 0.15, 0.10
NON_INFERIORITY = -0.02  # points of accuracy that a saving may cost, for the sample size


class Schedule(NamedTuple):
    """Where a chain is looked at, and what stops it."""

    first: int = 32
    gap: int = 32
    growth: float = 1.0
    rule: Rule = Consecutive(4)
    heeds_hedges: bool = True

    def looks(self, num_tokens: int) -> Iterator[int]:
        """Indices into the grid, before a chain of that length ends."""
        position, gap = float(self.first), float(self.gap)
        while round(position / GRID) * GRID < min(num_tokens, MAX_REPLAYED):
            yield max(0, round(position / GRID) - 1)
            position += gap
            gap *= self.growth


class Replay(NamedTuple):
    """Chains that were asked for their answer at each multiple of `GRID` tokens before their thinking ended.

    Attributes:
        chains: The chains.
        responses: What each said when it was probed.
        forced: What each answered when its thinking was closed.
    """

    chains: list[Chain]
    responses: list[list[Response]]
    forced: list[list[str | None]]


class Outcome(NamedTuple):
    """Decoded tokens, right answers (0 or 1), and where each chain was left (-1: never), shape [num_chains] each."""

    tokens: Floats
    right: Floats
    exits: npt.NDArray[np.int64]


# ---- live


def run_live(samples: list[Sample], seed: int, model: str, progress: Progress) -> dict[str, Run]:
    """Plain chains and DynasorCoT in turns, then the cut."""
    worker = f"workers.generation.args.model={model}"
    size = -(-len(samples) // NUM_BLOCKS)
    blocks = [samples[start : start + size] for start in range(0, len(samples), size)]
    parts: dict[str, list[Run]] = {PLAIN: [], DYNASOR: []}
    for number, block in enumerate(blocks):
        order = ((PLAIN, "configs:native"), (DYNASOR, "configs:dynasor_cot"))
        for name, config in order if number % 2 == 0 else reversed(order):
            parts[name].append(run_method(f"{name}, block {number + 1}", config, block, seed, progress, worker))
    runs = {
        name: Run([r for run in part for r in run.records], sum(run.seconds for run in part))
        for name, part in parts.items()
    }
    budget = matching_budget(runs[PLAIN].decoded, float(np.mean(runs[DYNASOR].decoded)))
    cut = f"controller.args.max_thinking_tokens={budget}"
    return runs | {CUT: run_method(CUT, "configs:budget_forcing", samples, seed, progress, worker, cut)}


def add_live(report: Report, runs: dict[str, Run], seed: int) -> None:
    """What was saved, at which accuracy, and how large an evaluation would have to be."""
    plain, cut, dynasor = runs[PLAIN], runs[CUT], runs[DYNASOR]
    rng = np.random.default_rng(seed)
    for name, run in runs.items():
        report.figure(f"{name}: accuracy", float(np.mean(run.correct)), *run.summary.accuracy_interval)
        report.figure(f"{name}: decoded tokens", float(np.mean(run.decoded)))
    for name, run in ((DYNASOR, dynasor), (CUT, cut)):
        report.figure(f"{name} against plain: accuracy", *paired_bootstrap(run.correct, plain.correct, rng=rng))
        report.figure(f"{name}: decoded saved", *_saved(run.decoded, plain.decoded, rng))
        report.figure(f"{name}: computed saved", *_saved(run.computed, plain.computed, rng))
        report.figure(f"{name}: seconds saved", 1 - run.seconds / plain.seconds)
    over_cut = paired_bootstrap(dynasor.correct, cut.correct, rng=rng)
    report.figure(f"{DYNASOR} over {CUT} at equal tokens: accuracy", *over_cut)
    fired = [record.exit_reason == "certain" for record in dynasor.records]
    report.figure(f"{DYNASOR}: fired", float(np.mean(fired)))
    for key, bar in (("decoded", DECODED_BAR), ("computed", COMPUTED_BAR), ("seconds", SECONDS_BAR)):
        report.bar(Bar.at_least(f"{key} saved", report.figures[f"{DYNASOR}: {key} saved"]["value"] or 0.0, bar))
    lowest = report.figures[f"{DYNASOR} against plain: accuracy"]["low"] or 0.0
    report.bar(Bar.at_least("accuracy against plain, lower end", lowest, NON_INFERIORITY))
    for name, other, bar in (("plain less 2 points", plain, NON_INFERIORITY), (CUT, cut, 0.0)):
        differences = np.array(dynasor.correct) - np.array(other.correct)
        if np.ptp(differences) > 0:
            needed = required_num_questions(differences, bar=bar, max_num_questions=100_000, rng=rng)
            if needed is not None:
                report.figure(f"questions for power 0.9 against {name}", needed)


def _saved(ours: Sequence[float], theirs: Sequence[float], rng: np.random.Generator) -> Estimate:
    ratio = paired_bootstrap_ratio(ours, theirs, rng=rng)
    return Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


# ---- replayed


def record_replay(samples: list[Sample], seed: int, model: str, temperature: float, progress: Progress) -> Replay:
    """Write a chain a question and ask it everywhere."""
    replay = Replay([], [], [])
    with Lab(model) as lab:
        for start in progress.track(range(0, len(samples), REPLAY_BLOCK), description="replayed chains"):
            chains = lab.sample_chains(samples[start : start + REPLAY_BLOCK], seed, 0, 1)
            lengths = [min(MAX_REPLAYED, len(lab.thinking_ids(chain))) for chain in chains]
            positions = [list(range(GRID, length, GRID)) for length in lengths]
            replay.chains.extend(chains)
            replay.responses.extend(lab.probes(chains, positions, temperature, seed))
            replay.forced.extend(lab.forced_answers(chains, positions))
    return replay


def play(replay: Replay, schedule: Schedule) -> Outcome:
    """What the chains would have become under a schedule."""
    tokens, right, exits = [], [], []
    for chain, responses in zip(replay.chains, replay.responses, strict=True):
        classes: dict[str, int] = {}  # answers of the grammar are equal where their texts are
        probes: list[Probe] = []
        spent, left_at, answer = 0, -1, chain.answer
        for look in schedule.looks(len(responses) * GRID + 1):
            if look >= len(responses):
                break
            response = responses[look]
            spent += response.num_tokens
            hedged = schedule.heeds_hedges and not HEDGES.isdisjoint(re.findall(r"\w+", response.text.lower()))
            number = -1 if response.answer is None else classes.setdefault(response.answer, len(classes))
            probes.append(Probe(Prefix((look + 1) * GRID, "", None), response.answer, number, hedged, response.text))
            if schedule.rule(probes):
                left_at, answer = look, response.answer
                break
        tokens.append(spent + (len(chain.ids) if left_at < 0 else (left_at + 1) * GRID + FORCED_LEN))
        right.append(float(answer == chain.sample.target))
        exits.append(left_at)
    return Outcome(np.array(tokens, float), np.array(right), np.array(exits))


def cut_at(replay: Replay, looks: Sequence[int]) -> Outcome:
    """Each chain cut at a look of its own, -1 for never; one that ends earlier is left alone."""
    tokens, right, exits = [], [], []
    for chain, forced, look in zip(replay.chains, replay.forced, looks, strict=True):
        is_cut = 0 <= look < len(forced)
        tokens.append((look + 1) * GRID + FORCED_LEN if is_cut else len(chain.ids))
        right.append(float(forced[look] == chain.sample.target if is_cut else chain.is_right))
        exits.append(look if is_cut else -1)
    return Outcome(np.array(tokens, float), np.array(right), np.array(exits))


def oracle(replay: Replay) -> Outcome:
    """Each chain cut at its first look with a right answer; one that never has one is left alone."""
    first = [
        next((look for look, answer in enumerate(forced) if answer == chain.sample.target), -1)
        for chain, forced in zip(replay.chains, replay.forced, strict=True)
    ]
    return cut_at(replay, first)


def over_cuts(outcome: Outcome, cuts: Sequence[Outcome], rng: np.random.Generator) -> Estimate:
    """Accuracy above fixed cuts with as many tokens, between two of which one draws by lot; resampled by question."""
    means = np.array([cut.tokens.mean() for cut in cuts])
    upper = int(np.clip(np.searchsorted(means, outcome.tokens.mean()), 1, len(cuts) - 1))
    lower = upper - 1
    share = float(np.clip((outcome.tokens.mean() - means[lower]) / (means[upper] - means[lower]), 0, 1))
    mixed = (1 - share) * cuts[lower].right + share * cuts[upper].right
    return paired_bootstrap(outcome.right, mixed, rng=rng)


def variants(base: Schedule, threshold: int) -> dict[str, Schedule]:
    """The base, and each of its rules changed by itself."""
    return {
        "as configured": base,
        "one probe fewer must agree": base._replace(rule=Consecutive(threshold - 1)),
        "one probe more must agree": base._replace(rule=Consecutive(threshold + 1)),
        "window of 5, 4 of which agree": base._replace(rule=Window(5, 0.8)),
        "hedges not heeded": base._replace(heeds_hedges=False),
        "geometric spacing, gaps growing by 1.2": base._replace(growth=1.2),
        "first probe four times as late": base._replace(first=4 * base.first),
    }


def add_replayed(report: Report, replay: Replay, base: Schedule, threshold: int, seed: int) -> dict[str, list[Outcome]]:
    """Frontiers, and what each rule is worth; returns the curves to draw."""
    rng = np.random.default_rng(seed)
    full = cut_at(replay, [-1] * len(replay.chains))
    longest = max(map(len, replay.forced))
    cuts = [cut_at(replay, [look] * len(replay.chains)) for look in range(longest)] + [full]
    base_outcome = play(replay, base)
    outcomes = {name: play(replay, schedule) for name, schedule in variants(base, threshold).items()}
    outcomes["random exit at the same rate"] = cut_at(replay, rng.permutation(base_outcome.exits).tolist())
    outcomes["oracle"] = oracle(replay)
    report.figure("replayed, plain: accuracy", float(full.right.mean()))
    report.figure("replayed, plain: decoded tokens", float(full.tokens.mean()))
    for name, outcome in outcomes.items():
        report.figure(
            f"replayed, {name}: accuracy against plain", *paired_bootstrap(outcome.right, full.right, rng=rng)
        )
        report.figure(f"replayed, {name}: decoded saved", *_saved(outcome.tokens.tolist(), full.tokens.tolist(), rng))
        report.figure(f"replayed, {name}: accuracy over fixed cuts", *over_cuts(outcome, cuts, rng))
        report.figure(f"replayed, {name}: fired", float(np.mean(outcome.exits >= 0)))
    thresholds = [play(replay, base._replace(rule=Consecutive(number))) for number in range(2, 7)]
    return {"fixed cuts": cuts, DYNASOR: thresholds} | {
        name: [outcomes[name]] for name in ("random exit at the same rate", "oracle")
    }


def plot(curves: dict[str, list[Outcome]], path: Path) -> None:
    """Accuracy against decoded tokens, replayed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name, outcomes in curves.items():
        means = np.array([(outcome.tokens.mean(), 100 * outcome.right.mean()) for outcome in outcomes])
        axes.plot(*means.T, marker="." if name == "fixed cuts" else "o", label=name)
    for number, outcome in zip(range(2, 7), curves[DYNASOR], strict=True):
        axes.annotate(
            str(number), (outcome.tokens.mean(), 100 * outcome.right.mean()), (4, -10), textcoords="offset points"
        )
    axes.set_xlabel("decoded tokens a problem, probes counted")
    axes.set_ylabel("accuracy, %")
    axes.set_title("DynasorCoT: 2 to 6 probes must agree", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


@click.command(epilog="Example: python -m benchmarks.studies.dynasor --num_problems 1000 --json")
@report_options
@click.option("--num_problems", default=1000, show_default=True, help="Live problems; --quick takes 24 at most.")
@click.option("--num_replayed", default=400, show_default=True, help="Of them those that are replayed; quick: 12.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@click.option("--plot_path", default="runs/dynasor/frontier.png", show_default=True, type=click.Path(path_type=Path))
def main(
    seed: int, quick: bool, as_json: bool, num_problems: int, num_replayed: int, model: str, plot_path: Path
) -> None:
    """Decoded, computed and wall-clock savings of DynasorCoT, and the worth of its rules, with intervals."""
    num_problems = min(24, num_problems) if quick else num_problems
    num_replayed = min(12 if quick else num_replayed, num_problems)
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    arguments = load_config("configs:dynasor_cot").controller.args
    threshold = int(arguments["certainty_threshold"])
    gap = int(arguments["chunk_size"])
    base = Schedule(gap, gap, 1.0, Consecutive(threshold))
    temperature = float(arguments["probe"]["args"]["sampling_params"]["temperature"])
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        runs = run_live(samples, seed, model, progress)
        replay = record_replay(samples[:num_replayed], seed, model, temperature, progress)
    setting = {"seed": seed, "num_problems": num_problems, "num_replayed": num_replayed, "model": model}
    report = Report("dynasor", setting | {"concurrency": 64, "mode": "stream", "temperature": 0.7})
    add_live(report, runs, seed)
    plot(add_replayed(report, replay, base, threshold, seed), plot_path)
    report.show(as_json)


if __name__ == "__main__":
    main()
