"""Who asked: whose KV a request may share, and where its text is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaffolding_ext.protocol import ScaffoldingOutput


class Caller:
    """Who waits for a request's answer.

    Attributes:
        cache_salt: Requests share KV only with requests of the same salt; None where all share.
        show: Hands the caller a part of the output, as long as the request runs; None under a host without streams.
    """

    __slots__ = ("cache_salt", "show")

    def __init__(self) -> None:
        self.cache_salt: str | None = None
        self.show: Callable[[ScaffoldingOutput], object] | None = None
