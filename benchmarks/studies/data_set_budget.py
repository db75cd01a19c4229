"""One budget of tokens for the votes of a whole data set: who should get the next sample?

    python -m benchmarks.studies.data_set_budget --samples runs/votes/samples.jsonl --plot_path runs/data_set_budget.png

Samples that were drawn before are put into random orders and bought, at several budgets: by certaindex, with votes that
`LeaderChange` calls settled closed (what `scaffolding-ext eval --total_tokens` does with `configs:majority_vote`);
evenly; and by an oracle that knows them all (the skyline). Controls say what each part is worth: certaindex without the
rule, even spending with it, and shortest samples first, which looks at no answer. Votes that stop by themselves under
that rule, each without a look at the others, are a point beside the lines.

Files are those that `vote_replay` reads; without one the votes are simulated. `--live` takes folders of runs of the
command and pairs them by question with the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, plotted, progress, size
from benchmarks._lib.drawing import below, drawing, points
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks.studies.vote_replay import simulated
from scaffolding_ext.controllers.vote.allocation.base import Votes
from scaffolding_ext.controllers.vote.allocation.data_set import evenness, mean_length, skyline, spend, unsettledness
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.replay import play, shuffled
from scaffolding_ext.evaluation.calibrate.samples import read_votes
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.evaluation.run.run_folder import SUMMARY, VOTES
from scaffolding_ext.stats.intervals import Estimate

SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)  # of the tokens of all samples
OURS, EVEN, EVEN_WITH_RULE, SKYLINE = "certaindex", "even", "even, settled votes closed", "skyline"
BY_ITSELF = "each vote by itself"
RULE = LeaderChange()
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


def report_live(report: Report, folders: Sequence[Path]) -> None:
    """Runs of the command, and what each has over the first, by question."""
    runs = {folder.name: {vote.id: vote for vote in read_records(folder / VOTES)} for folder in folders}
    first, base = next(iter(runs.items()))
    for folder, (name, votes) in zip(folders, runs.items(), strict=True):
        budget: dict[str, Any] = json.loads((folder / SUMMARY).read_text())["budget"]
        for key in ("spent_tokens", "num_samples", "num_right_of_first_samples", "num_right_of_oracle"):
            report.figure(f"live, {name}: {key}", budget[key])
        report.share(f"live, {name}: right", sum(vote.correct for vote in votes.values()), len(votes))
        if name != first:
            own = [float(votes[key].correct) for key in base]
            theirs = [float(vote.correct) for vote in base.values()]
            report.difference(f"live, {name} against {first}: points", own, theirs, scale=100)


def plot(figures: Mapping[str, Mapping[str, float | None]], path: Path) -> None:
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
@click.option(
    "--live",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of a run with --total_tokens; may be repeated, the first is the one to beat.",
)
@plotted
def main(
    report: Report,
    samples: Path | None,
    num_simulated: int,
    num_orders: int,
    folders: tuple[Path, ...],
    plot_path: Path | None,
) -> None:
    """One budget of tokens for the votes of a whole data set: who should get the next sample?"""
    votes = simulated(num_simulated, report.rng) if samples is None else read_votes(samples)
    report.setting |= {"questions": len(votes), "samples_a_question": len(votes[0].classes)}
    report.setting["folders"] = [folder.name for folder in folders]
    orders = shuffled(votes, num_orders, report.rng)
    full = sum(sum(each.lengths) for each in votes)
    report.figure("all samples: tokens", full)
    report.difference("all samples: right, %", [each.is_right(len(each.classes)) for each in votes], scale=100)
    with progress() as bars:
        for share in bars.track(SHARES, description="budgets"):
            found = {name: buy(buyer, orders, share * full) for name, buyer in BUYERS.items()}
            bought = {name: each for name, each in found.items() if each is not None}
            if len(bought) < len(BUYERS):  # it does not pay for one sample a question
                continue
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
    if folders:
        report_live(report, folders)
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
