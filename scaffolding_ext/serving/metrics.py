"""Metrics for Prometheus. Tokens are counted from the ledgers, including those of failed requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from scaffolding_ext.controllers.chain.ending import forced_answers
from scaffolding_ext.controllers.vote.voting import drawn_by
from scaffolding_ext.request.program import Program

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one server, in a separate registry.

    Args:
        num_programs: Returns the number of running choices by stack.
    """

    def __init__(self, num_programs: Callable[[], dict[str, int]]) -> None:
        self._registry = CollectorRegistry()
        self._num_programs = num_programs
        own: dict[str, Any] = {"registry": self._registry, "namespace": "scaffolding"}
        self._requests = Counter("requests", "Answered requests.", ["model", "endpoint", "status"], **own)
        self._refusals = Counter("refusals", "Refused or failed requests.", ["model", "code"], **own)
        self._tokens = Counter("tokens", "Tokens by purpose and kind.", ["model", "purpose", "how"], **own)
        self._exits = Counter("exits", "Reasons why controllers stopped.", ["model", "reason"], **own)
        self._forced = Counter("forced_answers", "Forced answers of chains, by cause.", ["model", "cause"], **own)
        self._drawn = Counter("drawn_answers", "Answers that votes drew.", ["model"], **own)
        self._most = Counter("most_answers", "Answers that these votes could have drawn.", ["model"], **own)
        self._types = Counter("typed_choices", "Choices by type of question.", ["model", "task_type"], **own)
        self._typed_tokens = Counter(
            "typed_decoded_tokens", "Decoded tokens by type of question.", ["model", "task_type"], **own
        )
        self._deadlines = Counter("deadlines", "Answers with a deadline: in_time or late.", ["model", "kept"], **own)
        self._audits = Counter("audits", "Audits by finding.", ["model", "finding"], **own)
        self._seconds = Histogram(
            "request_seconds", "Time to the end of an answer.", ["model"], buckets=_SECONDS, **own
        )
        self._first = Histogram(
            "first_text_seconds", "Time to a stream's first text.", ["model"], buckets=_SECONDS, **own
        )
        self._known: dict[tuple[Any, ...], Any] = {}  # by labels; the library's look-up is much slower
        self._running = Gauge("programs", "Running and waiting choices.", ["model"], **own)

    def answered(self, model: str, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered or refused request; only answers are timed."""
        self._of(self._requests, model, endpoint, status).inc()
        if model and status == 200:
            self._of(self._seconds, model).observe(seconds)

    def refused(self, model: str, code: str) -> None:
        """Count a refused or failed request."""
        self._of(self._refusals, model, code).inc()

    def first_text(self, model: str, seconds: float) -> None:
        """Record the time to a stream's first text."""
        self._of(self._first, model).observe(seconds)

    def ended(self, model: str, program: Program, reason: str, is_answered: bool = True) -> None:
        """Count a finished program and its ledger, whether or not it failed."""
        self._of(self._exits, model, reason).inc()
        lifetime = program.lifetime
        if lifetime.answer_by is not None and is_answered:
            self._of(self._deadlines, model, "late" if lifetime.clock() > lifetime.answer_by else "in_time").inc()
        for cause, number in forced_answers(program.trace).items():
            self._of(self._forced, model, cause).inc(number)
        if (drawn := drawn_by(program.trace)) is not None:
            self._of(self._drawn, model).inc(drawn.num)
            self._of(self._most, model).inc(drawn.most)
        if program.ledger.task_type is not None:
            self._of(self._types, model, program.ledger.task_type).inc()
            self._of(self._typed_tokens, model, program.ledger.task_type).inc(program.ledger.num_decoded)
        for purpose, counts in program.ledger.by_purpose.items():
            for how, number in zip(counts._fields, counts, strict=True):
                if number:
                    self._of(self._tokens, model, purpose, how).inc(number)

    def audited(self, model: str, finding: str) -> None:
        """Count a finished audit: `same`, `changed` or `failed`."""
        self._of(self._audits, model, finding).inc()

    def _of(self, metric: Any, *labels: Any) -> Any:
        key = (metric, *labels)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = metric.labels(*map(str, labels))
        return found

    def page(self) -> bytes:
        for model, number in self._num_programs().items():
            self._running.labels(model).set(number)
        return generate_latest(self._registry)
