"""Statistics of a run: counts, and a few numbers per record; texts and traces are not kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.vote.voting import drawn_by
from scaffolding_ext.evaluation.run.records import CUT_OFF, Record
from scaffolding_ext.evaluation.run.sections import Sections
from scaffolding_ext.protocol.meta import Purpose

Column = npt.NDArray[Any]
COUNTS = ("decoded", "prefilled", "reused")
OUTCOMES = ("correct", "cut_off", "unanswered", "undetermined", "wrong", "failed")
_OUTCOME_OF = {name: number for number, name in enumerate(OUTCOMES)}
_MOST_SHOWN = 3  # undetermined answers
_NO_ANSWER = (Purpose.DISCARDED, Purpose.AUDIT)  # of tokens that reached no answer of the vote
# Fields kept of a record.
_COLUMNS = np.dtype(
    [
        ("question", "<i4"),
        ("epoch", "<i4"),
        ("outcome", "u1"),
        ("answer", "<i4"),
        ("decoded", "<i4"),
        ("computed", "<i4"),
        ("seconds", "<f8"),
        ("is_wanted", "u1"),  # within some seconds
        ("is_in_time", "u1"),
    ]
)


class Undetermined(NamedTuple):
    """An answer that could not be judged right or wrong."""

    id: str
    answer: str
    target: str


class RunStats:
    """Counts a run's records as they come.

    Args:
        units_implied: Treat 5 and 5 cm as equal.
        keeps_answers: Keep each distinct wrong answer, for votes over epochs.

    Attributes:
        first_error: Id and message of the first failed record, or None.
        questions: Number of each question by its id, in order of appearance.
        answers: Number of each wrong answer.
        by_purpose: Decoded, prefilled and reused tokens by purpose.
        exit_reasons: Of finished requests; those without one count under `"unknown"`.
        vote_sizes: Numbers of samples that votes of several rounds drew.
        audits: Requests audited (`num`), answers `changed` by stopping, and right ones `lost`.
        undetermined: The first undetermined answers, three at most.
    """

    def __init__(self, units_implied: bool = False, *, keeps_answers: bool = True) -> None:
        self.units_implied = units_implied
        self.keeps_answers = keeps_answers
        self.num_samples = self.num_correct = self.num_failed = 0
        self.tokens = dict.fromkeys(COUNTS, 0)
        self.first_error: str | None = None
        self.questions: dict[str, int] = {}
        self.marks: list[tuple[str, str]] = []  # hash of the prompt, and right answer, of each question
        self.answers: dict[str, int] = {}
        self.by_purpose: dict[str, dict[str, int]] = {}
        self.num_unmetered_tasks = self.num_unknown_reuse_tasks = 0
        self.exit_reasons: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.num_with_event: Counter[str] = Counter()
        self.vote_sizes: Counter[str] = Counter()
        self.phase_seconds: Counter[str] = Counter()
        self.audits: Counter[str] = Counter()
        self.undetermined: list[Undetermined] = []
        self.sections = Sections()
        self.votes: list[tuple[int, int, float]] = []  # of each: its answers, all that it could draw, and their tokens
        self._rows: list[tuple[float, ...]] = []

    def add(self, record: Record) -> None:
        number = self.questions.get(record.id)
        if number is None:
            number = self.questions[record.id] = len(self.questions)
            self.marks.append((record.prompt_hash, record.target))
        outcome = _outcome(record)
        total = record.ledger["total"]
        self.num_samples += 1
        self.num_correct += outcome == "correct"
        for name in COUNTS:
            self.tokens[name] += total[name]
        for purpose, counts in record.ledger["by_purpose"].items():
            of_purpose = self.by_purpose.setdefault(purpose, dict.fromkeys(COUNTS, 0))
            for name in COUNTS:
                of_purpose[name] += counts[name]
        self.num_unmetered_tasks += record.ledger["num_unmetered_tasks"]
        self.num_unknown_reuse_tasks += record.ledger.get("num_unknown_reuse_tasks", 0)
        if record.error is None:
            self.exit_reasons[record.exit_reason or "unknown"] += 1
        else:
            self.num_failed += 1
            self.errors[record.error.type] += 1
            self.first_error = self.first_error or f"{record.id}: {record.error.message}"
        if outcome == "undetermined" and len(self.undetermined) < _MOST_SHOWN:
            self.undetermined.append(Undetermined(record.id, str(record.answer), record.target))
        answer = -1
        if self.keeps_answers and outcome != "correct" and record.answer is not None:
            answer = self.answers.setdefault(record.answer, len(self.answers))
        seconds = record.seconds
        for phase, waited in seconds.items():
            if phase not in _OWN_SECONDS:
                self.phase_seconds[phase] += waited  # type: ignore[assignment]
        row = (
            number,
            record.epoch,
            _OUTCOME_OF[outcome],
            answer,
            total["decoded"],
            total["decoded"] + total["prefilled"],
            seconds["total"],
            "within" in seconds,
            record.error is None and seconds["total"] <= seconds.get("within", -math.inf),
        )
        self._rows.append(row)
        if record.trace:
            self._look_at(record.trace)
        drawn = drawn_by(record.trace)
        if drawn is not None:
            by_purpose = record.ledger["by_purpose"]
            lost = sum(by_purpose[each]["decoded"] for each in _NO_ANSWER if each in by_purpose)
            self.votes.append((*drawn, drawn.tokens_of_all(total["decoded"] - lost)))
        if record.audit is not None:
            lost = record.audit["correct"] and not record.correct
            self.audits.update({"num": 1, "changed": int(record.audit["changed"]), "lost": int(lost)})
        if record.figures:
            self.sections.add(number, record.figures)

    def _look_at(self, trace: Iterable[Mapping[str, Any]]) -> None:
        self.num_with_event.update({event["event"] for event in trace})
        for event in trace:
            if event["event"] != "vote" or "num_samples" not in event:
                continue  # chains of draft and target also vote, but none is drawn on demand
            if event.get("num_rounds", 1) > 1:
                self.vote_sizes[str(event["num_samples"])] += 1

    def columns(self) -> dict[str, Column]:
        """Return the columns of all records, in order; add no record while you hold them.

        They are `question` and `epoch`, `outcome` (its index in `OUTCOMES`), `answer` (of a wrong one, otherwise -1),
        tokens and seconds.
        """
        rows = np.array(self._rows, _COLUMNS)
        return {name: rows[name] for name in _COLUMNS.names or ()}


_OWN_SECONDS = ("total", "ended_at", "first_token", "within")


def _outcome(record: Record) -> str:
    if record.error is not None:
        return "failed"
    if record.correct:
        return "correct"
    if record.exit_reason == CUT_OFF:
        return "cut_off"
    if record.answer is None:
        return "unanswered"
    return "undetermined" if record.verdict == "undetermined" else "wrong"
