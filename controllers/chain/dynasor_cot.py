"""Dynasor-CoT: probe an unfinished chain of thought for its answer now and then, and stop when the answers agree.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), section on chain-of-thought
probing.
Deviations: hedge words match whole words; a chain that ends by itself keeps its own answer; at the end of the budget an
answer is forced; every probe token and everything that an exit discards is counted.
"""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any, ClassVar, Literal

from scaffolding_ext import require
from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.auditing import begin_audit, checked_share, is_audited, note_whole
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, finish, show
from scaffolding_ext.controllers.chain.chain import DEADLINE, Chain, Prefix, continuation
from scaffolding_ext.controllers.chain.ending import ANSWER_PROBABILITY, close_with, conclude
from scaffolding_ext.controllers.chain.looking import Looker, LookTasks, ProbeSchedule
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.chain.stopping.base import Rule, Stop, StoppingRule
from scaffolding_ext.controllers.chain.stream_chain import start_chain
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import DEFAULT_FAMILY, UNTHINKING_FAMILY, PromptFamily, family_named
from scaffolding_ext.prompts.sampling_params import (
    checked_sampling_params,
    inherit_sampling_params,
    set_sampling_params,
)
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.registry import answer_probes, probe_schedules, stopping_rules
from scaffolding_ext.request.audit import AuditFinding, Work
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import StepCounts, publish, publish_figures, record

# How eagerly to stop: agreeing probes asked for, and tokens between probes. Source: Dynasor's code, `dynasor/cot.py`.
EFFORTS = {"mild": (8, 64), "low": (5, 64), "mid": (3, 64), "high": (2, 64), "crazy": (2, 32)}


