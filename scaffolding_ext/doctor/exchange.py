"""Two questions to a stack: what was asked, what came back, and what a probe of the chain would get."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers import up_to_brace
from scaffolding_ext.controllers.base import attributes_of, honoured_by
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.doctor.calls import Call, CallLog
from scaffolding_ext.errors import ScaffoldingExtError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.notes import Purpose
from scaffolding_ext.protocol.worker import declared
from scaffolding_ext.protocol.worker_tags import WorkerTag, worker_for

if TYPE_CHECKING:
    from scaffolding_ext.prompts.prompting import PromptFamily, Prompting
    from scaffolding_ext.stack.config import StackConfig

QUESTIONS = (
    "What is 17 + 25?",
    "A train goes 60 km in 45 minutes. How far does it go in 3 hours, in km?",
)
_PROBE_TOKENS = 20


class Probed(NamedTuple):
    """A probe of an unfinished chain.

    Attributes:
        suffix: The text that asks.
        response: What came back.
        answer: The answer in it; None where the box was not closed, or is empty.
        by_controller: Whether the stack's controller asked; else the doctor did.
    """

    suffix: str
    response: str
    answer: str | None
    by_controller: bool


class Exchange(NamedTuple):
    """A question to the stack, and what became of it.

    Attributes:
        question: As the user would ask it.
        prompt: As the model reads it, where the stack renders it; else the question.
        calls: What the workers were sent.
        text: The stack's output; None where the request failed.
        answer: The stack's answer.
        exit_reason: Why the controller stopped.
        probe: The first probe of the chain; None where none could be sent.
        error: What failed; None where nothing did.
    """

    question: str
    prompt: str
    calls: list[Call]
    text: str | None
    answer: str | None
    exit_reason: str | None
    probe: Probed | None
    error: str | None

    @property
    def chains(self) -> list[Call]:
        """The calls that wrote the chain, or the chains."""
        return [call for call in self.calls if call.purpose is Purpose.CHAIN]

    @property
    def written(self) -> str:
        """All that the model wrote as chains, without what the stack put between or behind."""
        return "".join(call.text for call in self.chains)


def questions_of(config: StackConfig) -> list[str]:
    """Two questions that suit a stack: of its own data set where that is at hand, else two of arithmetic."""
    from scaffolding_ext.evaluation.run.datasets import load_dataset

    dataset = config.dataset
    at_hand = dataset is not None and (dataset.source.startswith("tinylm:") or Path(dataset.source).is_file())
    if dataset is None or not at_hand:
        return list(QUESTIONS)
    return [sample.prompt for sample in load_dataset(**dataset.model_dump(), limit="2")]


def ask(llm: ScaffoldingLlm, log: CallLog, question: str, max_tokens: int, timeout: float) -> Exchange:
    """Ask the stack one question, and probe the chain where the stack's controller did not.

    Args:
        llm: The stack.
        log: Watches its workers.
        question: What is asked.
        max_tokens: Tokens of the chain, where the controller can be told; else it keeps its own budget.
        timeout: Seconds for the request.
    """
    controller: Any = llm.prototype_controller
    limit = _limit(llm, max_tokens)
    limits: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
    result = llm.generate_async(question, timeout=timeout, **limits)
    error = result.exception()
    calls = log.of(result.id)
    chains = [call for call in calls if call.purpose is Purpose.CHAIN]
    prompt = (chains[0].task.input_str if chains else None) or question
    text = None if error is not None else result.outputs[0].text
    prompting = attributes_of(controller).prompting
    probe = _probe_by_controller(calls, None if prompting is None else prompting.family)
    if probe is None and error is None and prompting is not None and chains:
        probe = _probe_by_doctor(llm, prompting, prompt, chains[0].text, timeout)
    return Exchange(
        *(question, prompt, calls, text, result.answer, result.exit_reason, probe),
        error=None if error is None else f"{type(error).__name__}: {error}",
    )


def _limit(llm: ScaffoldingLlm, max_tokens: int) -> int | None:
    """What a request's chain is bounded to; None where the controller bounds it more, or cannot be told."""
    controller: Any = llm.prototype_controller
    if "max_tokens" not in honoured_by(controller):
        return None
    sent = controller.requests().get(WorkerTag.GENERATION.value)
    own = None if sent is None else sent.max_tokens
    worker = worker_for(llm.workers, WorkerTag.GENERATION)
    context_len = declared(worker).max_seq_len
    room = max_tokens if context_len is None else min(max_tokens, context_len // 2)
    return None if own is not None and own <= room else room


def _probe_by_controller(calls: Sequence[Call], family: PromptFamily | None) -> Probed | None:
    for call in calls:
        if call.purpose is Purpose.PROBE and family is not None:
            asked = call.task.input_str or ""
            suffixes = (family.probe, family.close, family.close_closed)
            suffix = next((suffix for suffix in suffixes if asked.endswith(suffix)), None)
            if suffix is not None:
                return Probed(suffix, call.text, up_to_brace(call.text) or None, by_controller=True)
    return None


def _probe_by_doctor(
    llm: ScaffoldingLlm, prompting: Prompting, prompt: str, chain: str, timeout: float
) -> Probed | None:
    """Ask the first half of a chain for its answer, as a controller would."""
    begun = chain.partition(prompting.family.think_close)[0]
    suffix = prompting.family.probe
    asker = NativeGenerationController({"max_tokens": _PROBE_TOKENS, "temperature": 0.0})
    asker.prompting = prompting
    with ScaffoldingLlm(asker, dict(llm.workers)) as other:
        try:
            result = other.generate(prompt + begun[: len(begun) // 2] + suffix, raw=True, timeout=timeout)
        except ScaffoldingExtError:  # the stack's own requests went well, so that is no fault of the stack
            return None
    response = result.outputs[0].text or ""
    return Probed(suffix, response, up_to_brace(response) or None, by_controller=False)
