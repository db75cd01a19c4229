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
from scaffolding_ext.evaluation.logs.samples import Ints, Looks, Recording
from scaffolding_ext.evaluation.tune.costs import Asked, EndedSamples, Price, costs_of, shortness, whole_samples
from scaffolding_ext.registry import probe_schedules, stopping_rules

_UNASKED = {name: Probe._field_defaults[name] for name in ("answer", "answer_class", "hedged", "response")}
_CUTS = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1)  # lengths to try, as shares of the mean chain
_STRIDE = 4  # of a sparse schedule, in looks
_LEAST_LOOKS = 16  # of the longest chain, to try a sparse schedule


class _Ask(NamedTuple):
    """A request on a prefix of a chain: tokens before its suffix, of its suffix, and decoded ones."""

    num_before: int
    num_suffix: int
    num_decoded: int


class _SeenLook(NamedTuple):
    """A look, with the requests of a chain that ends there.

    Attributes:
        position: Its tokens; if gaps are uneven, its index from 1.
        unasked: The look of a rule that does not probe for the answer.
    """

    number: int
    position: int
    probe: Probe
    unasked: Probe
    answer: _Ask
    forced: _Ask


class _LookedAt(NamedTuple):
    """A recorded chain: its looks, oldest first, and its natural end. `spacing` is None if positions are in tokens."""

    looks: Sequence[_SeenLook]
    by_position: Mapping[int, _SeenLook]
    spacing: int | None
    length: int
    answer_class: int
    forced: Ints


class ChainEnd(NamedTuple):
    """End of a chain: the last look (None: it ran to its end), its answer, and its requests."""

    look: int | None
    answer_class: int
    asks: Sequence[_Ask]


@dataclass(frozen=True)
class Whole:
    """Every chain ends by itself; with `is_asked` it is probed once more for the probability of its answer."""

    is_asked: bool = False
    complexity_rank = 0

    def __str__(self) -> str:
        return "ask how sure each answer is" if self.is_asked else ""

    def end(self, chain: _LookedAt) -> ChainEnd:
        asked = [look.answer for look in chain.looks[-1:]] if self.is_asked else []
        return ChainEnd(None, chain.answer_class, asked)


@dataclass(frozen=True)
class Cut:
    """Every chain is cut after `num_tokens` and asked for its answer; a shorter one ends by itself.

    The last look before the cut stands for it.
    """

    num_tokens: int
    complexity_rank = 20

    def __str__(self) -> str:
        return f"cut thinking after {self.num_tokens:,} tokens"

    def end(self, chain: _LookedAt) -> ChainEnd:
        before = [look for look in chain.looks if look.probe.prefix.num_tokens <= self.num_tokens]
        if chain.length <= self.num_tokens or not before:
            return ChainEnd(None, chain.answer_class, [])
        return ChainEnd(before[-1].number, int(chain.forced[before[-1].number]), [before[-1].forced])


@dataclass(frozen=True, eq=False)
class Stopped:
    """Every chain is stopped by a rule that looks at it on a schedule, both as `{type, args}`."""

    rule: Mapping[str, Any]
    schedule: Mapping[str, Any]
    complexity_rank: int = 40

    @cached_property
    def built(self) -> StoppingRule:
        rule: StoppingRule = stopping_rules.build(self.rule)
        return rule

    @cached_property
    def looking(self) -> ProbeSchedule:
        schedule: ProbeSchedule = probe_schedules.build(self.schedule)
        return schedule

    def __str__(self) -> str:
        schedule = self.looking
        gap = f"every {schedule.chunk_size:,} tokens" if schedule.growth == 1 else "at growing gaps"
        first = f", first after {schedule.first_probe:,}" if schedule.first_probe != schedule.chunk_size else ""
        return f"end thinking when {self.built.words}, looking {gap}{first}"

    def end(self, chain: _LookedAt) -> ChainEnd:
        rule, needs = self.built, self.built.needs
        asks: list[_Ask] = []
        seen: list[Probe] = []
        for look in self._scheduled(chain):
            if needs.answer:
                asks.append(look.answer)
            seen.append(look.probe if needs.answer else look.unasked)
            stop = rule.stop(seen)
            if stop is None:
                continue
            left_with = stop.left_with(seen)
            if left_with is not None:
                return ChainEnd(look.number, left_with.answer_class, asks)
            return ChainEnd(look.number, int(chain.forced[look.number]), [*asks, look.forced])
        return ChainEnd(None, chain.answer_class, asks)

    def _scheduled(self, chain: _LookedAt) -> Iterator[_SeenLook]:
        last = chain.looks[-1].position if chain.looks else 0
        for position in itertools.takewhile(lambda position: position <= last, self._positions(chain.spacing)):
            look = chain.by_position.get(position)
            if look is None:
                raise ConfigError(
                    f"probes after {position} tokens, but nothing was recorded there; the recorded probes are at "
                    f"{', '.join(map(str, list(chain.by_position)[:3]))} and so on",
                    "schedule",
                )
            yield look

    def _positions(self, spacing: int | None) -> Iterator[int]:
        """Yield the schedule's positions in tokens; with a spacing, the nearest recorded ones, each once."""
        positions = itertools.accumulate(self.looking.gaps())
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
        self._has_probabilities = _has_probabilities(recording)
        self._chains = [
            [self._chain(looks, number) for looks, number in zip(each.looks or (), each.classes.tolist(), strict=False)]
            for each in recording.questions
        ]

    def _chain(self, looks: Looks, answer_class: int) -> _LookedAt:
        seen: list[_SeenLook] = []
        for number, probe in enumerate(looks.probes):
            num_tokens = probe.prefix.num_tokens
            if num_tokens:
                before = looks.num_prompt_tokens + num_tokens
                position = num_tokens if self._spacing is None else len(seen) + 1
                answer = _Ask(before, looks.num_probe_suffix, int(looks.num_answer_tokens[number]))
                forced = _Ask(before, looks.num_close_suffix, int(looks.num_forced_tokens[number]))
                seen.append(_SeenLook(number, position, probe, probe._replace(**_UNASKED), answer, forced))
        by_position = {look.position: look for look in seen}
        return _LookedAt(seen, by_position, self._spacing, looks.length, answer_class, looks.forced)

    def ended(self, ending: Ending, price: Price | None = None) -> EndedSamples:
        """Return the samples as if their chains had ended in this way.

        Tokens that a chain writes while a look that ends it is pending are not counted, because they depend on the
        engine.

        Raises:
            ConfigError: The recording has no looks, or they lack what the ending needs.
        """
        recording = self._recording
        if ending == Whole():
            return whole_samples(recording, price)
        if "looks" in recording.missing:
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
            assert question.looks is not None
            for index, (looks, chain) in enumerate(zip(question.looks, self._chains[number], strict=True)):
                at, end = (number, index), ending.end(chain)
                probe = looks.probes[-1 if end.look is None else end.look] if looks.probes else None
                written = int(question.tokens[index]) if end.look is None or probe is None else probe.prefix.num_tokens
                classes[at] = end.answer_class
                tokens[at] = written + sum(ask.num_decoded for ask in end.asks)
                asked.suffixes[at] = sum(ask.num_suffix for ask in end.asks)
                asked.prefixes[at] = sum(ask.num_before for ask in end.asks)
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
            probabilities=probabilities if self._has_probabilities else None,
        )


