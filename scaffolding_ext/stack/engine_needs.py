"""What a stack needs of the engine behind one of its workers, found out without loading anything."""

from __future__ import annotations

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.capabilities import Requests
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.registry import unknown_name
from scaffolding_ext.stack.build import plan_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds


def engine_needs(config: StackConfig, tag: str) -> EngineNeeds:
    """What the stack needs of a worker's engine. The worker, or the one inside it, says a part; its tasks say the rest.

    The worker's `max_seq_len` is the length of a request. Without it the length is one token more than the longest task
    of a controller. A controller that does not say what it sends needs nothing.

    Raises:
        ConfigError: The stack is wrong, or has no such worker.
    """
    if tag not in config.workers:
        raise ConfigError(unknown_name("worker", tag, tuple(config.workers)), "workers")
    controller, workers = plan_stack(config)
    asked = ((getattr(worker.factory, "engine_needs", None), worker.args) for worker in workers if worker.tag == tag)
    needs: EngineNeeds = next((declared(args) for declared, args in asked if declared), EngineNeeds())
    sent = (controller.requests() if isinstance(controller, BaseController) else {}).get(tag, Requests())
    return needs._replace(
        scores=needs.scores or ScoreTask in sent.required,
        max_seq_len=needs.max_seq_len or (None if sent.max_tokens is None else sent.max_tokens + 1),
    )
