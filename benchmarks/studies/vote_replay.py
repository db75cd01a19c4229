"""When may a vote stop? Every allocation rule on samples that were drawn before.

    python -m benchmarks.studies.vote_replay --samples runs/votes/samples.jsonl --seed 0

Each question's samples are put into random orders, and each rule is given them until it stops; all rules see the same
orders. Files are those that `scaffolding-ext calibrate certaindex` reads; without one the votes are drawn from
simulated questions, whose chance of the right answer is spread evenly over [0.2, 1].

For every rule: accuracy against the vote of all samples and tokens as a share of it (95 % intervals, paired, questions
resampled whole), rounds, tokens on the critical path, how often it stopped early, and a stop at random that draws the
same numbers of samples from the questions in another order. Then settings are chosen on half of the questions, the
cheapest that loses at most 0.5 points, and tested on the other half.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.report import Bar, Report, report_options
from scaffolding_ext.calibration.vote_trial import Trial, plot_trial, try_rules
from scaffolding_ext.evaluation.samples import read_votes
from scaffolding_ext.maths.allocation.adaptive_consistency import BetaConsistency, DirichletConsistency
from scaffolding_ext.maths.allocation.base import AllocationRule
from scaffolding_ext.maths.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.maths.allocation.curtailment import Curtailment
from scaffolding_ext.maths.allocation.doubling import AgreementDoubling
from scaffolding_ext.maths.allocation.early_stopping import EarlyStoppingWindow
from scaffolding_ext.maths.allocation.leader_change import LeaderChange
from scaffolding_ext.maths.allocation.replay import LabelledVote, Outcome, play, shuffled
from scaffolding_ext.maths.allocation.search import cheapest
from scaffolding_ext.maths.allocation.skyline import DynamicSkyline, InitialStepSkyline, fit_curve
from scaffolding_ext.maths.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.maths.statistics import paired_bootstrap, paired_bootstrap_ratio
from scaffolding_ext.maths.voting import filtered_vote, vote

MAX_LOSS = 0.005
KNOB = 5
OUR_RULE = "leader change (ours)"
PEERS = ("Adaptive-Consistency 0.95", "Adaptive-Consistency 0.9", "certaindex 0.7 every 4", "early stopping, window 4")


def named_rules(votes: Sequence[LabelledVote]) -> dict[str, AllocationRule]:
    """Each rule at its source's setting, or at ours where the source has none."""
    median = float(np.median(np.concatenate([np.asarray(each.lengths) for each in votes])))
    return {
        "all samples": Even(num_samples=len(votes[0].classes)),
        "curtailment": Curtailment(leap=1.0),
        "early stopping, window 4": EarlyStoppingWindow(window=4),
        "early stopping, window 5": EarlyStoppingWindow(window=5),
        "Adaptive-Consistency 0.95": BetaConsistency(),
        "Adaptive-Consistency 0.9": BetaConsistency(confidence=0.9),
        "Adaptive-Consistency 0.95, Dirichlet": DirichletConsistency(),
        "its_hub adaptive": AgreementDoubling(),
        "its_hub Beta": BetaConsistency(min_samples=2),
        "certaindex 0.7 at 5": StaticThreshold(threshold=0.7, knob=5),
        "certaindex 0.7 every 4": ThresholdEvery(threshold=0.7, step=4),
        "certaindex 0.7 every 5": ThresholdEvery(threshold=0.7, step=5),
        "certaindex 0.8 every 2": ThresholdEvery(threshold=0.8, step=2),
        "baseline-even 6": Even(num_samples=6),
        "baseline-length": LengthThreshold(max_mean_length=median, knob=KNOB),
        "Adaptive-Consistency 0.95, in leaps": BetaConsistency(leap=1.0),
        "Adaptive-Consistency 0.9, in leaps, gives up": BetaConsistency(confidence=0.9, leap=1.0, give_up=True),
        OUR_RULE: LeaderChange(),
        f"{OUR_RULE}, in single leaps": LeaderChange(leap=1.0),
        f"{OUR_RULE}, gives up": LeaderChange(give_up=True),
    }


def skylines(votes: Sequence[LabelledVote]) -> dict[str, AllocationRule]:
    """Curves fitted on the votes in the order of the file."""
    classes, knobs = [each.classes for each in votes], (2, 4, 6, 8, 12)
    curves = tuple(fit_curve(classes, knob, 0.9) for knob in knobs)
    return {
        "initial-step skyline": InitialStepSkyline(knob=KNOB, curve=fit_curve(classes, KNOB, 0.9)),
        "dynamic skyline": DynamicSkyline(knobs=knobs, curves=curves),
    }


