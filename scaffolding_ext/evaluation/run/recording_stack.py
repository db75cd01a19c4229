"""Build the stack that records another stack's samples: whole chains with probes, for `tune` to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.record_chain import RecordChainController
from scaffolding_ext.registry import controllers
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

_WHEN_IT_STOPS = ("rule", "certainty_threshold", "effort", "schedule", "chunk_size")  # arguments that are not recorded


def recording_stack(config: StackConfig, probe_every: int, num_logprobs: int = 20) -> StackConfig:
    """Build the stack that records the samples of another one.

    Of a vote, the samples are recorded instead of the vote. A chain is recorded with its probes, and not stopped.

    Args:
        config: A stack of one chain, or of a vote over chains.
        probe_every: Tokens between two probes of a chain; 0 records none.
        num_logprobs: Log-probabilities per token requested from the worker, for probed chains; 0 if it reports
            none.

    Raises:
        ConfigError: The stack is wrong, or its samples are not chains.
    """
    check_stack(config)
    sample = sample_of(config.controller)
    kind, args = controllers.resolve(sample["type"]), dict(sample.get("args", {}))
    if kind not in (NativeGenerationController, DynasorCoTController, BudgetForcingController):
        raise ConfigError(
            f"is a {sample['type']}; samples are recorded of a NativeGenerationController, of a DynasorCoTController, "
            "of a BudgetForcingController, or of a vote over one of them",
            "controller.type",
        )
    if not probe_every:
        made = whole_chain(sample)
    else:
        if kind is not DynasorCoTController:
            sampling = dict(whole_chain(sample).get("args", {}).get("sampling_params") or {})
            length = {"max_tokens": sampling.pop("max_tokens")} if "max_tokens" in sampling else {}
            args = {"sampling_params": sampling, **length}
        chain = {name: value for name, value in args.items() if name not in _WHEN_IT_STOPS}
        probed = {"type": controllers.name_of(DynasorCoTController), "args": chain}
        made = {
            "type": controllers.name_of(RecordChainController),
            "args": {
                "spacing": require.whole("probe_every", probe_every),
                "num_logprobs": num_logprobs,
                "generation_controller": probed,
            },
        }
    return config.model_copy(update={"controller": ComponentConfig.model_validate(made)})


def sample_of(controller: ComponentConfig) -> dict[str, Any]:
    """Return the controller of one sample: the innermost one."""
    own: Mapping[str, Any] = controller.model_dump(exclude_unset=True)
    while "generation_controller" in own.get("args", {}):
        own = own["args"]["generation_controller"]
    return dict(own)


def whole_chain(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the controller of one whole chain, with the sampling and length of one that ends chains."""
    given = sample.get("args", {})
    if controllers.resolve(sample["type"]) not in (DynasorCoTController, BudgetForcingController):
        return sample
    length = {"max_tokens": given["max_tokens"]} if "max_tokens" in given else {}
    sampling = {**(given.get("sampling_params") or {}), **length}
    return {
        "type": controllers.name_of(NativeGenerationController),
        "args": {"sampling_params": sampling} if sampling else {},
    }
