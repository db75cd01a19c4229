"""Budget forcing: a chain thinks for at most, or exactly, a number of tokens, then answers."""

from __future__ import annotations

import bisect
from typing import Any, Literal, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.base import CHAIN_FIELDS, BaseController, show
from scaffolding_ext.controllers.chain.chain import Chain, without_end_token
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain, ControlledChain
from scaffolding_ext.controllers.chain.ending import conclude
from scaffolding_ext.controllers.chain.stream_chain import StreamChain
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import decode, encode, longest_len, reading_of
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import PromptFamily, family_named
from scaffolding_ext.prompts.sampling_params import checked_sampling_params
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import ThinkingBudget, meta_of, note
from scaffolding_ext.protocol.worker import ServerBudget, WorkerTag
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import seconds_left

_SLACK = 8  # tokens: a server may finish a character or word before it closes
_LATE_ANSWER = 64  # tokens of a forced answer beyond an exhausted request limit


class BudgetForcingController(BaseController):
    """Lets a chain think for at most `thinking_tokens`, then closes its thinking by force and asks for the answer.

    A chain that closes its thinking earlier finishes its answer within `max_answer_tokens`; with an exact budget it
    thinks on. If the box is not closed in time, the answer is its first line, or else the last answer in the thinking.

    Args:
        thinking_tokens: Tokens after which thinking is closed; at 0 the model answers at once.
        generation_controller: Writes the thinking, and may end it sooner; None generates plainly.
        max_answer_tokens: Tokens for the answer, forced or not; the worker's context keeps room for them.
        exact: Extend thinking that ends sooner to the budget. Token ids and a tokenizer must be known.
        wait: Text that extends the thinking.
        sampling_params: Sampling fields of the chain, if it is generated plainly.
        answer_sampling_params: Sampling fields of a forced answer; greedy by default.
        family: Name of the prompt family; None takes the one of the stack's prompting.
        insist_on_answer: Ask a chain that ended by itself without an answer for one.
        kept_by: Closes the thinking: `"controller"`, or `"server"`, the worker's server, if it can and the
            request has no deadline. Overlong thinking is cut.

    Reference: Muennighoff et al., "s1: Simple test-time scaling", section 3.1.
    Deviation: The tokens of `wait` count as thinking, and the model's closing of it is cut off: s1 suppresses the
        closing token, and counts its waits.
    """

    def __init__(
        self,
        thinking_tokens: int,
        generation_controller: Controller | None = None,
        max_answer_tokens: int = 64,
        *,
        exact: bool = False,
        wait: str = "\nWait",
        sampling_params: dict[str, Any] | None = None,
        answer_sampling_params: dict[str, Any] | None = None,
        family: str | None = None,
        insist_on_answer: bool = True,
        kept_by: Literal["controller", "server"] = "controller",
    ) -> None:
        super().__init__()
        self.thinking_tokens = require.whole("thinking_tokens", thinking_tokens, 0)
        self.generation_controller = generation_controller
        self.max_answer_tokens = require.whole("max_answer_tokens", max_answer_tokens)
        self.needs = Needs(
            max_tokens=self.thinking_tokens + self.max_answer_tokens,
            continues_answers=True,
            fields=CHAIN_FIELDS | {"thinking_budget"},
        )
        self.exact, self.wait = exact, wait
        if exact and not wait:
            raise ConfigError("is empty, and exact extends thinking by it; give a text such as '\\nWait'", "wait")
        require.alone("generation_controller", generation_controller, sampling_params=sampling_params)
        self.sampling_params = checked_sampling_params(sampling_params, reserved=("max_tokens",))
        self.answer_sampling_params = {"temperature": 0.0} | checked_sampling_params(
            answer_sampling_params, "answer_sampling_params", reserved=("max_tokens",)
        )
        self.answer_sampling_params["max_tokens"] = max_answer_tokens
        self.family = None if family is None else family_named(family)
        self.insist_on_answer = insist_on_answer
        self.kept_by = require.one_of("kept_by", kept_by, ("controller", "server"))
        if kept_by == "server" and (exact or generation_controller is not None):
            raise ConfigError(
                "is 'server', but a server keeps neither an exact budget nor the budget of a generation_controller: "
                "leave it out",
                "kept_by",
            )

    def run(
        self, task: GenerationTask, thinking_budget: int | None = None, **sampling_params: Any
    ) -> ControllerGenerator:
        """Answer the task's prompt.

        Args:
            thinking_budget: Thinking tokens of this request; the smaller of both budgets applies.
            **sampling_params: Sampling fields of this request. `max_tokens` limits thinking and answer together; if it
                is used up, a forced answer of at most 64 tokens is added.
        """
        run = Run(self, task, self.family)
        run.set(sampling_params)
        family = run.family
        reserved = longest_len(family.close, family.close_closed) + self.max_answer_tokens
        limits = (self.thinking_tokens, task.max_tokens, thinking_budget)
        wanted = min(limit for limit in limits if limit is not None)
        budget = self.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)
        limit = budget + self.max_answer_tokens
        chain = self._chain(task, limit if task.max_tokens is None else min(limit, task.max_tokens))
        chain.family = family
        cause = "budget"
        if self.kept_by == "server":
            overran = yield from grow_within(
                run, chain, budget, family, self.worker(WorkerTag.GENERATION).server_budget
            )
            cause = "budget_ignored" if overran else cause
        elif self.exact:
            assert isinstance(chain, ChunkChain)
            num_waits = yield from grow_exactly(chain, budget, family, self.wait)
            if num_waits is None:
                run.fallback("exact thinking", reason="token ids, or the tokenizer, are not known")
            record_thinking(run, chain, budget, family, num_waits=num_waits)
        else:
            yield from chain.grow(budget)
            record_thinking(run, chain, budget, family)
        show(task, chain.text, None)
        if not chain.ended and chain.has_thought:
            yield from chain.grow(chain.max_tokens)
        insists, was_cut = self.insist_on_answer, not (chain.ended or chain.has_thought)
        answering = self.answer_sampling_params
        if task.max_tokens is not None:
            left = task.max_tokens - chain.num_tokens
            answering = {**answering, "max_tokens": min(self.max_answer_tokens, left if left > 0 else _LATE_ANSWER)}
        yield from conclude(chain, answering, insist_on_answer=insists, cause=cause if was_cut else None)

    def _chain(self, task: GenerationTask, max_tokens: int) -> Chain:
        if self.generation_controller is not None:
            return ControlledChain(task, max_tokens, self.generation_controller)
        chain = ChunkChain(task, max_tokens, self.sampling_params)
        if self.exact:
            chain.loops, chain.is_timed = None, False  # an exact budget ignores loops and deadlines
        if chain.loops is None or meta_of(task).is_chunk or self._asks_server():
            return chain
        if not self.can_serve(WorkerTag.GENERATION, StreamGenerationTask):
            return chain
        # Read as it grows, to see a loop in time.
        return StreamChain(task, max_tokens, self.sampling_params, max_lead=1)

    def _asks_server(self) -> bool:
        """Return True if the worker's server is known to keep the budget."""
        return self.kept_by == "server" and why_not_kept(self.worker(WorkerTag.GENERATION).server_budget) is None


