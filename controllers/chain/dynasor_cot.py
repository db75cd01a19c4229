"""Dynasor-CoT: probe an unfinished chain of thought for its answer, and stop when the answers agree.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), section on chain-of-thought
    probing.
Deviations: Hedge words match whole words. A chain that ends by itself keeps its answer. A chain that
    spends its budget without an answer is forced to give one. All probe tokens and discarded tokens are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController
from scaffolding_ext.controllers.chain.chain import UNANSWERED, Chain
from scaffolding_ext.controllers.chain.ending import close, conclude
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.chain.probing import Prober, ProbeSchedule
from scaffolding_ext.controllers.chain.shorthand import parts_of, warn_if_unthinking
from scaffolding_ext.controllers.chain.stopping.base import Never, Rule, Stop
from scaffolding_ext.controllers.chain.stream_chain import start_chain
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.sampling_params import checked_sampling_params
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import meta_of
from scaffolding_ext.registry import answer_probes, probe_schedules, stopping_rules


class DynasorCoTController(BaseController):
    """Stops a chain of thought when its probed answers agree.

    In *stream* mode the chain is one streaming generation that continues while it is probed. In *chunk* mode it is a
    series of plain generation tasks, which any worker serves; the next chunk runs while the last one is probed, unless
    `overlap` is off. If the worker cannot stream, stream mode falls back to chunks and the trace says so.

    Dynasor's rule, `"consecutive"`, stops at `certainty_threshold` successive probes with the same answer and no hedge
    word ("wait", "but", ...) in their responses. The chain is cut back to its last probe, whose answer is the output.

    Args:
        max_tokens: Budget of the chain in tokens; a chain that spends it without an answer is forced to give one.
        certainty_threshold: Number of successive probes that must agree, if `rule` is a name; None takes its default: 3
            for `"consecutive"`.
        chunk_size: Tokens between probes, if no `schedule` is given; None takes the schedule's default of 64.
        effort: Preset of `certainty_threshold` and `chunk_size`, which it replaces: from "mild" (8 probes must agree)
            over "mid" (the defaults) to "crazy" (2, every 32 tokens).
        hedge_match: Matching of hedge words, if no `probe` is given: `"word"` or `"substring"`.
        schedule: Positions at which the chain is probed; None probes every `chunk_size` tokens.
        probe: Asks for the answer; None takes an `AnswerProbe`.
        rule: Ends thinking: a rule, its name, or a function whose first argument is called `probes`. None takes
            `"consecutive"`, Dynasor's rule.
        mode: `"stream"` or `"chunk"`.
        overlap: In chunk mode, run the next chunk during a probe.
        sampling_params: Sampling fields of the chain.
        family: Name of the prompt family; None takes the one of the stack's prompting.
        streaming: Stream the chain to the caller (stream mode only).
        max_lead: Tokens that a stream may run ahead of an unanswered probe; None takes one spacing.
        insist_on_answer: Ask a chain that ended by itself without an answer for one.
    """

    registries: ClassVar = {"rule": stopping_rules, "schedule": probe_schedules, "probe": answer_probes}

    def __init__(
        self,
        max_tokens: int = 8192,
        certainty_threshold: int | None = None,
        chunk_size: int | None = None,
        *,
        effort: str | None = None,
        hedge_match: Literal["word", "substring"] | None = None,
        schedule: ProbeSchedule | None = None,
        probe: AnswerProbe | None = None,
        rule: str | Rule | None = None,
        mode: Literal["stream", "chunk"] = "stream",
        overlap: bool = True,
        sampling_params: dict[str, Any] | None = None,
        family: str | None = None,
        streaming: bool = False,
        max_lead: int | None = None,
        insist_on_answer: bool = True,
    ) -> None:
        super().__init__()
        short: Any = {"effort": effort, "certainty_threshold": certainty_threshold}
        short |= {"chunk_size": chunk_size, "hedge_match": hedge_match}
        self.rule, self.schedule, self.probe = parts_of(rule, schedule, probe, **short)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.prober = Prober(self.probe, self.rule.needs)
        self.forcing = {**self.probe.sampling_params, "temperature": 0.0}  # a chain has one forced answer
        self.mode = require.one_of("mode", mode, ("stream", "chunk"))
        self.overlap = overlap
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.family = None if family is None else family_named(family)
        if streaming and mode == "chunk":
            raise ConfigError("needs mode 'stream': chunks of a chain are not its output", "streaming")
        self.streaming = streaming
        self.max_lead = None if max_lead is None else require.whole("max_lead", max_lead)
        self.insist_on_answer = insist_on_answer
        self.needs = Needs(
            max_tokens=self.max_tokens + self.probe.max_tokens,
            num_logprobs=self.rule.needs.num_logprobs,
            continues_answers=True,
            fields=CHAIN_FIELDS | {"thinking_budget"},
        )

    def run(
        self, task: GenerationTask, thinking_budget: int | None = None, **sampling_params: Any
    ) -> ControllerGenerator:
        """Write the chain, probe it at each due position, and leave it once the rule has seen enough."""
        run = Run(self, task, self.family)
        run.set(sampling_params)
        chain = self._begin(run, thinking_budget)
        gaps, probes, stop = self.schedule.gaps(), list[Probe](), None
        due = next(gaps)  # position of the next probe
        run.event("begin", controller=run.name, left=math.ceil(chain.max_tokens / max(1, due)))
        while stop is None and not chain.ended:
            yield from chain.grow(due)
            if chain.ended:
                break
            prefix = chain.prefix
            if chain.has_thought:  # the model is writing its answer: let it
                due = chain.max_tokens
            else:
                due = prefix.num_tokens + next(gaps)
                asked = self.prober.asking(task, prefix, run.family)  # opens a box; None if the rule reads no answer
                if asked is not None and self.overlap and not chain.runs_on:  # a stream runs on by itself
                    yield from chain.grow(due, beside=[asked])
                elif asked is not None:
                    yield [asked]
                probes.append(self.prober.read(prefix, asked, run.family))
                if asked is not None:
                    probes = yield from self._classified(run, probes)
                    self._report(run, probes, asked, chain.max_tokens, due)
                if not chain.ended or chain.finish_reason in UNANSWERED:  # not ended by itself, with its own answer
                    stop = self.rule.stop(probes)
            if stop is None and not chain.ended:
                run.show(prefix.text)  # final: later probes only cut the chain after this one
        yield from self._answer(run, chain, probes, stop)

    def _begin(self, run: Run, thinking_budget: int | None) -> Chain:
        if self.family is None:
            warn_if_unthinking(run.family)
        shows_all = self.streaming and not run.task.streaming_output_flag  # such a caller is shown only final text
        return start_chain(
            self,
            run.task,
            run.family,
            answer_tokens=self.probe.max_tokens,
            mode=self.mode,
            max_tokens=run.budget(self.max_tokens, thinking_budget),
            sampling_params=self.sampling_params,
            streaming_output=shows_all,
            max_lead=self.max_lead,
        )

    def _classified(self, run: Run, probes: list[Probe]) -> ControllerGenerator:
        """Return the probes with their answers' classes, all anew: another answer may change earlier classes."""
        classes = yield from run.group([each.answer for each in probes])
        return [each._replace(answer_class=n) for each, n in zip(probes, classes, strict=True)]

    def _report(self, run: Run, probes: list[Probe], asked: GenerationTask, max_tokens: int, due: int) -> None:
        seen, at = probes[-1].figures(), probes[-1].prefix.num_tokens
        if (num_suffix_tokens := meta_of(asked).num_suffix_tokens) > 0:
            seen["suffix_tokens"] = num_suffix_tokens
        if asked.output_tokens is not None:
            seen["answer_tokens"] = len(asked.output_tokens)
        left = math.ceil((max_tokens - at) / max(1, due - at))
        progress = {"done": len(probes), "left": left, "certaindex": self.rule.certaindex(probes)}
        run.event("probe", position=at, **seen, **progress)

    def _answer(self, run: Run, chain: Chain, probes: Sequence[Probe], stop: Stop | None) -> ControllerGenerator:
        """Leave a stopped chain at its last probe with the probe's answer or a forced one; else conclude the chain."""
        probe = None if stop is None else stop.left_with(probes)  # the last probe, if it has an answer
        prefix = chain.prefix if stop is None else probes[-1].prefix
        cut_by = "budget" if chain.finish_reason == "length" else str(chain.finish_reason)
        own_end = cut_by if chain.finish_reason in UNANSWERED else "own end"
        reason = own_end if stop is None else stop.reason
        if stop is not None:
            answer = None if probe is None else probe.answer
            run.event("stop", position=prefix.num_tokens, answer=answer, reason=reason, **stop.figures)
        figures = {"stopped_early": stop is not None, "stop_reason": reason, "chain_tokens": prefix.num_tokens}
        run.tell(self.rule, prefix.num_tokens)
        run.sum_up(**figures, probes=len(probes))
        if stop is None:
            yield from conclude(chain, self.forcing, insist_on_answer=self.insist_on_answer)
        elif probe is None:
            yield from conclude(chain, self.forcing, exit_reason=reason, at=prefix)
        else:
            yield from close(chain, prefix, probe, reason)

    def unstopped(self) -> DynasorCoTController:
        twin = self.clone()
        assert isinstance(twin, DynasorCoTController)
        twin.rule, twin.prober = Never(), Prober(self.probe, Never.needs)
        return twin


