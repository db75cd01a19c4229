"""Audits: a request that stopped early goes on, behind the answer that it gave, to what it would be without stopping.

A share of the requests is audited, drawn from their seeds before anything is known of them. The caller gets the early
answer at once. What an audit costs stands in the request's ledger under its own purpose.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from collections.abc import Generator
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.request.program import current_program, record
from scaffolding_ext.request.seeds import branch_path, derive_seed


class Finding(NamedTuple):
    """What an audit found.

    Attributes:
        early: The answer that the request gave.
        whole: The answer of the full vote, or of the whole chain; the same where nothing was stopped.
        changed: Whether the two differ.
    """

    early: str | None
    whole: str | None
    changed: bool


Work = Generator[Any, Any, Finding]


class Audit:
    """The audit of one request: handed over by its controller, done by its host.

    Attributes:
        work: What is left to do; None where nothing was stopped, or nobody audits the request.
        finding: What was found; None before the end, and where the audit failed.
    """

    __slots__ = ("_over", "finding", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        self.finding: Finding | None = None
        self._over: concurrent.futures.Future[Finding | None] | None = None

    def begin(self, work: Work) -> None:
        """For controllers: the rest of the request."""
        self.work = work
        self._over = concurrent.futures.Future()

    def end(self, finding: Finding | None) -> None:
        """For hosts: what was found, or None where the audit failed or was given up."""
        self.work, self.finding = None, finding
        if self._over is not None and not self._over.done():
            self._over.set_result(finding)

    async def ended(self) -> Finding | None:
        """Wait for the end of the audit; None where there was none, or where it failed."""
        return self.finding if self._over is None else await asyncio.wrap_future(self._over)


def checked_share(audit: float) -> float:
    """The share of requests that are audited, in [0, 1].

    Raises:
        ConfigError: It is no such number.
    """
    return require.number("audit", audit, least=0, most=1)


def is_audited(share: float) -> bool:
    """Whether the current request is one of the share that is audited; its seed decides, where it has one."""
    program = current_program()
    if program is None or not share or branch_path():  # a part of a vote or a search is not the request's answer
        return False
    if program.audit is None:
        record("lowered", what="audit", reason="this host does not go on behind an answer")
        return False
    seed = program.seeds.seed
    drawn = random.random() if seed is None else derive_seed(seed, "audit") / 2**63
    return drawn < share


def begin_audit(work: Work) -> None:
    """Hand the rest of an audited request to its host, which does it behind the answer."""
    _current().begin(work)


def note_whole(answer: str | None) -> None:
    """Say that an audited request was not stopped: its answer is that of the whole."""
    _current().end(Finding(answer, answer, False))
    record("audit", early=answer, whole=answer, changed=False)


def _current() -> Audit:
    program = current_program()
    audit = None if program is None else program.audit
    assert audit is not None, "is_audited says which requests are audited"
    return audit
