"""What a run came to: accuracy with its interval, and everything that it cost."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from scaffolding_ext.evaluation.records import Record
from scaffolding_ext.maths.statistics import Interval, wilson_interval
from scaffolding_ext.tasks import Purpose, TokenCounts

_MOST_DISCARDED = 0.1  # share of the decoded tokens; above it a run is warned about
_COUNTS = ("decoded", "prefilled", "reused")


@dataclass(frozen=True)
class Summary:
    """Figures of one run. A failed sample counts as wrong, and means take it with what it had cost by then.

    Attributes:
        num_samples: Records, epochs counted each.
        num_failed: Records with an error.
        num_correct: Right answers.
        num_unanswered: Outputs without an answer; they count as wrong.
        num_undetermined: Answers that differ from the target as strings and by nothing that could be decided; they
            count as wrong.
        accuracy: Right answers by samples, failed ones included; None without samples.
        accuracy_interval: 95 % Wilson interval. It takes samples as independent: with several epochs it is too narrow.
        accuracy_of_finished: Right answers by samples that did not fail; None where all failed. It says how good the
            answers are, not how good the run was: what fails is seldom a random part of the samples.
        accuracy_of_finished_interval: 95 % Wilson interval.
        mean_decoded_tokens: Tokens decoded a sample: probes, verification and discarded work included.
        mean_computed_tokens: Tokens that the model ran on a sample: decoded and prefilled.
        mean_tokens_by_purpose: Decoded, prefilled and reused tokens a sample, by purpose.
        num_unmetered_tasks: Tasks whose tokens nobody counted; where it is not 0, the token figures are too low.
        mean_seconds: Wall-clock time a sample, from submission to its end.
        exit_reasons: How many samples finished for each reason; samples that name none count under `"unknown"`.
        errors: How many samples failed with each type of error.
        calibration_tokens: Tokens that the stack's calibrations had cost before the run, decoded, prefilled and reused;
            no other figure holds them. None where there are none, or nothing says how many.
    """

    num_samples: int
    num_failed: int
    num_correct: int
    num_unanswered: int
    num_undetermined: int
    accuracy: float | None
    accuracy_interval: Interval
    accuracy_of_finished: float | None
    accuracy_of_finished_interval: Interval
    mean_decoded_tokens: float | None
    mean_computed_tokens: float | None
    mean_tokens_by_purpose: dict[str, dict[str, float]]
    num_unmetered_tasks: int
    mean_seconds: float | None
    exit_reasons: dict[str, int]
    errors: dict[str, int]
    calibration_tokens: dict[str, int] | None = None

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
    def warning(self) -> str | None:
        """What is to be changed where much was decoded in vain; None elsewhere."""
        if self.discarded_share <= _MOST_DISCARDED:
            return None
        return (
            f"{self.discarded_share:.0%} of the decoded tokens were discarded: chains ran on while their probes "
            "waited, or samples of a vote were stopped. Have the server serve probes first (docs/servers.md), raise "
            "the worker's max_batch_size, lower max_parallel_requests or the controller's max_lead, or probe less often"
        )

    def to_json(self) -> dict[str, Any]:
        """A dict that JSON can hold."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value._asdict() if isinstance(value, Interval) else value for name, value in fields.items()}


def summarize(records: Sequence[Record], calibration_cost: TokenCounts | None = None) -> Summary:
    """Sum a run's records up.

    Args:
        records: Of the run.
        calibration_cost: What `calibration_cost.calibration_cost` says of the run's controller.
    """
    finished = [record for record in records if record.error is None]
    num_correct = sum(record.correct for record in finished)
    totals = [record.ledger["total"] for record in records]
    purposes = dict.fromkeys(purpose for record in records for purpose in record.ledger["by_purpose"])
    return Summary(
        num_samples=len(records),
        num_failed=len(records) - len(finished),
        num_correct=num_correct,
        num_unanswered=sum(record.answer is None for record in finished),
        num_undetermined=sum(record.verdict == "undetermined" for record in finished),
        accuracy=num_correct / len(records) if records else None,
        accuracy_interval=wilson_interval(num_correct, len(records)),
        accuracy_of_finished=num_correct / len(finished) if finished else None,
        accuracy_of_finished_interval=wilson_interval(num_correct, len(finished)),
        mean_decoded_tokens=_mean([total["decoded"] for total in totals]),
        mean_computed_tokens=_mean([total["decoded"] + total["prefilled"] for total in totals]),
        mean_tokens_by_purpose={purpose: _mean_counts(records, purpose) for purpose in purposes},
        num_unmetered_tasks=sum(record.ledger["num_unmetered_tasks"] for record in records),
        mean_seconds=_mean([record.seconds["total"] for record in records]),
        exit_reasons=dict(Counter(record.exit_reason or "unknown" for record in finished).most_common()),
        errors=dict(Counter(record.error.type for record in records if record.error is not None).most_common()),
        calibration_tokens=None if calibration_cost is None else calibration_cost._asdict(),
    )


def comparison_table(runs: Mapping[str, Summary]) -> Table:
    """A table with one line a run, token figures a sample; what a run saves is in decoded tokens against the first.

    The 95 % Wilson interval stands beside the percentage of right answers; failed samples are wrong there. Where a run
    has any, a column more gives the percentage without them. Where one was calibrated, a column more spreads the tokens
    that were decoded for it over the run's samples; what is saved is then net of them.
    """
    any_failed = any(run.num_failed for run in runs.values())
    any_calibrated = any(run.calibration_tokens for run in runs.values())
    columns = ("run", "n", "failed", "correct %", *(["of finished"] if any_failed else []), "decoded", "discarded")
    columns += (*(["calibration"] if any_calibrated else []), "saved", "computed", "seconds")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    baseline = _with_calibration(next(iter(runs.values()))) if runs else None
    for index, (name, run) in enumerate(runs.items()):
        decoded = run.mean_decoded_tokens
        saved = 1 - _with_calibration(run) / baseline if index and baseline and decoded is not None else None
        table.add_row(
            name,
            str(run.num_samples),
            str(run.num_failed),
            _shown_percentage(run.accuracy, run.accuracy_interval),
            *([_shown_percentage(run.accuracy_of_finished, run.accuracy_of_finished_interval)] if any_failed else []),
            _shown(decoded, ".1f"),
            _shown(run.discarded_share, ".1%"),
            *([_shown(run.mean_calibration_tokens, ".1f")] if any_calibrated else []),
            _shown(saved, ".1%"),
            _shown(run.mean_computed_tokens, ".1f"),
            _shown(run.mean_seconds, ".3f"),
        )
    return table


def _with_calibration(run: Summary) -> float:
    return (run.mean_decoded_tokens or 0.0) + run.mean_calibration_tokens


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean_counts(records: Sequence[Record], purpose: str) -> dict[str, float]:
    """Counts a sample; a sample without the purpose adds nothing."""
    found = [record.ledger["by_purpose"].get(purpose, {}) for record in records]
    return {name: sum(counts.get(name, 0) for counts in found) / len(records) for name in _COUNTS}


def _shown_percentage(share: float | None, interval: Interval) -> str:
    return "-" if share is None else f"{100 * share:.1f} ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
