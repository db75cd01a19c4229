"""The stack that records the chains of another stack."""

from __future__ import annotations

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.record_chain import RecordChainController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.registry import controllers
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

_NOT_RECORDED = ("rule", "certainty_threshold", "effort", "schedule", "chunk_size")  # when and where it stops


def recording_stack(config: StackConfig, spacing: int | None = None, num_logprobs: int = 20) -> StackConfig:
    """The stack with a controller that records the chains of its own.

    Args:
        config: A stack whose outermost controller is a DynasorCoTController; when that stops is not used.
        spacing: Tokens between recorded looks; None takes half of those between the first two of its own.
        num_logprobs: Log-probabilities a token that the worker is asked for.

    Raises:
        ConfigError: The stack is wrong, or its controller is another.
    """
    controller = check_stack(config)
    if not isinstance(controller, DynasorCoTController):
        raise ConfigError(
            f"is a {type(controller).__name__}; calibrate the DynasorCoTController by itself", "controller.type"
        )
    args = {key: value for key, value in config.controller.args.items() if key not in _NOT_RECORDED}
    component = ComponentConfig(
        type=controllers.name_of(RecordChainController),
        args={
            "spacing": spacing or max(1, controller.schedule.chunk_size // 2),
            "num_logprobs": num_logprobs,
            "generation_controller": {"type": config.controller.type, "args": args},
        },
    )
    return config.model_copy(update={"controller": component})
