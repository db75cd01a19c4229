"""Ways to end recorded chains: whole, cut after some tokens, or stopped by a rule on a schedule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.controllers.chain.probe import Probe
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.samples import ChainProbes, Recording
from scaffolding_ext.evaluation.tune.costs import Asked, EndedSamples, Price, costs_of, shortness, whole_samples
from scaffolding_ext.registry import probe_schedules, stopping_rules

_UNASKED = {name: Probe._field_defaults[name] for name in ("answer", "answer_class", "hedged", "response")}
_CUTS = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1)  # lengths to try, as shares of the mean chain
_STRIDE = 4  # of a sparse schedule, in probes
_LEAST_PROBES = 16  # of the longest chain, to try a sparse schedule


class _ProbedChain(NamedTuple):
    """A recorded chain.

    Attributes:
        probes: Its probes; `answer_class` is that of its natural end.
        unasked: The probes as a rule sees them that does not ask for the answer.
        places: Index of each probe by its position: the tokens before it, or its number from 1 if gaps are uneven.
        spacing: Tokens between two positions if gaps are uneven; otherwise None.
    """

    probes: ChainProbes
    answer_class: int
    unasked: Sequence[Probe]
    places: Mapping[int, int]
    spacing: int | None


class ChainEnd(NamedTuple):
    """End of a chain.

    Attributes:
        place: Index of the probe at which it ends; None if it ran to its end.
        asked: Indices of the probes that were asked for the answer.
        forced: Index of the probe at which its thinking was closed and its answer forced, if it was.
    """

    place: int | None
    answer_class: int
    asked: Sequence[int] = ()
    forced: Sequence[int] = ()


@dataclass(frozen=True)
class Whole:
    """Every chain ends by itself; with `is_asked` it is probed once more for the probability of its answer."""

    is_asked: bool = False
    complexity_rank = 0

    def __str__(self) -> str:
        return "ask how sure each answer is" if self.is_asked else ""

    def end(self, chain: _ProbedChain) -> ChainEnd:
        return ChainEnd(None, chain.answer_class, list(chain.places.values())[-1:] if self.is_asked else [])


@dataclass(frozen=True)
class Cut:
    """Every chain is cut after `num_tokens` and asked for its answer; a shorter one ends by itself.

    The last probe before the cut stands for it.
    """

    num_tokens: int
    complexity_rank = 20

    def __str__(self) -> str:
        return f"cut thinking after {self.num_tokens:,} tokens"

    def end(self, chain: _ProbedChain) -> ChainEnd:
        probes = chain.probes.probes
        before = [place for place in chain.places.values() if probes[place].prefix.num_tokens <= self.num_tokens]
        if chain.probes.length <= self.num_tokens or not before:
            return ChainEnd(None, chain.answer_class)
        return ChainEnd(before[-1], int(chain.probes.forced[before[-1]]), forced=before[-1:])


@dataclass(frozen=True, eq=False)
class Stopped:
    """Every chain is stopped by a rule that is asked on a schedule, both as `{type, args}`.

    With `is_nested` another list has the same rule on the plain schedule, so fewer votes are tried.
    """

    rule: Mapping[str, Any]
    schedule: Mapping[str, Any]
    is_nested: bool = False

    @property
    def complexity_rank(self) -> int:
        return 45 if self.is_nested else 40

    @cached_property
    def built(self) -> StoppingRule:
        rule: StoppingRule = stopping_rules.build(self.rule)
        return rule

    @cached_property
    def probing(self) -> ProbeSchedule:
        schedule: ProbeSchedule = probe_schedules.build(self.schedule)
        return schedule

    def __str__(self) -> str:
        schedule = self.probing
        gap = f"every {schedule.chunk_size:,} tokens" if schedule.growth == 1 else "at growing gaps"
        first = f", first after {schedule.first_probe:,}" if schedule.first_probe != schedule.chunk_size else ""
        return f"end thinking when {self.built.words}, probing {gap}{first}"

    def end(self, chain: _ProbedChain) -> ChainEnd:
        rule, asks = self.built, self.built.needs.answer
        asked: list[int] = []
        seen: list[Probe] = []
        for place in self._scheduled(chain):
            if asks:
                asked.append(place)
            seen.append(chain.probes.probes[place] if asks else chain.unasked[place])
            stop = rule.stop(seen)
            if stop is None:
                continue
            left_with = stop.left_with(seen)
            if left_with is not None:
                return ChainEnd(place, left_with.answer_class, asked)
            return ChainEnd(place, int(chain.probes.forced[place]), asked, [place])
        return ChainEnd(None, chain.answer_class, asked)

    def _scheduled(self, chain: _ProbedChain) -> Iterator[int]:
        last = max(chain.places, default=0)
        for position in itertools.takewhile(lambda position: position <= last, self._positions(chain.spacing)):
            if position not in chain.places:
                raise ConfigError(
                    f"probes after {position} tokens, but nothing was recorded there; the recorded probes are at "
                    f"{', '.join(map(str, list(chain.places)[:3]))} and so on",
                    "schedule",
                )
            yield chain.places[position]

    def _positions(self, spacing: int | None) -> Iterator[int]:
        """Yield the schedule's positions in tokens; with a spacing, the nearest recorded ones, each once."""
        positions = itertools.accumulate(self.probing.gaps())
        if spacing is None:
            return positions
        return (place for place, _ in itertools.groupby(max(1, round(each / spacing)) for each in positions))


