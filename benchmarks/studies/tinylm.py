"""What the embedded models are worth as a test bed: right and wrong answers, lengths, doubts, verdicts, scores.

    python -m benchmarks.studies.tinylm --seed 90 --num_problems 600

Every figure is of held-out problems drawn by `--seed`; intervals are 95 %, from resampling whole questions. A bar that
is missed is a property of the models, which no tuning of a controller takes away.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from scipy.stats import rankdata

from benchmarks._lib.lab import Chain, Lab
from benchmarks._lib.report import Bar, Report, report_options
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.maths.statistics import Estimate, paired_bootstrap, wilson_interval

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NUM_VOTES = 16
BLOCK = 40  # questions whose chains stay in the prefix cache while they are asked about
QUARTERS = (0.25, 0.5, 0.75, 1.0)
CUTS = tuple(range(32, 513, 32))
FORCED_LEN = 4  # tokens that a forced answer costs, about
NUM_RESAMPLES = 1000


class Measured(NamedTuple):
    """Everything asked of the models, in the order of the questions.

    Attributes:
        chains: One chain of the target a question.
        votes: Further chains of the first questions, `NUM_VOTES` each with the first, those of a question together.
        verdicts: P(YES) of `votes`.
        quarters: Forced answers at `QUARTERS` of each of `chains`' thinking.
        cuts: Forced answers at those of `CUTS` that a chain reaches.
        draft: One chain of the draft a question.
        draft_scores: Mean log-probability of those under the target.
    """

    chains: list[Chain]
    votes: list[Chain]
    verdicts: list[float]
    quarters: list[list[str | None]]
    cuts: list[list[str | None]]
    draft: list[Chain]
    draft_scores: list[float]


def measure(samples: list[Sample], num_vote_problems: int, seed: int, models: tuple[str, str]) -> Measured:
    """Sample and ask, block by block."""
    measured = Measured([], [], [], [], [], [], [])
    hidden = not sys.stderr.isatty()
    with Lab(models[0]) as target, Lab(models[1]) as draft, Progress(console=Console(stderr=True), disable=hidden) as p:
        for start in p.track(range(0, len(samples), BLOCK)):
            block = samples[start : start + BLOCK]
            chains = target.sample_chains(block, seed, 0, 1)
            thinking = [max(1, len(target.thinking_ids(chain))) for chain in chains]
            measured.chains.extend(chains)
            measured.quarters.extend(
                target.forced_answers(chains, [[round(share * length) for share in QUARTERS] for length in thinking])
            )
            reached = [[cut for cut in CUTS if cut < length] for length in thinking]
            measured.cuts.extend(target.forced_answers(chains, reached))
            drafted = draft.sample_chains(block, seed, 0, 1)
            measured.draft.extend(drafted)
            measured.draft_scores.extend(target.mean_logprobs(drafted))
            voting = block[: max(0, num_vote_problems - start)]
            more = target.sample_chains(voting, seed, 1, NUM_VOTES - 1)
            for i, chain in enumerate(chains[: len(voting)]):
                measured.votes.extend([chain, *more[i * (NUM_VOTES - 1) : (i + 1) * (NUM_VOTES - 1)]])
            measured.verdicts.extend(target.verdicts(measured.votes[len(measured.verdicts) :]))
    return measured


def add_accuracy(report: Report, measured: Measured) -> None:
    """How often one chain is right, by kind, and what a vote adds."""
    for name, chains in (("target", measured.chains), ("draft", measured.draft)):
        right = [chain.is_right for chain in chains]
        report.figure(f"{name}: accuracy", float(np.mean(right)), *wilson_interval(sum(right), len(right)))
        for kind in sorted({chain.sample.kind or "" for chain in chains}):
            some = [chain.is_right for chain in chains if chain.sample.kind == kind]
            report.figure(f"{name}: accuracy, {kind}", float(np.mean(some)), *wilson_interval(sum(some), len(some)))
    draft = report.figures["draft: accuracy"]["value"] or 0.0
    report.bar(Bar.at_least("draft accuracy", draft, 0.35))
    report.bar(Bar.at_most("draft accuracy", draft, 0.60))
    groups = [measured.votes[i : i + NUM_VOTES] for i in range(0, len(measured.votes), NUM_VOTES)]
    voted = [float(_majority(group) == group[0].sample.target) for group in groups]
    single = [float(np.mean([chain.is_right for chain in group])) for group in groups]
    rng = np.random.default_rng(0)
    report.figure("target: one chain, on the voted questions", float(np.mean(single)))
    report.figure(f"target: vote of {NUM_VOTES}", float(np.mean(voted)), *wilson_interval(int(sum(voted)), len(voted)))
    gain = paired_bootstrap(voted, single, rng=rng)
    report.figure(f"vote of {NUM_VOTES} over one chain", *gain)
    report.bar(Bar.at_least(f"vote of {NUM_VOTES} over one chain", gain.value, 0.05))


def add_lengths(report: Report, measured: Measured) -> None:
    """First passes, whole chains, and what is written after the answer is stable."""
    chains = measured.chains
    answered = [chain for chain in chains if chain.beliefs]
    firsts = np.array([chain.beliefs[0].position for chain in answered], float)
    lengths = np.array([len(chain.ids) for chain in chains], float)
    for name, values in (("first pass", firsts), ("chain", lengths)):
        for quantile in (10, 50, 90):
            report.figure(f"{name}: tokens, p{quantile}", float(np.percentile(values, quantile)))
    spread = float(np.percentile(firsts, 90) / np.percentile(firsts, 10))
    report.figure("first pass: p90 / p10", spread)
    report.bar(Bar.at_least("first pass: p90 / p10", spread, 5))
    steps = np.array([chain.sample.prompt.count(",") + 1 for chain in chains], float)
    report.figure(
        "correlation of chain length with steps", *_resampled(lambda i: _correlation(lengths[i], steps[i]), len(steps))
    )
    after = np.array(
        [len(chain.ids) - (chain.beliefs[-1].position if chain.beliefs else len(chain.ids)) for chain in chains]
    )
    share = _resampled(lambda i: float(after[i].sum() / lengths[i].sum()), len(chains))
    report.figure("share of tokens after the stable answer", *share)
    report.bar(Bar.at_least("share of tokens after the stable answer", share.value, 0.4))
    mended = np.array([float(chain.is_right and not chain.is_right_at(0)) for chain in chains])
    spoilt = np.array([float(chain.is_right_at(0) and not chain.is_right) for chain in chains])
    report.figure("wrong to right", *_resampled(lambda i: float(mended[i].mean()), len(chains)))
    report.figure("right to wrong", *_resampled(lambda i: float(spoilt[i].mean()), len(chains)))
    net = _resampled(lambda i: float((mended[i] - spoilt[i]).mean()), len(chains))
    report.figure("wrong to right less right to wrong", *net)
    report.bar(Bar.at_least("wrong to right less right to wrong", net.value, 0.0))


def add_forced(report: Report, measured: Measured) -> None:
    """Forced answers along the chain, and the oracle that stops at the first right one against one cut for all."""
    targets = [chain.sample.target for chain in measured.chains]
    shares = []
    for column, share in enumerate(QUARTERS):
        right = [answers[column] == target for answers, target in zip(measured.quarters, targets, strict=True)]
        shares.append(float(np.mean(right)))
        report.figure(f"forced answer at {share:.0%}", shares[-1], *wilson_interval(sum(right), len(right)))
    report.bar(Bar.at_least("forced answers: least gain of a quarter", float(np.diff(shares).min()), 0.0))
    tokens, right = cut_outcomes(measured.chains, measured.cuts)
    first_right = np.where(right[:, :-1].any(axis=1), right[:, :-1].argmax(axis=1), len(CUTS))
    rows = np.arange(len(targets))
    oracle_tokens, oracle_right = tokens[rows, first_right], right[rows, first_right]

    def margin(i: Integers) -> float:
        at_equal_tokens = np.interp(oracle_tokens[i].mean(), tokens[i].mean(axis=0), right[i].mean(axis=0))
        return float(oracle_right[i].mean() - at_equal_tokens)

    gain = _resampled(margin, len(targets))
    report.figure("oracle: tokens", float(oracle_tokens.mean()))
    report.figure("oracle: accuracy", float(oracle_right.mean()))
    report.figure("oracle over the fixed cut at equal tokens", *gain)
    report.bar(Bar.at_least("oracle over the fixed cut at equal tokens", gain.value, 0.05))


def add_separation(report: Report, measured: Measured) -> None:
    """How well verdicts and scores tell right chains from wrong ones: over all, and among chains of one question."""
    right = np.array([chain.is_right for chain in measured.votes])
    questions = np.repeat(np.arange(len(right) // NUM_VOTES), NUM_VOTES)
    verdicts = np.array(measured.verdicts)
    pooled = _resampled_groups(lambda i: auc(verdicts[i], right[i]), questions)
    report.figure("P(YES): AUC over all chains", *pooled)
    report.bar(Bar.at_least("P(YES): AUC over all chains", pooled.value, 0.75))
    within = [
        auc(verdicts[questions == q], right[questions == q])
        for q in np.unique(questions)
        if 0 < right[questions == q].sum() < NUM_VOTES
    ]
    if within:
        values = np.array(within)
        report.figure(
            "P(YES): AUC among chains of one question", *_resampled(lambda i: float(values[i].mean()), len(values))
        )
    scores = np.array(measured.draft_scores)
    drafted = np.array([chain.is_right for chain in measured.draft])
    scored = _resampled(lambda i: auc(scores[i], drafted[i]), len(scores))
    report.figure("log-probability of draft chains: AUC", *scored)
    report.bar(Bar.at_least("log-probability of draft chains: AUC", scored.value, 0.65))


def cut_outcomes(
    chains: Sequence[Chain], forced: Sequence[Sequence[str | None]]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Decoded tokens and right answers of each chain, cut at each of `CUTS` and, in the last column, left alone."""
    tokens = np.zeros((len(chains), len(CUTS) + 1))
    right = np.zeros((len(chains), len(CUTS) + 1), bool)
    for row, (chain, answers) in enumerate(zip(chains, forced, strict=True)):
        reached = len(answers)
        tokens[row], right[row] = len(chain.ids), chain.is_right
        tokens[row, :reached] = np.array(CUTS[:reached]) + FORCED_LEN
        right[row, :reached] = [answer == chain.sample.target for answer in answers]
    return tokens, right


