"""Budget forcing: cut thinking at a fixed number of tokens and make the model answer with what it has.

Reference: Muennighoff et al., "s1: Simple test-time scaling", section 3.1 (the upper bound; thinking is not extended
here).
"""

from __future__ import annotations

from typing import Any, Literal

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, longest_len, prompt_family, show
from scaffolding_ext.controllers.chain import ChunkChain, conclude
from scaffolding_ext.controllers.chain.thinking import grow_within
from scaffolding_ext.prompting import family_named
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.sampling_params import checked_sampling_params, set_sampling_params
from scaffolding_ext.worker_tags import WorkerTag


class BudgetForcingController(BaseController):
    """Lets a chain think for at most `max_thinking_tokens`, then closes its thinking by force and asks for the answer.

    A chain that closes its thinking earlier is left to finish its answer within `max_answer_tokens`.

    Args:
        max_thinking_tokens: Tokens after which thinking is closed.
        max_answer_tokens: Tokens for the answer, forced or not.
        sampling_params: Sampling fields of the chain.
        answer_sampling_params: Sampling fields of a forced answer; greedy by default.
        family: Name of the prompt family; None takes the one of the stack's prompting.
        insist_on_answer: Whether a chain that ended by itself without an answer is asked for one.
        kept_by: Who keeps the budget. `"server"` has the worker's server close the thinking, where it can; what comes
            back is counted, and where that is too much, the controller cuts it, and the trace says why.

    Raises:
        ConfigError: A budget is below 1, or a name is no sampling field.
    """

    continues_answers = True

    def __init__(
        self,
        max_thinking_tokens: int,
        max_answer_tokens: int = 64,
        *,
        sampling_params: dict[str, Any] | None = None,
        answer_sampling_params: dict[str, Any] | None = None,
        family: str | None = None,
        insist_on_answer: bool = True,
        kept_by: Literal["controller", "server"] = "controller",
    ) -> None:
        super().__init__()
        self.max_thinking_tokens = require.whole("max_thinking_tokens", max_thinking_tokens)
        self.max_answer_tokens = require.whole("max_answer_tokens", max_answer_tokens)
        self.longest_request = self.max_thinking_tokens + self.max_answer_tokens
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.answer_sampling_params = {"temperature": 0.0} | checked_sampling_params(
            answer_sampling_params, "answer_sampling_params", reserved=("max_tokens",)
        )
        self.answer_sampling_params["max_tokens"] = max_answer_tokens
        self.family = None if family is None else family_named(family)
        self.insist_on_answer = insist_on_answer
        self.kept_by = require.one_of("kept_by", kept_by, ("controller", "server"))

    def honours(self) -> frozenset[str]:
        return CHAIN_FIELDS | {"thinking_budget"}

    def run(
        self, task: GenerationTask, thinking_budget: int | None = None, **sampling_params: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt.

        Args:
            task: Gets the output.
            thinking_budget: Tokens after which this request's thinking is closed, where that is fewer.
            **sampling_params: Sampling fields of this request.
        """
        set_sampling_params(task, sampling_params)
        family = self.family or prompt_family()

        reserved = longest_len(family.close, family.close_closed) + self.max_answer_tokens
        limits = (self.max_thinking_tokens, task.max_tokens, thinking_budget)
        wanted = min(limit for limit in limits if limit is not None)
        budget = self.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)
        chain = ChunkChain(task, budget + self.max_answer_tokens, self.sampling_params)
        if self.kept_by == "server":
            yield from grow_within(chain, budget, family, self.server_budget(WorkerTag.GENERATION))
        else:
            yield from chain.grow(budget)
        show(task, chain.text, None)
        if not chain.ended and chain.contains(family.think_close):
            yield from chain.grow(chain.max_tokens)
        yield from conclude(task, chain, family, self.answer_sampling_params, insist_on_answer=self.insist_on_answer)