Ending = Whole | Cut | Stopped


class RecordedChains:
    """Chains of a recording, ready to be ended in many ways."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        gaps = _gaps(recording)
        self._spacing = None if len(set(gaps)) <= 1 else round(float(np.median(gaps)))
        self._has_probabilities = all(
            probe.answer_logprobs is not None for chain in _chains_of(recording) for probe in chain.probes
        )
        self._chains = [
            [self._chain(own, number) for own, number in zip(each.probes or (), each.classes.tolist(), strict=False)]
            for each in recording.questions
        ]

    def _chain(self, probes: ChainProbes, answer_class: int) -> _ProbedChain:
        places: dict[int, int] = {}
        for place, probe in enumerate(probes.probes):
            if num_tokens := probe.prefix.num_tokens:
                places[num_tokens if self._spacing is None else len(places) + 1] = place
        unasked = [probe._replace(**_UNASKED) for probe in probes.probes]
        return _ProbedChain(probes, answer_class, unasked, places, self._spacing)

    def ended(self, ending: Ending, price: Price | None = None) -> EndedSamples:
        """Return the samples as if their chains had ended in this way.

        Tokens that a chain writes while a probe that ends it is pending are not counted, because they depend on the
        engine.

        Raises:
            ConfigError: The recording has no probes, or they lack what the ending needs.
        """
        recording = self._recording
        if ending == Whole():
            return whole_samples(recording, price)
        if "probes" in recording.missing:
            raise ConfigError(
                f"is {str(ending)!r}, but the log has no probes of chains: record some (eval --epochs 8 --probe_every "
                "64), or use whole chains",
                "ending",
            )
        lacking = missing_for(recording, ending)
        if lacking is not None:
            raise ConfigError(f"is {str(ending)!r}, which needs {lacking}, but the recorded probes have none", "ending")
        shape = len(recording.questions), recording.num_samples
        classes, tokens = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        asked, probabilities = Asked(*np.zeros((2, *shape))), np.zeros(shape)
        for number, question in enumerate(recording.questions):
            for index, chain in enumerate(self._chains[number]):
                at, end, own = (number, index), ending.end(chain), chain.probes
                asks, forced = list(end.asked), list(end.forced)
                probe = own.probes[-1 if end.place is None else end.place] if own.probes else None
                written = int(question.tokens[index]) if end.place is None or probe is None else probe.prefix.num_tokens
                decoded = own.num_answer_tokens[asks].sum() + own.num_forced_tokens[forced].sum()
                classes[at] = end.answer_class
                tokens[at] = written + int(decoded)
                asked.suffixes[at] = len(asks) * own.num_probe_suffix + len(forced) * own.num_close_suffix
                before = (own.probes[place].prefix.num_tokens for place in (*asks, *forced))
                asked.prefixes[at] = sum(own.num_prompt_tokens + each for each in before)
                probabilities[at] = (probe.confidence or 0.0) if probe is not None else 0.0
        targets = np.array([each.target for each in recording.questions])
        weights = {"shortness": shortness(tokens)}
        if self._has_probabilities:
            weights["answer_probability"] = probabilities
        return EndedSamples(
            classes,
            (classes == targets[:, None]) & (classes >= 0),
            tokens,
            *costs_of(recording, tokens.astype(float), asked, price),
            weights,
        )


def _chains_of(recording: Recording) -> Iterator[ChainProbes]:
    return (chain for question in recording.questions for chain in question.probes or ())


def missing_for(recording: Recording, ending: Ending) -> str | None:
    """Return the first requirement of an ending that the probes lack, if any."""
    if not isinstance(ending, Stopped):
        return None
    needs = ending.built.needs
    probe = next((chain.probes[0] for chain in _chains_of(recording) if chain.probes), None)
    if probe is None:
        return None
    lacks = {
        "log-probabilities of answers": needs.answer_logprobs and probe.answer_logprobs is None,
        "texts": not probe.prefix.text and not needs.answer,
    }
    return next((what for what, is_lacking in lacks.items() if is_lacking), None)


def endings_to_try(recording: Recording) -> dict[str, Sequence[Ending]]:
    """Return cuts, and every stopping rule on every schedule that can be played, by name.

    Each list goes from the most careful to the boldest.
    """
    if "probes" in recording.missing:
        return {}
    gaps = _gaps(recording)
    mean = float(np.mean([chain.length for chain in _chains_of(recording)]))
    cuts = dict.fromkeys(Cut(_rounded(share * mean, gaps)) for share in _CUTS)
    lists: dict[str, Sequence[Ending]] = {"cut": list(cuts)}
    most = max(len(chain.probes) for chain in _chains_of(recording))
    spacing = round(float(np.median(gaps)))
    for number, (schedule_name, schedule) in enumerate(_schedules(spacing, mean, most).items()):
        for name in stopping_rules.names():
            kind = stopping_rules.resolve(name)
            if not (isinstance(kind, type) and issubclass(kind, StoppingRule)):
                continue
            for title, settings in kind.search_space().items():
                own = [Stopped({"type": name, "args": dict(args)}, schedule, number > 0) for args in settings]
                if all(missing_for(recording, each) is None for each in own):
                    lists[f"{title}, {schedule_name}"] = own
    return lists


def _schedules(spacing: int, mean_length: float, most_probes: int) -> dict[str, dict[str, Any]]:
    """Return the schedules to try, by name, the plain one first; they use only recorded probes."""
    late = spacing * max(2, round(mean_length / 2 / spacing))
    schedules: dict[str, dict[str, Any]] = {
        f"a probe every {spacing:,}": {"type": "ProbeSchedule", "args": {"chunk_size": spacing}},
        f"from {late:,} on": {"type": "ProbeSchedule", "args": {"chunk_size": spacing, "first_probe": late}},
        "at doubled gaps": {"type": "ProbeSchedule", "args": {"chunk_size": spacing, "growth": 2.0}},
    }
    if most_probes >= _LEAST_PROBES:
        sparse = spacing * _STRIDE
        schedules[f"a probe every {sparse:,}"] = {"type": "ProbeSchedule", "args": {"chunk_size": sparse}}
    return schedules


def _gaps(recording: Recording) -> list[int]:
    return [
        gap
        for chain in _chains_of(recording)
        for gap in np.diff([0, *(each.prefix.num_tokens for each in chain.probes if each.prefix.num_tokens)]).tolist()
    ]


def _rounded(num_tokens: float, gaps: Sequence[int]) -> int:
    """Round to a whole number of gaps if all are equal, else to two digits."""
    if len(set(gaps)) == 1:
        return max(1, round(num_tokens / gaps[0])) * gaps[0]
    digits = int(10 ** max(0, len(str(round(num_tokens))) - 2))
    return max(1, round(num_tokens / digits)) * digits
