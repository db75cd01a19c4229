"""Audits: a request that stopped early goes on, behind the answer that it gave, to what it would be without stopping.

The caller gets the early answer at once. What an audit costs stands in the request's ledger under its own purpose.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any, NamedTuple


class AuditFinding(NamedTuple):
    """What an audit found.

    Attributes:
        whole: The answer of the full vote, or of the whole chain; the same where nothing was stopped.
    """

    early: str | None
    whole: str | None
    changed: bool


Work = Generator[Any, Any, AuditFinding]


class Audit:
    """The audit of one request: handed over by its controller, done by its host.

    Attributes:
        work: What is left to do; None where nothing was stopped, or nobody audits the request.
        finding: What was found; None before the end, and where the audit failed.
        over: Is done when the work is; None without work.
    """

    __slots__ = ("finding", "over", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        self.finding: AuditFinding | None = None
        self.over: concurrent.futures.Future[AuditFinding | None] | None = None

    def begin(self, work: Work) -> None:
        self.work = work
        self.over = concurrent.futures.Future()

    def end(self, finding: AuditFinding | None) -> None:
        """For hosts: what was found, or None where the audit failed or was given up."""
        self.work, self.finding = None, finding
        if self.over is not None and not self.over.done():
            self.over.set_result(finding)

    async def ended(self) -> AuditFinding | None:
        return self.finding if self.over is None else await asyncio.wrap_future(self.over)
