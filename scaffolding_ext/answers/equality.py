"""Equality with three verdicts: from the text if that suffices, else symbolically in processes that can be killed."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

from scaffolding_ext.answers.classes import AnswerClasses
from scaffolding_ext.answers.comparison import Verdict, compare
from scaffolding_ext.answers.pool import KillablePool, OverrunError

_JOB = "scaffolding_ext.answers.symbolic:job"


class Equality:
    """Decides equality of answer pairs and caches the verdicts that needed a process.

    Pairs that the text leaves open go to a pool, which first reads each answer once. An answer that the algebra system
    cannot finish is undetermined against every other, so it costs its deadline only once.

    Args:
        deadline_seconds: Time limit of a pair once processes are free: half for reading its answers, half for comparing
            them.
        units_implied: True if a number equals the same number with a unit (see `compare`).
        num_processes: Processes in the pool.
        max_remembered: Cached results; the least recently used are evicted first.
        pool: A shared `KillablePool`; None creates one.

    Attributes:
        num_comparisons: Pairs sent to a process.
    """

    def __init__(
        self,
        deadline_seconds: float = 2.0,
        *,
        units_implied: bool = False,
        num_processes: int = 2,
        max_remembered: int = 10_000,
        pool: Any = None,
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self.units_implied = units_implied
        self.num_comparisons = 0
        self._pool = KillablePool(_JOB, num_processes) if pool is None else pool
        self._max_remembered = max_remembered
        self._remembered: OrderedDict[tuple[str, ...], Future[Any]] = OrderedDict()
        self._lock = threading.RLock()

    def submit(self, a: str, b: str) -> Future[Verdict]:
        """Return a future verdict on a pair. Do not cancel it: others may wait for the same future.

        It raises EngineError if no process could be started.
        """
        verdict = compare(a, b, units_implied=self.units_implied)
        if verdict is Verdict.UNDETERMINED:
            try:
                compare(a, b, units_implied=self.units_implied, oracle=_needs_a_process)
            except _AskedError:
                first, second = sorted((a, b))
                return self._remember((first, second), self._compared)
        future: Future[Verdict] = Future()
        future.set_result(verdict)
        return future

    def equal(self, a: str, b: str) -> Verdict:
        """Return the verdict on a pair; may block for the deadline."""
        return self.submit(a, b).result()

    def group(self, answers: Sequence[str | None]) -> list[int]:
        """Number the classes of equal answers in order of first appearance, -1 for None; may block."""
        steps = AnswerClasses(self.units_implied).group(answers)
        try:
            pairs = next(steps)
            while True:
                futures = [self.submit(*pair) for pair in pairs]
                pairs = steps.send([future.result() for future in futures])
        except StopIteration as stop:
            classes: list[int] = stop.value.classes
            return classes

    def close(self) -> None:
        """End the pool's processes."""
        self._pool.close()

    def _remember(self, key: tuple[str, ...], find_out: Callable[..., Future[Any]]) -> Future[Any]:
        with self._lock:
            future = self._remembered.get(key)
            if future is None or _failed(future):
                future = self._remembered[key] = find_out(*key)
            self._remembered.move_to_end(key)
            while len(self._remembered) > self._max_remembered:
                self._remembered.popitem(last=False)
            return future

    def _compared(self, a: str, b: str) -> Future[Verdict]:
        """Read both answers, then compare them if both can be handled."""
        outcome: Future[Verdict] = Future()
        if any(_overran(self._remembered.get((answer,))) for answer in (a, b)):
            outcome.set_result(Verdict.UNDETERMINED)
            return outcome
        looks = [self._remember((answer,), self._looked_at) for answer in (a, b)]

        def go_on(ended: Future[Any], next_look: Future[None] | None, is_compared: bool = False) -> None:
            error = ended.exception()
            if isinstance(error, OverrunError):
                outcome.set_result(Verdict.UNDETERMINED)
            elif error is not None:
                outcome.set_exception(error)
            elif is_compared:
                outcome.set_result(Verdict(ended.result()))
            elif next_look is not None:
                next_look.add_done_callback(lambda look: go_on(look, None))
            else:
                with self._lock:
                    self.num_comparisons += 1
                compared = self._pool.submit(self.deadline_seconds / 2, self.units_implied, a, b)
                compared.add_done_callback(lambda job: go_on(job, None, True))

        looks[0].add_done_callback(lambda look: go_on(look, looks[1]))
        return outcome

    def _looked_at(self, answer: str) -> Future[None]:
        """Read one answer; fails if the algebra system cannot finish it."""
        return self._pool.submit(self.deadline_seconds / 2, self.units_implied, answer)


class _AskedError(Exception):
    """Signals that the text does not decide a comparison."""


def _needs_a_process(left: str, right: str) -> Verdict:
    raise _AskedError


def _overran(future: Future[Any] | None) -> bool:
    return future is not None and future.done() and isinstance(future.exception(), OverrunError)


def _failed(future: Future[Any]) -> bool:
    """True if another try may succeed."""
    return future.done() and future.exception() is not None and not _overran(future)


def equal(a: str, b: str, deadline_seconds: float = 2.0, *, units_implied: bool = False) -> Verdict:
    r"""Decide whether two answers are equal. For scripts: may block for the deadline.

    Args:
        a: An answer, in LaTeX or plain text.
        b: Another.
        deadline_seconds: Time limit once processes run (the first call starts them).
        units_implied: True if a number equals the same number with a unit: 5 and 5 cm, 50 and 50 %. Never 0.5 and 50 %.

    Returns:
        EQUAL or DIFFERENT if certain, else UNDETERMINED: text that cannot be read as mathematics, or a comparison that
        exceeds the deadline.

    Raises:
        EngineError: No process could be started.
    """
    return _default(deadline_seconds, units_implied).equal(a, b)


def group(answers: Sequence[str | None], deadline_seconds: float = 2.0, *, units_implied: bool = False) -> list[int]:
    """Group equal answers: a class number for each, in order of first appearance, -1 for None. For scripts.

    The classes do not depend on the order of the answers; undetermined pairs count as different.

    Args:
        answers: The answers; None stands for "no answer" and equals nothing.
        deadline_seconds: As in `equal`, per pair.
        units_implied: As in `equal`.

    Raises:
        EngineError: No process could be started.
    """
    return _default(deadline_seconds, units_implied).group(answers)


@lru_cache(maxsize=8)
def _default(deadline_seconds: float, units_implied: bool) -> Equality:
    return Equality(deadline_seconds, units_implied=units_implied)


if hasattr(os, "register_at_fork"):  # a forked child has none of a pool's threads
    os.register_at_fork(after_in_child=_default.cache_clear)