def auc(scores: Floats, labels: npt.NDArray[np.bool_]) -> float:
    """Probability that a positive scores above a negative, ties half; 0.5 where one of the classes is empty."""
    num_positive, num_negative = int(labels.sum()), int((~labels).sum())
    if num_positive == 0 or num_negative == 0:
        return 0.5
    ranks = rankdata(scores)
    return float((ranks[labels].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def _majority(chains: Sequence[Chain]) -> str | None:
    """The most frequent answer; of equally frequent ones the first."""
    counts = Counter(chain.answer for chain in chains if chain.answer is not None)
    return counts.most_common(1)[0][0] if counts else None


def _correlation(one: Floats, other: Floats) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def _resampled(figure: Callable[[Integers], float], num_questions: int) -> Estimate:
    """A figure of the questions, with the interval from resampling them."""
    return _resampled_groups(figure, np.arange(num_questions))


def _resampled_groups(figure: Callable[[Integers], float], questions: Integers) -> Estimate:
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(questions == question) for question in np.unique(questions)]
    draws = rng.integers(len(members), size=(NUM_RESAMPLES, len(members)))
    values = [figure(np.concatenate([members[question] for question in draw])) for draw in draws]
    low, high = np.quantile(values, (0.025, 0.975))
    return Estimate(figure(np.arange(len(questions))), float(low), float(high))


@click.command(epilog="Example: python -m benchmarks.studies.tinylm --seed 90 --json")
@report_options
@click.option("--num_problems", default=600, show_default=True, help="Held-out problems; --quick takes 40 at most.")
@click.option("--num_vote_problems", default=200, show_default=True, help="Of them those that are voted on; quick: 4.")
@click.option("--target", default="tinylm/target", show_default=True, help="The model that is measured.")
@click.option("--draft", default="tinylm/draft", show_default=True, help="The weaker model beside it.")
def main(
    seed: int, quick: bool, as_json: bool, num_problems: int, num_vote_problems: int, target: str, draft: str
) -> None:
    """The gates of the embedded models, with intervals."""
    if quick:
        num_problems, num_vote_problems = min(40, num_problems), min(4, num_vote_problems)
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    measured = measure(samples, num_vote_problems, seed, (target, draft))
    setting = {"seed": seed, "num_problems": num_problems, "num_vote_problems": num_vote_problems}
    report = Report("tinylm", setting | {"target": target, "draft": draft, "temperature": 0.7})
    for add in (add_accuracy, add_lengths, add_forced, add_separation):
        add(report, measured)
    report.show(as_json)


if __name__ == "__main__":
    main()