class Thought(NamedTuple):
    """Thinking and answering tokens of a chain.

    Attributes:
        num_thinking: Tokens before its last closing mark; all of them if there is none.
    """

    num_thinking: int
    num_answering: int


def thought_of(chain: Chain, family: PromptFamily) -> Thought | None:
    """Split a chain's tokens into thinking and answer; None if they cannot be counted."""
    prefix = chain.prefix
    ids = encode(prefix.text) if prefix.token_ids is None else prefix.token_ids
    if ids is None or decode([]) is None:
        return None
    whole = reading_of(chain.prompt, prefix.text, family)
    if not whole.has_thought:
        return Thought(len(ids), 0)
    if family.think_close not in prefix.text:
        return Thought(0, len(ids))

    def is_behind(num_tokens: int) -> bool:
        reading = reading_of(chain.prompt, decode(ids[:num_tokens]) or "", family)
        return reading.has_thought and len(reading.thinking) == len(whole.thinking)

    end = bisect.bisect_left(range(len(ids)), True, key=is_behind)
    return Thought(max(0, end - len(encode(family.think_close) or ())), len(ids) - end)


def why_not_kept(server: ServerBudget | None) -> str | None:
    """Return the reason why a worker's server does not keep this request's budget; None if it does."""
    if server is None:
        return "the worker has no server that could"
    if server.reason is None and seconds_left() is not None:  # the clock is read between steps, and the server has one
        return "the request has a deadline"
    return server.reason


