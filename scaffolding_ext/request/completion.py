"""What a request ends with: the text, the answer, and why its controller stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scaffolding_ext.protocol import ScaffoldingOutput

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program


@dataclass(init=False)
class Completion(ScaffoldingOutput):
    """A request's output with what its controller decided.

    Attributes:
        text: The completion, never the prompt.
        token_ids: Its token ids, where the worker gave them.
        answer: The extracted answer, or None.
        exit_reason: Why the controller stopped, e.g. `"end"`, `"length"`, `"certain"`; None if it does not say.
        program: The request's program, with its ledger and trace, under any host; None where a caller made this object.
        logprobs: For each token a dict of the likeliest ids at its place, where the request asked for them and
            the output is one generation.
    """

    answer: str | None = None
    exit_reason: str | None = None
    program: Program | None = field(default=None, repr=False, compare=False)
    logprobs: list[Any] | None = field(default=None, repr=False, compare=False)

    def __init__(
        self,
        text: str | None,
        token_ids: list[int] | None,
        answer: str | None = None,
        exit_reason: str | None = None,
        program: Program | None = None,
        logprobs: list[Any] | None = None,
    ) -> None:
        super().__init__(text, token_ids)
        self.answer = answer
        self.exit_reason = exit_reason
        self.program = program
        self.logprobs = logprobs
