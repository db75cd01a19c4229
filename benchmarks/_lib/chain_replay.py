"""What recorded chains would have become under a stopping rule: answers, and tokens in three regimes of the cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.recorded_chains import RecordedChain
from scaffolding_ext.controllers.chain.looking import Needs, ProbeSchedule
from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.errors import ConfigError

Floats = npt.NDArray[np.float64]
TOKENS_PER_BLOCK = 32  # as in TensorRT-LLM, and in our engine
NEVER = -1
_UNASKED = {name: Probe._field_defaults[name] for name in ("answer", "answer_class", "hedged", "response")}
COSTS = {
    "decoded": "decoded tokens, those of probes included",
    "kept": "computed tokens, the chain's KV kept",
    "blocks": f"computed tokens, prefixes cached in blocks of {TOKENS_PER_BLOCK}",
    "nothing": "computed tokens, nothing kept between requests",
    "probes": "requests beside the chain",
}


class Ask(NamedTuple):
    """A request on a prefix of a chain: tokens before its suffix, of its suffix, and those that it decodes."""

    num_before: int
    num_suffix: int
    num_decoded: int


class Outcome(NamedTuple):
    """What became of each chain, shape [num_chains] each.

    Attributes:
        exits: Index of the look that it was left at; -1 where it ran to its end.
        positions: Its tokens there.
        right: Whether its answer is right (0 or 1).
        differs: Whether its answer is another than the whole chain's.
        lost: Whether the whole chain's answer is right and its own is not.
        costs: What it cost, by the names of `COSTS`.
    """

    exits: npt.NDArray[np.int64]
    positions: Floats
    right: Floats
    differs: Floats
    lost: Floats
    costs: Mapping[str, Floats]


def play(chains: Sequence[RecordedChain], rule: StoppingRule, schedule: ProbeSchedule) -> Outcome:
    """What the chains would have become under a rule that looks at them on a schedule.

    What a chain writes on beside a look that ends it is not counted: how much that is depends on its engine.

    Raises:
        ConfigError: The schedule looks where nothing was recorded, or the rule needs what was not.
    """
    needs = rule.needs
    missing = lacking(chains, needs)
    if missing is not None:
        raise ConfigError(
            f"needs {missing}, and the recorded chains hold none: record the chains again, or leave the rule out",
            "rule",
        )
    ends = []
    for chain in chains:
        asks: list[Ask] = []
        seen: list[Probe] = []
        end = _to_the_end(chain, asks)
        for index, look in _looks(chain, schedule):
            position = look.prefix.num_tokens
            before = chain.num_prompt_tokens + position
            if needs.answer:
                asks.append(Ask(before, chain.num_probe_suffix, chain.num_answer_tokens[index]))
            if needs.entropy:
                asks.append(Ask(before, chain.num_close_suffix, 1))
            seen.append(look if needs.answer else look._replace(**_UNASKED))
            stop = rule.stop(seen)
            if stop is None:
                continue
            left_with = stop.left_with(seen)
            if left_with is not None and not left_with.is_part:
                answer = left_with.answer_class
            elif stop.answer == "none":
                answer = -1
            else:
                answer = chain.forced[index]
                asks.append(Ask(before, chain.num_close_suffix, chain.num_forced_tokens[index]))
            end = _End(chain, index, position, position, answer, asks)
            break
        ends.append(end)
    return _outcome(ends)


def lacking(chains: Sequence[RecordedChain], needs: Needs) -> str | None:
    """What a rule needs and the recording lacks; None where it lacks nothing."""
    look = next((chain.looks[0] for chain in chains if chain.looks), None)
    if look is None:
        return None
    found = {
        "log-probabilities of answers": needs.answer_logprobs and look.answer_logprobs is None,
        "log-probabilities of the chain": needs.chain_logprobs and look.prefix.logprobs is None,
        "the entropy behind closed thinking": needs.entropy and look.entropy is None,
        "a suffix of its own": needs.entropy and needs.suffix is not None,
    }
    return next((what for what, is_lacking in found.items() if is_lacking), None)


def cut_at(chains: Sequence[RecordedChain], looks: Sequence[int]) -> Outcome:
    """Each chain cut at a look of its own, and asked for its answer there; one that ends before is left alone.

    Args:
        chains: The chains.
        looks: Index of the look of each; -1 for never.
    """
    ends = []
    for chain, index in zip(chains, looks, strict=True):
        if not 0 <= index < len(chain.looks):
            ends.append(_to_the_end(chain, []))
            continue
        position = chain.looks[index].prefix.num_tokens
        ask = Ask(chain.num_prompt_tokens + position, chain.num_close_suffix, chain.num_forced_tokens[index])
        ends.append(_End(chain, index, position, position, chain.forced[index], [ask]))
    return _outcome(ends)


def fixed_cuts(chains: Sequence[RecordedChain]) -> list[Outcome]:
    """Every fixed cut, the earliest first, and last the whole chains."""
    longest = max(len(chain.looks) for chain in chains)
    return [cut_at(chains, [index] * len(chains)) for index in [*range(longest), NEVER]]


class _End(NamedTuple):
    chain: RecordedChain
    exit: int
    position: int
    num_written: int
    answer: int
    asks: Sequence[Ask]


def _to_the_end(chain: RecordedChain, asks: Sequence[Ask]) -> _End:
    return _End(chain, NEVER, chain.length, chain.num_tokens, chain.full, asks)


def _looks(chain: RecordedChain, schedule: ProbeSchedule) -> Iterator[tuple[int, Probe]]:
    """The looks on a schedule, with their indices."""
    indices = {look.prefix.num_tokens: index for index, look in enumerate(chain.looks)}
    last = max(indices, default=0)
    num_seen = 0
    for position in itertools.takewhile(lambda at: at <= last, itertools.accumulate(schedule.gaps())):
        index = indices.get(position)
        if index is None:
            raise ConfigError(
                f"looks after {position} tokens, where nothing was recorded; the recorded looks are at "
                f"{', '.join(map(str, list(indices)[:3]))} and so on",
                "schedule",
            )
        look = chain.looks[index]
        if schedule.is_due(look.prefix.text[num_seen:]):
            num_seen = len(look.prefix.text)
            yield index, look


def _outcome(ends: Sequence[_End]) -> Outcome:
    costs: dict[str, list[float]] = {name: [] for name in COSTS}
    for end in ends:
        decoded = end.num_written + sum(ask.num_decoded for ask in end.asks)
        kept = end.chain.num_prompt_tokens + decoded + sum(ask.num_suffix for ask in end.asks)
        costs["decoded"].append(decoded)
        costs["kept"].append(kept)
        costs["blocks"].append(kept + sum(ask.num_before % TOKENS_PER_BLOCK for ask in end.asks))
        costs["nothing"].append(kept + sum(ask.num_before for ask in end.asks))
        costs["probes"].append(len(end.asks))
    right = [end.answer == end.chain.target for end in ends]
    return Outcome(
        exits=np.array([end.exit for end in ends]),
        positions=np.array([end.position for end in ends], dtype=float),
        right=np.array(right, dtype=float),
        differs=np.array([end.answer != end.chain.full for end in ends], dtype=float),
        lost=np.array(
            [end.chain.full == end.chain.target and not own for end, own in zip(ends, right, strict=True)], dtype=float
        ),
        costs={name: np.array(values, dtype=float) for name, values in costs.items()},
    )