def grow_within(
    run: Run, chain: Chain, budget: int, family: PromptFamily, server: ServerBudget | None
) -> ControllerGenerator:
    """Let the chain think for at most `budget` tokens; it may end.

    Args:
        chain: Not begun; in chunks if the server is asked.
        server: State of the worker's server, which may keep the budget; None if there is none.

    Returns:
        True if the server was asked and overran the budget.
    """
    reason = why_not_kept(server)
    if server is None or reason is not None:
        yield from chain.grow(budget)
        record_thinking(run, chain, budget, family, reason=reason)
        return False
    assert isinstance(chain, ChunkChain), "a stream cannot be cut"
    (task,) = chain.advance(chain.max_tokens)
    is_open = family.marks.opened_by(chain.prompt.input_str or "")
    asked = ThinkingBudget(budget, family.think_open, family.think_close, is_open)
    note(task, thinking=asked)
    yield [task]
    chain.absorb()
    found = thought_of(chain, family)
    if found is not None and found.num_thinking <= budget + _SLACK:
        by = "server" if server.reason is None else "controller"
        record_thinking(
            run, chain, budget, family, by=by, **({} if server.reason is None else {"reason": server.reason})
        )
        return False
    server.reason = server.reason or (
        "its tokens cannot be counted here"
        if found is None
        else f"asked for {budget} tokens of thinking, it let {found.num_thinking} through"
    )
    chain.cut(budget)
    overran: dict[str, Any] = {} if found is None else {"overran_by": found.num_thinking - budget}
    record_thinking(run, chain, budget, family, reason=server.reason, **overran)
    return bool(overran)


def grow_exactly(chain: ChunkChain, budget: int, family: PromptFamily, wait: str) -> ControllerGenerator:
    """Let the chain think for exactly `budget` tokens, leaving its thinking open.

    If the model closes its thinking earlier, or ends, the rest is cut off, and the model continues after `wait`,
    shortened to the remaining room. The chain grows each time, so the loop ends.

    Args:
        budget: Tokens of thinking, including those of `wait`.

    Returns:
        Number of extensions; None if the tokens cannot be counted, and the chain is left unchanged.

    Reference: Muennighoff et al., "s1: Simple test-time scaling", section 3.1.
    """
    wait_ids, num_waits = encode(wait), 0
    yield from chain.grow(budget)
    while chain.num_tokens < budget or chain.ended or chain.has_thought:
        ids = chain.prefix.token_ids
        if not wait_ids or ids is None:
            return None
        num_open = _num_open(chain, ids, family)
        chain.cut(num_open)
        chain.put(wait_ids[: budget - num_open])
        num_waits += 1
        yield from chain.grow(budget)
    return num_waits


def record_thinking(
    run: Run, chain: Chain, budget: int, family: PromptFamily, by: str = "controller", **figures: object
) -> None:
    """Record the budget, its keeper, the thinking tokens if known, and further figures."""
    found = thought_of(chain, family)
    counts = {} if found is None else found._asdict()
    run.event("thinking_budget", asked=budget, by=by, **counts, **figures)
    if found is not None:
        run.sum_up(
            kept=found.num_thinking <= budget,
            used=Ratio(found.num_thinking, budget),
            kept_by=by,
            thinking_tokens=found.num_thinking,
            answering_tokens=found.num_answering,
        )


def _num_open(chain: Chain, ids: list[int], family: PromptFamily) -> int:
    """Tokens of a chain before the end of its thinking, or before its end token."""
    text = chain.prefix.text
    reading = reading_of(chain.prompt, text, family)
    place = text.find(family.think_close, len(reading.thinking)) if reading.has_thought else -1
    num_characters = len(text) if place < 0 else place
    kept = bisect.bisect_right(range(len(ids) + 1), num_characters, key=lambda at: len(decode(ids[:at]) or "")) - 1
    return len(without_end_token(ids[:kept])) if kept else 0
