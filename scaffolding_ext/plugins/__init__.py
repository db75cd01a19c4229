"""Stacks as models in other evaluation harnesses; each module requires its harness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scaffolding_ext.documents import as_json
from scaffolding_ext.prompts.families import DEFAULT_FAMILY, family_named

if TYPE_CHECKING:
    from scaffolding_ext.request.results import ScaffoldingResult


def behind_thinking(result: ScaffoldingResult) -> str:
    """The answer in a result's text, without its thinking."""
    question = result.program.question
    family = question.family or family_named(DEFAULT_FAMILY)
    return family.split(result.outputs[0].text or "", question.is_open).answer


def told(result: ScaffoldingResult) -> dict[str, Any]:
    """Record of a finished request beside its text: ledger, trace and exit reason."""
    return {
        "answer": result.answer,
        "exit_reason": result.exit_reason,
        "ledger": result.program.ledger.to_json(),
        "seed": result.program.seeds.seed,
        "trace": json.loads(json.dumps(result.program.trace, default=as_json)),
    }
