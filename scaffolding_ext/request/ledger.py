"""Every token of a request, by what it was for and how it was had, and the meter that fills the ledger.

A `Meter` watches the tasks that pass, under either host; nobody else counts tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from scaffolding_ext.protocol import ControllerGenerator, Task
from scaffolding_ext.protocol.notes import Purpose, TokenCounts, notes_of, purpose_of
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.task_results import TaskCost, cost_of

_NOTHING = TokenCounts()
_FREE = TaskCost(_NOTHING, _NOTHING)


class Ledger:
    """Every token of a program, by purpose and by how it was had.

    Attributes:
        num_suffix_tokens: Tokens of the suffixes with which chains were asked, where they can be counted; `by_purpose`
            holds them, too.
        num_unmetered_tasks: Tasks whose worker told nothing from which tokens could be counted.
        queue_seconds: How long the program's requests waited in engines that tell, all together.
    """

    # Counts are kept as plain tuples: unlike named ones, the garbage collector need not look at them.
    __slots__ = ("_counts", "num_suffix_tokens", "num_unmetered_tasks", "queue_seconds")

    def __init__(self) -> None:
        self._counts: dict[Purpose, tuple[int, int, int]] = {}
        self.num_suffix_tokens = 0
        self.num_unmetered_tasks = 0
        self.queue_seconds = 0.0

    @property
    def by_purpose(self) -> dict[Purpose, TokenCounts]:
        """Counts under each purpose that occurred."""
        return {purpose: TokenCounts(*counts) for purpose, counts in self._counts.items()}

    @property
    def total(self) -> TokenCounts:
        """The sum over all purposes, discarded work included."""
        return TokenCounts(*map(sum, zip(*self._counts.values(), strict=True))) if self._counts else _NOTHING

    @property
    def discarded_share(self) -> float:
        """Decoded tokens that reached no output, of all that were decoded; 0 where none were."""
        discarded = self._counts.get(Purpose.DISCARDED, _NOTHING)
        return discarded[0] / self.total.decoded if self.total.decoded else 0.0

    def add(self, purpose: Purpose, decoded: int = 0, prefilled: int = 0, reused: int = 0) -> None:
        """Count tokens under a purpose."""
        before = self._counts.get(purpose, (0, 0, 0))
        self._counts[purpose] = (before[0] + decoded, before[1] + prefilled, before[2] + reused)

    def discard(self, purpose: Purpose, num_tokens: int, to: Purpose = Purpose.DISCARDED) -> None:
        """Move generated tokens counted under `purpose` to `discarded` or `rejected`: no output holds them.

        Decoded tokens go first, then reused ones, which a worker that answers from a store has instead.

        Raises:
            ValueError: Fewer tokens were counted for that purpose.
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
        """A JSON-serialisable copy."""
        return {
            "total": self.total._asdict(),
            "by_purpose": {str(purpose): counts._asdict() for purpose, counts in self.by_purpose.items()},
            "num_unmetered_tasks": self.num_unmetered_tasks,
            **({"num_suffix_tokens": self.num_suffix_tokens} if self.num_suffix_tokens else {}),
            **({"queue_seconds": round(self.queue_seconds, 6)} if self.queue_seconds else {}),
        }


class Meter:
    """Counts in a ledger what the tasks that pass through it cost.

    Args:
        ledger: Where tokens are counted.
        elapsed: Seconds since the request began; None measures no times.

    Attributes:
        seconds: How long the request waited for the tasks of each purpose, by its name, what ran side by side added
            up; `first_token` is when the first token was there, where a worker tells.
    """

    __slots__ = ("_began", "_counted", "_elapsed", "_is_closed", "_ledger", "seconds")

    def __init__(self, ledger: Ledger, elapsed: Callable[[], float] | None = None) -> None:
        self._ledger = ledger
        self._elapsed = elapsed
        self._began: dict[int, float] = {}
        self.seconds: dict[str, float] = {}
        self._counted: dict[int, tuple[Task, TaskCost]] = {}
        self._is_closed = False

    def watch(self, generator: Iterable[Any]) -> ControllerGenerator:
        """Pass a controller's work through, counting what its tasks cost, branches included.

        Returns:
            A generator with the same yields and the same return value.
        """
        start, end = (None, self.count) if self._elapsed is None else (self._start, self._end)
        return relay(generator, start, end, lambda: self._is_closed)

    def _start(self, work: Any) -> None:
        if self._elapsed is not None:
            self._began[id(work)] = self._elapsed()

    def _end(self, work: Any) -> None:
        self.count(work)
        began = self._began.pop(id(work), None)
        if began is None or self._elapsed is None or not isinstance(work, (list, tuple)):
            return
        tasks = [task for task in work if isinstance(task, Task)]
        seconds = self._elapsed() - began
        for name in {str(purpose_of(task).written) for task in tasks}:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        firsts = [] if "first_token" in self.seconds else [getattr(task, "ttft_s", None) for task in tasks]
        if known := [first for first in firsts if first is not None]:
            self.seconds["first_token"] = began + min(known)

    def close(self) -> None:
        """Forget the streams that were counted part by part, and end what is still watched at its next step.

        Upstream's host fails a request with one of its branches, and goes on with the others for nobody.
        """
        self._counted.clear()
        self._is_closed = True

    def count(self, work: Any) -> None:
        """Count what a step's tasks have cost; of a stream, what is new since it was counted last."""
        if not isinstance(work, (list, tuple)):
            return
        for task in work:
            if not isinstance(task, Task):
                continue
            cost = cost_of(task)
            if cost is None:
                self._ledger.num_unmetered_tasks += _should_cost_tokens(task)
                continue
            read, written = cost
            purpose = purpose_of(task)
            self._ledger.num_suffix_tokens += notes_of(task).num_suffix_tokens
            streaming = hasattr(task, "end_flag")
            if streaming:  # the same task comes back with cumulative counts: count what is new
                before = self._counted.get(id(task), (task, _FREE))[1]
                self._counted[id(task)] = (task, cost)
                read, written = read.minus(before.read), written.minus(before.written)
            if read.prefilled or read.reused:
                self._ledger.add(purpose.read, 0, read.prefilled, read.reused)
            self._ledger.add(purpose.written, written.decoded, 0, written.reused)


def _should_cost_tokens(task: Task) -> bool:
    return hasattr(task, "input_tokens") or hasattr(task, "branches") or hasattr(task, "suffixes")
