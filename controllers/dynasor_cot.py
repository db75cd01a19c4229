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

from scaffolding_ext.answers import AnswerClasses
from scaffolding_ext.controllers.base import BaseController, longest_len, prompt_family
from scaffolding_ext.controllers.chain import (
    Chain,
    ChunkChain,
    Prefix,
    StreamChain,
    asked_answer,
    asking,
    close_with,
    conclude,
)
from scaffolding_ext.controllers.native_generation import checked_sampling_params, set_sampling_params
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.program import record
from scaffolding_ext.prompting import PromptFamily, family_named
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, StreamGenerationTask
from scaffolding_ext.tasks import WorkerTag, output_of

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


class Probe(NamedTuple):
    """One probe's reading.

    Attributes:
        prefix: The chain that was probed.
        answer: The answer that it gave, or None.
        answer_class: Number of the class of equal answers, -1 for None.
        hedged: Whether the response contains a hedge word.
    """

    prefix: Prefix
    answer: str | None
    answer_class: int
    hedged: bool


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
        rule: `"consecutive"` (the last `certainty_threshold` answers are equal, none empty, none hedged) or `"window"`
            (the share C_k of the last `certainty_threshold` answers that equal the newest is at least `window_share`,
            hedged ones left out).
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

    Raises:
        ConfigError: An argument is outside its range.
    """

    def __init__(
        self,
        max_tokens: int = 8192,
        certainty_threshold: int = 3,
        chunk_size: int = 64,
        *,
        effort: str | None = None,
        mode: Literal["stream", "chunk"] = "stream",
        rule: Literal["consecutive", "window"] = "consecutive",
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
    ) -> None:
        super().__init__()
        if effort is not None:
            if effort not in EFFORTS:
                raise ConfigError(f"{effort!r} is no effort; choose one of {', '.join(EFFORTS)}", "effort")
            if (certainty_threshold, chunk_size) != (3, 64):
                raise ConfigError("sets certainty_threshold and chunk_size; give either it or them", "effort")
            certainty_threshold, chunk_size = EFFORTS[effort]
        first_probe = chunk_size if first_probe is None else first_probe
        for key, value, low in (
            ("max_tokens", max_tokens, 1),
            ("certainty_threshold", certainty_threshold, 1),
            ("chunk_size", chunk_size, 1),
            ("first_probe", first_probe, 1),
            ("probe_tokens", probe_tokens, 1),
        ):
            if value < low:
                raise ConfigError(f"is {value}; it must be at least {low}", key)
        for key, choice, allowed in (
            ("mode", mode, ("stream", "chunk")),
            ("rule", rule, ("consecutive", "window")),
            ("probe_spacing", probe_spacing, ("fixed", "geometric")),
            ("hedge_match", hedge_match, ("word", "substring")),
        ):
            if choice not in allowed:
                raise ConfigError(f"is {choice!r}; choose one of {', '.join(allowed)}", key)
        if not 0 < window_share <= 1:
            raise ConfigError(f"is {window_share}; it must lie in (0, 1]", "window_share")
        if spacing_growth <= 1:
            raise ConfigError(f"is {spacing_growth}; it must be above 1", "spacing_growth")
        if streaming and mode == "chunk":
            raise ConfigError("needs mode 'stream': chunks of a chain are not its output", "streaming")
        self.max_tokens = max_tokens
        self.certainty_threshold = certainty_threshold
        self.chunk_size = chunk_size
        self.mode = mode
        self.rule = rule
        self.window_share = window_share
        self.first_probe = first_probe
        self.spacing_growth = spacing_growth if probe_spacing == "geometric" else 1.0
        self.probe_sampling_params = {"temperature": 0.6, "top_p": 0.95} | checked_sampling_params(
            probe_sampling_params, "probe_sampling_params", reserved=("max_tokens",)
        )
        self.probe_sampling_params["max_tokens"] = probe_tokens
        self.overlap = overlap
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.family = None if family is None else family_named(family)
        self.streaming = streaming
        border = r"\b" if hedge_match == "word" else ""
        words = "|".join(map(re.escape, hedge_words))
        self._hedge = re.compile(f"{border}(?:{words}){border}", re.IGNORECASE) if words else None

    def run(self, task: GenerationTask, **sampling_params: Any) -> ControllerGenerator:
        """Answer the task's prompt; keyword arguments are sampling fields of this request."""
        set_sampling_params(task, sampling_params)
        family = self.family or prompt_family()
        chain = self._start_chain(task, family)
        classes = AnswerClasses()
        probes: list[Probe] = []
        overlap = self.overlap and not chain.runs_on  # a stream runs on beside its probes by itself
        gap = float(self.chunk_size)
        yield chain.advance(self.first_probe)
        chain.absorb()
        while not chain.ended:
            prefix = chain.prefix
            if chain.contains(family.think_close):  # the model is writing its answer: let it
                yield chain.advance(chain.max_tokens)
                chain.absorb()
                continue
            next_position = prefix.num_tokens + math.ceil(gap)
            gap *= self.spacing_growth
            probe = asking(task, prefix, family.probe, self.probe_sampling_params)
            if overlap:
                yield [*chain.advance(next_position), probe]
                chain.absorb()
            else:
                yield [probe]
            probes.append(self._read(probe, prefix, classes))
            if chain.ended and chain.finish_reason != "length":
                break  # its own answer is there, and paid for
            if self._is_certain(probes):
                yield from self._stop(task, chain, probes[-1], family)
                return
            if not overlap:
                yield chain.advance(next_position)
                chain.absorb()
        yield from conclude(task, chain, family, self.probe_sampling_params)

    def _start_chain(self, task: GenerationTask, family: PromptFamily) -> Chain:
        wanted = self.max_tokens if task.max_tokens is None else min(task.max_tokens, self.max_tokens)
        asking_len = longest_len(family.probe, family.close, family.close_closed)
        reserved = asking_len + self.probe_sampling_params["max_tokens"]
        max_tokens = self.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)
        if self.mode == "chunk":
            return ChunkChain(task, max_tokens, self.sampling_params)
        if not self.can_serve(WorkerTag.GENERATION, StreamGenerationTask):
            record("lowered", task="StreamGenerationTask", to="GenerationTask", reason="the worker cannot stream")
            return ChunkChain(task, max_tokens, self.sampling_params)
        return StreamChain(task, max_tokens, self.sampling_params, self.streaming)

    def _read(self, task: GenerationTask, prefix: Prefix, classes: AnswerClasses) -> Probe:
        answer = asked_answer(task)
        answer_class = -1 if answer is None else classes.classify(answer)
        hedged = self._hedge is not None and self._hedge.search(output_of(task)) is not None
        record("probe", position=prefix.num_tokens, answer=answer, answer_class=answer_class, hedged=hedged)
        return Probe(prefix, answer, answer_class, hedged)

    def _is_certain(self, probes: list[Probe]) -> bool:
        newest = probes[-1]
        if newest.answer is None or newest.hedged:
            return False
        if self.rule == "window":
            probes = [probe for probe in probes if not probe.hedged]
        window = probes[-self.certainty_threshold :]
        if len(window) < self.certainty_threshold:
            return False
        agreeing = sum(probe.answer_class == newest.answer_class and not probe.hedged for probe in window)
        share = self.window_share if self.rule == "window" else 1.0
        return agreeing / self.certainty_threshold >= share

    def _stop(self, task: GenerationTask, chain: Chain, probe: Probe, family: PromptFamily) -> ControllerGenerator:
        """Leave the chain where it was probed last, with the answer that the probes agree on."""
        stop = chain.stop()
        if stop:
            yield stop
            chain.absorb()
        num_discarded = chain.discard_after(probe.prefix)
        record("stop", position=probe.prefix.num_tokens, answer=probe.answer, num_discarded=num_discarded)
        close_with(task, probe.prefix, family.close, str(probe.answer), family, "certain")


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
