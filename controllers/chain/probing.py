"""Probes of an unfinished chain: their positions, their questions, and the data for stopping rules."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import NamedTuple

from scaffolding_ext import require
from scaffolding_ext.answers import up_to_brace
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.prompting import decode
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.task_results import finish_reason_of, output_of, sampled_logprobs

TURN_WORDS = ("Wait", "Hmm", "Alternatively")


class ProbeSchedule:
    """Probes a chain at fixed gaps, or at gaps that grow geometrically.

    Args:
        chunk_size: Tokens of the gap between the first probe and the second.
        first_probe: Tokens before the first probe; 0 probes before the chain begins. None takes `chunk_size`.
        growth: Ratio of each gap to the previous one; 1 keeps them equal.
    """

    def __init__(self, chunk_size: int = 64, first_probe: int | None = None, growth: float = 1.0) -> None:
        self.chunk_size = require.whole("chunk_size", chunk_size)
        self.first_probe = chunk_size if first_probe is None else require.whole("first_probe", first_probe, least=0)
        self.growth = require.number("growth", growth, least=1)

    def gaps(self) -> Iterator[int]:
        """Yield the tokens before the first probe, then those from each probe to the next, endlessly."""
        yield self.first_probe
        gap = float(self.chunk_size)
        while True:
            yield math.ceil(gap)
            gap *= self.growth


class ProbeNeeds(NamedTuple):
    """Data that a stopping rule needs at every probe.

    Attributes:
        answer: The chain's answer. If False, a probe asks nothing and costs no token.
        answer_logprobs: The log-probabilities of its tokens.
    """

    answer: bool = True
    answer_logprobs: bool = False

    @property
    def num_logprobs(self) -> int:
        return int(self.answer_logprobs)

    def joined(self, other: ProbeNeeds) -> ProbeNeeds:
        return ProbeNeeds(self.answer or other.answer, self.answer_logprobs or other.answer_logprobs)


class Prober:
    """Asks a chain for the data that a rule needs at a probe, and reads the responses."""

    def __init__(self, probe: AnswerProbe, needs: ProbeNeeds) -> None:
        if not isinstance(needs, ProbeNeeds):
            raise ConfigError(f"has needs of type {type(needs).__name__}; give ProbeNeeds(answer=..., ...)", "rule")
        self._probe = probe
        self._needs = needs

    def asking(self, prompt: GenerationTask, prefix: Prefix, family: PromptFamily) -> GenerationTask | None:
        """Return the task that asks the chain for its answer; None if the rule needs none."""
        if not self._needs.answer:
            return None
        task = self._probe.asking(prompt, prefix, family)
        task.num_logprobs = task.num_logprobs or (1 if self._needs.answer_logprobs else None)
        return task

    def read(self, prefix: Prefix, asked: GenerationTask | None, family: PromptFamily) -> Probe:
        """Return the probe: the boxed answer, if any, and if a hedge word stands in the response."""
        if asked is None:
            return Probe(prefix)
        closes = family.thinks and family.split(output_of(asked), is_open=True).has_thought
        probe = self._probe.read(prefix, asked)
        probe = probe._replace(closes=closes or finish_reason_of(asked) == "stop")
        return probe._replace(answer_logprobs=_answer_logprobs(asked)) if self._needs.answer_logprobs else probe


def _answer_logprobs(task: GenerationTask) -> tuple[float, ...]:
    """Return the log-probabilities up to the token that closes the box; all of them if that token is unknown."""
    if not task.logprobs and output_of(task):
        raise _without_logprobs("an answer")
    ids, values = task.output_tokens, sampled_logprobs(task.output_tokens, task.logprobs or ())
    if ids is None or decode([]) is None or up_to_brace(output_of(task)) is None:
        return tuple(values)
    closing = bisect.bisect_left(
        range(len(ids)), True, key=lambda num: up_to_brace(decode(ids[: num + 1]) or "") is not None
    )
    return tuple(values[: closing + 1])


def _without_logprobs(what: str) -> NoOutputError:
    return NoOutputError(
        f"the worker returned no log-probabilities of {what}, and the stopping rule needs them: use another worker, "
        "or a rule that needs none, such as consecutive"
    )
