"""Decodes requests in turn, a token each, on a thread of its own, with transformers."""

import contextlib
import threading
import time

import torch
from transformers import AutoModelForCausalLM

from tensorrt_llm import HAS_NEWEST_FIELDS
from tensorrt_llm.executor.result import Logprob, Response
from tensorrt_llm.llmapi.utils import AsyncQueue, EventLoopShutdownError, notify_many

POISON = 0  # a prompt token (padding) that makes the engine refuse its request
BLOCK = 32
DEFAULT_PRIORITY = 35


class Executor:
    """The executor that an `LLM` holds, and its results hold weakly."""

    def __init__(self, engine):
        self.engine = engine

    def abort_request(self, request_id):
        self.engine.cancel(request_id)


def deliver(batch):
    """Put the responses, then wake all readers on the loop of the first."""
    readers = []
    for output, response in batch:
        if isinstance(output.queue, AsyncQueue):
            output.queue.put_nowait(response)
            readers.append(output.queue)
        else:
            output.queue.put(response)
    if readers:
        with contextlib.suppress(EventLoopShutdownError, RuntimeError):  # logged, and the readers sleep on
            notify_many(readers[0].loop, readers)


class Running:
    def __init__(self, output, salt, retention):
        self.retention = retention
        self.output = output
        self.params = output.sampling_params
        self.salt = salt
        self.submitted_at = time.monotonic()
        self.generated = []
        self.kept = []
        self.cache = None
        self.cached = 0
        self.rng = torch.Generator().manual_seed((self.params.seed or 0) % (1 << 63))


