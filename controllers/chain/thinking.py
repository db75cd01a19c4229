"""Thinking that ends at a budget: a server keeps it, and its tokens are counted, or the controller cuts the chain.

Where thinking must be exact, thinking that ends before its budget is extended.
"""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

from scaffolding_ext.controllers.chain.chain import Chain, Prefix, without_end_token
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.prompting import decode, encode
from scaffolding_ext.prompts.prompting import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.notes import ThinkingBudget, notes_of, set_notes
from scaffolding_ext.protocol.worker import ServerBudget
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import publish_figures, record

_SLACK = 8  # tokens: a server may finish a character, or a word, before it closes


class Thought(NamedTuple):
    """How much of a chain is thinking.

    Attributes:
        num_thinking: Tokens before its last closing mark; all of them, where there is none.
        num_answering: Tokens behind it.
    """

    num_thinking: int
    num_answering: int


def thought_of(prefix: Prefix, close: str) -> Thought | None:
    """How much of a chain is thinking, by its tokens; None where nobody can count them.

    A chain that goes on thinking behind a closing mark closes it again: the last mark counts.
    """
    ids = encode(prefix.text) if prefix.token_ids is None else prefix.token_ids
    num_marks = prefix.text.count(close)
    if ids is None or decode([]) is None:
        return None
    if not num_marks:
        return Thought(len(ids), 0)
    end = bisect.bisect_left(range(len(ids)), num_marks, key=lambda at: (decode(ids[:at]) or "").count(close))
    return Thought(max(0, end - len(encode(close) or ())), len(ids) - end)


def grow_within(chain: Chain, budget: int, family: PromptFamily, server: ServerBudget | None) -> ControllerGenerator:
    """Work to `yield from`: afterwards the chain has thought for at most `budget` tokens, and may have ended.

    Args:
        chain: Has not begun; in chunks, where the server is asked.
        budget: Tokens of thinking.
        server: What is known of the worker's server, which may keep the budget; None where there is none.

    Returns:
        Whether the server was asked, and let too much through.
    """
    reason = "the worker has no server that could" if server is None else server.reason
    if server is None or reason is not None:
        yield from chain.grow(budget)
        record_thinking(chain, budget, family, reason=reason)
        return False
    assert isinstance(chain, ChunkChain), "a stream cannot be cut"
    (task,) = chain.advance(chain.max_tokens)
    is_open = (chain.prompt.input_str or "").rstrip().endswith(family.think_open)
    asked = ThinkingBudget(budget, family.think_open, family.think_close, is_open)
    set_notes(task, notes_of(task)._replace(thinking=asked))
    yield [task]
    chain.absorb()
    found = thought_of(chain.prefix, family.think_close)
    if found is not None and found.num_thinking <= budget + _SLACK:
        by = "server" if server.reason is None else "controller"
        record_thinking(chain, budget, family, by=by, **_told(server.reason))
        return False
    server.reason = server.reason or (
        "its tokens cannot be counted here"
        if found is None
        else f"asked for {budget} tokens of thinking, it let {found.num_thinking} through"
    )
    chain.cut(budget)
    overran: dict[str, Any] = {} if found is None else {"overran_by": found.num_thinking - budget}
    record_thinking(chain, budget, family, reason=server.reason, **overran)
    return bool(overran)


def grow_exactly(chain: ChunkChain, budget: int, family: PromptFamily, wait: str) -> ControllerGenerator:
    """Work to `yield from`: afterwards the chain has thought for `budget` tokens, and its thinking is open.

    Where the model closes its thinking earlier, or ends, the rest is cut off, and the model goes on behind `wait`. It
    is shortened where there is no room for all of it. The chain grows each time, so that this comes to an end.

    Args:
        budget: Tokens of thinking, those of `wait` among them.
        wait: A text of a token at least.

    Returns:
        How often the chain was extended; None where nobody can count its tokens, and it is left as it is.

    Reference: Muennighoff et al., "s1: Simple test-time scaling", section 3.1.
    """
    wait_ids, num_waits = encode(wait), 0
    yield from chain.grow(budget)
    while chain.num_tokens < budget or chain.ended or chain.contains(family.think_close):
        ids = chain.prefix.token_ids
        if not wait_ids or ids is None:
            return None
        num_open = _num_open(chain.prefix.text, ids, family.think_close)
        chain.cut(num_open)
        chain.put(wait_ids[: budget - num_open])
        num_waits += 1
        yield from chain.grow(budget)
    return num_waits


def record_thinking(chain: Chain, budget: int, family: PromptFamily, by: str = "controller", **figures: object) -> None:
    """Record the budget, who kept it, how much was thought where that is known, and further figures."""
    found = thought_of(chain.prefix, family.think_close)
    counts = {} if found is None else found._asdict()
    record("thinking_budget", asked=budget, by=by, **counts, **figures)
    if found is not None:
        publish_figures(
            "BudgetForcingController",
            kept=Ratio(int(found.num_thinking <= budget), 1),
            used=Ratio(found.num_thinking, budget),
            kept_by={by: 1},
            thinking_tokens=found.num_thinking,
            answering_tokens=found.num_answering,
        )


def _num_open(text: str, ids: list[int], close: str) -> int:
    """Tokens of a chain before its first closing mark, or before its end token."""
    place = text.find(close)
    num_characters = len(text) if place < 0 else place
    kept = bisect.bisect_right(range(len(ids) + 1), num_characters, key=lambda at: len(decode(ids[:at]) or "")) - 1
    return len(without_end_token(ids[:kept])) if kept else 0


def _told(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"reason": reason}