class DynasorCoTController(BaseController):
    """Stops a chain of thought when its probed answers agree.

    In *stream* mode the chain is one streaming generation that runs on while it is probed. In *chunk* mode it is a row
    of plain generation tasks, which any worker serves; the next chunk runs while the last one is probed, unless
    `overlap` is off. Where the worker cannot stream, stream mode falls back to chunks and the trace says so.

    Args:
        max_tokens: Budget of the chain in tokens; at its end an answer is forced.
        certainty_threshold: How many probes in a row must agree, if `rule` is a name; None takes its default: 3 for
            `"consecutive"`.
        chunk_size: Tokens between probes, where no `schedule` is given; None takes the schedule's default of 64.
        effort: Preset for the two above, instead of them: mild, low, mid (the defaults), high or crazy.
        hedge_match: How hedge words match, where no `probe` is given: `"word"` or `"substring"`.
        schedule: Where the chain is probed; None has it probed every `chunk_size` tokens.
        probe: How the chain is probed; None takes an `AnswerProbe`.
        rule: When thinking ends: a rule, its name, or a function whose first argument is called `probes`. None takes
            `"consecutive"`, Dynasor's own.
        mode: `"stream"` or `"chunk"`.
        overlap: In chunk mode, whether the next chunk runs while a probe does.
        sampling_params: Sampling fields of the chain.
        family: Name of the prompt family; None takes the one of the stack's prompting.
        streaming: Whether the chain is streamed to the caller (stream mode only).
        max_lead: Tokens that a stream may run ahead of a probe that has not been answered; None takes one spacing.
        insist_on_answer: Whether a chain that ended by itself without an answer is asked for one.
        audit: Share of the requests, in [0, 1], whose chain is written to its end behind the answer, drawn anew from
            where it stopped (see `controllers.auditing`).
    """

    continues_answers = True
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
        audit: float = 0.0,
    ) -> None:
        super().__init__()
        self.audit = checked_share(audit)
        if effort is not None:
            require.alone("effort", effort, certainty_threshold=certainty_threshold, chunk_size=chunk_size)
            certainty_threshold, chunk_size = EFFORTS[require.one_of("effort", effort, EFFORTS)]
        if certainty_threshold is not None:
            require.whole("certainty_threshold", certainty_threshold)
        require.alone("probe", probe, hedge_match=hedge_match)
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.probe = probe or AnswerProbe(hedge_match=hedge_match or "word")
        self.forcing = {**self.probe.sampling_params, "temperature": 0.0}  # nobody votes on an answer that is forced
        self.longest_request = self.max_tokens + self.probe.max_tokens
        chosen = "consecutive" if rule is None else rule
        self.rule: StoppingRule = stopping_rules.obtain(_with_threshold(chosen, certainty_threshold), "rule")
        own = self.rule.schedule
        require.alone("rule", own, schedule=schedule, chunk_size=chunk_size)
        require.alone("schedule", schedule, chunk_size=chunk_size)
        self.schedule = own or schedule or (ProbeSchedule() if chunk_size is None else ProbeSchedule(chunk_size))
        self.num_logprobs = self.rule.needs.num_logprobs
        self.looker = Looker(self.probe, self.rule.needs)
        self.mode = require.one_of("mode", mode, ("stream", "chunk"))
        self.overlap = overlap
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.family = None if family is None else family_named(family)
        if streaming and mode == "chunk":
            raise ConfigError("needs mode 'stream': chunks of a chain are not its output", "streaming")
        self.streaming = streaming
        self.max_lead = None if max_lead is None else require.whole("max_lead", max_lead)
        self.insist_on_answer = insist_on_answer

    def honours(self) -> frozenset[str]:
        return CHAIN_FIELDS | {"thinking_budget"}

    def run(
        self, task: GenerationTask, thinking_budget: int | None = None, **sampling_params: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt."""
        set_sampling_params(task, sampling_params)
        audited = is_audited(self.audit)
        family = self.family or prompt_family()
        if self.family is None and not family.thinks:
            warnings.warn(
                f"the model's chat template has no <think>: its chain is probed as an answer that it is writing, which "
                f"suits a model that does not think (family={UNTHINKING_FAMILY!r} in the controller's arguments says "
                f"that you know). For a model that thinks, family={DEFAULT_FAMILY!r} probes it as a chain of thought",
                stacklevel=2,
            )
        if thinking_budget is not None:
            record("thinking_budget", asked=thinking_budget, by="controller", reason="it bounds the chain")
        chain = start_chain(
            self,
            task,
            family,
            max_tokens=self.max_tokens if thinking_budget is None else min(self.max_tokens, thinking_budget),
            sampling_params=self._chain_params(),
            answer_tokens=self.probe.max_tokens,
            mode=self.mode,
            streaming_output=self.streaming and not task.streaming_output_flag,  # that caller is shown text that stands
            max_lead=self.max_lead,
        )
        probes: list[Probe] = []
        known = AnswerClasses()
        gaps = self.schedule.gaps()
        gap = next(gaps)
        self._publish(chain, 0, gap, probes)
        yield from chain.grow(gap)
        while not chain.ended:
            if chain.contains(family.think_close):  # the model is writing its answer: let it
                show(task, chain.text, None)
                yield from chain.grow(chain.max_tokens)
                continue
            prefix = chain.prefix
            gap = next(gaps)
            next_position = prefix.num_tokens + gap
            if not self.schedule.is_due(prefix.text[len(probes[-1].prefix.text) if probes else 0 :]):
                show(task, prefix.text, None)
                yield from chain.grow(next_position)
                continue
            asked = self.looker.asking(task, prefix, family)
            if asked.tasks and self.overlap and not chain.runs_on:  # a stream runs on beside its probes by itself
                yield from chain.grow(next_position, beside=asked.tasks)
            elif asked.tasks:
                yield asked.tasks
            probes = yield from self._sorted([*probes, self.looker.read(prefix, asked, family)], asked, known)
            if chain.ended and chain.finish_reason != "length":
                break  # its own answer is there, and paid for
            self._publish(chain, prefix.num_tokens, gap, probes)
            stop = self.rule.stop(probes)
            if stop is not None:
                yield from self._stop(task, chain, probes, stop, family)
                if audited:
                    begin_audit(self._whole_chain(task, prefix, chain.max_tokens - prefix.num_tokens, family))
                return
            show(task, prefix.text, None)  # whatever the next probes say, the chain goes on behind this one
            yield from chain.grow(next_position)
        self._observe(chain.num_tokens)
        self._sum_up(chain, chain.num_tokens, probes, None)
        yield from conclude(task, chain, family, self.forcing, insist_on_answer=self.insist_on_answer)
        if audited and chain.finish_reason != DEADLINE:  # what a deadline costs is not the rule's doing
            note_whole(task.customized_result_fields["answer"])

    def _whole_chain(self, task: GenerationTask, prefix: Prefix, num_left: int, family: PromptFamily) -> Work:
        """Write the rest of a chain that was stopped, and compare its answer with the one that was given."""
        rest = continuation(task, prefix, num_left)
        inherit_sampling_params(rest, task, "audit")
        chain = start_chain(
            self,
            rest,
            family,
            max_tokens=num_left,
            sampling_params=self.sampling_params,
            answer_tokens=self.probe.max_tokens,
            mode=self.mode,
        )
        yield from chain.grow(num_left)
        yield from conclude(rest, chain, family, self.forcing, insist_on_answer=self.insist_on_answer)
        early, whole = task.customized_result_fields["answer"], rest.customized_result_fields["answer"]
        first, second = yield from classify(self, [early, whole])
        return AuditFinding(early, whole, first != second)

    def _sum_up(self, chain: Chain, num_tokens: int, probes: list[Probe], stop: Stop | None) -> None:
        """Publish the figures of a chain that was left or ended."""
        ended = "budget" if chain.finish_reason == "length" else "own end"
        publish_figures(
            type(self).__name__,
            stopped_early=Ratio(int(stop is not None), 1),
            stop_reason={ended if stop is None else stop.reason: 1},
            chain_tokens=num_tokens,
            probes=len(probes),
        )

    def _observe(self, num_tokens: int) -> None:
        """Tell the rule where the chain was left or ended, and the trace what it says of that."""
        drift = self.rule.observe(num_tokens)
        if drift is not None:
            record("drift", **drift)

    def _chain_params(self) -> dict[str, Any]:
        """Sampling fields of the chain, with the log-probabilities that the rule reads."""
        params = self.sampling_params
        wanted = int(self.rule.needs.chain_logprobs)
        return {**params, "num_logprobs": wanted} if wanted > (params.get("num_logprobs") or 0) else params

    def _publish(self, chain: Chain, position: int, gap: int, probes: list[Probe]) -> None:
        """Publish how far the chain is: its knob counts the looks that its budget leaves."""
        num_left = math.ceil((chain.max_tokens - position) / max(1, gap))
        publish(StepCounts(type(self).__name__, len(probes), num_left, self.rule.certaindex(probes)))

    def _sorted(self, probes: list[Probe], asked: LookTasks, known: AnswerClasses) -> ControllerGenerator:
        """The probes, with the class of the newest answer; a shorter form of an answer may renumber the others."""
        if not asked.tasks:
            return probes
        if asked.answer is not None:
            classes = yield from classify(self, [probe.answer for probe in probes], known)
            probes = [probe._replace(answer_class=number) for probe, number in zip(probes, classes, strict=True)]
        record("probe", position=probes[-1].prefix.num_tokens, **probes[-1].figures(), **asked.figures())
        return probes

    def _stop(
        self, task: GenerationTask, chain: Chain, probes: list[Probe], stop: Stop, family: PromptFamily
    ) -> ControllerGenerator:
        """Leave the chain where it was looked at last: with an answer that it gave, one that is asked for, or none."""
        prefix, probe = probes[-1].prefix, stop.left_with(probes)
        answer = None if probe is None or probe.is_part else probe.answer
        record("stop", position=prefix.num_tokens, answer=answer, reason=stop.reason, **stop.figures)
        self._observe(prefix.num_tokens)
        self._sum_up(chain, prefix.num_tokens, probes, stop)
        if answer is None and stop.answer != "none":
            yield from conclude(task, chain, family, self.forcing, exit_reason=stop.reason, at=prefix)
            return
        yield from chain.leave(prefix)
        if answer is None:
            finish(task, prefix.text, prefix.token_ids, None, stop.reason)
        else:
            close_with(task, prefix, family.close, answer, family, stop.reason)
            if probe is not None and probe.confidence is not None:
                task.customized_result_fields[ANSWER_PROBABILITY] = probe.confidence


def _with_threshold(rule: str | Rule, threshold: int | None) -> Any:
    """A rule by its name, with a threshold of the controller's."""
    if threshold is None:
        return rule
    is_known = isinstance(rule, str) and ":" not in rule
    if not is_known or "threshold" not in inspect.signature(stopping_rules.resolve(str(rule))).parameters:
        raise ConfigError(
            f"is {rule!r}, which takes no certainty_threshold; leave that out, or give it to the rule", "rule"
        )
    return {"type": rule, "args": {"threshold": threshold}}


class DynasorGenerationController(DynasorCoTController):
    """Upstream's name and arguments for `DynasorCoTController`, so that its stack files load here.

    Migration: upstream's worker tag is not used: the chain goes to the worker `generation`. New stacks should name
    `DynasorCoTController`.

    As upstream's it probes before the chain begins, and then every `chunk_size` tokens (0, 64, 128, ...).

    Deviation: `max_tokens` is the budget of the chain alone. Upstream's code subtracts the tokens of the prompt and of
    the probe's suffix, and then goes on to the end of a chunk.

    Args:
        generation_dir: Not used: token ids come from the worker, so no tokenizer is needed here.
        max_tokens: Budget of the chain in tokens.
        certainty_threshold: How many probes in a row must agree.
        chunk_size: Tokens between probes.
        streaming: Whether the chain is streamed to the caller.
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
