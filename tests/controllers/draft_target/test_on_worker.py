"""A controller's generation goes to the worker of another tag, and is checked against that worker."""

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.draft_target.on_worker import OnWorker
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import ScriptedWorker


@pytest.mark.parametrize("others", [{}, {"generation": ScriptedWorker("of the other")}])
def test_generation_goes_to_the_worker_of_the_tag(others):
    workers = {"draft": ScriptedWorker("of the draft"), **others}
    with ScaffoldingLlm(OnWorker(NativeGenerationController(), WorkerTag.DRAFT), workers) as llm:
        assert llm.generate("question").outputs[0].text == "of the draft"


def test_a_missing_worker_is_named_beside_those_that_are_there():
    with pytest.raises(ConfigError, match="OnWorker needs a worker 'draft'; the stack has: generation"):
        OnWorker(NativeGenerationController(), WorkerTag.DRAFT).check_roles({"generation": ScriptedWorker("x")})
