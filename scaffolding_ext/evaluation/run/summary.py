"""The figures of a run: accuracy with its intervals, and every cost. Records are counted, not kept."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.answers import group
from scaffolding_ext.documents import plain
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.sections import SectionFigure, Sections
from scaffolding_ext.protocol.notes import Purpose, TokenCounts
from scaffolding_ext.stats.intervals import Estimate, Interval, wilson_interval
from scaffolding_ext.stats.repeats import majority_at_k, mean_of_questions, pass_at_k
from scaffolding_ext.stats.watching import lower_bound

_SEED = 0  # of subsets and resamples: a run has one summary


class Attempt(NamedTuple):
    """One epoch of a question: its answer, or None, and whether that is right."""

    epoch: int
    answer: str | None
    correct: bool


class Repeats(NamedTuple):
    """Figures of a run's questions.

    Attributes:
        n: Epochs of a question; where a run was interrupted, the most.
        mean: mean@n, the share of right attempts, a question counted once.
        majority: maj@k by `k`: the vote of `k` attempts is right.
        passed: pass@k by `k`: at least one of `k` attempts is right.
    """

    n: int
    mean: Estimate
    majority: dict[int, Estimate]
    passed: dict[int, Estimate]

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold; bounds that nothing is known of are null."""
        return {
            "mean_at_n": {"n": self.n, **plain(self.mean)},
            "maj_at_k": plain(self.majority),
            "pass_at_k": plain(self.passed),
        }


def figures_of(questions: Iterable[Sequence[Attempt]], ks: Collection[int] | None = None) -> Repeats:
    """The figures of questions, each with its attempts in any order.

    Args:
        questions: At least one, each with at least one attempt.
        ks: The `k` of maj@k and pass@k; None takes the powers of two up to the epochs, and the epochs. A question with
            fewer than `k` attempts, which only a run has that was interrupted, is left out of that figure.

    Raises:
        ValueError: A `k` is below 1, or above the attempts of every question.
    """
    tables: dict[int, list[Sequence[Attempt]]] = {}  # by their number of attempts
    for attempts in questions:
        tables.setdefault(len(attempts), []).append(sorted(attempts, key=lambda attempt: attempt.epoch))
    n = max(tables)
    wanted = sorted({2**i for i in range(n.bit_length())} | {n}) if ks is None else sorted(set(ks))
    if wanted[0] < 1 or wanted[-1] > n:
        raise ValueError(f"k is {wanted}; with {n} epochs it may be 1 to {n}")
    parts = [_Table(tables[size]) for size in sorted(tables)]
    means = np.concatenate([part.correct.mean(axis=1) for part in parts])
    majority, passed = {}, {}
    for k in wanted:
        enough = [part for part in parts if part.correct.shape[1] >= k]
        rng = np.random.default_rng(_SEED)
        votes = [majority_at_k(part.classes, part.correct, k, rng=rng) for part in enough]
        majority[k] = mean_of_questions(np.concatenate(votes), rng=np.random.default_rng(_SEED))
        shares = [pass_at_k(part.correct, k) for part in enough]
        passed[k] = mean_of_questions(np.concatenate(shares), rng=np.random.default_rng(_SEED))
    return Repeats(n, mean_of_questions(means, rng=np.random.default_rng(_SEED)), majority, passed)


class _Table:
    """Questions with equally many attempts: which are right, and which answers are equal."""

    def __init__(self, questions: Sequence[Sequence[Attempt]]) -> None:
        self.correct = np.array([[attempt.correct for attempt in attempts] for attempts in questions])
        self.classes = np.array([_classes(attempts) for attempts in questions])


def _classes(attempts: Sequence[Attempt]) -> list[int]:
    """Class of each answer, -1 without one. Right answers are one class: all equal the target."""
    if len(attempts) == 1:
        return [-1 if attempts[0].answer is None else 0]
    wrong = group([None if attempt.correct else attempt.answer for attempt in attempts])
    return [0 if attempt.correct else number + (number >= 0) for attempt, number in zip(attempts, wrong, strict=True)]


CUT_OFF = "length"  # the exit reason of a chain that its budget ended
COUNTS = ("decoded", "prefilled", "reused")
_MOST_DISCARDED = 0.1  # share of the decoded tokens; above it a run is warned about
_MOST_UNANSWERED = 0.5  # share of the outputs that came to their end; above it a run is warned about
_ALPHA = 0.05  # of the bound on what audits found
_PRICED = 1e6  # tokens that a price is of


