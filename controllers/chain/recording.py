"""Looks at a chain as JSON, and looks again: what a rule saw once, it and any other rule may be shown again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.token_entropy import Entropy

_PLAIN = ("answer", "answer_class", "hedged", "response", "is_part", "closes")
_START = Prefix(0, "", [], [])


class Logprob(NamedTuple):
    """The log-probability of one alternative."""

    logprob: float


def row_of(probes: Sequence[Probe]) -> dict[str, Any]:
    """The newest look, JSON-serialisable; of the chain's text, ids and log-probabilities what is new since the last.

    Keys: `position` (tokens), `text`, `token_ids` (None where the worker gives none), `logprobs` (for each token pairs
    of an id and its log-probability; None where nobody asked), `answer_logprobs`, `entropy` (nats and the probability
    that was not told), and the plain attributes of a `Probe` under their names.

    Args:
        probes: The looks at one chain, oldest first, at least one.
    """
    newest = probes[-1]
    now, before = newest.prefix, probes[-2].prefix if len(probes) > 1 else _START
    steps = None if now.logprobs is None else now.logprobs[before.num_tokens :]
    return {
        "position": now.num_tokens,
        "text": now.text[len(before.text) :],
        "token_ids": None if now.token_ids is None else now.token_ids[before.num_tokens : now.num_tokens],
        "logprobs": None if steps is None else [[[i, entry.logprob] for i, entry in step.items()] for step in steps],
        **{name: getattr(newest, name) for name in _PLAIN},
        "answer_logprobs": None if newest.answer_logprobs is None else list(newest.answer_logprobs),
        "entropy": None if newest.entropy is None else list(newest.entropy),
    }


def probes_of(rows: Iterable[Mapping[str, Any]]) -> list[Probe]:
    """The looks whose rows these are, oldest first: equal to those that were recorded."""
    probes: list[Probe] = []
    before = _START
    for row in rows:
        ids, steps = row["token_ids"], row["logprobs"]
        before = Prefix(
            row["position"],
            before.text + row["text"],
            None if ids is None or before.token_ids is None else before.token_ids + ids,
            None
            if steps is None or before.logprobs is None
            else [*before.logprobs, *({int(i): Logprob(value) for i, value in step} for step in steps)],
        )
        answer, entropy = row["answer_logprobs"], row["entropy"]
        probes.append(
            Probe(
                before,
                **{name: row[name] for name in _PLAIN},
                answer_logprobs=None if answer is None else tuple(answer),
                entropy=None if entropy is None else Entropy(*entropy),
            )
        )
    return probes
