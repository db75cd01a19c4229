"""Audits: after its answer a request runs once more with nothing to stop it, and the two answers are compared."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import NamedTuple


class AuditFinding(NamedTuple):
    """Result of an audit.

    Attributes:
        whole: The answer of the full vote or the whole chain; equal to `early` if nothing was stopped.
    """

    early: str | None
    whole: str | None
    changed: bool


class Audit:
    """The audit of one request.

    Attributes:
        finding: The result; None before the end, and if the audit failed.
        over: Future of the finding; None if the request is not audited.
    """

    __slots__ = ("finding", "over")

    def __init__(self) -> None:
        self.finding: AuditFinding | None = None
        self.over: concurrent.futures.Future[AuditFinding | None] | None = None

    def begin(self) -> None:
        self.over = concurrent.futures.Future()

    def end(self, finding: AuditFinding | None) -> None:
        self.finding = finding
        if self.over is not None and not self.over.done():
            self.over.set_result(finding)

    async def ended(self) -> AuditFinding | None:
        return None if self.over is None else await asyncio.wrap_future(self.over)
