"""When may a vote stop? Every allocation rule on samples that were drawn before.

    python -m benchmarks.studies.vote_replay --samples runs/votes/samples.jsonl --seed 0

Each question's samples are put into random orders, and each rule is given them until it stops; all rules see the same
orders. Files are those that `scaffolding-ext tune` reads; without one the votes are drawn from
simulated questions, whose chance of the right answer is spread evenly over [0.2, 1].

For every rule: accuracy against the vote of all samples and tokens as a share of it (95 % intervals, paired, questions
resampled whole), rounds, tokens on the critical path, how often it stopped early, and a stop at random that draws the
same numbers of samples from the questions in another order. Then settings are chosen on half of the questions, the
cheapest that loses at most 0.5 points, and tested on the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, size, track
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks._lib.vote_replays import Outcome, play, shuffled
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency, DirichletConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling, EarlyStoppingWindow
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.baselines import Even, LengthThreshold
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment, LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import DynamicSkyline, InitialStepSkyline, fit_curve
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.controllers.vote.trace_confidence import filtered_weights
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.recordings.recording import RecordedQuestion, Recording
from scaffolding_ext.evaluation.trial.choice import Cheapest
from scaffolding_ext.evaluation.trial.picture import draw_trial
from scaffolding_ext.evaluation.trial.plays import Trial
from scaffolding_ext.evaluation.trial.space import labelled_votes
from scaffolding_ext.evaluation.trial.tuned_text import frontier_of

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
        OUR_RULE: LeaderChange(miss=0.1, leap=2.0),
        f"{OUR_RULE}, in single leaps": LeaderChange(miss=0.1, leap=1.0),
        f"{OUR_RULE}, gives up": LeaderChange(miss=0.1, leap=2.0, give_up=True),
    }


def skylines(votes: Sequence[LabelledVote]) -> dict[str, AllocationRule]:
    """Curves fitted on the votes in the order of the file."""
    knobs = tuple(knob for knob in (2, 4, 6, 8, 12) if knob < min(len(each.classes) for each in votes))
    curves = tuple(fit_curve(votes, knob, 0.9) for knob in knobs)
    return {
        "initial-step skyline": InitialStepSkyline(knob=KNOB, curve=fit_curve(votes, KNOB, 0.9)),
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


def simulated_recording(num_questions: int, rng: np.random.Generator) -> Recording:
    """Simulated votes as a recording."""
    questions = [
        RecordedQuestion(
            id=each.id,
            run="simulated",
            task="simulated",
            classes=np.array(each.classes),
            correct=np.array(each.correct),
            target=0,
            answers=["0", "1", "2", "3", "4"],
            tokens=np.array(each.lengths),
            missing=frozenset({"seconds", "logprobs", "rewards", "looks", "texts"}),
        )
        for each in simulated(num_questions, rng)
    ]
    return Recording(questions, ["simulated"], "sha256:simulated")


def report_rule(report: Report, name: str, ran: Outcome, full: Outcome, orders: list[list[LabelledVote]]) -> None:
    """One rule's row of figures."""
    report.difference(f"{name}: accuracy difference, points", ran.correct, full.correct, scale=100)
    report.ratio(f"{name}: tokens, share of all", ran.tokens, full.tokens)
    report.ratio(f"{name}: tokens if all start at once", ran.tokens_at_once, full.tokens)
    report.figure(f"{name}: samples", float(ran.num_samples.mean()))
    report.figure(f"{name}: rounds", float(ran.num_rounds.mean()))
    critical = float(ran.critical_length.sum() / full.critical_length.sum())
    report.figure(f"{name}: critical path, share of one round of all", critical)
    report.figure(f"{name}: stopped early, share", float(ran.stopped.mean()))
    report.figure(f"{name}: winner changed, share", float(ran.changed.mean()))
    sizes = report.rng.permutation(ran.sizes.ravel()).reshape(ran.sizes.shape)
    blind = [
        [each.is_right(int(size)) for each, size in zip(question, row, strict=True)]
        for question, row in zip(orders, sizes, strict=True)
    ]
    report.difference(f"{name}: random stop at its rate, points", np.mean(blind, axis=1), full.correct, scale=100)


def cross_validate(report: Report, trial: Trial, num_splits: int, rng: np.random.Generator) -> None:
    """Choose the setting of each list on half of the questions and test it on the other half."""
    goal = Cheapest(MAX_LOSS)
    num_groups = int(trial.groups.max()) + 1
    groups = {**{name: {name: own} for name, own in trial.lists.items()}, "any list": trial.lists}
    tested: dict[str, list[tuple[float, float, float]]] = {name: [] for name in groups}
    for _ in range(num_splits):
        chooses = rng.permutation(num_groups) < num_groups // 2
        tested_on = ~chooses[trial.groups]
        for name, lists in groups.items():
            settings, found = trial.candidates(lists)
            index = goal.chosen(found, chooses.astype(float), rng)
            ran = trial.full if index is None else trial.played[settings[index]]
            share = ran.costs["decoded"][tested_on].sum() / trial.full.costs["decoded"][tested_on].sum()
            gain = 100 * float(np.mean(ran.right[tested_on] - trial.full.right[tested_on]))
            tested[name].append((gain, float(share), float(ran.rounds[tested_on].mean())))
    for name, rows in tested.items():
        values = np.array(rows)
        low, high = np.quantile(values, (0.025, 0.975), axis=0)
        for column, label in enumerate(("points", "tokens, share of all", "rounds")):
            report.figure(f"chosen on half, {name}: {label}", values[:, column].mean(), low[column], high[column])