class Audits(NamedTuple):
    """What a run's audits found.

    Attributes:
        num: Audited requests.
        num_changed: Those whose answer stopping has changed.
        num_lost: Those whose right answer stopping has lost.
        lost_at_least: Anytime-valid lower bound of the share that is lost, at 95 %.
        promised: The share that the stack's tuning promised; None without a promise.
    """

    num: int
    num_changed: int
    num_lost: int
    lost_at_least: float
    promised: float | None

    @property
    def is_broken(self) -> bool:
        """Whether the promise is refuted."""
        return self.promised is not None and self.lost_at_least > self.promised

    def __str__(self) -> str:
        promised = "" if self.promised is None else f"; at most {self.promised:.1%} is promised"
        return (
            f"{self.num} audited, {self.num_changed} answers changed by stopping, {self.num_lost} right ones lost "
            f"(at least {self.lost_at_least:.1%}{promised})"
        )


@dataclass(frozen=True)
class Summary:
    """Figures of one run. A failed sample counts as wrong, and means take it with what it had cost by then.

    Attributes:
        num_samples: Records, epochs counted each.
        num_failed: Records with an error.
        num_correct: Right answers.
        num_cut_off: Outputs that the budget ended and that are not right. They count as wrong, like the next three.
        num_unanswered: Other outputs without an answer.
        num_undetermined: Other answers: different strings from the target, and no comparison could decide.
        num_wrong: All other answers.
        accuracy: Right answers by samples, failed ones included; None without samples.
        accuracy_interval: 95 % Wilson interval. It takes samples as independent: with several epochs it is too narrow.
        accuracy_of_finished: Right answers by samples that did not fail; None where all failed. It shows how good the
            answers are, not how good the run was: failed samples are seldom a random part of all.
        accuracy_of_finished_interval: 95 % Wilson interval.
        repeats: mean@n, maj@k and pass@k, with 95 % intervals from resampling questions; None without samples.
        total_tokens: Decoded, prefilled and reused tokens.
        per_right_answer: The same, `seconds`, and with prices `cost`, by right answers; None without any.
        mean_decoded_tokens: Tokens decoded a sample: probes, verification and discarded work included.
        mean_computed_tokens: Tokens that the model ran on a sample: decoded and prefilled.
        mean_tokens_by_purpose: Decoded, prefilled and reused tokens a sample, by purpose.
        mean_suffix_tokens: Tokens a sample of the suffixes that asked for answers; part of those of the probes.
        num_unmetered_tasks: Tasks whose tokens nobody counted; where it is not 0, the token figures are too low.
        mean_seconds: Wall-clock time a sample, from submission to its end.
        mean_seconds_by_phase: Seconds a sample that waited for the tasks of each purpose.
        seconds_to_first_token: `mean`, `median` and `p95` of the samples whose workers tell; None where none does.
        cost: `total` and `per_sample`, in the currency of the prices; None without prices.
        exit_reasons: How many samples finished for each reason; samples that name none count under `"unknown"`.
        errors: How many samples failed with each type of error.
        jobs: `num`, and of each job (a request, failed ones included) `mean`, `p50` and `p95` of its decoded `tokens`
            and of its `seconds`; `an_hour` by the time in which any of them ran, pauses between sessions left out.
            None without samples, and `an_hour` None in records of older runs.
        sections: What controllers published, by section and name; see `request.figures`.
        calibration_tokens: Tokens that the stack's calibrations cost before the run: decoded, prefilled and reused. No
            other figure holds them. None where there was no calibration, or where its file names no cost.
        audits: What the audits found; None where no request was audited.
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
    per_right_answer: dict[str, float] | None
    mean_decoded_tokens: float | None
    mean_computed_tokens: float | None
    mean_tokens_by_purpose: dict[str, dict[str, float]]
    num_unmetered_tasks: int
    mean_seconds: float | None
    mean_seconds_by_phase: dict[str, float]
    seconds_to_first_token: dict[str, float] | None
    cost: dict[str, float] | None
    exit_reasons: dict[str, int]
    errors: dict[str, int]
    jobs: dict[str, Any] | None
    sections: dict[str, dict[str, SectionFigure]]
    calibration_tokens: dict[str, int] | None = None
    mean_suffix_tokens: float | None = None
    audits: Audits | None = None

    @property
    def mean_calibration_tokens(self) -> float:
        """Decoded tokens of the calibrations, spread over the run's samples; 0 where there are none."""
        if self.calibration_tokens is None or not self.num_samples:
            return 0.0
        return self.calibration_tokens["decoded"] / self.num_samples

    @property
    def discarded_share(self) -> float:
        """Decoded tokens that reached no output, of all that were decoded; 0 where none were."""
        discarded = self.mean_tokens_by_purpose.get(str(Purpose.DISCARDED), {}).get("decoded", 0.0)
        return discarded / self.mean_decoded_tokens if self.mean_decoded_tokens else 0.0

    @property
    def warnings(self) -> list[str]:
        """What the user should change: much was decoded in vain, or most outputs state no answer."""
        found = []
        if self.discarded_share > _MOST_DISCARDED:
            found.append(
                f"{self.discarded_share:.0%} of the decoded tokens were discarded: chains ran on while their probes "
                "waited, or samples of a vote were stopped. Let the server answer probes first (docs/servers.md), "
                "raise the worker's max_batch_size, lower max_parallel_requests or the controller's max_lead, or "
                "probe less often"
            )
        if self.audits is not None and self.audits.is_broken:
            found.append(
                f"the promise of this stack is broken: {self.audits}. Record its model anew, and tune again: "
                "scaffolding-ext tune"
            )
        num_ended = self.num_samples - self.num_failed - self.num_cut_off
        if self.num_unanswered > _MOST_UNANSWERED * num_ended:
            found.append(
                f"{self.num_unanswered} of {num_ended} outputs that came to their end state no answer, neither in a "
                '\\boxed{} nor behind "the answer is". Ask for a box by prompt.prompt_suffix, or name the model\'s '
                "family by prompt.family (docs/stack_files.md); `scaffolding-ext check STACK` shows what is missing"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold: mean@n, maj@k and pass@k stand beside the others."""
        fields = dict(vars(self))
        repeats = fields.pop("repeats")
        fields |= {"mean_at_n": None, "maj_at_k": {}, "pass_at_k": {}} if repeats is None else repeats.to_json()
        return plain(fields)  # type: ignore[no-any-return]


def summarize(
    records: Iterable[Record],
    calibration_cost: TokenCounts | None = None,
    *,
    price: Mapping[str, float] | None = None,
) -> Summary:
    """Sum a run's records up; the arguments are those of `Tally.summary`."""
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally.summary(calibration_cost, price=price)


class Tally:
    """Counts a run's records as they come.

    Attributes:
        num_samples: Records so far.
        num_correct: Right answers so far.
        num_failed: Failed ones so far.
        tokens: Decoded, prefilled and reused so far.
        first_error: Id and message of the first that failed, or None.
    """

    def __init__(self) -> None:
        self.num_samples = self.num_correct = self.num_failed = 0
        self.tokens = dict.fromkeys(COUNTS, 0)
        self.first_error: str | None = None
        self._outcomes: Counter[str] = Counter()
        self._by_purpose: dict[str, dict[str, int]] = {}
        self._num_unmetered_tasks = self._num_suffix_tokens = 0
        self._seconds: Counter[str] = Counter()
        self._first_tokens = array("d")
        self._exit_reasons: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._attempts: dict[str, list[Attempt]] = {}
        self._sections = Sections()
        self._num_audited = self._num_changed = self._num_lost = 0
        self._jobs = array("d")  # of each: decoded tokens, seconds, when it ended

    def add(self, record: Record) -> None:
        """Count a record."""
        self.num_samples += 1
        self.num_correct += record.correct and record.error is None
        self.num_failed += record.error is not None
        self._outcomes[_outcome(record)] += 1
        for name in COUNTS:
            self.tokens[name] += record.ledger["total"][name]
        for purpose, counts in record.ledger["by_purpose"].items():
            of_purpose = self._by_purpose.setdefault(purpose, dict.fromkeys(COUNTS, 0))
            for name in COUNTS:
                of_purpose[name] += counts[name]
        self._num_unmetered_tasks += record.ledger["num_unmetered_tasks"]
        self._num_suffix_tokens += record.ledger.get("num_suffix_tokens", 0)
        for phase, seconds in record.seconds.items():
            if phase == "first_token":
                self._first_tokens.append(seconds)
            elif phase != "ended_at":
                self._seconds[phase] += seconds  # type: ignore[assignment]
        if record.error is None:
            self._exit_reasons[record.exit_reason or "unknown"] += 1
        else:
            self._errors[record.error.type] += 1
            self.first_error = self.first_error or f"{record.id}: {record.error.message}"
        attempt = Attempt(record.epoch, record.answer, record.correct and record.error is None)
        self._attempts.setdefault(record.id, []).append(attempt)
        ended_at = record.seconds.get("ended_at", math.nan)
        self._jobs.extend((record.ledger["total"]["decoded"], record.seconds["total"], ended_at))
        if record.audit is not None:
            self._num_audited += 1
            self._num_changed += record.audit["changed"]
            self._num_lost += record.audit["correct"] and not record.correct
        if record.figures:
            self._sections.add(record.id, record.figures)

    def summary(
        self,
        calibration_cost: TokenCounts | None = None,
        *,
        price: Mapping[str, float] | None = None,
        promised_loss: float | None = None,
    ) -> Summary:
        """The figures of what was counted.

        Args:
            calibration_cost: What `calibration_cost.calibration_cost` says of the run's controller.
            price: What a million tokens cost that were `decoded`, `prefilled`, `reused`; None for no costs.
            promised_loss: The share of requests that the stack's tuning promised to lose at most.
        """
        num_samples, num_finished = self.num_samples, self.num_samples - self.num_failed
        cost = None if not price else sum(self.tokens[name] * each for name, each in price.items()) / _PRICED
        spent = {**self.tokens, "seconds": self._seconds["total"], **({} if cost is None else {"cost": cost})}
        firsts = np.frombuffer(self._first_tokens) if self._first_tokens else None
        return Summary(
            num_samples=num_samples,
            num_failed=self.num_failed,
            num_correct=self.num_correct,
            num_cut_off=self._outcomes["cut_off"],
            num_unanswered=self._outcomes["unanswered"],
            num_undetermined=self._outcomes["undetermined"],
            num_wrong=self._outcomes["wrong"],
            accuracy=self.num_correct / num_samples if num_samples else None,
            accuracy_interval=wilson_interval(self.num_correct, num_samples),
            accuracy_of_finished=self.num_correct / num_finished if num_finished else None,
            accuracy_of_finished_interval=wilson_interval(self.num_correct, num_finished),
            repeats=figures_of(self._attempts.values()) if num_samples else None,
            total_tokens=dict(self.tokens),
            per_right_answer={name: amount / self.num_correct for name, amount in spent.items()}
            if self.num_correct
            else None,
            mean_decoded_tokens=self._mean(self.tokens["decoded"]),
            mean_computed_tokens=self._mean(self.tokens["decoded"] + self.tokens["prefilled"]),
            mean_tokens_by_purpose={
                purpose: {name: number / num_samples for name, number in counts.items()}
                for purpose, counts in self._by_purpose.items()
            },
            num_unmetered_tasks=self._num_unmetered_tasks,
            mean_seconds=self._mean(self._seconds["total"]),
            mean_seconds_by_phase={
                phase: seconds / num_samples for phase, seconds in self._seconds.items() if phase != "total"
            },
            seconds_to_first_token=None
            if firsts is None
            else {
                "mean": float(firsts.mean()),
                "median": float(np.median(firsts)),
                "p95": float(np.quantile(firsts, 0.95)),
            },
            cost=None if cost is None else {"total": cost, "per_sample": cost / max(1, num_samples)},
            exit_reasons=dict(self._exit_reasons.most_common()),
            errors=dict(self._errors.most_common()),
            jobs=_job_figures(np.frombuffer(self._jobs).reshape(-1, 3)) if num_samples else None,
            sections=self._sections.figures(self._attempts),
            calibration_tokens=None if calibration_cost is None else calibration_cost._asdict(),
            mean_suffix_tokens=self._mean(self._num_suffix_tokens),
            audits=self._audits(promised_loss) if self._num_audited else None,
        )

    def _audits(self, promised: float | None) -> Audits:
        least = lower_bound(self._num_lost, self._num_audited, _ALPHA)
        return Audits(self._num_audited, self._num_changed, self._num_lost, least, promised)

    def _mean(self, total: float) -> float | None:
        return total / self.num_samples if self.num_samples else None


def _job_figures(jobs: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Figures of jobs, each with its decoded tokens, its seconds and when it ended, shape [num_jobs, 3]."""
    figures: dict[str, Any] = {"num": len(jobs)}
    busy = _busy_seconds(jobs[:, 2] - jobs[:, 1], jobs[:, 2])
    figures["an_hour"] = 3600 * len(jobs) / busy if busy > 0 else None
    for name, values in (("tokens", jobs[:, 0]), ("seconds", jobs[:, 1])):
        p50, p95 = np.quantile(values, (0.5, 0.95))
        figures[name] = {"mean": float(values.mean()), "p50": float(p50), "p95": float(p95)}
    return figures


def _busy_seconds(begins: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> float:
    """How long at least one of the jobs ran; nan where a job does not say when."""
    order = np.argsort(begins)
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    seen = np.concatenate((begins[:1], ends[:-1]))  # up to where time is counted already
    return float(np.maximum(0.0, ends - np.maximum(begins, seen)).sum())


def _outcome(record: Record) -> str:
    """The one group of the record, in the order in which `Summary` has them."""
    if record.error is not None:
        return "failed"
    if record.correct:
        return "correct"
    if record.exit_reason == CUT_OFF:
        return "cut_off"
    if record.answer is None:
        return "unanswered"
    return "undetermined" if record.verdict == "undetermined" else "wrong"
