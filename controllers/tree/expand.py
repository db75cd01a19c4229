"""Has branches written: by the worker, all of a parent's on one prefix, or each by a controller."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chunk_chain import Chunk
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.vote.variety import Variety
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, ParallelProcess
from scaffolding_ext.protocol.branching import BranchTask, generation_confidence
from scaffolding_ext.protocol.notes import (
    CHAIN,
    CHAIN_START,
    TokenCounts,
    set_purpose,
    set_token_counts,
    token_counts_of,
)
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.task_results import output_of, sampled_logprobs
from scaffolding_ext.protocol.worker_tags import WorkerTag
from scaffolding_ext.request.program import record

# Sampling fields that a BranchTask has no place for.
_NO_FIELD = SAMPLING_FIELDS - {"temperature", "top_p", "top_k", "seed", "max_tokens"}


class Expander(ABC):
    """Writes branches on."""

    @abstractmethod
    def write(self, branches: Sequence[Branch], num_tokens: int) -> ControllerGenerator:
        """Work to `yield from`: each branch grows until it has so many decoded tokens from the root on, or has ended.

        Args:
            branches: None of them has ended; the children of one parent stand together.
            num_tokens: The position to reach.
        """


class WorkerExpander(Expander):
    """The worker `generation` writes: a `BranchTask` a parent where it serves them, else a request a branch.

    Requests over one prefix share its KV in an engine with block reuse, so that the second costs no more prefill.

    Args:
        controller: Knows what the worker can do.
        variety: Sees to it that branches differ; None where their hints do.
        asks_logprobs: Whether requests ask for log-probabilities, which confidence is made of.
        least_similarity: As of `BranchTask`, where branches begin; None: each is computed on its own phrasing.
    """

    def __init__(
        self,
        controller: BaseController,
        variety: Variety | None = None,
        asks_logprobs: bool = True,
        least_similarity: float | None = None,
    ) -> None:
        self._controller = controller
        self._variety = variety
        self._asks_logprobs = asks_logprobs
        self._least_similarity = least_similarity

    def write(self, branches: Sequence[Branch], num_tokens: int) -> ControllerGenerator:
        asked = [(branch, piece) for branch in branches for piece in branch.advance(num_tokens)]
        pieces = [piece for _, piece in asked]
        if not pieces:
            return
        if self._variety is not None:
            self._variety(pieces)
        reason = self._why_not_shared(pieces)
        if reason is None:
            yield from self._write_shared(asked)
        else:
            record("lowered", task="BranchTask", to="GenerationTask", reason=reason)
            if self._asks_logprobs:
                ask_logprobs(pieces)
            yield pieces
            for branch, piece in asked:
                saw(branch, piece)
        for branch, _ in asked:
            branch.chain.absorb()

    def _why_not_shared(self, pieces: Sequence[GenerationTask]) -> str | None:
        if not self._controller.can_serve(WorkerTag.GENERATION, BranchTask):
            return "the worker does not serve it"
        if any(piece.input_tokens is None for piece in pieces):
            return "there are no token ids"
        plain = GenerationTask()
        other = {name for piece in pieces for name in _NO_FIELD if getattr(piece, name) != getattr(plain, name)}
        return f"it has no field for {', '.join(sorted(other))}" if other else None

    def _write_shared(self, asked: Sequence[tuple[Branch, GenerationTask]]) -> ControllerGenerator:
        groups = [list(group) for _, group in itertools.groupby(asked, key=lambda each: each[0].parent)]
        tasks = [_branch_task(group, self._least_similarity) for group in groups]
        yield tasks
        for task, group in zip(tasks, groups, strict=True):
            _write_back(task, group)


class ControllerExpander(Expander):
    """A controller writes each branch to its end, in parallel: a chain that stops, a vote, anything.

    Args:
        controller: Cloned for each branch.
        variety: Sees to it that branches differ; None where their hints do.
        asks_logprobs: Whether its tasks ask for log-probabilities.
    """

    def __init__(self, controller: Controller, variety: Variety | None = None, asks_logprobs: bool = True) -> None:
        self._controller = controller
        self._variety = variety
        self._asks_logprobs = asks_logprobs

    def write(self, branches: Sequence[Branch], num_tokens: int) -> ControllerGenerator:
        pieces = [branch.chain.next_chunk(num_tokens) for branch in branches]
        for branch, piece in zip(branches, pieces, strict=True):
            piece.max_tokens = branch.prompt.max_tokens  # the controller knows how long a chain may be
        if self._asks_logprobs:
            ask_logprobs(pieces)
        clones = [self._controller.clone() for _ in pieces]
        process = ParallelProcess(clones, [[piece] for piece in pieces], [{} for _ in pieces])
        process.sub_gens = [relay(work, self._variety) for work in process.sub_gens]
        yield process
        for branch, piece in zip(branches, pieces, strict=True):
            text, ids, fields = output_of(piece), piece.output_tokens, piece.customized_result_fields
            reason = "length" if fields.get("exit_reason") == "length" else "stop"
            saw(branch, piece)
            branch.chain.keep(Chunk(text, ids, len(ids or ()), 0, reason), None)
            branch.chain.ended, branch.chain.finish_reason = True, reason
            if "answer" in fields:
                branch.answer = fields["answer"]


def ask_logprobs(pieces: Sequence[GenerationTask]) -> None:
    """Have pieces bring at least the likeliest token's log-probability at each place."""
    for piece in pieces:
        piece.num_logprobs = max(piece.num_logprobs or 0, 1)


