"""The nonconformity score of the chunks that the target reads."""

import pytest

from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import ScriptedWorker

LOGPROBS = [-1.0] * 18 + [-3.0, -5.0]  # of a chunk of 20 tokens


@pytest.mark.filterwarnings("ignore:the take-over rule. coverage 'conditional'")
def test_a_chunk_is_ranked_by_its_mean_negative_log_likelihood() -> None:
    draft = ScriptedWorker(lambda task: "7}" if task.input_str.endswith("{") else "d" * 100)
    target = ScriptedWorker(lambda task: LOGPROBS if isinstance(task, ScoreTask) else "7}")
    made = ConformalDraftTargetController(coverage="conditional", num_chains=2, max_turns=2, draft_tokens=20)
    with ScaffoldingLlm(made, {"draft": draft, "target": target}, seed=0) as llm:
        trace = llm.generate("question").program.trace
    scores = [event["score"] for event in trace if event["event"] in ("accept", "take_over")]
    assert scores == [pytest.approx(1.3)] * 4
