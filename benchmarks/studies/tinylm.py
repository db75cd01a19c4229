"""What the embedded models are worth as a test bed: right and wrong answers, lengths, doubts, verdicts, scores.

    python -m benchmarks.studies.tinylm --seed 90 --num_problems 600

Every figure is of held-out problems drawn by `--seed`; intervals are 95 %, from resampling whole questions. A bar that
is missed is a property of the models, which no tuning of a controller takes away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.chains import Author, Chain
from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.judging import Check, Judge, JudgedStep, problems_of
from benchmarks._lib.lab import MODELS, Lab
from benchmarks._lib.report import Report
from benchmarks._lib.runs import FORCED_LEN
from benchmarks._lib.separation import auc, auc_over_all, auc_within, best_of, resampled
from scaffolding_ext.evaluation.run.datasets import Sample, load_dataset
from scaffolding_ext.tinylm.grammar import FIND, Problem

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NUM_VOTES = 16
BEST_OF = 12
BLOCK = 40  # questions whose chains stay in the prefix cache while they are asked about
QUARTERS = (0.25, 0.5, 0.75, 1.0)
CUTS = tuple(range(32, 513, 32))


class Measured(NamedTuple):
    """Everything asked of the models, in the order of the questions.

    Attributes:
        chains: One chain of the target a question.
        votes: Chains of the first questions, `NUM_VOTES` each, the one in `chains` first, those of a question together;
            behind them the same of questions of the kind `FIND`.
        verdicts: P(YES) of `votes`.
        checks: Written checks of `votes`.
        scores: Mean log-probability of `votes`.
        steps: Judged steps of each of `votes`.
        quarters: Forced answers at `QUARTERS` of each of `chains`' thinking.
        cuts: Forced answers at those of `CUTS` that a chain reaches.
        draft: One chain of the draft a question.
        draft_scores: Mean log-probability of those under the target.
    """

    chains: list[Chain]
    votes: list[Chain]
    verdicts: list[float]
    checks: list[Check]
    scores: list[float]
    steps: list[list[JudgedStep]]
    quarters: list[list[str | None]]
    cuts: list[list[str | None]]
    draft: list[Chain]
    draft_scores: list[float]

    def judge(self, target: Judge, votes: list[Chain], problems: dict[str, Problem]) -> None:
        """Add chains of the target with all that tells right from wrong ones."""
        self.votes.extend(votes)
        self.verdicts.extend(target.verdicts(votes))
        self.checks.extend(target.checks(votes))
        self.scores.extend(target.mean_logprobs(votes))
        self.steps.extend(target.judged_steps(votes, problems))


def measure(samples: list[Sample], searches: list[Sample], num_vote_problems: int, seed: int, lab: Lab) -> Measured:
    """Sample and ask, block by block."""
    measured = Measured([], [], [], [], [], [], [], [], [], [])
    target, draft = Judge(lab, "target"), Author(lab, "draft")
    problems = problems_of(samples, seed) | problems_of(searches, seed, FIND)
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
        votes = []
        for i, chain in enumerate(chains[: len(voting)]):
            votes += [chain, *more[i * (NUM_VOTES - 1) : (i + 1) * (NUM_VOTES - 1)]]
        measured.judge(target, votes, problems)
    for start in track(range(0, len(searches), BLOCK), "blocks of searches"):
        found = target.chains(searches[start : start + BLOCK], seed, 0, NUM_VOTES)
        measured.judge(target, found, problems)
    return measured


def add_accuracy(report: Report, measured: Measured) -> None:
    """How often one chain is right, by kind, and what a vote adds."""
    for name, chains, low, high in (("target", measured.chains, 0.7, 0.85), ("draft", measured.draft, 0.35, 0.6)):
        accuracy = report.share(f"{name}: accuracy", sum(chain.is_right for chain in chains), len(chains))
        for kind in sorted({chain.sample.kind or "" for chain in chains}):
            some = [chain.is_right for chain in chains if chain.sample.kind == kind]
            report.share(f"{name}: accuracy, {kind}", sum(some), len(some))
        report.bar(f"{name} accuracy", accuracy, ">=", low)
        report.bar(f"{name} accuracy", accuracy, "<=", high)
    searched = [chain.is_right for chain in measured.votes if chain.sample.kind == FIND]
    report.figure(f"target: accuracy, {FIND}", float(np.mean(searched)))
    groups = [measured.votes[i : i + NUM_VOTES] for i in range(0, len(measured.votes), NUM_VOTES)]
    groups = [group for group in groups if group[0].sample.kind != FIND]
    voted = [float(_majority(group) == group[0].sample.target) for group in groups]
    single = [float(np.mean([chain.is_right for chain in group])) for group in groups]
    report.figure("target: one chain, on the voted questions", float(np.mean(single)))
    share = report.share(f"target: vote of {NUM_VOTES}", int(sum(voted)), len(voted))
    report.bar(f"vote of {NUM_VOTES}", share, "<=", 0.97)
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
        "correlation of chain length with steps", *resampled(lambda i: _correlation(lengths[i], steps[i]), len(steps))
    )
    after = np.array(
        [len(chain.ids) - (chain.beliefs[-1].position if chain.beliefs else len(chain.ids)) for chain in chains]
    )
    share = resampled(lambda i: float(after[i].sum() / lengths[i].sum()), len(chains))
    report.figure("share of tokens after the stable answer", *share)
    report.bar("share of tokens after the stable answer", share.value, ">=", 0.4)
    mended = np.array([float(chain.is_right and not chain.is_right_at(0)) for chain in chains])
    spoilt = np.array([float(chain.is_right_at(0) and not chain.is_right) for chain in chains])
    report.figure("wrong to right", *resampled(lambda i: float(mended[i].mean()), len(chains)))
    report.figure("right to wrong", *resampled(lambda i: float(spoilt[i].mean()), len(chains)))
    net = resampled(lambda i: float((mended[i] - spoilt[i]).mean()), len(chains))
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

    gain = resampled(margin, len(targets))
    report.figure("oracle: tokens", float(oracle_tokens.mean()))
    report.figure("oracle: accuracy", float(oracle_right.mean()))
    report.figure("oracle over the fixed cut at equal tokens", *gain)
    report.bar("oracle over the fixed cut at equal tokens", gain.value, ">=", 0.05)


def add_separation(report: Report, measured: Measured) -> None:
    """How well verdicts, checks and log-probabilities tell right chains from wrong ones, and what they choose."""
    right = np.array([chain.is_right for chain in measured.votes])
    searched = np.array([chain.sample.kind == FIND for chain in measured.votes])
    questions = np.repeat(np.arange(len(right) // NUM_VOTES), NUM_VOTES)
    judged = {
        "P(YES)": np.array(measured.verdicts),
        "written check": np.array([check.score for check in measured.checks]),
        "mean log-probability": np.array(measured.scores),
    }
    gains = {}
    for name, scores in judged.items():
        for kinds, of in (("all kinds", searched | True), ("derived kinds", ~searched), (FIND, searched)):
            report.figure(f"{name}, {kinds}: AUC over all chains", *auc_over_all(scores[of], right[of], questions[of]))
            within = auc_within(scores[of], right[of], questions[of])
            report.figure(f"{name}, {kinds}: AUC among chains of one question", *within)
        choice = best_of(scores, right, questions, BEST_OF)
        report.figure(f"{name}: best of {BEST_OF}", float(np.mean(choice.chosen)))
        gains[name] = report.difference(f"{name}: best of {BEST_OF} over one chain", choice.chosen, choice.single)
    report.figure("written check: tokens", float(np.mean([check.num_tokens for check in measured.checks])))
    steps = [(step.score, step.is_right, q) for q, own in zip(questions, measured.steps, strict=True) for step in own]
    step_scores, labels, step_questions = map(np.array, zip(*steps, strict=True))
    report.figure("P(YES) of a step: AUC", *auc_over_all(step_scores, labels, step_questions))
    scores, drafted = np.array(measured.draft_scores), np.array([chain.is_right for chain in measured.draft])
    scored = resampled(lambda i: auc(scores[i], drafted[i]), len(scores))
    report.figure("log-probability of draft chains: AUC", *scored)
    for name, bar in (
        (f"P(YES), {FIND}: AUC among chains of one question", 0.85),
        ("P(YES), all kinds: AUC over all chains", 0.75),
        ("P(YES), all kinds: AUC among chains of one question", 0.60),
        ("written check, all kinds: AUC among chains of one question", 0.75),
        ("P(YES) of a step: AUC", 0.75),
        ("log-probability of draft chains: AUC", 0.65),
    ):
        report.bar(name, report.figures[name]["value"] or 0.0, ">=", bar)
    better = max(gains["P(YES)"], gains["written check"])
    report.bar(f"best of {BEST_OF} by the better of both over one chain", better.value, ">=", 0.03)
    report.bar("lower end of its interval", better.low, ">", 0.0)


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


def _majority(chains: Sequence[Chain]) -> str | None:
    """The most frequent answer; of equally frequent ones the first."""
    counts = Counter(chain.answer for chain in chains if chain.answer is not None)
    return counts.most_common(1)[0][0] if counts else None


def _correlation(one: Floats, other: Floats) -> float:
    return float(np.corrcoef(one, other)[0, 1])


@benchmark("studies.tinylm --seed 90")
@size("--num_problems", 600, quick=40, help="Held-out problems.", least=2)
@size("--num_vote_problems", 200, quick=4, help="Of them those that are voted on.", least=2)
@size("--num_searches", 40, quick=2, help="Further ones of the kind find, voted on, too.", least=1)
@click.option("--target", default=MODELS["target"], show_default=True, help="The model that is measured.")
@click.option("--draft", default=MODELS["draft"], show_default=True, help="The weaker model beside it.")
def main(report: Report, num_problems: int, num_vote_problems: int, num_searches: int, target: str, draft: str) -> None:
    """The gates of the embedded models, with intervals."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    searches = load_dataset("tinylm:held_out", num_samples=num_searches, seed=report.seed, kind=FIND)
    with Lab({"draft": draft, "target": target}) as lab:
        measured = measure(samples, searches, num_vote_problems, report.seed, lab)
    for add in (add_accuracy, add_lengths, add_forced, add_separation):
        add(report, measured)


if __name__ == "__main__":
    main()
