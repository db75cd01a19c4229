"""Thinking that ends at a budget: by the server, where it keeps one and is seen to, and else by cutting the chain."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from scaffolding_ext.controllers.base import decode, encode
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.program import record
from scaffolding_ext.prompting import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.tasks import notes_of, set_notes
from scaffolding_ext.thinking import ServerBudget, ThinkingBudget

_OPEN = "<think>"
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


def grow_within(
    chain: ChunkChain, budget: int, family: PromptFamily, server: ServerBudget | None
) -> ControllerGenerator:
    """Work to `yield from`: afterwards the chain has thought for at most `budget` tokens, and may have ended.

    Args:
        chain: Has not begun.
        budget: Tokens of thinking.
        family: How thinking is closed.
        server: Of the worker, where that may keep the budget; None where it has none.
    """
    reason = "the worker has no server that could" if server is None else server.reason
    if server is None or reason is not None:
        yield from chain.grow(budget)
        _record(chain, budget, family, "controller", reason)
        return
    (task,) = chain.advance(chain.max_tokens)
    is_open = (chain.prompt.input_str or "").rstrip().endswith(_OPEN)
    set_notes(task, notes_of(task)._replace(thinking=ThinkingBudget(budget, _OPEN, family.think_close, is_open)))
    yield [task]
    chain.absorb()
    found = thought_of(chain.prefix, family.think_close)
    if found is not None and found.num_thinking <= budget + _SLACK:
        by = "server" if server.reason is None else "controller"
        _record(chain, budget, family, by, server.reason)
        return
    server.reason = server.reason or (
        "its tokens cannot be counted here"
        if found is None
        else f"asked for {budget} tokens of thinking, it let {found.num_thinking} through"
    )
    chain.cut(budget)
    _record(chain, budget, family, "controller", server.reason)


def _record(chain: ChunkChain, budget: int, family: PromptFamily, by: str, reason: str | None) -> None:
    found = thought_of(chain.prefix, family.think_close)
    counts = {} if found is None else found._asdict()
    record("thinking_budget", asked=budget, by=by, **counts, **({} if reason is None else {"reason": reason}))
