"""The host's controller of a served stack: the stack's own within the limits of a request."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.protocol import Controller, ControllerGenerator
from scaffolding_ext.protocol.relay import Watch, relay
from scaffolding_ext.request.program import current_program
from scaffolding_ext.serving.refusals import ApiError
from scaffolding_ext.serving.thinking import Closing


class Bounded(Controller):
    """Runs the controller that a request names (the stack's, or an audit's twin of it) within the request's limits."""

    def clone(self) -> Bounded:
        """Return itself: it holds no state of a request."""
        return self

    def generate(self, prompt: str, **kwargs: Any) -> ControllerGenerator:
        """Run a clone of `controller` with the other arguments.

        `closing` ensures that the outcome has an answer; None leaves it as it is.

        Raises:
            ApiError: The clone has decoded more than `most_tokens`, or the outcome has no answer.
        """
        controller, most_tokens = kwargs.pop("controller"), kwargs.pop("most_tokens")
        closing: Closing | None = kwargs.pop("closing", None)
        work = controller.clone().generate(prompt, **kwargs)
        work = work if closing is None else closing.close(work)
        return (yield from relay(work, watch=_TokenLimit(most_tokens)))


class _TokenLimit(Watch):
    """Ends a request that has decoded more tokens than allowed."""

    def __init__(self, most_tokens: int) -> None:
        super().__init__()
        self._most_tokens = most_tokens

    def count(self, work: Any, began: float) -> None:
        program = current_program()
        if program is not None and program.ledger.num_decoded > self._most_tokens:
            raise ApiError(
                400,
                f"the request has decoded {program.ledger.num_decoded} tokens; the limit is {self._most_tokens}: ask "
                "for fewer tokens or samples",
                "token_limit_exceeded",
                "max_tokens",
            )
