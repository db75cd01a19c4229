"""Shuts a host's workers down: each of them, in order, whichever of the others fails."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.errors import WorkerShutdownError
from scaffolding_ext.host.dispatch import each_once
from scaffolding_ext.protocol import Worker


class WorkerShutdown:
    """The shutdown of workers, which happens once.

    Args:
        workers: Worker by tag.
    """

    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        self._workers = each_once(workers)
        self._errors: list[Exception] = []
        self._is_done = False
        self._lock = threading.Lock()

    async def on_loop(self) -> None:
        """Free what must be freed on the host's event loop; what fails is kept for `finish`."""
        for worker in self._workers:
            close = getattr(worker, "async_shutdown", None)  # younger than 1.2
            if close is None:
                continue
            try:
                await close()
            except Exception as error:
                self._errors.append(error)

    def finish(self, with_workers: bool) -> None:
        """Say what failed on the loop, and shut the workers down where that is asked for; each happens once.

        Raises:
            WorkerShutdownError: Workers failed, here or on the loop.
        """
        with self._lock:
            errors, self._errors = self._errors, []
            first = with_workers and not self._is_done
            self._is_done = self._is_done or with_workers
        for worker in self._workers if first else ():
            try:
                worker.shutdown()
            except Exception as error:
                errors.append(error)
        if errors:
            reasons = "; ".join(f"{type(error).__name__}: {error}" for error in errors)
            message = f"not every worker could be shut down as it should ({reasons}); the others have been"
            raise WorkerShutdownError(message, errors) from errors[0]
