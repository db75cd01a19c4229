"""The engine behind HuggingFaceWorker: continuous batching of a transformers causal LM in a thread of its own.

Requests join and leave between steps. Rows `[0, num_decoding)` decode one token a step; rows behind them still read
their prompt, in chunks of bounded length, so that a long prompt delays the others by a chunk at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from scaffolding_ext.errors import EngineError
from scaffolding_ext.workers.kv_cache import KVRows, PrefixIndex
from scaffolding_ext.workers.metrics import EngineMetrics
from scaffolding_ext.workers.model_runner import ModelRunner
from scaffolding_ext.workers.sampling import sample
from scaffolding_ext.workers.sequence import Sequence, reported_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GenerationEngine:
    """Runs sequences on a model until each has ended.

    Args:
        model: A causal LM in evaluation mode.
        tokenizer: The tokenizer's Rust backend, for text and stop strings.
        end_ids: Token ids that end a text.
        max_batch_size: Rows.
        max_seq_len: Prompt and generated tokens of one request at most.
        prefill_chunk: Prompt tokens of one row that one step computes at most.
        prefix_cache_bytes: Cap on stored prefixes.
        threads: Threads of each torch operation (it is a setting of the whole process).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        end_ids: frozenset[int],
        *,
        max_batch_size: int,
        max_seq_len: int,
        prefill_chunk: int,
        prefix_cache_bytes: int,
        threads: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._kv = KVRows(max_batch_size, max_seq_len)
        self._index = PrefixIndex(prefix_cache_bytes)
        self._runner = ModelRunner(model, self._kv, prefill_chunk)
        self._threads = threads
        self._rows: list[Sequence] = []
        self._num_decoding = 0
        self._prefilled_last = False
        self._waiting: deque[Sequence] = deque()
        self._inbox: deque[Sequence] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._cause: BaseException | None = None  # what closed the engine, where it was not shut down
        self._unfinished: set[Sequence] = set()
        self._num_reused = 0
        self._thread = threading.Thread(target=self._run, name="generation-engine", daemon=True)
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Queue a request; from any thread.

        Raises:
            EngineError: The engine is shut down, or has failed.
        """
        with self._wake:
            if self._cause is not None:
                raise _caused_by(self._cause, "the engine has failed, make a new worker: ")
            if self._closed:
                raise EngineError("the worker is shut down; make a new one")
            self._unfinished.add(sequence)
            self._inbox.append(sequence)
            self._wake.notify()

    def cancel(self, sequence: Sequence) -> None:
        """End a request before its next step; from any thread. What it has generated stays in it."""
        with self._wake:
            sequence.cancelled = True
            self._wake.notify()

    def shutdown(self) -> None:
        """End every request with an EngineError and stop the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    @property
    def metrics(self) -> EngineMetrics:
        """A snapshot; from any thread."""
        return EngineMetrics(
            len(self._rows),
            len(self._waiting) + len(self._inbox),
            self._kv.num_rows,
            self._index.num_stored_tokens,
            self._runner.num_decoded,
            self._runner.num_prefilled,
            self._num_reused,
            self._index.num_evicted,
        )

    # ---- on the engine's thread

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            torch.set_num_threads(self._threads)
            with torch.inference_mode():
                self._serve()
        except BaseException as error:  # nobody else would hear of it, and every request would wait for ever
            cause = error
        self._close(cause)

    def _serve(self) -> None:
        """Step until the engine is shut down."""
        while True:
            with self._wake:
                while not (self._inbox or self._rows or self._waiting or self._closed):
                    self._wake.wait()
                self._waiting.extend(self._inbox)
                self._inbox.clear()
                if self._closed:
                    return
            self._drop_cancelled()
            self._admit()
            if self._rows:
                self._step()

    def _close(self, cause: BaseException | None) -> None:
        """Refuse further requests and fail those that have not ended."""
        with self._wake:
            self._closed, self._cause = True, cause
            unfinished = list(self._unfinished)
            self._unfinished.clear()
            self._rows.clear()
            self._waiting.clear()
            self._inbox.clear()
        for sequence in unfinished:
            if sequence.ended:  # complete; only its row was not free yet
                sequence.notify(sequence)
            elif cause is None:
                sequence.end("error", EngineError("the worker was shut down before the task ended"))
            else:
                sequence.end("error", _caused_by(cause, "the engine has failed: "))

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._waiting if s.cancelled]:
            self._waiting.remove(sequence)
            self._end(sequence, "cancelled")
        for sequence in [s for s in self._rows if s.cancelled]:
            self._release(sequence, "cancelled")

    def _admit(self) -> None:
        """Give waiting requests a row each, with the longest cached prefix of their prompt already in it."""
        while self._waiting and len(self._rows) < self._kv.num_rows:
            sequence = self._waiting[0]
            holder = sequence.holder
            holder.row = len(self._rows)
            limit = sequence.prompt_len - 1  # the last token is computed in any case: its logits are needed
            if sequence.score_from is not None:
                limit = min(limit, sequence.score_from - 1)
            match = self._index.find(holder.token_ids, limit)
            if match is not None:
                if match.holder.tensors is None:
                    self._kv.move(match.holder.row, holder.row, match.num_tokens)
                else:
                    self._kv.load(holder.row, match.holder.tensors, match.num_tokens)
                holder.num_kv = sequence.num_reused = match.num_tokens
                self._num_reused += match.num_tokens
            self._rows.append(self._waiting.popleft())

    def _step(self) -> None:
        """One forward pass: over the rows that read, or over those that decode, in turn where there are both."""
        prefill = self._num_decoding == 0 or (len(self._rows) > self._num_decoding and not self._prefilled_last)
        self._prefilled_last = prefill
        first = self._num_decoding if prefill else 0
        batch = self._rows[first:] if prefill else self._rows[: self._num_decoding]
        try:
            logits = self._runner.forward(batch, first)
            finished = self._take(batch, logits)
        except Exception as error:  # an out-of-memory or a model's bug: these requests fail, the engine lives
            for sequence in batch:
                sequence.keep = False
                self._release(sequence, "error", _caused_by(error))
            return
        for sequence in finished:
            self._release(sequence, sequence.finish_reason or "stop")
        for sequence in batch:
            if not sequence.ended and sequence.num_decoded >= sequence.wanted:
                sequence.notify(sequence)

    def _take(self, batch: list[Sequence], logits: torch.Tensor) -> list[Sequence]:
        """Draw the next token of every row that has read its prompt; returns the sequences that have ended."""
        ready = [row for row, s in enumerate(batch) if s.holder.num_kv == len(s.holder.token_ids)]
        for row in ready:
            self._index.extend(batch[row].holder)
            if batch[row].holder.row >= self._num_decoding:
                self._promote(batch[row])
        finished = []
        drawing = []
        for row in ready:
            if batch[row].max_tokens == 0:
                batch[row].finish_reason = "length"
                finished.append(batch[row])
            else:
                drawing.append(row)
        if not drawing:
            return finished
        sequences = [batch[row] for row in drawing]
        chosen = logits if len(drawing) == len(batch) else logits[drawing]
        for row, sequence in enumerate(sequences):
            if sequence.num_decoded < sequence.min_tokens:
                chosen[row, list(self._end_ids)] = -torch.inf
        sampled = sample(
            chosen,
            [sequence.sampling for sequence in sequences],
            [len(sequence.holder.token_ids) for sequence in sequences],
            max(sequence.num_logprobs for sequence in sequences),
        )
        now = time.monotonic()
        for row, sequence in enumerate(sequences):
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            logprobs = reported_logprobs(sampled, row, sequence.num_logprobs)
            if sequence.accept(sampled.token_ids[row], logprobs, self._tokenizer, self._end_ids):
                finished.append(sequence)
        return finished

    def _promote(self, sequence: Sequence) -> None:
        """Move a row that has read its prompt to the end of the decoding rows."""
        self._swap(sequence.holder.row, self._num_decoding)
        self._num_decoding += 1

    def _swap(self, row: int, other: int) -> None:
        if row == other:
            return
        spare = self._kv.export(row, self._rows[row].holder.num_kv)
        self._kv.move(other, row, self._rows[other].holder.num_kv)
        self._kv.load(other, spare, self._rows[row].holder.num_kv)
        self._rows[row], self._rows[other] = self._rows[other], self._rows[row]
        self._rows[row].holder.row, self._rows[other].holder.row = row, other

    def _release(self, sequence: Sequence, reason: str, error: EngineError | None = None) -> None:
        """Free a sequence's row: the last rows move up, and its KV is stored if it is worth it."""
        holder, row = sequence.holder, sequence.holder.row
        tensors = None
        if sequence.keep and holder.hashes:
            with suppress(RuntimeError, MemoryError):  # no memory for the copy: then it is not kept
                tensors = self._kv.export(row, holder.num_kv)
        if tensors is None:
            self._index.forget(holder)
        else:
            self._index.store(holder, tensors)
        if row < self._num_decoding:
            self._num_decoding -= 1
            self._fill(row, self._num_decoding)
            row = self._num_decoding
        self._fill(row, len(self._rows) - 1)
        self._rows.pop()
        self._end(sequence, reason, error)

    def _fill(self, hole: int, source: int) -> None:
        """Move a row into a hole."""
        if hole != source:
            moved = self._rows[source]
            self._kv.move(source, hole, moved.holder.num_kv)
            self._rows[hole] = moved
            moved.holder.row = hole

    def _end(self, sequence: Sequence, reason: str, error: EngineError | None = None) -> None:
        self._unfinished.discard(sequence)
        sequence.end(reason, error)


def _caused_by(cause: BaseException, where: str = "") -> EngineError:
    error = EngineError(f"{where}{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