def report_weights(report: Report, votes: Sequence[LabelledVote]) -> None:
    """Best-of-N, weighted votes and DeepConf's filtered vote on all samples, where there is a score."""
    plain = [float(each.is_right(len(each.classes))) for each in votes]

    def compare(name: str, right: list[bool]) -> None:
        report.figure(f"{name}: accuracy", float(np.mean(right)))
        report.difference(f"{name}: difference from the plain vote, points", right, plain, scale=100)

    def compare_winners(name: str, weights: Sequence[Sequence[float]]) -> None:
        elections = [elect(each.classes, own) for each, own in zip(votes, weights, strict=True)]
        pairs = zip(votes, elections, strict=True)
        compare(name, [winner != -1 and bool(each.correct[first]) for each, (winner, first) in pairs])

    if votes[0].rewards is not None:
        scores = [list(each.rewards or ()) for each in votes]
        best = [int(np.argmax(score)) for score in scores]
        compare("best-of-N by reward", [bool(v.correct[index]) for v, index in zip(votes, best, strict=True)])
        weighted = "reward-weighted vote"
    elif votes[0].logprobs is not None:
        scores = [[float(np.exp(value)) for value in each.logprobs or ()] for each in votes]
        weighted = "probability-weighted vote"
    else:
        return
    compare_winners(weighted, scores)
    for share in (0.1, 0.5, 0.9):
        filtered = [filtered_weights(each.classes, own, share) for each, own in zip(votes, scores, strict=True)]
        compare_winners(f"DeepConf's offline vote, best {share:.0%}", filtered)


@benchmark("studies.vote_replay --samples runs/votes/samples.jsonl")
@click.option("--samples", type=DATA, help="Labelled samples.")
@size("--num_simulated", 200, quick=12, help="Questions that are simulated where there is no file.", least=2)
@size("--num_orders", 40, quick=2, help="Orders of each question.")
@size("--num_splits", 200, quick=20, help="Random halves.")
@plotted
def main(
    report: Report,
    samples: Path | None,
    num_simulated: int,
    num_orders: int,
    num_splits: int,
    plot_path: Path | None,
) -> None:
    """When may a vote stop? Every allocation rule on samples that were drawn before."""
    recording = simulated_recording(num_simulated, report.rng) if samples is None else read_recording([samples])
    votes = labelled_votes(recording)
    report.setting |= {"questions": len(votes), "samples_a_question": len(votes[0].classes), "max_loss": MAX_LOSS}
    orders = shuffled(votes, num_orders, report.rng)
    rules = named_rules(votes) | skylines(votes)
    outcomes = {name: play(rule, orders) for name, rule in track(rules.items(), "rules")}
    trial = Trial(recording)
    trial.try_all()
    arrivals = [[each.reordered(np.argsort(each.lengths, kind="stable").tolist()) for each in q] for q in orders]
    by_arrival = play(rules["its_hub Beta"], arrivals)
    full = outcomes["all samples"]
    report.figure("one sample: accuracy", float(np.mean([each.correct for each in votes])))
    report.figure("all samples: accuracy", float(full.correct.mean()))
    report.figure("all samples: tokens a question", float(full.tokens.mean()))
    for name, ran in outcomes.items():
        if ran is not full:
            report_rule(report, name, ran, full, orders)
    report_rule(report, "its_hub Beta, all at once, in order of arrival", by_arrival, full, arrivals)
    ours = outcomes[OUR_RULE]
    for peer in PEERS:
        rival = outcomes[peer]
        ratio = report.ratio(f"ours against {peer}: tokens", ours.tokens, rival.tokens)
        report.difference(f"ours against {peer}: points", ours.correct, rival.correct, scale=100)
        report.bar(f"tokens against {peer}, upper end", ratio.high, "<=", 1.0)
        report.bar(f"rounds against {peer}", float(ours.num_rounds.mean() / rival.num_rounds.mean()), "<=", 1.0)
    lowest = report.figures[f"{OUR_RULE}: accuracy difference, points"]["low"] or 0.0
    report.bar("accuracy against all samples, points, lower end", lowest, ">=", -1.0)
    cross_validate(report, trial, num_splits, report.rng)
    report_weights(report, votes)
    if plot_path is not None:
        goal = Cheapest(MAX_LOSS)
        rows = trial.rows({**trial.baselines(goal), "chosen": trial.judged(goal)})
        draw_trial(trial, frontier_of(trial), rows, plot_path)


if __name__ == "__main__":
    main()
