"""One budget of tokens for the votes of a whole data set: who should get the next sample?

    python -m benchmarks.studies.data_set_budget --samples runs/votes/samples.jsonl --plot_path runs/data_set_budget.png

Samples that were drawn before are put into random orders and bought, at several budgets: by certaindex, with votes that
`LeaderChange` calls settled closed (what `scaffolding-ext eval --total_tokens` does with `configs:majority_vote`);
evenly; and by an oracle that knows them all (the skyline). Controls say what each part is worth: certaindex without the
rule, even spending with it, and shortest samples first, which looks at no answer. Votes that stop by themselves under
that rule, each without a look at the others, are a point beside the lines.

Files are those that `vote_replay` reads; without one the votes are simulated. With `--model` the samples of an embedded
model are recorded by `scaffolding-ext eval`, with one greedy chain of each question beside them, and a fifth of their
tokens is spent live, too, by `--total_tokens`: evenly, and by certaindex.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import Figures, below, drawing, of, point, points
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks._lib.vote_replays import play, read_votes, shuffled
from benchmarks.studies.vote_replay import simulated
from scaffolding_ext.cli.main import main as scaffolding_ext
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.allocation.data_set import evenness, mean_length, skyline, spend, unsettledness
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.evaluation.run.run_folder import SAMPLES, SUMMARY, VOTES
from scaffolding_ext.stats.intervals import Estimate

SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)  # of the tokens of all samples
OURS, EVEN, EVEN_WITH_RULE, SKYLINE = "certaindex", "even", "even, settled votes closed", "skyline"
BY_ITSELF, GREEDY = "each vote by itself", "one chain, greedy"
LIVE_SHARE = 0.2
NUM_SAMPLES = 16
RULE = LeaderChange(miss=0.1, leap=2.0)
Buyer = Callable[[Sequence[LabelledVote], float], list[int]]


def shortness(votes: Votes) -> tuple[float, float]:
    """A control: the shortest samples first, whatever they say."""
    return mean_length(votes), 0.0


BUYERS: dict[str, Buyer] = {
    OURS: lambda votes, budget: spend(votes, budget, unsettledness, RULE),
    f"{OURS}, no rule": lambda votes, budget: spend(votes, budget, unsettledness),
    "shortest first": lambda votes, budget: spend(votes, budget, shortness),
    EVEN_WITH_RULE: lambda votes, budget: spend(votes, budget, evenness, RULE),
    EVEN: lambda votes, budget: spend(votes, budget, evenness),
    SKYLINE: skyline,
}


class Bought(NamedTuple):
    """What a buyer came to at one budget: means over the orders, shape [num_questions]."""

    correct: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]


def buy(buyer: Buyer, orders: Sequence[Sequence[LabelledVote]], budget: float) -> Bought | None:
    """Have a buyer spend a budget on each order; None where that does not pay for one sample a question."""
    correct, tokens = [], []
    for votes in zip(*orders, strict=True):
        try:
            sizes = buyer(votes, budget)
        except ValueError:
            return None
        correct.append([each.is_right(num) for each, num in zip(votes, sizes, strict=True)])
        tokens.append([sum(each.lengths[:num]) for each, num in zip(votes, sizes, strict=True)])
    return Bought(np.mean(correct, axis=0), np.mean(tokens, axis=0))


def report_budget(report: Report, share: float, bought: dict[str, Bought]) -> None:
    """Every buyer at one budget, and against even spending."""
    at = f"at {share:.0%}"
    for name, each in bought.items():
        report.figure(f"{name} {at}: tokens", float(each.tokens.sum()))
        report.difference(f"{name} {at}: right, %", each.correct, scale=100)
        if name != EVEN:
            theirs = bought[EVEN].correct
            report.difference(f"{name} against {EVEN} {at}: points", each.correct, theirs, scale=100)
    both = bought[OURS].correct, bought[EVEN_WITH_RULE].correct
    report.difference(f"{OURS} against {EVEN_WITH_RULE} {at}: points", *both, scale=100)


class Recorder:
    """Runs `scaffolding-ext eval` on an embedded model, into a folder a run; what is there stays.

    Args:
        store: Folder of the runs.
        model: Its name.
        num_problems: Held-out problems.
        seed: Of problems and answers.
    """

    def __init__(self, store: Path, model: str, num_problems: int, seed: int) -> None:
        self._store = store
        sets = (f"workers.generation.args.model={model}", f"dataset.num_samples={num_problems}")
        self._shared = [part for each in sets for part in ("--set", each)] + ["--seed", str(seed)]

    def run(self, name: str, *options: str) -> Path:
        """The folder of a run of these options."""
        folder = self._store / name
        if not (folder / SUMMARY).exists():
            with contextlib.redirect_stdout(sys.stderr):
                command = ["eval", *options, *self._shared, "--output_path", str(folder), "--resume"]
                scaffolding_ext(command, standalone_mode=False)
        return folder

    def drawn(self, num_samples: int) -> list[LabelledVote]:
        """So many samples of each problem."""
        folder = self.run("drawn", "--config", "configs:native", "--epochs", str(num_samples))
        return read_votes(folder / SAMPLES)

    def greedy(self) -> list[LabelledVote]:
        """One greedy chain of each problem."""
        temperature = "controller.args.sampling_params.temperature=0"
        return read_votes(self.run("greedy", "--config", "configs:native", "--set", temperature) / SAMPLES)

    def live(self, total_tokens: int) -> list[Path]:
        """Votes of one budget: spent evenly, then by certaindex."""
        budget = ("--config", "configs:majority_vote", "--total_tokens", str(total_tokens))
        return [self.run(name, *budget, "--spending", name) for name in (EVEN, OURS)]


def report_greedy(
    report: Report,
    greedy: Sequence[LabelledVote],
    votes: Sequence[LabelledVote],
    bought: Mapping[float, dict[str, Bought]],
) -> None:
    """One greedy chain of each question, and what certaindex and even spending have over it."""
    by_question = {vote.id: vote.is_right(1) for vote in greedy}
    right = np.array([by_question[vote.id] for vote in votes], dtype=float)
    report.figure(f"{GREEDY}: tokens", sum(vote.lengths[0] for vote in greedy))
    report.difference(f"{GREEDY}: right, %", right, scale=100)
    for share, found in bought.items():
        for name in (OURS, EVEN):
            report.difference(f"{name} against {GREEDY} at {share:.0%}: points", found[name].correct, right, scale=100)


def report_live(report: Report, folders: Sequence[Path]) -> None:
    """Runs of the command, and what each has over the first, by question."""
    runs = {folder.name: {vote.id: vote for vote in read_records(folder / VOTES)} for folder in folders}
    first, base = next(iter(runs.items()))
    for folder, (name, votes) in zip(folders, runs.items(), strict=True):
        budget: dict[str, Any] = json.loads((folder / SUMMARY).read_text())["budget"]
        for key in ("spent_tokens", "num_samples", "num_right_of_first_samples", "num_right_of_oracle"):
            report.figure(f"live, {name}: {key}", budget[key])
        report.difference(f"live, {name}: right, %", [float(votes[key].correct) for key in base], scale=100)
        if name != first:
            own = [float(votes[key].correct) for key in base]
            theirs = [float(vote.correct) for vote in base.values()]
            report.difference(f"live, {name} against {first}: points", own, theirs, scale=100)


def plot(figures: Figures, path: Path) -> None:
    """Accuracy against total tokens, a line a buyer, and beside it what each has over even spending."""

    def points_of(figure: str) -> list[Estimate]:
        found = [figures[figure.format(f"{share:.0%}")] for share in shares]
        return [Estimate(*(float(each[end] or 0.0) for end in Estimate._fields)) for each in found]

    shares = [share for share in SHARES if f"{EVEN} at {share:.0%}: tokens" in figures]
    with drawing(path, 1, 2, figsize=(12, 5)) as (figure, (right, gained)):
        for name in BUYERS:
            tokens = [each.value / 1000 for each in points_of(name + " at {}: tokens")]
            line = "o--" if name == SKYLINE else "o-"
            points(right, tokens, points_of(name + " at {}: right, %"), name, fmt=line)
            if name not in (EVEN, SKYLINE):
                over = points_of(f"{name} against {EVEN} at {{}}: points")
                points(gained, [100 * share for share in shares], over, name, color=f"C{list(BUYERS).index(name)}")
        alone = (figures[f"{BY_ITSELF}: {figure}"]["value"] for figure in ("tokens", "right, %"))
        tokens_alone, right_alone = (float(value or 0.0) for value in alone)
        right.plot(tokens_alone / 1000, right_alone, "k*", label=BY_ITSELF)
        tokens, greedy = of(figures, f"{GREEDY}: tokens", 1e-3), of(figures, f"{GREEDY}: right, %")
        if tokens is not None and greedy is not None:
            point(right, tokens, greedy, GREEDY, color="k")
        right.set(xlabel="decoded tokens of all questions, thousands", ylabel="right votes, %")
        gained.axhline(0.0, color="k", linewidth=0.8)
        gained.set(xlabel="budget, % of the tokens of all samples", ylabel="points over even spending (95 %, paired)")
        right.set_title("What lies higher is right more often for as many tokens")
        gained.set_title("Above 0 a way to spend beats an even share for each question")
        below(figure, right, 4)


@benchmark("studies.data_set_budget --samples runs/votes/samples.jsonl --plot_path runs/data_set_budget.png")
@click.option("--samples", type=DATA, help="Labelled samples.")
@size("--num_simulated", 200, quick=24, help="Questions that are simulated where there is no file.", least=2)
@size("--num_orders", 20, quick=2, help="Orders of each question.")
@click.option("--model", help="Embedded model whose samples are recorded, instead of --samples.")
@size("--num_problems", 200, quick=4, help="Held-out problems of --model.", least=2)
@stored
@plotted
def main(
    report: Report,
    samples: Path | None,
    num_simulated: int,
    num_orders: int,
    model: str | None,
    num_problems: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """One budget of tokens for the votes of a whole data set: who should get the next sample?"""
    if model is None:
        votes = simulated(num_simulated, report.rng) if samples is None else read_votes(samples)
        replay(report, votes, num_orders)
    elif samples is not None:
        raise click.UsageError("--model and --samples both say whose samples are bought: give one of them.")
    else:
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(store or Path(folder), model, num_problems, report.seed)
            votes = recorder.drawn(NUM_SAMPLES)
            bought = replay(report, votes, num_orders)
            report_greedy(report, recorder.greedy(), votes, bought)
            full = sum(sum(each.lengths) for each in votes)
            report_live(report, recorder.live(round(LIVE_SHARE * full)))
    if plot_path is not None:
        plot(report.figures, plot_path)


def replay(report: Report, votes: Sequence[LabelledVote], num_orders: int) -> dict[float, dict[str, Bought]]:
    """Every buyer at every budget that pays for a sample a question; returns what each bought."""
    report.setting |= {"questions": len(votes), "samples_a_question": len(votes[0].classes)}
    orders = shuffled(votes, num_orders, report.rng)
    full = sum(sum(each.lengths) for each in votes)
    affordable = {}
    report.figure("all samples: tokens", full)
    report.difference("all samples: right, %", [each.is_right(len(each.classes)) for each in votes], scale=100)
    with progress() as bars:
        for share in bars.track(SHARES, description="budgets"):
            found = {name: buy(buyer, orders, share * full) for name, buyer in BUYERS.items()}
            bought = {name: each for name, each in found.items() if each is not None}
            if len(bought) < len(BUYERS):  # it does not pay for one sample a question
                continue
            affordable[share] = bought
            report_budget(report, share, bought)
            gain = report.figures[f"{OURS} against {EVEN} at {share:.0%}: points"]["low"] or 0.0
            if share in (0.2, 0.3):
                report.bar(f"{OURS} against {EVEN} at {share:.0%}, points, lower end", gain, ">", 0.0)
    alone = play(RULE, orders)
    report.figure(f"{BY_ITSELF}: tokens", float(alone.tokens.sum()))
    report.difference(f"{BY_ITSELF}: right, %", alone.correct, scale=100)
    same = {name: buy(BUYERS[name], orders, float(alone.tokens.sum())) for name in (OURS, EVEN)}
    for name, each in same.items():
        if each is not None:
            report.difference(
                f"{name} at the tokens of {BY_ITSELF}, against it: points", each.correct, alone.correct, scale=100
            )
    return affordable


if __name__ == "__main__":
    main()