class Engine:
    """Serves one model.

    The PyTorch backend of the older releases (not `is_complete`) takes no penalties, and of a batch the seed of its
    first request alone; it tells the log-probabilities of the likeliest tokens, drawn or not. Guides are ignored, as
    an engine without a `guided_decoding_backend` does.

    Attributes:
        may_run: Cleared, the engine takes no step; for tests that need an order of things.
        idle: Set while nothing is left to do.
        submitted: Set once a request has come.
        aborted: Numbers of the requests that were aborted.
        abort_came: Set once a request has been aborted.
    """

    def __init__(self, model, kv_cache_config, is_complete=True):
        self._is_complete = is_complete
        self._network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.generation_config = self._network.generation_config
        end = self.generation_config.eos_token_id
        self._end_ids = set(end if isinstance(end, list) else [end])
        self._reuses = kv_cache_config.enable_block_reuse
        self._blocks = {}  # known blocks and their retention priority, the least recently used first
        self._most_blocks = (kv_cache_config.max_tokens or 1 << 30) // BLOCK
        self._retains = getattr(kv_cache_config, "use_kv_cache_manager_v2", None) is not True
        self._running = []
        self._cancelled = []
        self._changed = threading.Condition()
        self.may_run = threading.Event()
        self.may_run.set()
        self.idle = threading.Event()
        self.idle.set()
        self.submitted = threading.Event()
        self.aborted = []
        self.abort_came = threading.Event()
        self.num_steps = 0
        self.is_shutdown = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def submit(self, output, salt, retention=None):
        with self._changed:
            self.idle.clear()
            self._running.append(Running(output, salt, retention))
            self.submitted.set()
            self._changed.notify()

    def cancel(self, request_id):
        """Its last response comes with the next batch."""
        with self._changed:
            found = [request for request in self._running if request.output.request_id == request_id]
            self._running = [request for request in self._running if request not in found]
            self._cancelled += found
            self.aborted += [request_id] * len(found)
            self.abort_came.set()
            self.idle.clear()
            self._changed.notify()

    @property
    def num_active(self):
        with self._changed:
            return len(self._running)

    def shutdown(self):
        with self._changed:
            self.is_shutdown = True
            self.may_run.set()
            self._changed.notify()
        self._thread.join()

    def _loop(self):
        torch.set_num_threads(1)
        while True:
            with self._changed:
                while not self._running and not self._cancelled and not self.is_shutdown:
                    self.idle.set()
                    self._changed.wait()
            self.may_run.wait()
            with self._changed:
                if self.is_shutdown:
                    return
                cancelled, self._cancelled = self._cancelled, []
                running = list(self._running)
            batch = [
                (each.output, Response(finish_reason="cancelled", cached_tokens=each.cached)) for each in cancelled
            ]
            for request in running:
                response = self._step(request, running[0])
                self.num_steps += 1
                is_last = response.finish_reason is not None or response.error is not None
                if is_last:
                    with self._changed:
                        self._running = [other for other in self._running if other is not request]
                        self._cancelled = [other for other in self._cancelled if other is not request]
                batch += self._sent(request, response, is_last)
            deliver(batch)

    def _sent(self, request, response, is_last):
        """Return the part of a response that goes out now; a request without a stream has one response, at its end."""
        if request.output.streaming or response.error is not None:
            return [(request.output, response)]
        request.kept.append(response)
        if not is_last:
            return []
        first = request.kept[0]
        first.token_ids = [token for kept in request.kept for token in kept.token_ids]
        first.logprobs = [entry for kept in request.kept for entry in kept.logprobs]
        first.finish_reason = response.finish_reason
        return [(request.output, first)]

    @torch.inference_mode()
    def _step(self, request, first):
        prompt = request.output.prompt_token_ids
        response = Response()
        if request.cache is None:
            if POISON in prompt:
                return Response(error="the prompt holds a token that the engine refuses")
            out = self._network(torch.tensor([prompt]), use_cache=True)
            response.queue_seconds = time.monotonic() - request.submitted_at
            request.cached = self._reused(prompt, request)
            self._report_prompt(request, out.logits[0][request.cached :], response)
        else:
            out = self._network(torch.tensor([[request.generated[-1]]]), past_key_values=request.cache, use_cache=True)
        response.cached_tokens = request.cached
        request.cache = out.past_key_values
        logits = out.logits[0, -1]
        token = self._draw(request, logits, request.rng if self._is_complete else first.rng)
        request.generated.append(token)
        response.token_ids = [token]
        if request.params.logprobs:
            logprobs = torch.log_softmax(logits, -1)
            top = torch.topk(logprobs, request.params.logprobs)
            entry = {int(t): Logprob(float(v), rank + 1) for rank, (v, t) in enumerate(zip(*top, strict=True))}
            if self._is_complete:  # the others tell the likeliest alone, drawn or not
                entry.setdefault(token, Logprob(float(logprobs[token])))
            response.logprobs = [entry]
        words = [ids for _, ids in request.params._get_stop_reasons_and_words()]
        words = [] if request.params.ignore_eos else words  # upstream does not send them then
        if token == request.params.end_id and not request.params.ignore_eos:  # the model's others are stop words
            response.finish_reason = "stop"
        elif any(request.generated[-len(ids) :] == ids for ids in words):
            response.finish_reason = "stop_words"
        elif len(request.generated) >= request.params.max_tokens:
            response.finish_reason = "length"
        return response

    def _report_prompt(self, request, logits, response):
        """Return the log-probabilities of a prompt: none of the tokens whose KV is reused."""
        prompt = request.output.prompt_token_ids
        if request.params.return_context_logits:
            response.context_logits = logits.clone()
        if HAS_NEWEST_FIELDS and request.params.prompt_logprobs_simple_format:
            chosen = torch.tensor([*prompt[request.cached + 1 :], int(logits[-1].argmax())])
            response.prompt_logprobs = torch.log_softmax(logits, -1)[range(len(chosen)), chosen].tolist()
        elif request.params.prompt_logprobs is not None:
            logprobs = torch.log_softmax(logits, -1)
            response.prompt_logprobs = []
            for row, values in enumerate(logprobs):
                top = torch.topk(values, request.params.prompt_logprobs)
                entry = {int(t): Logprob(float(v)) for v, t in zip(*top, strict=True)}
                following = prompt[request.cached + row + 1 :][:1]
                if HAS_NEWEST_FIELDS and following:  # before, only the likeliest were reported
                    entry.setdefault(following[0], Logprob(float(values[following[0]])))
                response.prompt_logprobs.append(entry)

    def _reused(self, prompt, request):
        """Tokens in known blocks; the least prioritised, least recently used blocks make room for new ones."""
        if not self._reuses:
            return 0
        keys = [(request.salt, tuple(prompt[:end])) for end in range(BLOCK, len(prompt), BLOCK)]
        num_known = next((number for number, key in enumerate(keys) if key not in self._blocks), len(keys))
        for number, key in enumerate(keys):
            self._blocks.pop(key, None)
            self._blocks[key] = self._priority(number * BLOCK, request.retention)
        while len(self._blocks) > self._most_blocks:
            del self._blocks[min(self._blocks, key=self._blocks.__getitem__)]
        return num_known * BLOCK

    def _priority(self, position, retention):
        ranges = [] if retention is None or not self._retains else retention.token_range_retention_configs
        found = [each for each in ranges if each.token_start <= position < (each.token_end or 1 << 30)]
        return found[0].priority if found else DEFAULT_PRIORITY

    def _draw(self, request, logits, rng):
        params = request.params
        logits = logits.clone()
        if params.min_tokens and len(request.generated) < params.min_tokens:
            logits[list(self._end_ids)] = -torch.inf
        if params.embedding_bias is not None:
            logits += params.embedding_bias
        for token in set(request.generated) if self._is_complete else ():
            count = request.generated.count(token)
            logits[token] -= (params.presence_penalty or 0.0) + (params.frequency_penalty or 0.0) * count
        if params.greedy:
            return int(logits.argmax())
        logits /= 1.0 if params.temperature is None else params.temperature
        if params.top_k:
            logits[logits < torch.topk(logits, params.top_k).values[-1]] = -torch.inf
        ranked, order = torch.softmax(logits, -1).sort(descending=True)
        ranked[ranked.cumsum(0) - ranked >= (1.0 if params.top_p is None else params.top_p)] = 0.0
        return int(order[torch.multinomial(ranked / ranked.sum(), 1, generator=rng)])
