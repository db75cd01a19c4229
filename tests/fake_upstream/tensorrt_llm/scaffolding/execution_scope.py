"""The place in a request's tree of branches at which code runs."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from dataclasses import dataclass
from typing import List, Tuple  # noqa: UP035  (as the real one)

from tensorrt_llm import HAS_NEWEST_FIELDS


@dataclass(frozen=True)
class ExecutionScope:
    request_id: str
    branch_path: Tuple[int, ...] = ()  # noqa: UP006

    @property
    def scope_id(self) -> str:
        return f"{self.request_id}:{'.'.join(map(str, self.branch_path))}" if self.branch_path else self.request_id

    def child(self, branch_index: int) -> ExecutionScope:
        return ExecutionScope(self.request_id, (*self.branch_path, branch_index))

    if HAS_NEWEST_FIELDS:

        def with_branch_path(self, branch_path: Sequence[int]) -> ExecutionScope:
            return ExecutionScope(self.request_id, tuple(branch_path))

    @property
    def branch_path_list(self) -> List[int]:  # noqa: UP006
        return list(self.branch_path)


current_scope: contextvars.ContextVar[ExecutionScope | None] = contextvars.ContextVar("current_scope", default=None)
