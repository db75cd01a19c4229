"""Figures of a run: accuracy with its intervals, and every cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.answers import group
from scaffolding_ext.documents import plain
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.run_stats import OUTCOMES, Column, RunStats, Undetermined
from scaffolding_ext.evaluation.run.sections import SectionFigure
from scaffolding_ext.protocol.meta import Purpose, TokenCounts
from scaffolding_ext.stats.intervals import Estimate, Interval, share_of_questions
from scaffolding_ext.stats.repeats import majority_at_k, pass_at_k
from scaffolding_ext.stats.watching import lower_bound

_SEED = 0  # of subsets and resamples: a run has one summary


class Repeats(NamedTuple):
    """Figures over the epochs of a run's questions.

    Attributes:
        n: Epochs per question; of an interrupted run, the maximum.
        mean: mean@n, the share of right attempts, averaged over questions.
        majority: maj@k by `k`: the vote of `k` attempts is right.
        passed: pass@k by `k`: at least one of `k` attempts is right.
    """

    n: int
    mean: Estimate
    majority: dict[int, Estimate]
    passed: dict[int, Estimate]

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON-compatible dict; unknown bounds are null."""
        return {
            "mean_at_n": {"n": self.n, **plain(self.mean)},
            "maj_at_k": plain(self.majority),
            "pass_at_k": plain(self.passed),
        }


def _classes(numbers: Sequence[int], right: Sequence[bool], answers: Sequence[str], units_implied: bool) -> list[int]:
    """Return the class of each attempt's answer, -1 without one; all right answers are one class.

    Args:
        numbers: Of the wrong answers; -1 for no answer, and for a right one.
    """
    wrong = group([None if number < 0 else answers[number] for number in numbers], units_implied=units_implied)
    return [0 if is_right else number + (number >= 0) for is_right, number in zip(right, wrong, strict=True)]


_MOST_DISCARDED = 0.1  # share of the decoded tokens that triggers a warning
_FEWEST_EQUAL_VOTES = 4  # that trigger a warning
_MOST_UNANSWERED = 0.5  # share of the finished outputs that triggers a warning
_ALPHA = 0.05  # of the bound on lost answers
_PRICED = 1e6  # tokens per price
_UNIT = re.compile(r"[^\W\d_]|[%°$€]")  # may be a unit
_TIME_OUTS = ("RequestTimeoutError", "ServerTimeoutError")


class Audits(NamedTuple):
    """Findings of a run's audits.

    Attributes:
        num_changed: Those whose answer was changed by stopping.
        num_lost: Those whose right answer was lost by stopping.
        lost_at_least: Anytime-valid lower bound of the lost share, at 95 %.
        promised: The share that the stack's tuning promised; None without a promise.
    """

    num: int
    num_changed: int
    num_lost: int
    lost_at_least: float
    promised: float | None

    @property
    def is_broken(self) -> bool:
        return self.promised is not None and self.lost_at_least > self.promised

    def __str__(self) -> str:
        promised = "" if self.promised is None else f"; at most {self.promised:.1%} is promised"
        return (
            f"{self.num} audited, {self.num_changed} answers changed by stopping, {self.num_lost} right ones lost "
            f"(at least {self.lost_at_least:.1%}{promised})"
        )


class Lateness(NamedTuple):
    """Answers relative to their deadlines. A late answer is not wrong; it is counted separately.

    Attributes:
        num_wanted: Requests that had a deadline, including failed ones.
        num_late: Late answers, right or wrong.
        num_late_right: Right answers among these.
        in_time: Share of `num_wanted` answered in time, right or wrong.
        right_in_time: Share of `num_wanted` answered correctly and in time, with its 95 % interval.
    """

    num_wanted: int
    num_late: int
    num_late_right: int
    in_time: float
    right_in_time: Estimate

    def __str__(self) -> str:
        return (
            f"{self.num_late} of {self.num_wanted} answers late, {self.num_late_right} of them right; right and in "
            f"time {self.right_in_time.value:.1%}"
        )


class Drawn(NamedTuple):
    """Answers that votes drew, and the decoded tokens a request had they all been drawn.

    Attributes:
        mean: Answers a vote.
        most: Answers that a vote may draw.
        tokens_of_all: Estimate: each vote's tokens per answer, times `most`; tokens of discarded answers are left out.
    """

    mean: float
    most: float
    tokens_of_all: float


