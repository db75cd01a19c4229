"""The complete diagnosis of a stack, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.controllers.base import attributes_of
from scaffolding_ext.doctor.exchange import CallLog, Exchange, Written, ask, questions_of
from scaffolding_ext.doctor.findings import Examined, Finding, findings
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol.worker import WorkerTag, declared, worker_for
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig

_SHOWN_CHARACTERS = 600
_SHOWN_CHAINS = 4


class Examination(NamedTuple):
    """Result of a diagnosis.

    Attributes:
        examined: The stack, the questions and the replies.
        findings: Problems first, then notes.
    """

    examined: Examined
    findings: list[Finding]

    @property
    def is_fine(self) -> bool:
        return not any(finding.is_wrong for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        prompting = self.examined.prompting
        return {
            "fine": self.is_fine,
            "controller": type(self.examined.controller).__name__,
            "family": None if prompting is None else prompting.choice._asdict(),
            "exchanges": [
                {
                    "question": exchange.question,
                    "prompt": exchange.prompt,
                    "written": [
                        {"text": chain.text, "probe": None if chain.probe is None else chain.probe._asdict()}
                        for chain in exchange.written
                    ],
                    "text": exchange.text,
                    "answer": exchange.answer,
                    "exit_reason": exchange.exit_reason,
                    "error": exchange.error,
                }
                for exchange in self.examined.exchanges
            ],
            "findings": [finding._asdict() for finding in self.findings],
        }

    def lines(self) -> Iterator[str]:
        examined = self.examined
        yield _row("controller", type(examined.controller).__name__)
        for tag, worker in examined.config.workers.items():
            yield _row("worker", f"{tag}: {worker.type} {worker.args.get('model', '')}".rstrip())
        yield _row("family", _family(examined.prompting))
        yield _row("sampling", _sampling(examined.exchanges))
        for number, exchange in enumerate(examined.exchanges, 1):
            yield ""
            yield _row(f"question {number}", exchange.question)
            yield _row("prompt", _quoted(exchange.prompt))
            yield from _chains(exchange.written)
            if exchange.error is not None:
                yield _row("failed", exchange.error)
            else:
                yield _row("answer", f"{'-' if exchange.answer is None else exchange.answer} ({exchange.exit_reason})")
        yield ""
        for finding in self.findings:
            yield f"{'WRONG' if finding.is_wrong else 'note':<6}{finding.name}: {finding.message}"
            if finding.change:
                yield f"      change: {finding.change}"
        num_wrong = sum(finding.is_wrong for finding in self.findings)
        yield (
            "No problems found. Run `eval` to measure accuracy." if not num_wrong else f"problems found: {num_wrong}"
        )


def examine(
    config: StackConfig,
    questions: Sequence[str] = (),
    max_tokens: int | None = None,
    timeout: float = 600.0,
    references: Mapping[str, Any] | None = None,
    built: Callable[[ScaffoldingLlm], object] = lambda llm: None,
) -> Examination:
    """Build a stack, ask it questions and inspect its workers' requests and replies.

    Args:
        config: The stack.
        questions: Questions to ask; if empty, two that suit the stack.
        max_tokens: Token limit of each chain, if the controller takes one; None leaves the stack as it is.
        timeout: Seconds for each question.
        references: As in `build_stack`.
        built: Called once the stack is built, before the questions are asked.

    Raises:
        ConfigError: The stack is invalid and cannot be built.
        MissingDependencyError: A worker needs a package that is not installed.
    """
    asked = list(questions) or questions_of(config)
    with build_stack(config, references) as llm:
        built(llm)
        log = CallLog(llm.workers)
        exchanges = [ask(llm, log, question, max_tokens, timeout) for question in asked]
        controller: Any = llm.prototype_controller
        worker = worker_for(llm.workers, WorkerTag.GENERATION)
        length = None if worker is None else declared(worker).max_seq_len
        examined = Examined(config, controller, attributes_of(controller).prompting, exchanges, length)
        return Examination(examined, findings(examined))


def _row(name: str, value: str) -> str:
    return f"{name:<13}{value}"


def _family(prompting: Prompting | None) -> str:
    if prompting is None:
        return "- (prompts go to the worker as they are)"
    opened = "open" if prompting.opens_thinking else "closed" if prompting.closes_thinking else "not open"
    thinks = "" if prompting.choice.name == "instruct" else f"; thinking is {opened} at the end of a prompt"
    return f"{prompting.choice}{thinks}"


def _chains(written: Sequence[Written]) -> Iterator[str]:
    """The chains of an answer, each with its probe; of many samples, the first few."""
    for number, chain in enumerate(written[:_SHOWN_CHAINS], 1):
        yield _row("model wrote" if len(written) == 1 else f"sample {number}", _quoted(chain.text))
        if chain.probe is not None:
            yield _row("  probe", _quoted(chain.probe.suffix))
            yield _row("", f"-> {_quoted(chain.probe.response)}")
    if len(written) > _SHOWN_CHAINS:
        yield _row("", f"and {len(written) - _SHOWN_CHAINS} more samples; --json has all")


def _sampling(exchanges: Sequence[Exchange]) -> str:
    """Sampling parameters of the first chain."""
    for exchange in exchanges:
        for call in exchange.chains:
            names = ("temperature", "top_p", "top_k", "max_tokens", "num_logprobs", "stop")
            given = {name: getattr(call.task, name, None) for name in names}
            said = ", ".join(f"{name} {value}" for name, value in given.items() if value not in (None, []))
            return (
                said
                if given["temperature"] is not None
                else f"{said}; no temperature: the model's own, or the server's"
            )
    return "-"


def _quoted(text: str) -> str:
    """A text on one line, shortened in the middle if long."""
    if len(text) > _SHOWN_CHARACTERS:
        half = _SHOWN_CHARACTERS // 2
        text = f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
    return repr(text)
