"""Which requests are audited, and what a controller says of them; the host does what is left (see `request.audit`).

A share of the requests is audited, drawn from their seeds before anything is known of them.
"""

from __future__ import annotations

import random

from scaffolding_ext import require
from scaffolding_ext.request.audit import Audit, AuditFinding, Work
from scaffolding_ext.request.program import current_program, record
from scaffolding_ext.request.seeds import branch_path, derive_seed


def checked_share(audit: float) -> float:
    """The share of requests that are audited, in [0, 1]."""
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
    _current().end(AuditFinding(answer, answer, False))
    record("audit", early=answer, whole=answer, changed=False)


def _current() -> Audit:
    program = current_program()
    audit = None if program is None else program.audit
    assert audit is not None, "is_audited says which requests are audited"
    return audit