def _has_probabilities(recording: Recording) -> bool:
    return all(probe.answer_logprobs is not None for looks in _looks_of(recording) for probe in looks.probes)


def _looks_of(recording: Recording) -> Iterator[Looks]:
    return (looks for question in recording.questions for looks in question.looks or ())


def missing_for(recording: Recording, ending: Ending) -> str | None:
    """Return the first requirement of an ending that the looks lack, if any."""
    if not isinstance(ending, Stopped):
        return None
    needs = ending.built.needs
    probe = next((looks.probes[0] for looks in _looks_of(recording) if looks.probes), None)
    if probe is None:
        return None
    lacks = {
        "log-probabilities of answers": needs.answer_logprobs and probe.answer_logprobs is None,
        "texts": not probe.prefix.text and not needs.answer,
    }
    return next((what for what, is_lacking in lacks.items() if is_lacking), None)


class TriedEndings(NamedTuple):
    """Ways to end a chain, from the most careful to the boldest.

    With `is_nested` another list has the same rule on the plain schedule, so fewer votes are tried.
    """

    endings: Sequence[Ending]
    is_nested: bool = False


def endings_to_try(recording: Recording) -> dict[str, TriedEndings]:
    """Return cuts, and every stopping rule on every schedule that can be played, by name."""
    if "looks" in recording.missing:
        return {}
    gaps = _gaps(recording)
    mean = float(np.mean([looks.length for looks in _looks_of(recording)]))
    cuts = dict.fromkeys(Cut(_rounded(share * mean, gaps)) for share in _CUTS)
    lists = {"cut": TriedEndings(list(cuts))}
    most = max(len(looks.probes) for looks in _looks_of(recording))
    spacing = round(float(np.median(gaps)))
    for number, (schedule_name, schedule) in enumerate(_schedules(spacing, mean, most).items()):
        for name in stopping_rules.names():
            kind = stopping_rules.resolve(name)
            if not (isinstance(kind, type) and issubclass(kind, StoppingRule)):
                continue
            for title, settings in kind.search_space().items():
                complexity_rank = 45 if number else 40
                own = [Stopped({"type": name, "args": dict(args)}, schedule, complexity_rank) for args in settings]
                if all(missing_for(recording, each) is None for each in own):
                    lists[f"{title}, {schedule_name}"] = TriedEndings(own, number > 0)
    return lists


def _schedules(spacing: int, mean_length: float, most_looks: int) -> dict[str, dict[str, Any]]:
    """Return the schedules to try, by name, the plain one first; they use only recorded looks."""
    late = spacing * max(2, round(mean_length / 2 / spacing))
    schedules: dict[str, dict[str, Any]] = {
        f"a look every {spacing:,}": {"type": "ProbeSchedule", "args": {"chunk_size": spacing}},
        f"from {late:,} on": {"type": "ProbeSchedule", "args": {"chunk_size": spacing, "first_probe": late}},
        "at doubled gaps": {"type": "ProbeSchedule", "args": {"chunk_size": spacing, "growth": 2.0}},
    }
    if most_looks >= _LEAST_LOOKS:
        sparse = spacing * _STRIDE
        schedules[f"a look every {sparse:,}"] = {"type": "ProbeSchedule", "args": {"chunk_size": sparse}}
    return schedules


def _gaps(recording: Recording) -> list[int]:
    return [
        gap
        for looks in _looks_of(recording)
        for gap in np.diff([0, *(each.prefix.num_tokens for each in looks.probes if each.prefix.num_tokens)]).tolist()
    ]


def _rounded(num_tokens: float, gaps: Sequence[int]) -> int:
    """Round to a whole number of gaps if all are equal, else to two digits."""
    if len(set(gaps)) == 1:
        return max(1, round(num_tokens / gaps[0])) * gaps[0]
    digits = int(10 ** max(0, len(str(round(num_tokens))) - 2))
    return max(1, round(num_tokens / digits)) * digits