def simulated(num_questions: int, rng: np.random.Generator) -> list[LabelledVote]:
    """Votes of 16; wrong samples scatter over four answers, and one in twenty has none."""
    votes = []
    for number in range(num_questions):
        right = rng.random(16) < rng.uniform(0.2, 1.0)
        classes = np.where(right, 0, rng.integers(1, 5, 16))
        classes[rng.random(16) < 0.05] = -1
        lengths = rng.integers(100, 500, 16).tolist()
        votes.append(LabelledVote(f"simulated-{number}", classes.tolist(), (classes == 0).tolist(), lengths))
    return votes


def report_rule(
    report: Report, name: str, ran: Outcome, full: Outcome, orders: list[list[LabelledVote]], seed: int
) -> None:
    """One rule's row of figures."""
    rng = np.random.default_rng(seed)
    gain = paired_bootstrap(ran.correct, full.correct, rng=rng)
    report.figure(f"{name}: accuracy difference, points", *(100 * value for value in gain))
    report.figure(f"{name}: tokens, share of all", *paired_bootstrap_ratio(ran.tokens, full.tokens, rng=rng))
    at_once = paired_bootstrap_ratio(ran.tokens_at_once, full.tokens, rng=rng)
    report.figure(f"{name}: tokens if all start at once", *at_once)
    report.figure(f"{name}: samples", float(ran.num_samples.mean()))
    report.figure(f"{name}: rounds", float(ran.num_rounds.mean()))
    critical = float(ran.critical_length.sum() / full.critical_length.sum())
    report.figure(f"{name}: critical path, share of one round of all", critical)
    report.figure(f"{name}: stopped early, share", float(ran.stopped.mean()))
    report.figure(f"{name}: winner changed, share", float(ran.changed.mean()))
    sizes = rng.permutation(ran.sizes.ravel()).reshape(ran.sizes.shape)
    blind = [
        [each.is_right(int(size)) for each, size in zip(question, row, strict=True)]
        for question, row in zip(orders, sizes, strict=True)
    ]
    loss = paired_bootstrap(np.mean(blind, axis=1), full.correct, rng=rng)
    report.figure(f"{name}: random stop at its rate, points", *(100 * value for value in loss))


