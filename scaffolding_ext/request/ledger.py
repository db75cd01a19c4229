"""Token ledger of a request, and the meter that fills it.

A `Meter` watches the tasks that pass, under either host; nothing else counts tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

from scaffolding_ext.protocol import ChatTask, ControllerGenerator, StreamGenerationTask, Task
from scaffolding_ext.protocol.meta import (
    PROMPT,
    REUSE,
    Purpose,
    TokenCounts,
    default_purpose_of,
    estimated_counts_of,
    meta_of,
)
from scaffolding_ext.protocol.relay import Watch, relay
from scaffolding_ext.protocol.task_results import num_reused_of_output

_NOTHING = TokenCounts()
_ledger_of = operator.attrgetter("ledger")


class Ledger:
    """A program's tokens by purpose, split into decoded, prefilled and reused.

    Attributes:
        task_type: Type of the question, if a plan served it by type.
        num_unmetered_tasks: Tasks whose worker reported nothing to count tokens from, or not the prompt's.
        num_unknown_reuse_tasks: Tasks whose server tells no cached tokens: their whole prompts count as prefilled.
        queue_seconds: Total time that the program's tasks waited in engines that report it.
    """

    # Plain tuples, because the garbage collector untracks them, unlike named ones.
    __slots__ = ("_counts", "num_unknown_reuse_tasks", "num_unmetered_tasks", "queue_seconds", "task_type")

    def __init__(self) -> None:
        self._counts: dict[Purpose, tuple[int, int, int]] = {}
        self.task_type: str | None = None
        self.num_unmetered_tasks = self.num_unknown_reuse_tasks = 0
        self.queue_seconds = 0.0

    @property
    def by_purpose(self) -> dict[Purpose, TokenCounts]:
        return {purpose: TokenCounts(*counts) for purpose, counts in self._counts.items()}

    @property
    def total(self) -> TokenCounts:
        return TokenCounts(*map(sum, zip(*self._counts.values(), strict=True))) if self._counts else _NOTHING

    @property
    def num_decoded(self) -> int:
        num_decoded = 0
        for counts in self._counts.values():
            num_decoded += counts[0]
        return num_decoded

    @property
    def num_kept(self) -> int:
        """Decoded tokens that were not discarded; unlike all decoded ones, they do not depend on time."""
        num_kept = 0
        for purpose, counts in self._counts.items():
            if purpose is not Purpose.DISCARDED:
                num_kept += counts[0]
        return num_kept

    @property
    def discarded_share(self) -> float:
        """Share of the decoded tokens that reached no output; 0 if none were decoded."""
        discarded = self._counts.get(Purpose.DISCARDED, _NOTHING)
        return discarded[0] / self.total.decoded if self.total.decoded else 0.0

    def add(self, purpose: Purpose, decoded: int = 0, prefilled: int = 0, reused: int = 0) -> None:
        before = self._counts.get(purpose, (0, 0, 0))
        self._counts[purpose] = (before[0] + decoded, before[1] + prefilled, before[2] + reused)

    def discard(self, purpose: Purpose, num_tokens: int, to: Purpose = Purpose.DISCARDED) -> None:
        """Move generated tokens from `purpose` to `discarded` or `rejected`; ValueError if it has fewer.

        Decoded tokens go first, then reused ones, which replace them in a worker that answers from a store.
        """
        counted = self._counts.get(purpose, _NOTHING)
        decoded = min(num_tokens, counted[0])
        reused = num_tokens - decoded
        if num_tokens < 0 or reused > counted[2]:
            raise ValueError(
                f"cannot discard {num_tokens} tokens: {counted[0]} were decoded and {counted[2]} reused for {purpose}"
            )
        if num_tokens:
            self.add(purpose, -decoded, 0, -reused)
            self.add(to, decoded, 0, reused)

    def to_json(self) -> dict[str, Any]:
        return {
            "total": self.total._asdict(),
            "by_purpose": {str(purpose): counts._asdict() for purpose, counts in self.by_purpose.items()},
            "num_unmetered_tasks": self.num_unmetered_tasks,
            **({"num_unknown_reuse_tasks": self.num_unknown_reuse_tasks} if self.num_unknown_reuse_tasks else {}),
            **({} if self.task_type is None else {"task_type": self.task_type}),
            **({"queue_seconds": round(self.queue_seconds, 6)} if self.queue_seconds else {}),
        }


class Meter(Watch):
    """Counts the cost of passing tasks in ledgers.

    Args:
        clock: Seconds from any origin, monotonic; None measures no times.
        parts: Returns the parts of the request that enclose the calling context, from the outermost one inwards.
    """

    __slots__ = ("_counted", "_ledger", "_parts", "_waited")

    def __init__(
        self, ledger: Ledger, clock: Callable[[], float] | None = None, parts: Callable[[], Sequence[Any]] = lambda: ()
    ) -> None:
        super().__init__(clock)
        self._ledger = ledger
        self._parts = parts
        self._waited: dict[Purpose, float] = {}
        self._counted: dict[int, tuple[Task, TokenCounts, int]] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that the request waited for the tasks of each purpose, parallel tasks added up."""
        return {str(purpose): round(seconds, 6) for purpose, seconds in self._waited.items()}

    def watch(self, generator: Iterable[Any]) -> ControllerGenerator:
        return relay(generator, watch=self)

    def close(self) -> None:
        self._counted.clear()
        self.is_closed = True  # upstream's host continues the branches of a failed request

    def ask(self, work: Any) -> float:
        for part in reversed(self._parts()):
            if part.look is not None:
                part.look(work)
        return 0.0 if self.clock is None else self.clock()

    def count(self, work: Any, began: float = 0.0) -> None:
        """Count the cost of a step's tasks; of a stream, only what is new."""
        waited: dict[Purpose, None] = {}  # as a set
        ledgers = (self._ledger, *map(_ledger_of, self._parts()))
        for task in _tasks_of(work):
            notes = meta_of(task)
            read_for, written_for = notes.purpose or default_purpose_of(task)
            waited[written_for] = None
            counts = notes.counts or estimated_counts_of(task)
            if counts is None:
                for ledger in ledgers:
                    ledger.num_unmetered_tasks += _should_cost_tokens(task)
            else:
                counts, copied = self._new_counts(task, counts)
                for ledger in ledgers if notes.uncounted else ():
                    ledger.num_unmetered_tasks += notes.uncounted == PROMPT
                    ledger.num_unknown_reuse_tasks += notes.uncounted == REUSE
                for ledger in ledgers:
                    if counts.prefilled or counts.reused:
                        ledger.add(read_for, 0, counts.prefilled, counts.reused)
                    ledger.add(written_for, counts.decoded, 0, copied)
        if self.clock is not None:
            took = self.clock() - began
            for purpose in waited:
                self._waited[purpose] = self._waited.get(purpose, 0.0) + took

    def _new_counts(self, task: Task, counts: TokenCounts) -> tuple[TokenCounts, int]:
        copied = num_reused_of_output(task, counts) if counts.reused else 0
        if copied:
            counts = TokenCounts(counts.decoded, counts.prefilled, counts.reused - copied)
        if not is_stream(task):
            return counts, copied
        _, before, copied_before = self._counted.get(id(task), (task, _NOTHING, 0))  # a stream's counts are cumulative
        self._counted[id(task)] = task, counts, copied
        return counts.minus(before), copied - copied_before


def is_stream(task: Task) -> TypeGuard[StreamGenerationTask]:
    """Return True if a task returns step by step with cumulative counts. A chat returns whole."""
    return isinstance(task, StreamGenerationTask) and not isinstance(task, ChatTask)


def _tasks_of(work: Any) -> Iterable[Task]:
    return (task for task in work if isinstance(task, Task)) if isinstance(work, (list, tuple)) else ()


def _should_cost_tokens(task: Task) -> bool:
    return hasattr(task, "input_tokens") or hasattr(task, "branches") or hasattr(task, "suffixes")
