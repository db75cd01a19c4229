"""Jobs in processes that are killed when they overrun.

A process is a fresh interpreter that reads jobs from standard input. Unlike multiprocessing's spawned processes it does
not import the caller's `__main__`, so a plain script needs no guard, and no process with threads is forked.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from typing import Any, NamedTuple, TextIO

from scaffolding_ext.errors import EngineError

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from scaffolding_ext.answers.pool import serve; serve(sys.argv[2], int(sys.argv[3]))"
)
_START_SECONDS = 120.0  # limit for starting a process
_WALL_FACTOR = 30


class OverrunError(Exception):
    """A job passed its deadline, or ended its process."""


class KillablePool:
    """Runs one function in a few warm processes, each job under a deadline.

    Processes start with the first jobs and live until `close`, or until the pool or the interpreter ends. One that
    overruns is killed and replaced when the next job needs it. Thread-safe.

    Args:
        target: The function, as `"module:attribute"`; its arguments and result must be JSON.
        num_processes: Processes that run at once, at most.
        max_memory_bytes: Address space of a process, if the system can limit it.
    """

    def __init__(self, target: str, num_processes: int = 2, max_memory_bytes: int = 2 * 2**30) -> None:
        command = [sys.executable, "-I", "-c", _BOOTSTRAP, json.dumps(sys.path), target, str(max_memory_bytes)]
        self._shared = _Shared(command, num_processes)
        self._finalizer = weakref.finalize(self, self._shared.close)

    def submit(self, deadline_seconds: float, *arguments: Any) -> Future[Any]:
        """Queue a job.

        Args:
            deadline_seconds: Limit of the processor time that the job takes, so that a busy machine changes no result.
                A job that waits is killed after `_WALL_FACTOR` times as long.
            arguments: Arguments of the function.

        Returns:
            A future with the function's result; OverrunError if the job was killed; EngineError if the function raised,
            no process could be started, or the pool is closed.
        """
        job = _Job(deadline_seconds, json.dumps([deadline_seconds, arguments]), Future())
        self._shared.submit(job)
        return job.future

    @property
    def process_ids(self) -> list[int]:
        """Ids of the live processes."""
        return self._shared.process_ids()

    def close(self) -> None:
        """Kill the processes; unfinished jobs fail."""
        self._finalizer()


class _Job(NamedTuple):
    deadline_seconds: float
    line: str
    future: Future[Any]


class _Shared:
    """State that the threads hold without keeping the pool alive. Each thread owns one process at a time."""

    def __init__(self, command: list[str], num_processes: int) -> None:
        self._command = command
        self._num_processes = num_processes
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._num_open_jobs = 0
        self._threads: list[threading.Thread] = []
        self._processes: set[_Process] = set()
        self._closed = False

    def submit(self, job: _Job) -> None:
        with self._lock:
            if not self._closed:
                self._jobs.put(job)
                self._num_open_jobs += 1
                if len(self._threads) < min(self._num_open_jobs, self._num_processes):
                    self._threads.append(threading.Thread(target=self._work, name="killable-pool", daemon=True))
                    self._threads[-1].start()
                return
        job.future.set_exception(EngineError("the pool is closed; make another"))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
            processes = list(self._processes)
        for process in processes:
            process.kill()

    def join(self) -> None:
        """Wait until all processes of a closed pool have ended."""
        for thread in self._threads:
            thread.join()

    def process_ids(self) -> list[int]:
        with self._lock:
            return [process.id for process in self._processes]

    def _work(self) -> None:
        process: _Process | None = None
        while (job := self._jobs.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    if process is None:
                        process = self._started()
                    job.future.set_result(process.call(job))
                except Exception as error:  # the job fails; the thread serves the next one
                    if isinstance(error, OverrunError):
                        self._forget(process)
                        process = None
                    closed = EngineError("the pool was closed before the job ended")
                    job.future.set_exception(closed if self._closed else error)
            with self._lock:
                self._num_open_jobs -= 1
            del job
        self._forget(process)

    def _started(self) -> _Process:
        with self._lock:
            if self._closed:
                raise EngineError("the pool was closed before the job ran")
            process = _Process(self._command)
            self._processes.add(process)
        try:
            process.wait_until_ready()
        except EngineError:
            self._forget(process)
            raise
        return process

    def _forget(self, process: _Process | None) -> None:
        if process is not None:
            process.end()
            with self._lock:
                self._processes.discard(process)


class _Process:
    """One process; other threads than its owner's may only call `kill`."""

    def __init__(self, command: list[str]) -> None:
        try:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError as error:
            raise EngineError(f"cannot start {command[0]!r}: {error}") from error
        self.id = self._popen.pid

    def wait_until_ready(self) -> None:
        """Block until the process can take a job.

        Raises:
            EngineError: It cannot.
        """
        reply = self._reply(_START_SECONDS)
        if reply is None or "error" in reply:
            reason = "it ended, or was not ready in time" if reply is None else reply["error"]
            raise EngineError(f"a process of the pool could not start: {reason}")

    def call(self, job: _Job) -> Any:
        """Run the job and return the function's result.

        Raises:
            OverrunError: The process is gone.
            EngineError: The function raised.
        """
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(job.line + "\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise OverrunError("the process had ended") from error
        reply = self._reply(_WALL_FACTOR * job.deadline_seconds)
        if reply is None:
            raise OverrunError(f"the job was killed after {job.deadline_seconds:g} s, or ended its process")
        if "error" in reply:
            raise EngineError(f"the job failed: {reply['error']}")
        return reply["result"]

    def kill(self) -> None:
        """Kill the process; a pending reply becomes None."""
        self._popen.kill()

    def end(self) -> None:
        """Kill the process and release its resources."""
        with self._popen:  # closes the pipes and waits
            self._popen.kill()

    def _reply(self, deadline_seconds: float) -> dict[str, Any] | None:
        """Read the next reply; None if the process ended or was killed at the deadline."""
        assert self._popen.stdout is not None
        timer = threading.Timer(deadline_seconds, self._popen.kill)
        timer.daemon = True
        timer.start()
        try:
            line = self._popen.stdout.readline()
        finally:
            timer.cancel()
            timer.join()  # wait for a kill that fired at the same moment
        alive = line.endswith("\n") and self._popen.poll() is None
        return json.loads(line) if alive else None


_GRACE_SECONDS = 10.0


def serve(target: str, max_memory_bytes: int) -> None:
    """Serve jobs until standard input ends.

    A job that overruns ends the process: the system's timer of processor time needs neither a handler nor the
    interpreter lock. With no parent left to kill it, a job that waits is ended by faulthandler's watchdog.

    Args:
        target: The function, as `"module:attribute"`.
        max_memory_bytes: Limit of the address space.
    """
    replies = os.fdopen(os.dup(1), "w")
    nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
    os.dup2(nowhere.fileno(), 1)  # keep library prints out of the replies
    try:
        module, _, attribute = target.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        _limit_memory(max_memory_bytes)
    except Exception as error:  # the parent raises it
        _write(replies, {"error": f"{type(error).__name__}: {error}"})
        return
    _write(replies, {"ready": True})
    for line in sys.stdin:
        deadline_seconds, arguments = json.loads(line)
        limit = _WALL_FACTOR * deadline_seconds + _GRACE_SECONDS
        faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
        signal.setitimer(signal.ITIMER_PROF, deadline_seconds)  # ends the process after so much processor time
        try:
            reply = {"result": function(*arguments)}
        except Exception as error:  # the parent raises it
            reply = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        _write(replies, reply)


def _write(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _limit_memory(max_memory_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = max_memory_bytes if hard == resource.RLIM_INFINITY else min(max_memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
