"""The engine behind HuggingFaceWorker: a thread that runs the steps of a continuous batch while there are requests.

`kv_limits` says how many blocks of keys and values it may have, and how long a request can be.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from scaffolding_ext.errors import ConfigError, EngineError
from scaffolding_ext.workers.huggingface.block_pool import BlockPool
from scaffolding_ext.workers.huggingface.continuous_batch import ContinuousBatch, EngineMetrics, caused_by
from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Work
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks
from scaffolding_ext.workers.huggingface.model_runner import ModelRunner
from scaffolding_ext.workers.huggingface.sampling import GREEDY

if TYPE_CHECKING:
    pass

DEFAULT_KV_BYTES = 4 * 2**30  # where the device does not tell its free memory
_SHARE_OF_FREE = 0.8  # of a CUDA device's free memory; the rest is for activations
_HELD_PER_PLACE = 2  # a chain and its probe


class GenerationEngine:
    """Runs requests on a batch until each has ended, on `threads` threads of each torch operation."""

    def __init__(self, batch: ContinuousBatch, threads: int) -> None:
        self._unfinished: set[EngineRequest] = set()
        self._batch = batch
        batch.on_end = self._unfinished.discard
        self._threads = threads
        self._inbox: deque[EngineRequest] = deque()
        self._calls: deque[Callable[[], None]] = deque()  # further work for the engine's thread
        self._wake = threading.Condition()
        self._closed = False
        self._cause: BaseException | None = None  # the error that closed the engine, if it was not shut down
        with torch.inference_mode():
            self._batch.warm_up()
        self._thread = threading.Thread(target=self._run, name="generation-engine", daemon=True)
        self._thread.start()
        # A thread inside torch while the interpreter ends would abort the process, even one that only frees its model.
        atexit.register(_end, weakref.ref(self), self._thread)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; from any thread.

        Raises:
            EngineError: The engine is shut down, or has failed.
        """
        with self._wake:
            if self._cause is not None:
                raise caused_by(
                    self._cause,
                    "the engine of this worker has failed, so it takes no more tasks: make a new worker. The failure: ",
                )
            if self._closed:
                raise EngineError("the worker is shut down and takes no tasks: make a new worker")
            self._unfinished.add(request)
            self._inbox.append(request)
            self._wake.notify()

    def let_run_to(self, request: EngineRequest, num_tokens: int) -> None:
        """Let a request run until it has generated that many tokens, and pause it there; from any thread."""
        with self._wake:
            request.may_run_to = num_tokens
            self._wake.notify()

    def cancel(self, request: EngineRequest) -> None:
        """End a request before its next step; from any thread. The request keeps its generated tokens."""
        self._call(partial(self._drop, request))

    def keep_kv(self, owner: str, salt: str | None, sequences: Sequence[list[int]]) -> None:
        """Free the cached KV that only `owner` has used, except that of these token ids; from any thread."""
        self._call(partial(self._batch.pool.keep, owner, salt, sequences))

    def end_owner(self, owner: str) -> None:
        """A request of the host has ended: its cached KV has no priority over other KV; from any thread."""
        self._call(partial(self._batch.pool.end, owner))

    def _call(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._calls.append(work)
            self._wake.notify()

    def close(self) -> None:
        """Have the thread stop after its step, and end every request with an EngineError; does not wait for it."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def shutdown(self) -> None:
        """Close, and wait until the thread has stopped."""
        self.close()
        self._thread.join()

    @property
    def metrics(self) -> EngineMetrics:
        """A snapshot; from any thread."""
        metrics = self._batch.metrics
        return metrics._replace(num_waiting=metrics.num_waiting + len(self._inbox))

    # ---- on the engine's thread

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            torch.get_num_threads()  # otherwise the first operation would take the process's setting
            torch.set_num_threads(self._threads)  # this and the next call set values of this thread
            torch.set_flush_denormal(True)  # many tokens are nearly impossible, and such tiny numbers are slow
            with torch.inference_mode():
                self._serve()
        except BaseException as error:  # otherwise nobody would see it, and every request would wait for ever
            cause = error
        self._end_all(cause)

    def _serve(self) -> None:
        """Step until the engine is shut down."""
        while True:
            with self._wake:
                while self._batch.idle and not (self._inbox or self._calls or self._closed):
                    self._wake.wait()
                if self._closed:
                    return
                arrived, calls = list(self._inbox), list(self._calls)
                self._inbox.clear()
                self._calls.clear()
            for request in arrived:
                self._batch.add(request)
            for work in calls:
                work()
            if not self._batch.idle:
                self._batch.step()

    def _drop(self, request: EngineRequest) -> None:
        if request in self._unfinished:
            self._batch.drop(request)

    def _end_all(self, cause: BaseException | None) -> None:
        """Refuse further requests and fail those that have not ended."""
        with self._wake:
            self._closed, self._cause = True, cause
            unfinished = list(self._unfinished)
            self._unfinished.clear()
            self._inbox.clear()
            self._batch.clear()
        for request in unfinished:
            if request.ended:  # it is complete; only its blocks were not free yet
                request.notify(request)
                continue
            error = EngineError("the worker was shut down before the task ended: send the task to another worker")
            if cause is not None:
                error = caused_by(cause, "the engine of this worker has failed: make a new worker. The failure: ")
            request.end("error", error)


def _end(engine: weakref.ref[GenerationEngine], thread: threading.Thread) -> None:
    """Stop an engine that still runs when the interpreter exits, and wait for its thread."""
    running = engine()
    if running is not None:
        running.close()
    thread.join()


class KVLimits(NamedTuple):
    """How many blocks and tokens fit into the memory for keys and values."""

    num_blocks: int  # blocks in all
    max_cached: int  # blocks that may stay as cache
    max_seq_len: int  # prompt and generated tokens of one request at most
    limited_by: str  # why a request may not be longer, if the memory is the reason; otherwise empty


def token_bytes(network: Any) -> int:
    """Memory of the keys and values of one token, measured by a pass over one token."""
    kv, request = KVBlocks(1, 1), EngineRequest([0], Ends(), GREEDY, notify=lambda _: None)
    BlockPool(1, 1, 0).begin(request.sequence, [], announces=False)
    with torch.inference_mode():
        ModelRunner(network, kv).forward([Work(request, 1)])
    return kv.num_bytes


def kv_limits(
    network: Any,
    *,
    max_batch_size: int,
    max_seq_len: int | None,
    context_len: int,
    tokens_per_block: int,
    kv_cache_bytes: int | None,
    prefix_cache_bytes: int,
) -> KVLimits:
    """How many blocks fit into the memory for keys and values, and how long a request can be.

    Args:
        network: The model, on its device.
        max_batch_size: There are not more blocks than so many requests and their probes can fill.
        max_seq_len: Most tokens of a request; None takes the model's context, or the length that fits, if that is less.
        kv_cache_bytes: The memory; None takes 4 GiB, or 80 % of the free memory of a CUDA device.
        prefix_cache_bytes: The part of this memory that may stay as cache.

    Raises:
        ConfigError: Not even one block fits, or not even one request of the wanted length.
    """
    if kv_cache_bytes is not None:
        room = kv_cache_bytes
    elif network.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(network.device)[0] * _SHARE_OF_FREE)
    else:
        room = DEFAULT_KV_BYTES
    block_bytes = max(1, token_bytes(network) * tokens_per_block)  # a model may have no keys and values
    num_fitting = room // block_bytes
    longest = num_fitting * tokens_per_block
    if (max_seq_len or 1) > longest:
        advice = f"set max_seq_len to at most {longest}" if longest >= 1 else "choose a smaller model"
        raise ConfigError(
            f"is {max_seq_len or context_len}, but kv_cache_bytes is {room}, which holds {num_fitting} blocks "
            f"of {tokens_per_block} tokens ({block_bytes} bytes each): {advice}, or raise kv_cache_bytes",
            "max_seq_len",
        )
    served = max_seq_len or min(context_len, longest)
    max_cached = prefix_cache_bytes // block_bytes
    num_useful = _HELD_PER_PLACE * max_batch_size * -(-served // tokens_per_block) + max_cached
    limited_by = f"kv_cache_bytes, {room}, holds no more" if served < (max_seq_len or context_len) else ""
    return KVLimits(min(num_fitting, num_useful), max_cached, served, limited_by)
