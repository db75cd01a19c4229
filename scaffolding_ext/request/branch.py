"""The branch of a request in which the calling code runs: a sample of a vote, a path of a tree."""

from __future__ import annotations

from scaffolding_ext.protocol import current_scope


def branch_path() -> tuple[int, ...]:
    """The numbers of the branches from the request to the calling code; empty outside any branch."""
    scope = current_scope.get()
    return () if scope is None else tuple(scope.branch_path)
