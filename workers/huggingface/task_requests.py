"""Tasks as requests of the engine: built on the caller's side, so that only a bad task fails, run, and read back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scaffolding_ext.answers.stop_strings import stop_strings
from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, Task, current_scope
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask, layer_weighted_similarity
from scaffolding_ext.protocol.lowering import (
    lower_branch,
    prefixes_of,
    probability_of_first,
    run_pieces,
    write_back_branch,
)
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, is_urgent, note, purpose_of, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import cache_salt_of, priority_of, publish_figures, record
from scaffolding_ext.workers.huggingface.block_pool import BlockPool, BlockPriority
from scaffolding_ext.workers.huggingface.engine_request import GREEDY, Ends, EngineRequest, Kv, SamplingParams, Wants
from scaffolding_ext.workers.huggingface.model_loading import LoadedModel
from scaffolding_ext.workers.shared.id_stops import special_ids
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch
from scaffolding_ext.workers.shared.streaming import NEVER
from scaffolding_ext.workers.shared.task_reading import TaskReader, block_scores, integer, number, refuse

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine

_LOWEST_TEMPERATURE = 1e-3  # a logit divided by less may exceed float32
_REFUSED = (  # fields that this worker cannot honour
    *("best_of", "echo", "frequency_penalty", "logit_bias", "n", "presence_penalty", "reasoning_effort"),
    *("return_context_logits", "skip_detokenizer", "skip_tokenizer", "suffix"),
)


class RequestBuilder:
    """Builds requests from tasks; an unusable field is an InvalidTaskError. `seed` is for tasks without a seed."""

    def __init__(
        self, reader: TaskReader, loaded: LoadedModel, pool: BlockPool, seed: int | None, watch: GreedyWatch
    ) -> None:
        self._reader, self._defaults, self._pool, self._watch = reader, loaded.defaults, pool, watch
        self._loaded = loaded
        self._rng = np.random.default_rng(seed)

    def generation(self, task: GenerationTask, priority: BlockPriority | None = None) -> EngineRequest:
        """Build the request of a generation task; `priority` is that of its blocks in the cache."""
        refuse(task, _REFUSED, "HuggingFaceWorker")
        prompt = self._reader.prompt(task)
        stops = stop_strings(task.stop)
        ends = Ends(
            self._reader.max_tokens(task, len(prompt)),
            stops,
            integer("min_tokens", getattr(task, "min_tokens", None), 0, 0),
            bool(getattr(task, "ignore_eos", None)),  # younger than 1.2
            special_ids(stops, self._reader.tokenizer),
        )
        wants = Wants(integer("num_logprobs", task.num_logprobs, 0, 0))
        keep = purpose_of(task).written is not Purpose.PROBE  # nothing continues a probe
        return self._request(task, prompt, wants, ends, self._sampling(task, len(prompt)), keep, priority)

    def score(self, task: ScoreTask) -> EngineRequest:
        token_ids, start = self._reader.scored(task)
        return self._request(task, token_ids, Wants(score_from=start))

    def verify(self, task: VerifyTask) -> list[EngineRequest]:
        choices = int(task.yes_token), int(task.no_token)
        wants = Wants(choices=choices, layer_exit=task.layer_exit, verdicts=task.every_layer)
        return [self._request(task, prompt, wants, keep=False) for prompt in self._reader.verified(task)]

    def reads(self, task: BranchTask, prompts: Sequence[list[int]]) -> list[EngineRequest]:
        """Build requests for the hidden states of prompts, before the task's branches are written."""
        read = [self._reader.ids(prompt, None, "input") for prompt in prompts]
        for ids in read:
            self._reader.check_len(len(ids), "prefix and suffix have")
        return [self._request(task, ids, Wants(states=True)) for ids in read]

    def _sampling(self, task: GenerationTask, prompt_len: int) -> SamplingParams:
        temperature, top_p, top_k, min_p = self._defaults.selection(task)
        if temperature and temperature < _LOWEST_TEMPERATURE:
            raise InvalidTaskError(
                f"temperature is {temperature!r}; it must be 0 (greedy) or at least {_LOWEST_TEMPERATURE}"
            )
        self._watch.see(task, temperature)
        seed = int(self._rng.integers(1 << 63)) if task.seed is None else integer("seed", task.seed, None, 0)
        processors = () if task.temperature is not None else self._loaded.processors(prompt_len)
        return SamplingParams(temperature, min(top_k, self._reader.vocab_size), top_p, seed, min_p, processors)

    def _request(
        self,
        task: Task,
        ids: list[int],
        wants: Wants,
        ends: Ends = Ends(),  # noqa: B008  (it cannot change)
        sampling: SamplingParams = GREEDY,
        keep: bool = True,
        priority: BlockPriority | None = None,
    ) -> EngineRequest:
        scope = current_scope.get()
        kv = Kv(keep, priority, cache_salt_of(task), None if scope is None else scope.request_id)
        request = EngineRequest(ids, ends, sampling, wants=wants, kv=kv, urgent=is_urgent(task))
        request.priority = priority_of(task, partial(self._pool.prefix_len, request.sequence))
        return request


