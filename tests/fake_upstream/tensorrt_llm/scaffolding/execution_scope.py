"""Where in a request's tree of branches code runs."""

import contextvars
from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutionScope:
    request_id: str
    branch_path: tuple[int, ...] = ()

    @property
    def scope_id(self):
        return ":".join([self.request_id, *map(str, self.branch_path)])

    def child(self, branch_index):
        return ExecutionScope(self.request_id, (*self.branch_path, branch_index))

    def with_branch_path(self, branch_path):
        return ExecutionScope(self.request_id, tuple(branch_path))


current_scope = contextvars.ContextVar("fake_current_scope", default=None)
