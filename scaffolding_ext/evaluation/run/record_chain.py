"""Record whole chains of thought, with everything that a stopping rule could see.

One recording serves all rules and settings; `evaluation.tune` plays them. `recording_stack` builds the stack that
records the samples of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.ending import conclude
from scaffolding_ext.controllers.chain.probe import Probe, asking, forced_answer, row_of
from scaffolding_ext.controllers.chain.probing import ProbeNeeds, Prober
from scaffolding_ext.controllers.chain.stream_chain import start_chain
from scaffolding_ext.controllers.prompting import encode, prompt_family
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.sampling_params import set_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.registry import controllers
from scaffolding_ext.request.program import record
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

VERSION = 1
_WHEN_IT_STOPS = ("rule", "certainty_threshold", "effort", "schedule", "chunk_size")  # arguments that are not recorded
PROBED = "look"  # event of a probe, in this version


class RecordChainController(BaseController):
    """Records the chains of a controller that stops them: the probed and the forced answer at every probe.

    The trace has an event `recording` (version, tokens of the prompt and of the suffixes), and an event `look` per
    probe: the row of `chain.probe.row_of`, the forced answer, and the tokens of both answers.

    Args:
        generation_controller: Its chains and probes are recorded; its rule and schedule are ignored.
        spacing: Tokens between two probes; None takes the distance of the first two in its schedule.
        num_logprobs: Log-probabilities of the token after closed thinking; if fewer than the vocabulary, the entropy is
            a lower bound. 0 records none.
    """

    def __init__(
        self, generation_controller: DynasorCoTController, spacing: int | None = None, num_logprobs: int = 20
    ) -> None:
        super().__init__()
        if not isinstance(generation_controller, DynasorCoTController):
            raise ConfigError(
                f"is a {type(generation_controller).__name__}; give a DynasorCoTController, the only controller that "
                "stops chains",
                "generation_controller",
            )
        self.generation_controller = generation_controller
        own = generation_controller.schedule.chunk_size
        self.spacing = require.whole("spacing", own if spacing is None else spacing)
        self.num_logprobs = require.whole("num_logprobs", num_logprobs, least=0)
        self.needs = generation_controller.needs._replace(num_logprobs=self.num_logprobs, fields=CHAIN_FIELDS)

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        set_sampling_params(task, sampling_params)
        stopping = self.generation_controller
        family, probe = stopping.family or prompt_family(task), stopping.probe
        has_logprobs = self.num_logprobs > 0
        prober = Prober(probe, ProbeNeeds(answer_logprobs=has_logprobs))
        logprobs = {"num_logprobs": 1} if has_logprobs else {}
        forcing = {**stopping.forcing, **({"num_logprobs": self.num_logprobs} if has_logprobs else {})}
        chain = start_chain(
            self,
            task,
            family,
            max_tokens=stopping.max_tokens,
            sampling_params={**stopping.sampling_params, **logprobs},
            answer_tokens=probe.max_tokens,
            mode=stopping.mode,
        )
        suffixes = {"num_probe_suffix": family.probe, "num_close_suffix": family.close}
        record(
            "recording",
            version=VERSION,
            spacing=self.spacing,
            num_prompt_tokens=len(task.input_tokens or encode(task.input_str or "") or ()),
            **{name: len(encode(suffix) or ()) for name, suffix in suffixes.items()},
        )
        probes: list[Probe] = []
        yield from chain.grow(self.spacing)
        while not chain.ended and not chain.has_thought:
            prefix = chain.prefix
            asked, forced = prober.asking(task, prefix, family), asking(task, prefix, family.close, forcing)
            assert asked is not None, "the prober needs answers"
            yield [asked, forced]
            probes.append(prober.read(prefix, asked, family))
            record(
                PROBED,
                **row_of(probes),
                num_answer_tokens=_num_decoded(asked),
                forced=forced_answer(forced),
                num_forced_tokens=_num_decoded(forced),
            )
            yield from chain.grow(prefix.num_tokens + self.spacing)
        yield from chain.grow(chain.max_tokens)
        yield from conclude(chain, stopping.forcing, insist_on_answer=stopping.insist_on_answer)


def _num_decoded(task: GenerationTask) -> int:
    counts = token_counts_of(task)
    return 0 if counts is None else counts.decoded


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
