"""Audits by a twin: the same request from the same seeds, run by a clone of its controller that no rule stops.

A twin draws all samples again, the early ones included. Without a seed, or with a worker that does not keep it, these
are other samples, so the finding also counts the change that chance makes to a full vote.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.protocol import Controller, ControllerGenerator
from scaffolding_ext.request.audit import AuditFinding
from scaffolding_ext.request.program import DEADLINE
from scaffolding_ext.request.results import Completion
from scaffolding_ext.request.seeds import derive_seed

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program

WHOLE = ("vote", "end", "length")  # exit reasons of requests that no rule has stopped


def twin_of(controller: Controller, kwargs: Mapping[str, Any], output: Any, program: Program) -> BaseController | None:
    """Draw by chance if an answered request is audited, and return the controller of its twin; None if it is not."""
    own = kwargs.get("controller", controller)  # `serve` sets one per request
    if not isinstance(own, BaseController) or not isinstance(output, Completion) or not own.audit:
        return None
    seed = program.seeds.seed
    chance = random.random() if seed is None else derive_seed(seed, "audit") / 2**63
    return own.unstopped() if chance < own.audit and output.exit_reason != DEADLINE else None


def compared(
    controller: Controller, twin: BaseController, early: Any, prompt: str, kwargs: Mapping[str, Any]
) -> ControllerGenerator:
    """Answer the request again, and return how the answers compare."""
    if early.exit_reason in WHOLE:  # the rate is that of all requests, stopped early or not
        return AuditFinding(early.answer, early.answer, False)
    if "controller" in kwargs:
        whole = yield from controller.generate(prompt, **{**kwargs, "controller": twin})
    else:
        whole = yield from twin.generate(prompt, **kwargs)
    first, second = yield from classify(twin, [early.answer, whole.answer])
    return AuditFinding(early.answer, whole.answer, first != second)
