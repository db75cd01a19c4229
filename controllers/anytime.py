"""Algorithms that can answer at any time: they draw, look, and stop as soon as a rule has seen enough.

A share of a stack's requests is audited: after the answer, such a request continues as if no rule had stopped it, and
the two answers are compared. The host does that work (see `request.audit`).
"""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import Any, Generic, TypeVar

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.request.audit import AuditFinding, Work
from scaffolding_ext.request.program import DEADLINE, current_program
from scaffolding_ext.request.seeds import branch_path, derive_seed

S = TypeVar("S")


class AnytimeController(BaseController, Generic[S]):
    """Starts, advances while there is more, and answers; a request's state is an object of the algorithm's choice."""

    @abstractmethod
    def start(self, run: Run, **asked: Any) -> S:
        """Create the state of a request from its keywords: the controller's, and sampling fields."""

    @abstractmethod
    def more(self, state: S) -> bool:
        """Return False once the rule has stopped the request, or nothing is left."""

    @abstractmethod
    def advance(self, run: Run, state: S) -> ControllerGenerator:
        """Run up to the next moment at which the rule may stop the request."""

    @abstractmethod
    def answer(self, run: Run, state: S) -> ControllerGenerator:
        """Write the output into the request's task: its text and tokens, the answer and the exit reason."""

    @abstractmethod
    def whole(self, run: Run, state: S) -> ControllerGenerator | None:
        """Return work that goes on without the rule and returns the answer's text; None if the rule stopped nothing."""

    def run(self, task: GenerationTask, **asked: Any) -> ControllerGenerator:
        """Answer a request, then let the host audit it unless its deadline ended it."""
        run = Run(self, task, getattr(self, "family", None))
        state = self.start(run, **asked)
        while self.more(state):
            yield from self.advance(run, state)
        yield from self.answer(run, state)
        if not run.is_late and task.customized_result_fields["exit_reason"] != DEADLINE:
            _offer(run, self.whole(run, state))


def _offer(run: Run, rest: ControllerGenerator | None) -> None:
    """Draw by chance if the request is audited, and leave the work to the host."""
    program = current_program()
    if program is None or not program.audit_share or branch_path():  # within a branch, the answer is only a part's
        return
    if program.audit is None:
        run.event("lowered", what="audit", reason="this host ends with the answer")
        return
    seed = program.seeds.seed
    if (random.random() if seed is None else derive_seed(seed, "audit") / 2**63) >= program.audit_share:
        return
    early = run.task.customized_result_fields["answer"]
    if rest is not None:
        program.audit.begin(_compared(run, early, rest))
        return
    finding = AuditFinding(early, early, changed=False)  # the rate is that of all requests, stopped early or not
    program.audit.end(finding)
    run.event("audit", **finding._asdict())


def _compared(run: Run, early: str | None, rest: ControllerGenerator) -> Work:
    whole = yield from rest
    first, second = yield from run.group([early, whole])
    return AuditFinding(early, whole, first != second)
