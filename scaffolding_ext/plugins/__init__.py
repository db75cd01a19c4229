"""Stacks as models in other evaluation harnesses; each module requires its harness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scaffolding_ext.answers.reading import split_unknown
from scaffolding_ext.documents import as_json

if TYPE_CHECKING:
    from scaffolding_ext.request.results import ScaffoldingResult


def behind_thinking(result: ScaffoldingResult) -> str:
    """The answer in a result's text, without its thinking."""
    question = result.program.question
    text = result.outputs[0].text or ""
    split = split_unknown(text) if question.family is None else question.family.split(text, question.is_open)
    return split.answer


def told(result: ScaffoldingResult) -> dict[str, Any]:
    """Record of a finished request beside its text: ledger, trace and exit reason."""
    return {
        "answer": result.answer,
        "exit_reason": result.exit_reason,
        "ledger": result.program.ledger.to_json(),
        "seed": result.program.seeds.seed,
        "trace": json.loads(json.dumps(result.program.trace, default=as_json)),
    }
