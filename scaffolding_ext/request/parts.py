"""Parts of a request with ledgers of their own, such as the samples of a vote."""

from __future__ import annotations

import contextvars

from scaffolding_ext.protocol.relay import Visit
from scaffolding_ext.request.ledger import Ledger, Parts

_parts: contextvars.ContextVar[Parts] = contextvars.ContextVar("parts", default=((), ()))
current_parts = _parts.get  # the parts of which the calling code is one, from the outermost one inwards


def enter_part(ledger: Ledger, look: Visit | None = None) -> None:
    """Begin a part of the request: the calling branch of a `ParallelProcess`, with all branches within it.

    Args:
        ledger: The part's ledger. The program's meter counts the part's tokens in it, too.
        look: Called with each step of the part on its way to the host; inner parts are called before outer ones.
    """
    ledgers, looks = _parts.get()
    _parts.set(((*ledgers, ledger), looks if look is None else (look, *looks)))
