"""Scheduling of waiting programs: the policies that order them, and the line in which they wait.

The host and `BudgetedWorker` order by a policy; engines with priorities receive them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from sortedcontainers import SortedList

from scaffolding_ext import require
from scaffolding_ext.request.program import Progress

if TYPE_CHECKING:
    from scaffolding_ext.request.program import Program


class Policy(ABC):
    """Gives each program a number: the lower, the sooner its requests are served; ties go to the earlier.

    An engine may keep the number, so it must not depend on the current time: waiting is rewarded by charging later
    arrivals.
    """

    @abstractmethod
    def priority(self, progress: Progress) -> float:
        """Return the program's number."""

    def learn(self, progress: Progress) -> None:  # noqa: B027 - most policies learn nothing
        """Learn from a program's progress at its end."""

    def take_in(self, program: Program) -> None:
        """Order a program from now on and learn from its end; a program ordered by another policy is left as it is."""
        place = program.place
        if place.order is None:
            place.order = self.priority
            program.lifetime.at_end(lambda: self.learn(place.progress))


class AgeingPolicy(Policy):
    """Orders by a number of tokens without starvation.

    `phi` seconds in the system weigh as much as one token less. A later program passes an earlier one only if it
    arrives within `phi` seconds per token that it has less.

    Args:
        phi: Seconds per token, above 0; the smaller, the sooner a long program is served.

    Raises:
        ConfigError: It is not above 0.

    Reference: Fu et al., Dynasor, on fairness: phi is a program's seconds in the system by output token. Deviation: the
        paper raises a program at a bound; here its place rises steadily, so an engine can keep the number.
    """

    def __init__(self, phi: float = 0.05) -> None:
        self.phi = require.number("phi", phi, above=0)

    @abstractmethod
    def num_tokens(self, progress: Progress) -> float:
        """The number of tokens that orders the program."""

    def priority(self, progress: Progress) -> float:
        return self.num_tokens(progress) + progress.arrived / self.phi


class Fifo(Policy):
    """Serves requests in order of arrival, as engines do by default.

    A program that sends requests in rounds queues up for each round. No program starves.
    """

    def priority(self, progress: Progress) -> float:
        return 0.0


class Gang(Policy):
    """Serves the oldest program's requests first, so the requests of each program run together.

    A program ends with its last request, so programs served in turn all end late. No program starves.

    Reference: Fu et al., Dynasor, on gang scheduling.
    """

    def priority(self, progress: Progress) -> float:
        return float(progress.number)


class LeastAttained(AgeingPolicy):
    """Serves the program with the fewest decoded tokens first: short programs end soon, without estimates.

    Reference: Nuyens and Wierman, "The Foreground-Background Queue: a Survey"; here a running request is not preempted.
    """

    def num_tokens(self, progress: Progress) -> float:
        return progress.num_tokens


class ShortestRemaining(AgeingPolicy):
    """Serves the program with the fewest expected remaining tokens first; nearly certain programs lead.

    The estimate is num_left (1 - certaindex) times the mean tokens per step. The mean over the program's steps is
    shrunk to the mean of its kind, which counts as one more step.

    Reference: Fu et al., Dynasor: the remaining knob times the mean tokens of the program's iterations. Deviation: the
        paper's certaindex chooses the knob, here it shrinks what is left; the first mean is the kind's.
    """

    def __init__(self, phi: float = 0.05) -> None:
        super().__init__(phi)
        self._tokens: Counter[str] = Counter()  # of finished programs, by kind
        self._steps: Counter[str] = Counter()

    def num_tokens(self, progress: Progress) -> float:
        steps = progress.steps
        num_tokens, num_steps = float(progress.num_tokens), steps.num_done
        if self._steps[steps.kind]:
            num_tokens += self._tokens[steps.kind] / self._steps[steps.kind]
            num_steps += 1
        of_a_step = num_tokens / num_steps if num_steps else 1.0
        return steps.num_left * (1 - steps.certaindex) * of_a_step

    def learn(self, progress: Progress) -> None:
        if progress.num_tokens:
            self._tokens[progress.steps.kind] += progress.num_tokens
            self._steps[progress.steps.kind] += max(1, progress.steps.num_done)


class LongestPrefix(Policy):
    """Serves the request first of whose prompt the engine has the most tokens in its KV cache.

    Engines that do not tell serve in order of arrival. A program whose prompts are never cached waits for `patience`
    others.

    Reference: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024, cache-aware
        scheduling; the baseline of Fu et al., Dynasor, appendix G.2. Deviation: a prompt is looked up once, when its
        request begins to wait, since an engine keeps the number.
    """

    def priority(self, progress: Progress) -> float:
        return -float(progress.num_cached)


class EarliestDeadline(Policy):
    """Serves the program with the earliest deadline first (`generate_async(deadline=...)`); no program starves.

    Args:
        within: Seconds after arrival at which a program without a deadline is due.

    Raises:
        ConfigError: It is not above 0.
    """

    def __init__(self, within: float = 60.0) -> None:
        self.within = require.number("within", within, above=0)

    def priority(self, progress: Progress) -> float:
        return progress.arrived + self.within if progress.deadline is None else progress.deadline


T = TypeVar("T", bound=Hashable)
_FIRST = float("-inf")


class WaitingLine(Generic[T]):
    """Orders waiting requests by priority, the lowest first, and by arrival within a priority.

    A request overtaken by `patience` later ones comes first, whatever its priority, so none starves.

    Args:
        patience: Later requests that may be served before an earlier one; 0 serves all in order of arrival.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._waiting: dict[T, tuple[float, int]] = {}  # priority and arrival of each, the earliest first
        self._order: SortedList = SortedList()  # (priority, arrival, who)
        self._num_come = 0
        self._num_left = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, who: object) -> bool:
        return who in self._waiting

    def __iter__(self) -> Iterator[T]:
        """Iterate over those that wait now, the earliest first; other threads may add and remove meanwhile."""
        return iter(tuple(self._waiting))

    def __getitem__(self, place: int) -> T:
        """The one at this place in the line; 0 is served next."""
        who: T = self._order[place][2]
        return who

    def add(self, who: T, priority: float = 0.0) -> None:
        """Add one at its priority's place."""
        priority = priority if self._patience else _FIRST
        self._waiting[who] = priority, self._num_come
        self._order.add((priority, self._num_come, who))
        self._num_come += 1

    def remove(self, who: T) -> None:
        """Remove one, served or not."""
        self._order.remove((*self._waiting.pop(who), who))
        self._num_left += 1
        if not self._waiting:
            return
        earliest, (priority, arrival) = next(iter(self._waiting.items()))
        if priority != _FIRST and self._num_left - arrival >= self._patience:  # all before it have left, too
            self._order.remove((priority, arrival, earliest))
            self._waiting[earliest] = _FIRST, arrival  # keeps its place in the dict
            self._order.add((_FIRST, arrival, earliest))
