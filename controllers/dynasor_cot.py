"""Dynasor-CoT: probe an unfinished chain of thought for its answer now and then, and stop when the answers agree.

Reference: Fu et al., "Efficiently Scaling LLM Reasoning with Certaindex" (Dynasor), section on chain-of-thought
probing.
Deviations: hedge words match whole words; a chain that ends by itself keeps its own answer; at the end of the budget an
answer is forced; every probe token and everything that an exit discards is counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.answer_classes import classify
from scaffolding_ext.controllers.base import BaseController, prompt_family
from scaffolding_ext.controllers.chain import Chain, Prefix, asked_answer, asking, close_with, conclude, start_chain
from scaffolding_ext.controllers.stopping import Probe, Rule, make_rule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.program import record
from scaffolding_ext.prompting import PromptFamily, family_named
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.sampling_params import checked_sampling_params, set_sampling_params
from scaffolding_ext.tasks import output_of

HEDGE_WORDS = ("wait", "hold", "but", "okay", "no", "hmm")


class Effort(NamedTuple):
    """How eagerly to stop: agreeing probes asked for, and tokens between probes."""

    certainty_threshold: int
    chunk_size: int


EFFORTS = {
    "mild": Effort(8, 64),
    "low": Effort(5, 64),
    "mid": Effort(3, 64),
    "high": Effort(2, 64),
    "crazy": Effort(2, 32),
}


class DynasorCoTController(BaseController):
    """Stops a chain of thought when its probed answers agree.

    In *stream* mode the chain is one streaming generation that runs on while it is probed. In *chunk* mode it is a row
    of plain generation tasks, which any worker serves; the next chunk runs while the last one is probed, unless
    `overlap` is off. Where the worker cannot stream, stream mode falls back to chunks and the trace says so.

    Args:
        max_tokens: Budget of the chain in tokens; at its end an answer is forced.
        certainty_threshold: How many probes in a row must agree.
        chunk_size: Tokens between probes, and before the first unless `first_probe` says otherwise.
        effort: Preset for the two above, instead of them: mild, low, mid, high or crazy.
        mode: `"stream"` or `"chunk"`.
        rule: When thinking ends: `"consecutive"` (the last `certainty_threshold` answers are equal, none empty, none
            hedged), `"window"` (the share C_k of the last `certainty_threshold` answers that equal the newest is at
            least `window_share`, hedged ones left out), a function of the probes, or what else
            `controllers.stopping` takes. A rule that needs no probes is asked at the same positions, without any.
        window_share: tau of the window rule, in (0, 1].
        first_probe: Tokens before the first probe.
        probe_spacing: `"fixed"`, or `"geometric"`: each gap is `spacing_growth` times the one before.
        spacing_growth: Growth of the gaps, above 1.
        probe_tokens: Most tokens decoded for a probe's answer.
        probe_sampling_params: Sampling fields of the probes.
        hedge_words: Words that make a probe's response uncertain.
        hedge_match: `"word"` matches whole words, `"substring"` is upstream's rule (it takes "know" for "no").
        overlap: In chunk mode, whether the next chunk runs while a probe does.
        sampling_params: Sampling fields of the chain.
        family: Name of the prompt family; None takes the one of the stack's prompting.
        streaming: Whether the chain is streamed to the caller (stream mode only).
        insist_on_answer: Whether a chain that ended by itself without an answer is asked for one.

    Raises:
        ConfigError: An argument is outside its range.
    """

    continues_answers = True

    def __init__(
        self,
        max_tokens: int = 8192,
        certainty_threshold: int = 3,
        chunk_size: int = 64,
        *,
        effort: str | None = None,
        mode: Literal["stream", "chunk"] = "stream",
        rule: str | Rule = "consecutive",
        window_share: float = 1.0,
        first_probe: int | None = None,
        probe_spacing: Literal["fixed", "geometric"] = "fixed",
        spacing_growth: float = 1.5,
        probe_tokens: int = 20,
        probe_sampling_params: dict[str, Any] | None = None,
        hedge_words: Sequence[str] = HEDGE_WORDS,
        hedge_match: Literal["word", "substring"] = "word",
        overlap: bool = True,
        sampling_params: dict[str, Any] | None = None,
        family: str | None = None,
        streaming: bool = False,
        insist_on_answer: bool = True,
    ) -> None:
        super().__init__()
        if effort is not None:
            if (certainty_threshold, chunk_size) != (3, 64):
                raise ConfigError("sets certainty_threshold and chunk_size; give either it or them", "effort")
            certainty_threshold, chunk_size = EFFORTS[require.one_of("effort", effort, EFFORTS)]
        require.one_of("probe_spacing", probe_spacing, ("fixed", "geometric"))
        require.one_of("hedge_match", hedge_match, ("word", "substring"))
        if isinstance(hedge_words, str) or not all(isinstance(word, str) for word in hedge_words):
            raise ConfigError(f"is {hedge_words!r}; give a list of words, such as ['wait', 'but']", "hedge_words")
        if streaming and mode == "chunk":
            raise ConfigError("needs mode 'stream': chunks of a chain are not its output", "streaming")
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.certainty_threshold = require.whole("certainty_threshold", certainty_threshold)
        self.chunk_size = require.whole("chunk_size", chunk_size)
        self.mode = require.one_of("mode", mode, ("stream", "chunk"))
        window_share = require.share("window_share", window_share)
        try:
            self.rule = make_rule(rule, certainty_threshold, window_share)
        except ConfigError as error:
            raise type(error)(error.message, "rule") from error
        self.first_probe = self.chunk_size if first_probe is None else require.whole("first_probe", first_probe)
        growth = require.number("spacing_growth", spacing_growth, above=1)
        self.spacing_growth = growth if probe_spacing == "geometric" else 1.0
        self.probe_sampling_params = {"temperature": 0.6, "top_p": 0.95} | checked_sampling_params(
            probe_sampling_params, "probe_sampling_params", reserved=("max_tokens",)
        )
        self.probe_sampling_params["max_tokens"] = require.whole("probe_tokens", probe_tokens)
        self.overlap = overlap
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.family = None if family is None else family_named(family)
        self.streaming = streaming
        self.insist_on_answer = insist_on_answer
        border = r"\b" if hedge_match == "word" else ""
        words = "|".join(map(re.escape, hedge_words))
        self._hedge = re.compile(f"{border}(?:{words}){border}", re.IGNORECASE) if words else None

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        """Answer the task's prompt; keyword arguments are sampling fields of this request."""
        set_sampling_params(task, sampling_params)
        family = self.family or prompt_family()
        chain = start_chain(
            self,
            task,
            family,
            max_tokens=self.max_tokens,
            sampling_params=self.sampling_params,
            answer_tokens=self.probe_sampling_params["max_tokens"],
            mode=self.mode,
            streaming_output=self.streaming,
        )
        needs_probes = getattr(self.rule, "needs_probes", True)
        probes: list[Probe] = []
        gap = float(self.chunk_size)
        yield from chain.grow(self.first_probe)
        while not chain.ended:
            if chain.contains(family.think_close):  # the model is writing its answer: let it
                yield from chain.grow(chain.max_tokens)
                continue
            prefix = chain.prefix
            next_position = prefix.num_tokens + math.ceil(gap)
            gap *= self.spacing_growth
            if needs_probes:
                probe = asking(task, prefix, family.probe, self.probe_sampling_params)
                if self.overlap and not chain.runs_on:  # a stream runs on beside its probes by itself
                    yield from chain.grow(next_position, beside=[probe])
                else:
                    yield [probe]
                probes = yield from self._read(probe, prefix, probes)
                if chain.ended and chain.finish_reason != "length":
                    break  # its own answer is there, and paid for
            else:
                probes.append(Probe(prefix))
            if self.rule(probes):
                yield from self._stop(task, chain, probes[-1], family)
                return
            yield from chain.grow(next_position)
        yield from conclude(task, chain, family, self.probe_sampling_params, insist_on_answer=self.insist_on_answer)

    def _read(self, task: GenerationTask, prefix: Prefix, probes: list[Probe]) -> ControllerGenerator:
        """The probes with the newest one added, their answers sorted into classes anew."""
        answer, response = asked_answer(task), output_of(task)
        hedged = self._hedge is not None and self._hedge.search(response) is not None
        probes = [*probes, Probe(prefix, answer, -1, hedged, response)]
        classes = yield from classify(self, [probe.answer for probe in probes])
        record("probe", position=prefix.num_tokens, answer=answer, answer_class=classes[-1], hedged=hedged)
        return [probe._replace(answer_class=number) for probe, number in zip(probes, classes, strict=True)]

    def _stop(self, task: GenerationTask, chain: Chain, probe: Probe, family: PromptFamily) -> ControllerGenerator:
        """Leave the chain where it was looked at last: with the answer of its probe, or with one that is asked for."""
        reason = getattr(self.rule, "exit_reason", "certain")
        record("stop", position=probe.prefix.num_tokens, answer=probe.answer, reason=reason)
        if probe.answer is None:
            yield from conclude(task, chain, family, self.probe_sampling_params, exit_reason=reason)
            return
        yield from chain.leave(probe.prefix)
        close_with(task, probe.prefix, family.close, probe.answer, family, reason)


class DynasorGenerationController(DynasorCoTController):
    """Upstream's name and arguments for `DynasorCoTController`, so that its stack files load here.

    Migration: `generation_dir` is not used (token ids come from the worker, so no tokenizer is needed here), nor is
    upstream's worker tag: the chain goes to the worker `generation`. New stacks should name `DynasorCoTController`.
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
        super().__init__(max_tokens, certainty_threshold, chunk_size, streaming=streaming, sampling_params=params)
