"""What a request of the engine is told: where its text ends, what it reports, its KV, and its place in the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scaffolding_ext.protocol.branching import LayerExit

Worth = Callable[[int], float]


def all_alike(number: int) -> float:
    """What a block is worth in the cache where nobody says otherwise: then the least recently used leave first."""
    return 0.0


class Ends(NamedTuple):
    """Where the text of a request ends.

    Attributes:
        max_tokens: Tokens to decode at most; 0 only reads the prompt.
        stop: Strings that end the text; they are cut off.
        min_tokens: Tokens before which an end-of-sequence token cannot be drawn.
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
        choices: Token ids whose logits behind the prompt are wanted.
        logits: Whether all logits behind each token of the prompt are wanted.
        states: Whether the hidden states of the prompt's last token are wanted.
        layer_exit: When the prompt's next token may be read before the last layer; its KV is nobody else's then.
    """

    num_logprobs: int = 0
    score_from: int | None = None
    choices: tuple[int, ...] = ()
    logits: bool = False
    states: bool = False
    layer_exit: LayerExit | None = None


class Kv(NamedTuple):
    """What becomes of the KV of a request.

    Attributes:
        keep: Whether it is worth storing when the request ends.
        worth: What a block of it is worth in the cache, by its number; what is worth less leaves sooner.
        reuses: Whether the request takes the KV of a prefix that others have computed.
        salt: Requests with different salts share none.
    """

    keep: bool = True
    worth: Worth = all_alike
    reuses: bool = True
    salt: str | None = None


class Place(NamedTuple):
    """The place of a request among those that wait with it.

    Attributes:
        urgent: Whether others wait for what it gives: a probe, a forced answer, a score, a verdict.
        priority: The lower, the sooner.
    """

    urgent: bool = False
    priority: float = 0.0