def saw(branch: Branch, piece: GenerationTask) -> None:
    """Tell a branch how sure its worker was of a piece of it."""
    steps, ids = piece.logprobs, piece.output_tokens
    if ids == []:
        branch.saw([], 0.0)
    elif not steps or ids is None or len(steps) < len(ids):
        branch.saw(None, None)
    else:
        top = [math.exp(max(entry.logprob for entry in step.values())) for step in steps]
        branch.saw(sampled_logprobs(ids, steps), generation_confidence(top))


def _branch_task(group: Sequence[tuple[Branch, GenerationTask]], least_similarity: float | None) -> BranchTask:
    """The task of the children of one parent: what they share, and what each has of its own."""
    first, piece = group[0]
    prefix, inputs = first.prefix_tokens, [each.input_tokens or [] for _, each in group]
    parent_len = 0 if first.parent is None else len(first.parent.token_ids)
    lens = [len(branch.prompt.input_tokens or ()) + parent_len for branch, _ in group]
    phrasings = [ids[:num_tokens] for ids, num_tokens in zip(inputs, lens, strict=True)]
    has_phrasings = any(phrasing != prefix for phrasing in phrasings)
    begins = has_phrasings and not first.chain.num_tokens  # those that have begun have been through the gate
    seeds = [each.seed for _, each in group if each.seed is not None]
    task = BranchTask(
        worker_tag=WorkerTag.GENERATION,
        prefix_tokens=prefix,
        suffixes=[ids[num_tokens:] for ids, num_tokens in zip(inputs, lens, strict=True)],
        max_tokens=piece.max_tokens,
        temperature=piece.temperature,
        top_p=piece.top_p,
        top_k=piece.top_k,
        seeds=seeds if len(seeds) == len(group) else None,
        branch_scores=[branch.prior for branch, _ in group],
        depth=first.depth,
        phrasings=phrasings if has_phrasings else None,
        least_similarity=least_similarity if begins else None,
    )
    set_purpose(task, CHAIN if first.chain.num_tokens else CHAIN_START)
    return task


def _write_back(task: BranchTask, group: Sequence[tuple[Branch, GenerationTask]]) -> None:
    """Write what a BranchTask brought into the piece of each branch."""
    texts, ids, reasons = task.outputs, task.output_tokens, task.finish_reasons
    logprobs, confidences = task.logprobs or [None] * len(group), task.confidences
    if texts is None or ids is None or reasons is None or confidences is None:
        raise NoOutputError(
            f"the worker {task.worker_tag!s} left no output in a BranchTask; it failed silently: read its log"
        )
    is_metered = token_counts_of(task) is not None
    for number, (branch, piece) in enumerate(group):
        piece.output_str, piece.output_tokens = texts[number], ids[number]
        piece.finish_reason = reasons[number]
        if is_metered:
            set_token_counts(piece, TokenCounts(len(ids[number])))
        branch.saw(logprobs[number], confidences[number])
        if task.least_similarity is not None and task.on_prefix is not None and task.on_prefix[number]:
            branch.read(branch.root)
