"""Stacks as models of other evaluation harnesses; each module needs the harness that it is for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scaffolding_ext.documents import as_json
from scaffolding_ext.prompts.prompting import DEFAULT_FAMILY, family_named

if TYPE_CHECKING:
    from scaffolding_ext.request.results import ScaffoldingResult


def behind_thinking(result: ScaffoldingResult) -> str:
    """What stands behind the end of the thinking in a result's text; all of a text that has none."""
    prompting = result.program.question.prompting
    family = family_named(DEFAULT_FAMILY) if prompting is None else prompting.family
    return (result.outputs[0].text or "").rpartition(family.think_close)[2].lstrip("\n")


def told(result: ScaffoldingResult) -> dict[str, Any]:
    """What a harness keeps of an ended request beside its text: our ledger, the trace, and how it ended."""
    return {
        "answer": result.answer,
        "exit_reason": result.exit_reason,
        "ledger": result.program.ledger.to_json(),
        "seed": result.program.seeds.seed,
        "trace": json.loads(json.dumps(result.program.trace, default=as_json)),
    }
