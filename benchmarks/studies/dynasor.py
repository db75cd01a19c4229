"""What stopping by agreeing probes is worth: against plain chains, fixed cuts, random exits and the oracle.

    python -m benchmarks.studies.dynasor --num_problems 1000 --plot_path frontier.png

*Live*: plain chains, DynasorCoT and the fixed cut that decodes as many tokens run the same problems with the same
seeds, in stream mode, 64 at once; plain chains and DynasorCoT take turns block by block, so that a machine that gets
slower slows both. *Replayed*: chains of some of the problems are probed and forced to answer every few tokens, so that
any rule can be read off the same chains; what runs on beside a probe is not counted there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from benchmarks._lib.chains import Author, Chain, Response
from benchmarks._lib.command import benchmark, plotted, progress, size
from benchmarks._lib.drawing import drawing
from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from benchmarks._lib.runs import CUT, DYNASOR, FORCED_LEN, PLAIN, Run, add_side_by_side, side_by_side
from scaffolding_ext import load_config
from scaffolding_ext.controllers.chain import Prefix, Probe
from scaffolding_ext.controllers.chain.probe import HEDGE_WORDS
from scaffolding_ext.controllers.stopping import Consecutive, Rule, Window
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.maths.statistics import required_num_questions

Floats = npt.NDArray[np.float64]

HEDGES = frozenset(HEDGE_WORDS)
NUM_BLOCKS = 4  # of live problems, between which the methods take turns
REPLAY_BLOCK = 40  # questions whose chains stay in the prefix cache while they are asked about
GRID = 16  # tokens between replayed looks
MAX_REPLAYED = 640  # tokens; the few longer chains are left alone beyond
THRESHOLDS = range(2, 7)  # probes that must agree, where they are drawn
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


def add_live(report: Report, runs: dict[str, Run]) -> None:
    """What was saved, at which accuracy, and how large an evaluation would have to be."""
    add_side_by_side(report, runs)
    plain, cut, dynasor = runs[PLAIN], runs[CUT], runs[DYNASOR]
    fired = [record.exit_reason == "certain" for record in dynasor.records]
    report.figure(f"{DYNASOR}: fired", float(np.mean(fired)))
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


def record_replay(samples: list[Sample], seed: int, model: str, temperature: float, bars: Progress) -> Replay:
    """Write a chain a question and ask it everywhere."""
    replay = Replay([], [], [])
    with Lab({"target": model}) as lab:
        author = Author(lab)
        for start in bars.track(range(0, len(samples), REPLAY_BLOCK), description="replayed chains"):
            chains = author.chains(samples[start : start + REPLAY_BLOCK], seed, 0, 1)
            lengths = [min(MAX_REPLAYED, len(author.thinking_ids(chain))) for chain in chains]
            positions = [list(range(GRID, length, GRID)) for length in lengths]
            replay.chains.extend(chains)
            replay.responses.extend(author.probes(chains, positions, temperature, seed))
            replay.forced.extend(author.forced_answers(chains, positions))
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


def cut_of_as_many(outcome: Outcome, cuts: Sequence[Outcome]) -> Floats:
    """How often fixed cuts with as many tokens are right, between two of which one draws by lot, shape [num_chains]."""
    means = np.array([cut.tokens.mean() for cut in cuts])
    upper = int(np.clip(np.searchsorted(means, outcome.tokens.mean()), 1, len(cuts) - 1))
    lower = upper - 1
    share = float(np.clip((outcome.tokens.mean() - means[lower]) / (means[upper] - means[lower]), 0, 1))
    return (1 - share) * cuts[lower].right + share * cuts[upper].right


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


def add_replayed(report: Report, replay: Replay, base: Schedule, threshold: int) -> dict[str, list[Outcome]]:
    """Frontiers, and what each rule is worth; returns the curves to draw."""
    full = cut_at(replay, [-1] * len(replay.chains))
    longest = max(map(len, replay.forced))
    cuts = [cut_at(replay, [look] * len(replay.chains)) for look in range(longest)] + [full]
    base_outcome = play(replay, base)
    outcomes = {name: play(replay, schedule) for name, schedule in variants(base, threshold).items()}
    outcomes["random exit at the same rate"] = cut_at(replay, report.rng.permutation(base_outcome.exits).tolist())
    outcomes["oracle"] = oracle(replay)
    report.figure("replayed, plain: accuracy", float(full.right.mean()))
    report.figure("replayed, plain: decoded tokens", float(full.tokens.mean()))
    for name, outcome in outcomes.items():
        report.difference(f"replayed, {name}: accuracy against plain", outcome.right, full.right)
        report.saved(f"replayed, {name}: decoded saved", outcome.tokens, full.tokens)
        level = cut_of_as_many(outcome, cuts)
        report.difference(f"replayed, {name}: accuracy over fixed cuts", outcome.right, level)
        report.figure(f"replayed, {name}: fired", float(np.mean(outcome.exits >= 0)))
    thresholds = [play(replay, base._replace(rule=Consecutive(number))) for number in THRESHOLDS]
    return {"fixed cuts": cuts, DYNASOR: thresholds} | {
        name: [outcomes[name]] for name in ("random exit at the same rate", "oracle")
    }


def plot(curves: dict[str, list[Outcome]], path: Path) -> None:
    """Accuracy against decoded tokens, replayed."""
    with drawing(path, figsize=(6.4, 4.2)) as (_, axes):
        for name, outcomes in curves.items():
            means = np.array([(outcome.tokens.mean(), 100 * outcome.right.mean()) for outcome in outcomes])
            axes.plot(*means.T, marker="." if name == "fixed cuts" else "o", label=name)
        for number, outcome in zip(THRESHOLDS, curves[DYNASOR], strict=True):
            point = outcome.tokens.mean(), 100 * outcome.right.mean()
            axes.annotate(str(number), point, (4, -10), textcoords="offset points")
        axes.set(xlabel="decoded tokens a problem, probes counted", ylabel="accuracy, %")
        axes.set_title("DynasorCoT: 2 to 6 probes must agree", fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")


@benchmark("studies.dynasor --num_problems 1000 --plot_path frontier.png")
@size("--num_problems", 1000, quick=24, help="Live problems.", least=2)
@size("--num_replayed", 400, quick=12, help="Of them those that are replayed.", least=2)
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@plotted
def main(report: Report, num_problems: int, num_replayed: int, model: str, plot_path: Path | None) -> None:
    """Decoded, computed and wall-clock savings of DynasorCoT, drawn and greedy, and the worth of its rules."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    arguments = load_config("configs:dynasor_cot").controller.args
    threshold = int(arguments["certainty_threshold"])
    gap = int(arguments["chunk_size"])
    base = Schedule(gap, gap, 1.0, Consecutive(threshold))
    temperature = float(arguments["probe"]["args"]["sampling_params"]["temperature"])
    runs: dict[str, Run] = {}
    with progress() as bars:
        for greedy in (False, True):
            runs |= side_by_side(samples, bars, seed=report.seed, model=model, greedy=greedy, num_blocks=NUM_BLOCKS)
        replay = record_replay(samples[:num_replayed], report.seed, model, temperature, bars)
    add_live(report, runs)
    curves = add_replayed(report, replay, base, threshold)
    if plot_path is not None:
        plot(curves, plot_path)


if __name__ == "__main__":
    main()