class DynasorGenerationController(DynasorCoTController):
    """Upstream's name and arguments for `DynasorCoTController`, so that its stack files load here.

    Migration: upstream's worker tag is ignored: the chain goes to the worker `generation`. New stacks should name
    `DynasorCoTController`.

    As upstream, it probes before the chain begins, and then every `chunk_size` tokens (0, 64, 128, ...).

    Deviation: `max_tokens` is the budget of the chain only. Upstream's code subtracts the tokens of the prompt and of
        the probe's suffix, and then runs to the end of a chunk.

    Args:
        generation_dir: Ignored: token ids come from the worker, so no tokenizer is needed here.
        max_tokens: Budget of the chain in tokens.
        certainty_threshold: Number of successive probes that must agree.
        chunk_size: Tokens between probes.
        streaming: Stream the chain to the caller.
        sampling_params: Sampling fields of the chain; temperature 0.6 and top-p 0.95 if it sets neither.
    """

    def __init__(
        self,
        generation_dir: str | None = None,
        max_tokens: int = 8192,
        certainty_threshold: int = 3,
        chunk_size: int = 64,
        streaming: bool = False,
        sampling_params: dict[str, Any] | None = None,
    ) -> None:
        params = {"temperature": 0.6, "top_p": 0.95} | (sampling_params or {})
        schedule = ProbeSchedule(require.whole("chunk_size", chunk_size), first_probe=0)
        super().__init__(
            max_tokens, certainty_threshold, schedule=schedule, streaming=streaming, sampling_params=params
        )