@dataclass(frozen=True)
class Summary:
    """Figures of one run. A failed sample counts as wrong, and its cost until it failed enters all means.

    Attributes:
        num_cut_off: Outputs that the budget ended and that are not right. They count as wrong, like the next three.
        num_unanswered: Other outputs without an answer.
        num_undetermined: Other answers that differ from the target as strings and that no comparison could decide.
        num_wrong: All other answers.
        accuracy: Right answers per sample, including failed ones; None without samples.
        accuracy_interval: 95 % interval (`stats.intervals.share_of_questions`).
        accuracy_of_finished: Right answers per sample that did not fail; None if all failed. It measures the answers,
            not the run, because failed samples are seldom a random subset.
        repeats: mean@n, maj@k and pass@k, with such intervals; None without samples.
        mean_decoded_tokens: Tokens decoded per sample, including probes, verification and discarded work.
        mean_computed_tokens: Tokens that the model ran on per sample: decoded and prefilled. None if a server tells no
            cached tokens; then prefilled tokens are upper bounds.
        mean_tokens_by_purpose: Decoded, prefilled and reused tokens per sample, by purpose.
        num_unmetered_tasks: Tasks without token counts; if it is not 0, the token figures are too low.
        num_unknown_reuse_tasks: Tasks whose server tells no cached tokens.
        is_priced: True if prices were given.
        mean_seconds: Wall-clock time per sample, from submission to its end.
        mean_seconds_by_phase: Seconds per sample that waited for the tasks of each purpose.
        cost: `total` and `per_sample`, in the currency of the prices; None without prices, or if prompts have one and a
            server tells no cached tokens.
        exit_reasons: Samples by exit reason; those without one count under `"unknown"`.
        jobs: `num`, and of each job (a request, including failed ones) `mean`, `p50` and `p95` of its decoded `tokens`
            and of its `seconds`. None without samples.
        sections: Published by controllers, by section and name; see `request.figures`.
        calibration_tokens: Tokens of the stack's calibrations before the run: decoded, prefilled and reused. No other
            figure includes them. None without a calibration, or if its file has no cost.
        audits: Findings of the audits; None if no request was audited.
        undetermined: The first undetermined answers, three at most.
        lateness: None if no request had a deadline.
        drawn: None if the stack is no vote.
        num_equal_votes: Votes whose samples are all the same text.
    """

    num_samples: int
    num_failed: int
    num_correct: int
    num_cut_off: int
    num_unanswered: int
    num_undetermined: int
    num_wrong: int
    accuracy: float | None
    accuracy_interval: Interval
    accuracy_of_finished: float | None
    accuracy_of_finished_interval: Interval
    repeats: Repeats | None
    total_tokens: dict[str, int]
    mean_decoded_tokens: float | None
    mean_computed_tokens: float | None
    mean_tokens_by_purpose: dict[str, dict[str, float]]
    num_unmetered_tasks: int
    mean_seconds: float | None
    mean_seconds_by_phase: dict[str, float]
    cost: dict[str, float] | None
    exit_reasons: dict[str, int]
    errors: dict[str, int]
    jobs: dict[str, Any] | None
    sections: dict[str, dict[str, SectionFigure]]
    calibration_tokens: dict[str, int] | None = None
    audits: Audits | None = None
    undetermined: tuple[Undetermined, ...] = ()
    lateness: Lateness | None = None
    num_unknown_reuse_tasks: int = 0
    is_priced: bool = False
    drawn: Drawn | None = None
    num_equal_votes: int = 0

    @property
    def num_timed_out(self) -> int:
        """Failed samples whose time was up; part of `num_failed`, and not of `num_wrong`."""
        return sum(self.errors.get(name, 0) for name in _TIME_OUTS)

    @property
    def discarded_share(self) -> float:
        """Share of the decoded tokens that reached no output; 0 if none were decoded."""
        discarded = self.mean_tokens_by_purpose.get(str(Purpose.DISCARDED), {}).get("decoded", 0.0)
        return discarded / self.mean_decoded_tokens if self.mean_decoded_tokens else 0.0

    @property
    def warnings(self) -> list[str]:
        """Hints for the user about wasted tokens, and missing or incomparable answers."""
        found = []
        if self.is_priced and self.cost is None:
            found.append(
                f"the server of {self.num_unknown_reuse_tasks} tasks tells no cached tokens, so the cost is not known: "
                "give a price of decoded tokens only, or see docs/servers.md"
            )
        if self.discarded_share > _MOST_DISCARDED:
            found.append(
                f"{self.discarded_share:.0%} of the decoded tokens were discarded: chains ran on while their probes "
                "waited, or answers of a vote were stopped. Let the server answer probes first (docs/servers.md), "
                "raise the worker's max_batch_size, lower max_parallel_requests or the controller's max_lead, or "
                "probe less often"
            )
        if self.num_equal_votes >= _FEWEST_EQUAL_VOTES and self.num_equal_votes == self.num_samples - self.num_failed:
            found.append(
                f"in each of {self.num_equal_votes} votes, all samples are the same text: check that "
                "the server heeds temperature and seed"
            )
        if self.audits is not None and self.audits.is_broken:
            found.append(
                f"the promise of this stack is broken: {self.audits}. Record its model again, then tune again: "
                "scaffolding-ext tune"
            )
        num_ended = self.num_samples - self.num_failed - self.num_cut_off
        if self.num_unanswered > _MOST_UNANSWERED * num_ended:
            found.append(
                f"{self.num_unanswered} of {num_ended} finished outputs state no answer, neither in a "
                '\\boxed{} nor after "the answer is". Ask for a box with prompt.prompt_suffix, or name the model\'s '
                "family with prompt.family (docs/stack_files.md); `scaffolding-ext check STACK` shows what is missing"
            )
        if self.num_undetermined:
            shown = "; ".join(f"{one.answer!r} instead of {one.target!r} ({one.id})" for one in self.undetermined)
            has_unit = any(_UNIT.search(one.answer) for one in self.undetermined)
            found.append(
                f"{self.num_undetermined} of {self.num_samples} answers could not be compared with the right one, and "
                f"count as wrong: {shown}"
                + (". If the questions name the unit, set evaluation.units_implied: true" if has_unit else "")
                + " (docs/answers.md)"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON-compatible dict, with mean@n, maj@k and pass@k beside the other figures."""
        fields = {**vars(self), "num_timed_out": self.num_timed_out}
        repeats = fields.pop("repeats")
        fields |= {"mean_at_n": None, "maj_at_k": {}, "pass_at_k": {}} if repeats is None else repeats.to_json()
        return plain(fields)  # type: ignore[no-any-return]


def summarize(
    records: Iterable[Record],
    calibration_cost: TokenCounts | None = None,
    *,
    price: Mapping[str, float] | None = None,
    units_implied: bool = False,
) -> Summary:
    """Summarize a run's records; the arguments are those of `RunStats` and of `summary_of`."""
    tally = RunStats(units_implied)
    for record in records:
        tally.add(record)
    return summary_of(tally, calibration_cost, price=price)


def summary_of(
    tally: RunStats,
    calibration_cost: TokenCounts | None = None,
    *,
    price: Mapping[str, float] | None = None,
    promised_loss: float | None = None,
) -> Summary:
    """Compute the figures of a tally.

    Args:
        calibration_cost: Result of `session.calibration_cost` for the run's controller.
        price: Price of a million tokens that were `decoded`, `prefilled`, `reused`; None for no costs.
        promised_loss: Share of requests that the stack's tuning promised to lose at most.
    """
    num_samples, num_finished = tally.num_samples, tally.num_samples - tally.num_failed
    columns = tally.columns()
    num_of = dict(zip(OUTCOMES, np.bincount(columns["outcome"].astype(int), minlength=len(OUTCOMES)), strict=True))
    knows_reuse = not tally.num_unknown_reuse_tasks
    is_known = bool(price) and (knows_reuse or set(price or ()) == {"decoded"})
    cost = sum(tally.tokens[name] * each for name, each in (price or {}).items()) / _PRICED if is_known else None
    seconds, right = float(columns["seconds"].sum()), columns["outcome"] == OUTCOMES.index("correct")
    has_ended = columns["outcome"] < OUTCOMES.index("failed")

    def mean(total: float) -> float | None:
        return total / num_samples if num_samples else None

    return Summary(
        num_samples=num_samples,
        num_failed=tally.num_failed,
        num_correct=tally.num_correct,
        num_cut_off=int(num_of["cut_off"]),
        num_unanswered=int(num_of["unanswered"]),
        num_undetermined=int(num_of["undetermined"]),
        num_wrong=int(num_of["wrong"]),
        accuracy=mean(tally.num_correct),
        accuracy_interval=Interval(*_share_of(columns, np.ones(num_samples, bool), right)[1:]),
        accuracy_of_finished=tally.num_correct / num_finished if num_finished else None,
        accuracy_of_finished_interval=Interval(*_share_of(columns, has_ended, right)[1:]),
        repeats=_repeats_of(tally, columns) if num_samples else None,
        total_tokens=dict(tally.tokens),
        mean_decoded_tokens=mean(tally.tokens["decoded"]),
        mean_computed_tokens=mean(tally.tokens["decoded"] + tally.tokens["prefilled"]) if knows_reuse else None,
        mean_tokens_by_purpose={
            purpose: {name: number / num_samples for name, number in counts.items()}
            for purpose, counts in tally.by_purpose.items()
        },
        num_unmetered_tasks=tally.num_unmetered_tasks,
        mean_seconds=mean(seconds),
        mean_seconds_by_phase={phase: waited / num_samples for phase, waited in tally.phase_seconds.items()},
        cost=None if cost is None else {"total": cost, "per_sample": cost / max(1, num_samples)},
        exit_reasons=dict(tally.exit_reasons.most_common()),
        errors=dict(tally.errors.most_common()),
        jobs=_job_figures(columns) if num_samples else None,
        sections=tally.sections.figures(len(tally.questions)),
        calibration_tokens=None if calibration_cost is None else calibration_cost._asdict(),
        audits=_audits(tally, promised_loss),
        undetermined=tuple(tally.undetermined),
        lateness=_lateness(columns),
        num_unknown_reuse_tasks=tally.num_unknown_reuse_tasks,
        is_priced=bool(price),
        drawn=Drawn(*np.mean(tally.votes, axis=0).tolist()) if tally.votes else None,
        num_equal_votes=tally.num_with_event["equal_samples"],
    )


def _lateness(columns: Mapping[str, Column]) -> Lateness | None:
    wanted, in_time = (columns[name].astype(bool) for name in ("is_wanted", "is_in_time"))
    if not wanted.any():
        return None
    late = wanted & (columns["outcome"] < OUTCOMES.index("failed")) & ~in_time
    right = columns["outcome"] == OUTCOMES.index("correct")
    share = _share_of(columns, wanted, in_time & right)
    return Lateness(
        int(wanted.sum()), int(late.sum()), int((late & right).sum()), float(in_time.sum() / wanted.sum()), share
    )


def _audits(tally: RunStats, promised: float | None) -> Audits | None:
    num, changed, lost = (tally.audits[name] for name in ("num", "changed", "lost"))
    return Audits(num, changed, lost, lower_bound(lost, num, _ALPHA), promised) if num else None


def _share_of(columns: Mapping[str, Column], chosen: Column, right: Column) -> Estimate:
    """Return the share of chosen records that are right; no record says nothing about it."""
    question = columns["question"].astype(np.int64)[chosen]
    sizes = np.bincount(question)
    num_right = np.bincount(question, weights=right[chosen])[sizes > 0]
    return share_of_questions(num_right, sizes[sizes > 0]) if len(question) else Estimate(0.0, 0.0, 1.0)


def _repeats_of(tally: RunStats, columns: Mapping[str, Column]) -> Repeats:
    """Compute the figures for the powers of two up to the epochs, and the epochs.

    Questions with fewer attempts, which occur only in an interrupted run, are left out of a figure.
    """
    correct = columns["outcome"] == OUTCOMES.index("correct")
    question = columns["question"].astype(np.int64)
    sizes = np.bincount(question, minlength=len(tally.questions))
    order = np.lexsort((columns["epoch"], question))
    ends = np.cumsum(sizes)
    answers = list(tally.answers)
    attempts = []  # right ones and classes of questions with as many attempts, shape [num_questions, num_attempts]
    for size in sorted(set(sizes.tolist())):
        own = np.flatnonzero(sizes == size)
        places = order[(ends[own] - size)[:, None] + np.arange(size)]
        classes = np.zeros_like(places)
        if size > 1:
            numbers = columns["answer"].astype(np.int64)[places]
            classes = np.array(
                [
                    _classes(row, right, answers, tally.units_implied)
                    for row, right in zip(numbers, correct[places], strict=True)
                ]
            )
        attempts.append((correct[places], classes))
    n = int(sizes.max())

    def estimated(shares: Sequence[npt.NDArray[np.float64]], k: int) -> Estimate:
        values, size = np.concatenate(shares), n / k  # number of disjoint subsets of n attempts
        return share_of_questions(size * values, np.full(len(values), size))

    majority, passed = {}, {}
    for k in sorted({2**i for i in range(n.bit_length())} | {n}):
        enough = [(right, classes) for right, classes in attempts if right.shape[1] >= k]
        rng = np.random.default_rng(_SEED)
        majority[k] = estimated([majority_at_k(classes, right, k, rng=rng) for right, classes in enough], k)
        passed[k] = estimated([pass_at_k(right, k) for right, _ in enough], k)
    return Repeats(n, estimated([right.mean(axis=1) for right, _ in attempts], 1), majority, passed)


def _job_figures(columns: Mapping[str, Column]) -> dict[str, Any]:
    figures: dict[str, Any] = {"num": len(columns["decoded"])}
    for name, values in (("tokens", columns["decoded"]), ("seconds", columns["seconds"])):
        p50, p95 = np.quantile(values, (0.5, 0.95))
        figures[name] = {"mean": float(values.mean()), "p50": float(p50), "p95": float(p95)}
    return figures
