"""Host that connects controllers to workers and isolates the failures of requests.

Its event loop runs in a separate thread, so it can be used from any thread and inside a running loop.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, overload

from scaffolding_ext import require
from scaffolding_ext.errors import RequestCancelledError, RequestError, ShutdownError, WorkerError, check_process
from scaffolding_ext.host import arguments, dispatch
from scaffolding_ext.host.dispatch import Dispatcher, each_once
from scaffolding_ext.host.request import Request, abort, clone_of, release, start_timeout
from scaffolding_ext.host.twin import check_seed
from scaffolding_ext.prompts.served_model import take_prompting
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.request.program import Program
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.request.seeds import RequestSeeds
from scaffolding_ext.scheduling import Policy, WaitingLine

_PATIENCE = 512  # requests that may overtake a waiting one


class ScaffoldingLlm:
    """Runs requests of one controller on a set of workers.

    Args:
        prototype_controller: Cloned for each request. One with a `bind` is cloned and bound here; later changes to the
            original have no effect. If its `prompting` was never set, it gets that of the generation worker's model.
        workers: Workers by tag; keys may be `WorkerTag` members, other enum members, or their string values.
        max_parallel_requests: Requests that run at once; the others wait, in order of arrival unless a policy decides.
        seed: Seed of the run, from which every request's seeds derive; see `RequestSeeds`.
        owns_workers: Let `shutdown()` shut the workers down, too. A `with` block frees its references in any case.
        scheduling: Policy that orders requests, in the host and in workers that order tasks; None serves the oldest
            first.
        deadline: Seconds after arrival within which an answer is wanted, for requests that set no deadline.
        telemetry: Watches the requests, such as `plugins.opentelemetry.Telemetry`.
        keep_samples: Let votes publish all of their samples (`request.figures.KeptSample`).

    Raises:
        ConfigError: An argument is not a controller, a mapping of workers, or a whole number,
            `max_parallel_requests` is below 1, or the controller cannot be bound to the workers.
    """

    def __init__(
        self,
        prototype_controller: Controller,
        workers: Mapping[Any, Worker],
        max_parallel_requests: int = 64,
        *,
        seed: int | None = None,
        owns_workers: bool = False,
        scheduling: Policy | None = None,
        deadline: float | None = None,
        keep_samples: bool = False,
        telemetry: Any = None,
    ) -> None:
        self.prototype_controller = arguments.checked_controller(prototype_controller, workers)
        self.workers = arguments.checked_workers(workers)
        self.max_parallel_requests = require.whole("max_parallel_requests", max_parallel_requests)
        self.owns_workers = owns_workers
        self.scheduling = arguments.checked_policy(scheduling, self.workers)
        self.deadline = arguments.checked_seconds("deadline", deadline)
        self.keep_samples = keep_samples
        self.telemetry = telemetry
        self._dispatcher = Dispatcher(self.workers)
        self._seeds = RequestSeeds(arguments.checked_seed(seed))
        check_seed(self.prototype_controller, self._seeds.seed)
        self._worker_shutdown = WorkerShutdown(self.workers)
        self._inbox: deque[Request] = deque()
        self._waiting: WaitingLine[Request] = WaitingLine(_PATIENCE)
        self._running: set[Request] = set()
        self._start_scheduled = False
        self._closer: asyncio.Task[None] | None = None
        self._closed = False
        self._finishes_workers = False
        self._close_lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self._made_in = os.getpid()
        run = functools.partial(_run_loop, self.loop, weakref.ref(self))
        self._thread = threading.Thread(target=run, name="scaffolding-llm", daemon=True)
        self._thread.start()
        # A host that is dropped unclosed ends its thread, and its workers if it owns them.
        left = self.loop, self._thread, self._worker_shutdown, owns_workers
        self._at_drop = weakref.finalize(self, _close_dropped, *left)
        self._at_drop.atexit = False
        if hasattr(prototype_controller, "bind"):
            try:
                self.prototype_controller = clone_of(prototype_controller)
                self.prototype_controller.bind(self.workers)  # type: ignore[attr-defined]
                take_prompting(self.prototype_controller, self.workers)
            except BaseException:
                self.shutdown()
                raise

    # ---- for callers, on any thread

    @property
    def seed(self) -> int | None:
        return self._seeds.seed

    def generate_async(
        self,
        prompt: str,
        *,
        sample_id: str | None = None,
        epoch: int = 0,
        seed: int | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        trace_parent: str | None = None,
        **kwargs: Any,
    ) -> ScaffoldingResult:
        """Submit a prompt and return at once.

        Args:
            sample_id: Name of the sample in the run; its seeds derive from it and `epoch`. Without one they derive from
                the prompt and the number of its earlier requests: a second request samples anew, and a run repeats.
            seed: Seed for this request instead of the host's; the same request with it repeats.
            timeout: Seconds from now, waiting included, after which the request fails with RequestTimeoutError.
            deadline: Seconds from now within which the answer is wanted, for policies and controllers, which then give
                the best answer so far; a late request continues. None takes the host's deadline; policies then use the
                time-out.
            trace_parent: The caller's span, as in W3C's header `traceparent`, for the host's telemetry.
            **kwargs: Passed to the controller's `generate`.

        Raises:
            ShutdownError: The host is shut down.
            ConfigError: The prompt is no text or empty, a number of seconds is not above 0 or not finite, or the seed
                or epoch is not whole.
        """
        check_process(self._made_in, "ScaffoldingLlm")
        epoch, seed = require.whole("epoch", epoch, 0), arguments.checked_seed(seed)
        prompt, timeout = arguments.checked_prompt(prompt), arguments.checked_seconds("timeout", timeout)
        wanted = arguments.checked_seconds("deadline", deadline) or self.deadline
        within = wanted or timeout
        program = Program(self._seeds.of_request(prompt, sample_id, epoch, seed), sample_id, epoch)
        program.lifetime.deadline = None if within is None else program.lifetime.began + within
        program.lifetime.answer_by = None if wanted is None else program.lifetime.began + wanted
        program.caller.keeps_samples = self.keep_samples
        if self.scheduling is not None:
            self.scheduling.take_in(program)
        request = Request(program, prompt, kwargs, timeout, self.loop, self._thread)
        with self._close_lock:
            if self._closed:
                raise ShutdownError("the host is shut down; make a new ScaffoldingLlm")
            if self.telemetry is not None:
                controller = kwargs.get("controller", self.prototype_controller)  # `serve` sets one per request
                self.telemetry.begin(request, type(controller).__name__, trace_parent)
            self._inbox.append(request)
            if len(self._inbox) == 1:
                self.loop.call_soon_threadsafe(self._take_inbox)
        return request

    @overload
    def generate(self, prompts: str, **kwargs: Any) -> ScaffoldingResult: ...
    @overload
    def generate(self, prompts: list[str], **kwargs: Any) -> list[ScaffoldingResult]: ...
    def generate(self, prompts: str | list[str], **kwargs: Any) -> ScaffoldingResult | list[ScaffoldingResult]:
        """Run one prompt or a list of them and wait for all; takes the options of `generate_async`.

        Prompts of a list are named by their index, so that their seeds differ. The first failure is raised when all
        have ended; use `generate_async` to handle each result or error separately.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("generate() would block the host's own thread; use generate_async() there")
        results: list[ScaffoldingResult] = []
        try:
            if isinstance(prompts, str):
                results.append(self.generate_async(prompts, **kwargs))
                return results[0].result()
            name = kwargs.pop("sample_id", None)
            for i, prompt in enumerate(arguments.checked_prompts(prompts)):
                sample_id = str(i) if name is None else f"{name}/{i}"
                results.append(self.generate_async(prompt, sample_id=sample_id, **kwargs))
            for result in reversed(results):  # in reverse: each wait switches threads, and most end before the last
                result.exception()
            return [result.result() for result in results]
        except BaseException:  # such as Ctrl-C: the others are no longer awaited
            for result in reversed(results):  # in reverse: the end of an earlier one would start a later one
                result.cancel()
            raise

    def shutdown(self, shutdown_workers: bool | None = None) -> None:
        """Stop: every unfinished request fails with ShutdownError. May be called repeatedly and from any thread.

        Worker resources on the host's loop (`async_shutdown`) are always freed. On the host's thread it returns at
        once, and all of this happens later.

        Args:
            shutdown_workers: Shut the workers down, too; None does so if the host owns them.

        Raises:
            WorkerError: Some workers failed to shut down; the others have.
        """
        with_workers = self.owns_workers if shutdown_workers is None else shutdown_workers
        on_own_thread = threading.current_thread() is self._thread
        with self._close_lock:
            first, self._closed = not self._closed, True
        if first:
            self._finishes_workers = with_workers and on_own_thread
            self.loop.call_soon_threadsafe(self._start_closing)
        if on_own_thread:
            return
        self._thread.join()
        self._at_drop.detach()
        telemetry, self.telemetry = self.telemetry, None
        if telemetry is not None:
            telemetry.flush()
        self._worker_shutdown.finish(with_workers)

    def enable_output_task_collection(self) -> None:
        """No effect, for programs written for upstream's host: results always have their `task_collections`."""

    def __enter__(self) -> ScaffoldingLlm:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
        self.workers.clear()
        self._dispatcher, self._worker_shutdown = Dispatcher({}), WorkerShutdown({})

    # ---- on the host's loop

    def _stopped(self) -> None:
        """Fail what is left, on a loop that has stopped; after a shutdown nothing is."""
        with self._close_lock:
            self._closed = True
        for request in (*self._inbox, *self._waiting, *self._running):
            request.fail(ShutdownError("the host's event loop has stopped: make a new ScaffoldingLlm"))

    def _start_closing(self) -> None:
        self._closer = self.loop.create_task(self._close())  # the loop keeps only a weak reference

    def _take_inbox(self) -> None:
        with self._close_lock:
            arrived = list(self._inbox)
            self._inbox.clear()
        for request in arrived:
            start_timeout(request)
            try:
                self._waiting.add(request, request.program.place.priority)
            except Exception as error:  # the policy may be a user's
                failed = RequestError(f"the policy could not order {request.id}: {type(error).__name__}: {error}")
                failed.__cause__ = error
                abort(request, failed)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start one request, and schedule the next one for the loop's next turn.

        Objects of requests that start together live together, and the garbage collector would visit them repeatedly.
        """
        if self._start_scheduled:
            return
        while self._waiting and self._waiting[0].finished:  # aborted while it waited
            self._waiting.remove(self._waiting[0])
        if self._waiting and len(self._running) < self.max_parallel_requests:
            request = self._waiting[0]
            self._waiting.remove(request)
            self._running.add(request)
            request.runner = self.loop.create_task(request.run(self.prototype_controller, self._dispatcher))
            # Not a `finally` in the coroutine: cancelled before its first step, it would never get there.
            request.runner.add_done_callback(functools.partial(self._ended, request))
            self._start_scheduled = True
            self.loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        self._start_scheduled = False
        self._start_waiting()

    def _ended(self, request: Request, runner: asyncio.Task[None]) -> None:
        if not request.finished:  # cancelled, or stopped by a BaseException
            error = None if runner.cancelled() else runner.exception()
            request.fail(request.abort_error or error or RequestCancelledError(f"request {request.id} was cancelled"))
        self._running.discard(request)
        release(request)
        self._start_waiting()

    async def _close(self) -> None:
        self._take_inbox()
        error = ShutdownError("the host was shut down before the request ended")
        requests = [*self._waiting, *self._running]
        for request in requests:
            abort(request, error)
        self._waiting = WaitingLine(_PATIENCE)
        runners = [request.runner for request in requests if request.runner is not None]
        if runners:
            await asyncio.wait(runners, timeout=dispatch.GRACE_SECONDS)
        for request in requests:
            request.fail(error)
        try:
            await self._worker_shutdown.on_loop()
        finally:
            self.loop.stop()


def _run_loop(loop: asyncio.AbstractEventLoop, host: weakref.ref[ScaffoldingLlm]) -> None:
    """Run a host's loop to its end; the thread does not keep the host alive."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        ended = host()
        if ended is not None:
            ended._stopped()
        loop.close()
    if ended is not None and ended._finishes_workers:
        ended._worker_shutdown.finish(with_workers=True)


def _close_dropped(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, workers: WorkerShutdown, with_workers: bool
) -> None:
    """Close what a host has left that was freed without a shutdown; no request runs then, since each keeps its host."""

    async def close() -> None:
        try:
            await workers.on_loop()
        finally:
            loop.stop()

    def finish() -> None:
        thread.join()
        workers.finish(with_workers)

    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(close()))
        threading.Thread(target=finish, name="scaffolding-llm-end", daemon=True).start()


class WorkerShutdown:
    def __init__(self, workers: Mapping[Any, Worker]) -> None:
        self._workers = each_once(workers)
        self._errors: list[Exception] = []
        self._is_done = False
        self._lock = threading.Lock()

    async def on_loop(self) -> None:
        for worker in self._workers:
            close = getattr(worker, "async_shutdown", None)  # newer than 1.2
            if close is None:
                continue
            try:
                await close()
            except Exception as error:
                self._errors.append(error)

    def finish(self, with_workers: bool) -> None:
        """Shut the workers down once if asked to; WorkerError if one failed, here or on the loop."""
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
            message = f"some workers failed to shut down ({reasons}); the others were shut down"
            raise WorkerError(message) from errors[0]
