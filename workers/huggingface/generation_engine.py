"""Engine of HuggingFaceWorker: a thread that steps a continuous batch while there are requests."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial

import torch

from scaffolding_ext.errors import EngineError, check_process
from scaffolding_ext.workers.huggingface.continuous_batch import ContinuousBatch, EngineMetrics, caused_by
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

_FAILED = "the engine of this worker has failed: make a new worker. The failure: "


class GenerationEngine:
    """Runs requests on a batch until each has ended, with `threads` threads per torch operation."""

    def __init__(self, batch: ContinuousBatch, threads: int) -> None:
        self._unfinished: set[EngineRequest] = set()
        self._batch, self.pool = batch, batch.pool
        batch.on_end = self._unfinished.discard
        self._threads, self._made_in = threads, os.getpid()
        self._calls: list[Callable[[], None]] = []  # work for the engine's thread
        self._wake = threading.Condition()
        self._closed = False
        self._cause: BaseException | None = None  # error that closed the engine, unless it was shut down
        self._thread = threading.Thread(target=self._run, name="generation-engine", daemon=True)
        self._thread.start()
        # A thread inside torch while the interpreter ends would abort the process, even one that only frees its model.
        atexit.register(_end, weakref.ref(self), self._thread)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; from any thread. An engine that is shut down or has failed raises an EngineError.

        Raises:
            ScaffoldingExtError: The engine was made before a fork, and this is the child, which has not its thread.
        """
        check_process(self._made_in, "HuggingFaceWorker")
        with self._wake:
            if self._cause is not None:
                raise caused_by(self._cause, _FAILED)
            if self._closed:
                raise EngineError("the worker is shut down and takes no tasks: make a new worker")
            request.engine = weakref.ref(self)
            self._unfinished.add(request)
            self.call(partial(self._batch.add, request))

    def let_run_to(self, request: EngineRequest, num_tokens: int) -> None:
        """Let a request run until it has generated that many tokens, then pause it; from any thread."""
        self.call(partial(setattr, request, "may_run_to", num_tokens))

    def cancel(self, request: EngineRequest) -> None:
        """End a request before its next step; from any thread. It keeps its generated tokens."""
        self.call(partial(self._batch.drop, request))

    def call(self, work: Callable[[], None]) -> None:
        """Run a function on the engine's thread before its next step; from any thread. A closed engine runs none."""
        with self._wake:
            if not self._closed:
                self._calls.append(work)
            self._wake.notify()

    def close(self) -> None:
        """Stop the thread after its step, and end every request with an EngineError; does not wait for it."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def shutdown(self) -> None:
        """Close, and wait until the thread has stopped."""
        self.close()
        self._thread.join()

    @property
    def metrics(self) -> EngineMetrics:
        """A snapshot, readable from any thread."""
        metrics = self._batch.metrics
        return metrics._replace(num_waiting=metrics.num_waiting + len(self._calls))

    # ---- on the engine's thread

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            torch.get_num_threads()  # otherwise the first operation would use the process's setting
            torch.set_num_threads(self._threads)  # this and the next call set values of this thread
            torch.set_flush_denormal(True)  # many probabilities are tiny, and denormal numbers are slow
            with torch.inference_mode():
                self._serve()
        except BaseException as error:  # otherwise it would be lost, and every request would wait forever
            cause = error
        self._end_all(cause)

    def _serve(self) -> None:
        while True:
            with self._wake:
                while self._batch.idle and not (self._calls or self._closed):
                    self._wake.wait()
                if self._closed:
                    return
                calls, self._calls = self._calls, []
            for work in calls:
                work()
            if not self._batch.idle:
                self._batch.step()

    def _end_all(self, cause: BaseException | None) -> None:
        """Refuse new requests and fail those that have not ended."""
        with self._wake:
            self._closed, self._cause = True, cause
            unfinished = list(self._unfinished)
            self._unfinished.clear()
            self._calls.clear()
            self._batch.clear()
        for request in unfinished:
            if request.ended:  # complete; only its blocks were not freed yet
                request.notify()
            elif cause is not None:
                request.end("error", caused_by(cause, _FAILED))
            else:
                message = "the worker was shut down before the task ended: send the task to another worker"
                request.end("error", EngineError(message))


def _end(engine: weakref.ref[GenerationEngine], thread: threading.Thread) -> None:
    """Stop an engine that still runs when the interpreter exits, and wait for its thread."""
    running = engine()
    if running is not None:
        running.close()
    thread.join()