def cross_validate(report: Report, trial: Trial, num_splits: int, rng: np.random.Generator) -> None:
    """Choose each family's setting on half of the questions and test it on the other half."""
    num_questions = len(trial.full.correct)
    groups: dict[str, Mapping[AllocationRule, Outcome]] = {**trial.families, "any family": trial.outcomes}
    tested: dict[str, list[tuple[float, float, float]]] = {name: [] for name in groups}
    for _ in range(num_splits):
        order = rng.permutation(num_questions)
        chosen_on, tested_on = order[: num_questions // 2], order[num_questions // 2 :]
        full = trial.full.correct[tested_on]
        for name, outcomes in groups.items():
            ran = outcomes[cheapest(outcomes, trial.full.correct, MAX_LOSS, chosen_on.tolist())]
            share = ran.tokens[tested_on].sum() / trial.full.tokens[tested_on].sum()
            gain = 100 * float(np.mean(ran.correct[tested_on] - full))
            tested[name].append((gain, float(share), float(ran.num_rounds[tested_on].mean())))
    for name, rows in tested.items():
        values = np.array(rows)
        low, high = np.quantile(values, (0.025, 0.975), axis=0)
        for column, label in enumerate(("points", "tokens, share of all", "rounds")):
            report.figure(f"chosen on half, {name}: {label}", values[:, column].mean(), low[column], high[column])


def report_weights(report: Report, votes: Sequence[LabelledVote], seed: int) -> None:
    """Best-of-N, weighted votes and DeepConf's filtered vote on all samples, where there is a score."""
    rng = np.random.default_rng(seed)
    plain = np.array([each.is_right(len(each.classes)) for each in votes], dtype=float)

    def compare(name: str, winners: list[int]) -> None:
        right = [
            winner != -1 and bool(each.correct[list(each.classes).index(winner)])
            for each, winner in zip(votes, winners, strict=True)
        ]
        gain = paired_bootstrap(np.array(right, dtype=float), plain, rng=rng)
        report.figure(f"{name}: accuracy", float(np.mean(right)))
        report.figure(f"{name}: difference from the plain vote, points", *(100 * value for value in gain))

    if votes[0].rewards is not None:
        scores = [list(each.rewards or ()) for each in votes]
        best = [int(np.argmax(score)) for score in scores]
        right = np.array([each.correct[index] for each, index in zip(votes, best, strict=True)], dtype=float)
        gain = paired_bootstrap(right, plain, rng=rng)
        report.figure("best-of-N by reward: accuracy", float(right.mean()))
        report.figure("best-of-N by reward: difference from the plain vote, points", *(100 * v for v in gain))
        compare("reward-weighted vote", [vote(e.classes, s) for e, s in zip(votes, scores, strict=True)])
    elif votes[0].logprobs is not None:
        scores = [[float(np.exp(value)) for value in each.logprobs or ()] for each in votes]
        compare("probability-weighted vote", [vote(e.classes, s) for e, s in zip(votes, scores, strict=True)])
    else:
        return
    for share in (0.1, 0.5, 0.9):
        winners = [filtered_vote(e.classes, s, share) for e, s in zip(votes, scores, strict=True)]
        compare(f"DeepConf's offline vote, best {share:.0%}", winners)


@click.command(help=__doc__)
@report_options
@click.option("--samples", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Labelled samples.")
@click.option(
    "--num_orders", type=click.IntRange(min=1), default=40, show_default=True, help="Orders of each question."
)
@click.option("--num_splits", type=click.IntRange(min=1), default=200, show_default=True, help="Random halves.")
@click.option("--output_path", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for the figures.")
@click.option("--plot_path", type=click.Path(dir_okay=False, path_type=Path), help="Picture of accuracy and tokens.")
def main(
    as_json: bool,
    quick: bool,
    seed: int,
    samples: Path | None,
    num_orders: int,
    num_splits: int,
    output_path: Path | None,
    plot_path: Path | None,
) -> None:
    rng = np.random.default_rng(seed)
    if quick:
        num_orders, num_splits = min(num_orders, 2), min(num_splits, 20)
    votes = simulated(12 if quick else 200, rng) if samples is None else read_votes(samples)
    full_size = len(votes[0].classes)
    setting = {
        "seed": seed,
        "samples": "simulated" if samples is None else samples.name,
        "questions": len(votes),
        "samples_a_question": full_size,
        "orders": num_orders,
        "splits": num_splits,
        "max_loss": MAX_LOSS,
    }
    report = Report("when a vote may stop", setting)
    orders = shuffled(votes, num_orders, rng)
    rules = named_rules(votes) | skylines(votes)
    with Progress(transient=True, disable=as_json) as progress:
        bar = progress.add_task("rules", total=None)
        outcomes = {}
        for name, rule in rules.items():
            outcomes[name] = play(rule, orders)
            progress.advance(bar)
        trial = try_rules(votes, max(1, num_orders // 4), rng, lambda rule: progress.advance(bar))
    arrivals = [[each.reordered(np.argsort(each.lengths, kind="stable").tolist()) for each in q] for q in orders]
    by_arrival = play(rules["its_hub Beta"], arrivals)
    full = outcomes["all samples"]
    report.figure("one sample: accuracy", float(np.mean([each.correct for each in votes])))
    report.figure("all samples: accuracy", float(full.correct.mean()))
    report.figure("all samples: tokens a question", float(full.tokens.mean()))
    for name, ran in outcomes.items():
        if ran is not full:
            report_rule(report, name, ran, full, orders, seed)
    report_rule(report, "its_hub Beta, all at once, in order of arrival", by_arrival, full, arrivals, seed)
    ours = outcomes[OUR_RULE]
    for peer in PEERS:
        rival = outcomes[peer]
        ratio = paired_bootstrap_ratio(ours.tokens, rival.tokens, rng=np.random.default_rng(seed))
        report.figure(f"ours against {peer}: tokens", *ratio)
        points = paired_bootstrap(ours.correct, rival.correct, rng=np.random.default_rng(seed))
        report.figure(f"ours against {peer}: points", *(100 * value for value in points))
        report.bar(Bar.at_most(f"tokens against {peer}, upper end", ratio.high, 1.0))
        rounds = float(ours.num_rounds.mean() / rival.num_rounds.mean())
        report.bar(Bar.at_most(f"rounds against {peer}", rounds, 1.0))
    gain = paired_bootstrap(ours.correct, full.correct, rng=np.random.default_rng(seed))
    report.bar(Bar.at_least("accuracy against all samples, points, lower end", 100 * gain.low, -1.0))
    cross_validate(report, trial, num_splits, rng)
    report_weights(report, votes, seed)
    if plot_path is not None:
        plot_trial(trial, trial.chosen(MAX_LOSS), f"{setting['samples']}: {len(votes)} questions", plot_path)
    if output_path is not None:
        output_path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    report.show(as_json)


if __name__ == "__main__":
    main()
