"""SpecReason by a prompt: the target's digit decides, all chains of a turn wait, and its tokens are verification."""

import pytest

from scaffolding_ext.controllers.draft_target.baselines import GRADE_QUESTION, SpecReasonScores
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.testing import ScriptedWorker


def decided(grade, threshold):
    """The decisions on two chains of one turn, and the ledger."""

    def respond(task):
        return grade if (task.input_str or "").endswith(GRADE_QUESTION) else "T" * 9

    made = ConformalDraftTargetController(
        rule=SpecReasonScores(threshold), num_chains=2, max_turns=1, draft_tokens=4, target_tokens=4
    )
    with ScaffoldingLlm(made, {"draft": ScriptedWorker("d" * 9), "target": ScriptedWorker(respond)}, seed=0) as llm:
        program = llm.generate("question").program
    return [e for e in program.trace if e["event"] in ("accept", "take_over")], program.ledger


@pytest.mark.parametrize(
    ("grade", "event"), [("7", "accept"), (" 9", "accept"), ("6", "take_over"), ("none", "take_over")]
)
def test_a_chunk_below_the_threshold_is_taken_over_and_a_reply_without_a_digit_too(grade, event):
    decisions, ledger = decided(grade, 7)
    assert [each["event"] for each in decisions] == [event] * 2
    assert ledger.by_purpose[Purpose.VERIFY].decoded > 0


def test_chunks_of_a_turn_wait_for_each_other():
    assert SpecReasonScores().in_step(3)


def test_a_threshold_beyond_the_scale_is_refused():
    with pytest.raises(ConfigError, match="threshold"):
        SpecReasonScores(11)
