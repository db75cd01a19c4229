"""Record whole chains of thought, with everything that a stopping rule could see.

One recording serves all rules and settings; `evaluation.tune` plays them.
"""

from __future__ import annotations

from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController
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
from scaffolding_ext.request.program import record

VERSION = 1
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
