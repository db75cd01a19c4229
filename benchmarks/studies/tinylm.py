"""What the embedded models are worth as a test bed: right and wrong answers, lengths, doubts, verdicts, scores.

    python -m benchmarks.studies.tinylm --seed 90 --num_problems 600

Every figure is of held-out problems drawn by `--seed`; intervals are 95 %, from resampling whole questions. A bar that
is missed is a property of the models, which no tuning of a controller takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from benchmarks._lib.chains import Author, Chain
from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.lab import MODELS, Lab
from benchmarks._lib.report import Report
from benchmarks._lib.runs import FORCED_LEN
from scaffolding_ext.evaluation.datasets import Sample, load_dataset
from scaffolding_ext.maths.statistics import Estimate

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NUM_VOTES = 16
BLOCK = 40  # questions whose chains stay in the prefix cache while they are asked about
QUARTERS = (0.25, 0.5, 0.75, 1.0)
CUTS = tuple(range(32, 513, 32))
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


def measure(samples: list[Sample], num_vote_problems: int, seed: int, lab: Lab) -> Measured:
    """Sample and ask, block by block."""
    measured = Measured([], [], [], [], [], [], [])
    target, draft = Author(lab, "target"), Author(lab, "draft")
    for start in track(range(0, len(samples), BLOCK), "blocks of problems"):
        block = samples[start : start + BLOCK]
        chains = target.chains(block, seed, 0, 1)
        thinking = [max(1, len(target.thinking_ids(chain))) for chain in chains]
        measured.chains.extend(chains)
        measured.quarters.extend(
            target.forced_answers(chains, [[round(share * length) for share in QUARTERS] for length in thinking])
        )
        reached = [[cut for cut in CUTS if cut < length] for length in thinking]
        measured.cuts.extend(target.forced_answers(chains, reached))
        drafted = draft.chains(block, seed, 0, 1)
        measured.draft.extend(drafted)
        measured.draft_scores.extend(target.mean_logprobs(drafted))
        voting = block[: max(0, num_vote_problems - start)]
        more = target.chains(voting, seed, 1, NUM_VOTES - 1)
        for i, chain in enumerate(chains[: len(voting)]):
            measured.votes.extend([chain, *more[i * (NUM_VOTES - 1) : (i + 1) * (NUM_VOTES - 1)]])
        measured.verdicts.extend(target.verdicts(measured.votes[len(measured.verdicts) :]))
    return measured


def add_accuracy(report: Report, measured: Measured) -> None:
    """How often one chain is right, by kind, and what a vote adds."""
    for name, chains in (("target", measured.chains), ("draft", measured.draft)):
        accuracy = report.share(f"{name}: accuracy", sum(chain.is_right for chain in chains), len(chains))
        for kind in sorted({chain.sample.kind or "" for chain in chains}):
            some = [chain.is_right for chain in chains if chain.sample.kind == kind]
            report.share(f"{name}: accuracy, {kind}", sum(some), len(some))
    report.bar("draft accuracy", accuracy, ">=", 0.35)
    report.bar("draft accuracy", accuracy, "<=", 0.60)
    groups = [measured.votes[i : i + NUM_VOTES] for i in range(0, len(measured.votes), NUM_VOTES)]
    voted = [float(_majority(group) == group[0].sample.target) for group in groups]
    single = [float(np.mean([chain.is_right for chain in group])) for group in groups]
    report.figure("target: one chain, on the voted questions", float(np.mean(single)))
    report.share(f"target: vote of {NUM_VOTES}", int(sum(voted)), len(voted))
    gain = report.difference(f"vote of {NUM_VOTES} over one chain", voted, single)
    report.bar(f"vote of {NUM_VOTES} over one chain", gain.value, ">=", 0.05)


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
    report.bar("first pass: p90 / p10", spread, ">=", 5)
    steps = np.array([chain.sample.prompt.count(",") + 1 for chain in chains], float)
    report.figure(
        "correlation of chain length with steps", *_resampled(lambda i: _correlation(lengths[i], steps[i]), len(steps))
    )
    after = np.array(
        [len(chain.ids) - (chain.beliefs[-1].position if chain.beliefs else len(chain.ids)) for chain in chains]
    )
    share = _resampled(lambda i: float(after[i].sum() / lengths[i].sum()), len(chains))
    report.figure("share of tokens after the stable answer", *share)
    report.bar("share of tokens after the stable answer", share.value, ">=", 0.4)
    mended = np.array([float(chain.is_right and not chain.is_right_at(0)) for chain in chains])
    spoilt = np.array([float(chain.is_right_at(0) and not chain.is_right) for chain in chains])
    report.figure("wrong to right", *_resampled(lambda i: float(mended[i].mean()), len(chains)))
    report.figure("right to wrong", *_resampled(lambda i: float(spoilt[i].mean()), len(chains)))
    net = _resampled(lambda i: float((mended[i] - spoilt[i]).mean()), len(chains))
    report.figure("wrong to right less right to wrong", *net)
    report.bar("wrong to right less right to wrong", net.value, ">=", 0.0)


def add_forced(report: Report, measured: Measured) -> None:
    """Forced answers along the chain, and the oracle that stops at the first right one against one cut for all."""
    targets = [chain.sample.target for chain in measured.chains]
    shares = []
    for column, share in enumerate(QUARTERS):
        num_right = sum(a[column] == target for a, target in zip(measured.quarters, targets, strict=True))
        shares.append(report.share(f"forced answer at {share:.0%}", num_right, len(targets)))
    report.bar("forced answers: least gain of a quarter", float(np.diff(shares).min()), ">=", 0.0)
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
    report.bar("oracle over the fixed cut at equal tokens", gain.value, ">=", 0.05)


def add_separation(report: Report, measured: Measured) -> None:
    """How well verdicts and scores tell right chains from wrong ones: over all, and among chains of one question."""
    right = np.array([chain.is_right for chain in measured.votes])
    questions = np.repeat(np.arange(len(right) // NUM_VOTES), NUM_VOTES)
    verdicts = np.array(measured.verdicts)
    pooled = _resampled_groups(lambda i: auc(verdicts[i], right[i]), questions)
    report.figure("P(YES): AUC over all chains", *pooled)
    report.bar("P(YES): AUC over all chains", pooled.value, ">=", 0.75)
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
    report.bar("log-probability of draft chains: AUC", scored.value, ">=", 0.65)


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


@benchmark("studies.tinylm --seed 90")
@size("--num_problems", 600, quick=40, help="Held-out problems.", least=2)
@size("--num_vote_problems", 200, quick=4, help="Of them those that are voted on.", least=2)
@click.option("--target", default=MODELS["target"], show_default=True, help="The model that is measured.")
@click.option("--draft", default=MODELS["draft"], show_default=True, help="The weaker model beside it.")
def main(report: Report, num_problems: int, num_vote_problems: int, target: str, draft: str) -> None:
    """The gates of the embedded models, with intervals."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    with Lab({"draft": draft, "target": target}) as lab:
        measured = measure(samples, num_vote_problems, report.seed, lab)
    for add in (add_accuracy, add_lengths, add_forced, add_separation):
        add(report, measured)


if __name__ == "__main__":
    main()
