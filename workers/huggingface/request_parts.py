"""The parts of a request to the engine: where its text ends, what it reports, its KV, and its place in the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scaffolding_ext.protocol.branching import LayerExit

Worth = Callable[[int], float]


def all_alike(number: int) -> float:
    """The default worth of a block: all blocks are equal, so the least recently used are evicted first."""
    return 0.0


class Ends(NamedTuple):
    """Where the text of a request ends.

    Attributes:
        max_tokens: Tokens to decode at most; 0 only reads the prompt.
        stop: Strings that end the text; they are cut off.
        min_tokens: Number of tokens before an end-of-sequence token may be drawn.
        ignore_end: Whether end-of-sequence tokens do not end the text.
    """

    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_end: bool = False


class Wants(NamedTuple):
    """What a request reports beside its text.

    Attributes:
        num_logprobs: Alternatives whose log-probabilities are reported for each token; 0 reports none.
        score_from: Position of the first prompt token whose log-probability is wanted, or None.
        choices: Token ids whose logits after the prompt are wanted.
        logits: Whether all logits after each token of the prompt are wanted.
        states: Whether the hidden states of the prompt's last token are wanted.
        layer_exit: The rule by which the prompt's next token may be read before the last layer; then no other request
            may reuse its KV.
    """

    num_logprobs: int = 0
    score_from: int | None = None
    choices: tuple[int, ...] = ()
    logits: bool = False
    states: bool = False
    layer_exit: LayerExit | None = None


class Kv(NamedTuple):
    """How the KV of a request is used and kept.

    Attributes:
        keep: Whether the KV is worth keeping when the request ends.
        worth: Gives the worth of a block in the cache by its number; blocks of less worth are evicted first.
        reuses: Whether the request takes the KV of a prefix that others have computed.
        salt: Requests with different salts share no KV.
    """

    keep: bool = True
    worth: Worth = all_alike
    reuses: bool = True
    salt: str | None = None


class Place(NamedTuple):
    """The place of a request in the queue.

    Attributes:
        urgent: Whether other tasks wait for its result: a probe, a forced answer, a score, a verdict.
        priority: Requests with a lower number are served sooner.
    """

    urgent: bool = False
    priority: float = 0.0
