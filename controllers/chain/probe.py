"""Ask an unfinished chain for its answer, and hold the result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.answers import begun_box, up_to_brace
from scaffolding_ext.controllers.chain.chain import Prefix, continuation
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.prompts.sampling_params import apply_sampling_params, checked_sampling_params
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, note
from scaffolding_ext.protocol.task_results import TokenLogprob, mean_token_probability, output_of

HEDGE_WORDS = ("wait", "hold", "but", "okay", "no", "hmm")
_PLAIN = ("answer", "answer_class", "hedged", "response", "closes")
_START = Prefix(0, "", [], [])


class Probe(NamedTuple):
    """A probe of an unfinished chain: everything that a stopping rule sees of it there.

    A probe is data (`row_of`, `probes_of`), so a rule decides the same on recorded chains as on running ones. An
    attribute is None if the rule does not need it.

    Attributes:
        prefix: The chain as it stood, with log-probabilities if its sampling fields or a rule request them.
        answer: Its answer when asked; None if it gave none or was not asked.
        answer_class: Number of the class of equal answers among the chain's probes, in order of first appearance; -1
            for no answer.
        answer_logprobs: Log-probability of each token of the response, up to the one that closes the box.
    """

    prefix: Prefix
    answer: str | None = None
    answer_class: int = -1
    hedged: bool = False
    response: str | None = None
    answer_logprobs: tuple[float, ...] | None = None
    closes: bool = False

    @property
    def confidence(self) -> float | None:
        """Geometric mean of the answer's token probabilities; 0 for no answer, None if they were not requested."""
        if self.answer_logprobs is None:
            return None
        return mean_token_probability(self.answer_logprobs) if self.answer is not None else 0.0

    def figures(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        if self.response is not None:
            seen = {"answer": self.answer, "answer_class": self.answer_class, "hedged": self.hedged}
        if self.confidence is not None:
            seen["confidence"] = self.confidence
        return seen


def row_of(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the newest probe as JSON-serialisable data; text, ids and log-probabilities only since the previous probe.

    Keys: `position` (tokens), `text`, `token_ids` (None if the worker gives none), `logprobs` (for each token pairs of
    an id and its log-probability; None if not requested), `answer_logprobs`, and the plain attributes of a `Probe`.
    """
    newest = probes[-1]
    now, before = newest.prefix, probes[-2].prefix if len(probes) > 1 else _START
    steps = None if now.logprobs is None else now.logprobs[before.num_tokens :]
    return {
        "position": now.num_tokens,
        "text": now.text[len(before.text) :],
        "token_ids": None if now.token_ids is None else now.token_ids[before.num_tokens : now.num_tokens],
        "logprobs": None if steps is None else [[[i, entry.logprob] for i, entry in step.items()] for step in steps],
        **{name: getattr(newest, name) for name in _PLAIN},
        "answer_logprobs": None if newest.answer_logprobs is None else list(newest.answer_logprobs),
    }


def probes_of(rows: Iterable[Mapping[str, Any]]) -> list[Probe]:
    probes: list[Probe] = []
    before = _START
    for row in rows:
        ids, steps = row["token_ids"], row["logprobs"]
        before = Prefix(
            row["position"],
            before.text + row["text"],
            None if ids is None or before.token_ids is None else before.token_ids + ids,
            None
            if steps is None or before.logprobs is None
            else [*before.logprobs, *({int(i): TokenLogprob(value) for i, value in step} for step in steps)],
        )
        answer = row["answer_logprobs"]
        probes.append(
            Probe(
                before,
                **{name: row[name] for name in _PLAIN},
                answer_logprobs=None if answer is None else tuple(answer),
            )
        )
    return probes


class AnswerProbe:
    """Asks an unfinished chain for its answer, and reads the response.

    Args:
        max_tokens: Maximum tokens decoded for an answer.
        sampling_params: Sampling fields of the answer.
        hedge_words: Words that make a response uncertain.
        hedge_match: `"word"` matches whole words, `"substring"` is upstream's rule (it takes "know" for "no").
    """

    def __init__(
        self,
        max_tokens: int = 20,
        sampling_params: dict[str, Any] | None = None,
        *,
        hedge_words: Sequence[str] = HEDGE_WORDS,
        hedge_match: Literal["word", "substring"] = "word",
    ) -> None:
        if isinstance(hedge_words, str) or not all(isinstance(word, str) for word in hedge_words):
            raise ConfigError(f"is {hedge_words!r}; give a list of words, such as ['wait', 'but']", "hedge_words")
        own = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.max_tokens = require.whole("max_tokens", max_tokens)
        self.sampling_params = {"temperature": 0.6, "top_p": 0.95, **own, "max_tokens": max_tokens}
        border = r"\b" if require.one_of("hedge_match", hedge_match, ("word", "substring")) == "word" else ""
        words = "|".join(map(re.escape, hedge_words))
        self._hedge = re.compile(f"{border}(?:{words}){border}", re.IGNORECASE) if words else None

    def asking(self, prompt: GenerationTask, prefix: Prefix, family: PromptFamily) -> GenerationTask:
        return asking(prompt, prefix, family.probe, self.sampling_params)

    def read(self, prefix: Prefix, task: GenerationTask) -> Probe:
        response = output_of(task)
        hedged = self._hedge is not None and self._hedge.search(response) is not None
        return Probe(prefix, asked_answer(task), -1, hedged, response)


def asking(prompt: GenerationTask, prefix: Prefix, suffix: str, sampling_params: dict[str, Any]) -> GenerationTask:
    """Build a task that asks an unfinished chain for its answer with a suffix that opens a box.

    Args:
        suffix: `family.probe` to ask in passing, `family.close` or `family.close_closed` to end with the answer.
    """
    task = continuation(prompt, prefix, sampling_params["max_tokens"], suffix)
    apply_sampling_params(task, sampling_params)
    note(task, purpose=PROBE)
    return task


def asked_answer(task: GenerationTask) -> str | None:
    """Return the answer in the response to `asking`; None if the box is open or empty."""
    return up_to_brace(output_of(task)) or None


def forced_answer(task: GenerationTask) -> str | None:
    """Return the answer in the response to `asking` at the end of a chain; None if the box is empty.

    An answer in an open box also counts, up to the end of its line, because no other will follow.
    """
    return begun_box(output_of(task))
