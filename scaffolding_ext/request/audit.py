"""Audits: a request that stopped early continues after its answer, to what it would be without stopping.

The caller gets the early answer at once. The ledger counts the audit's tokens under their own purpose.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any, NamedTuple


class AuditFinding(NamedTuple):
    """Result of an audit.

    Attributes:
        whole: The answer of the full vote or the whole chain; equal to `early` if nothing was stopped.
    """

    early: str | None
    whole: str | None
    changed: bool


Work = Generator[Any, Any, AuditFinding]


class Audit:
    """The audit of one request, handed over by its controller and run by its host.

    Attributes:
        work: Remaining work; None if nothing was stopped or the request is not audited.
        finding: The result; None before the end, and if the audit failed.
        over: Future of the finding; None without work.
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
        self.work, self.finding = None, finding
        if self.over is not None and not self.over.done():
            self.over.set_result(finding)

    async def ended(self) -> AuditFinding | None:
        return self.finding if self.over is None else await asyncio.wrap_future(self.over)