async def write_branches(
    task: BranchTask,
    engine: GenerationEngine,
    builder: RequestBuilder,
    generate: Callable[..., Coroutine[Any, Any, Any]],
    by_score: bool = False,
) -> None:
    """Run one request per branch, and write the results into the task. Branches share the prefix's whole blocks.

    Args:
        generate: Serves a generation task, with further arguments of its request.
        by_score: Evict blocks by the score and the depth of their branch (RKSC, algorithm 4).
    """
    scores, num_evicted = block_scores(task), engine.metrics.num_evicted
    on_prefix = probed = None
    if task.least_similarity is not None:
        on_prefix = await _gate(task, engine, builder)
        probed = token_counts_of(task)
    lowered = lower_branch(task, on_prefix)
    prefixes = prefixes_of(task, on_prefix)
    priorities = [
        BlockPriority(len(prefix) // engine.pool.block_len, own) if by_score else None
        for prefix, own in zip(prefixes, scores, strict=True)
    ]
    runs = [generate(piece, priority) for piece, priority in zip(lowered, priorities, strict=True)]
    await run_pieces(task, lowered, runs, before=probed)
    write_back_branch(task, lowered)
    counts = [token_counts_of(piece) or TokenCounts() for piece in lowered]
    reused, prefilled = [each.reused for each in counts], [each.prefilled for each in counts]
    evicted = engine.metrics.num_evicted - num_evicted  # by all requests meanwhile
    record("branch_kv", reused=reused, prefilled=prefilled, evicted_blocks=evicted)
    share = Ratio(sum(reused), sum(reused) + sum(prefilled))
    publish_figures("KV of branches", reused_tokens=share)


async def _gate(task: BranchTask, engine: GenerationEngine, builder: RequestBuilder) -> list[bool]:
    """Return the branches that stay on the prefix: each suffix is read there, and its hidden states are compared.

    The read tokens stay in the cache, so a branch that stays on the prefix computes only one token to continue.
    """
    least = number("least_similarity", task.least_similarity, 0.0, least=-1.0, most=1.0)
    if task.phrasings is None:
        raise InvalidTaskError(
            f"least_similarity is {least}, but all branches of the task have the same prefix: set phrasings, or leave "
            "least_similarity out"
        )
    own = [branch for branch, phrasing in enumerate(prefixes_of(task)) if phrasing != task.prefix_tokens]
    empty = [branch for branch in own if not task.suffixes[branch]]
    if empty:
        raise InvalidTaskError(
            f"suffixes[{empty[0]}] is empty, and least_similarity compares branches at the last token of their "
            "suffixes: give each suffix a token, or leave least_similarity out"
        )
    similarities = [1.0] * len(task.suffixes)
    note(task, counts=TokenCounts())
    if own:
        read = [task.prefix_tokens, *(task.prefix_tokens + task.suffixes[branch] for branch in own)]
        requests = builder.reads(task, read)
        await run_reads(task, engine, requests)
        root, *states = [np.stack([state.numpy() for state in request.states]) for request in requests]
        for branch, similarity in zip(own, layer_weighted_similarity(states, root).tolist(), strict=True):
            similarities[branch] = similarity
    on_prefix = [similarity >= least for similarity in similarities]
    task.similarities = similarities
    record("similarity_gate", least_similarity=least, similarities=similarities, on_prefix=on_prefix)
    return on_prefix


async def verify_branches(task: VerifyTask, engine: GenerationEngine, builder: RequestBuilder) -> None:
    """Run one request per branch, which reads the logits of the two words after the branch."""
    requests = builder.verify(task)
    await run_reads(task, engine, requests)
    last = [next(reversed(request.verdicts.items())) for request in requests]
    task.scores = [probability_of_first(*verdict.choice_logits) for _, verdict in last]
    if task.layer_exit is not None:
        task.exit_layers = [layer for layer, _ in last]
    if task.every_layer:
        task.curves = [
            [(verdict.entropy, probability_of_first(*verdict.choice_logits)) for verdict in request.verdicts.values()]
            for request in requests
        ]


async def run_reads(task: Task, engine: GenerationEngine, requests: Sequence[EngineRequest]) -> None:
    """Run a task's read-only requests, either all or none; the task is charged for all of them."""
    for request in requests:
        engine.submit(request)
    try:
        for request in requests:
            await request.wait(NEVER)
            if request.error is not None:
                raise request.error
    except BaseException:
        for request in requests:
            await request.close()
        raise
    finally:
        note(task, counts=TokenCounts(*map(sum, zip(*[request.counts for request in requests], strict=True))))
