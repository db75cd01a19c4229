"""Write branches: the worker writes all children of a parent on one prefix, or a controller writes each."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chunk_chain import Chunk
from scaffolding_ext.controllers.deadline import by_deadline
from scaffolding_ext.controllers.needs import Needs, refuse_worker
from scaffolding_ext.controllers.tree.beginnings import (
    PACKAGED_HINTS,
    BranchPrompts,
    hints_of,
    in_turn,
    least_similarity_of,
    phrased,
    templates_of,
)
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.steps import StepEnds
from scaffolding_ext.controllers.vote.sampler import ensure_sampling
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.protocol import (
    Controller,
    ControllerGenerator,
    GenerationTask,
    ParallelProcess,
    Worker,
    current_scope,
)
from scaffolding_ext.protocol.branching import SIMILARITY_GATE, BranchTask, generation_confidence
from scaffolding_ext.protocol.meta import CHAIN, CHAIN_START, TokenCounts, note, token_counts_of
from scaffolding_ext.protocol.relay import relay
from scaffolding_ext.protocol.task_results import highest_logprobs, output_of, sampled_logprobs
from scaffolding_ext.protocol.worker import WorkerTag, declared, worker_for
from scaffolding_ext.registry import controllers
from scaffolding_ext.request.program import DEADLINE, record, seconds_left

# Sampling fields that a BranchTask lacks.
_NO_FIELD = SAMPLING_FIELDS - {"temperature", "top_p", "top_k", "seed", "max_tokens", "stop"}
_POSITIONS = 512  # read per step, so that the event loop is not blocked


class Expander(BaseController):
    """Writes branches. It is a controller so that a stack binds it to its workers.

    Args:
        hints: Texts that the first branches begin with, in turn, or the name of a domain in `hints_file`.
        hints_file: JSON file of domains, each a list of hints.
        phrasings: Wordings of the prompt for the first branches, in turn: texts with one `{question}`. None: all
            branches read the prompt.

    Attributes:
        writes_steps: Can write part of a branch and continue it later.
        needs: Pieces bring `num_logprobs`; set by the search.
    """

    writes_steps = True
    needs = Needs(num_logprobs=1)

    def __init__(
        self,
        hints: str | Sequence[str] | None = None,
        *,
        hints_file: str | os.PathLike[str] = PACKAGED_HINTS,
        phrasings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.hints = hints_of(hints, hints_file)
        self.phrasings = templates_of(phrasings)

    def beginnings(self, prompt: GenerationTask) -> BranchPrompts:
        return BranchPrompts(self.hints, [phrased(prompt, template) for template in self.phrasings])

    def draws_alike(self, num_branches: int) -> bool:
        """Return True if two of the first branches begin alike, so that only sampling makes them differ."""
        beginnings = {(in_turn(self.phrasings, number), in_turn(self.hints, number)) for number in range(num_branches)}
        return len(beginnings) < num_branches

    def write(
        self, branches: Sequence[Branch], positions: Sequence[int], steps: StepEnds | None
    ) -> ControllerGenerator:
        """Grow each branch to its position, or to an earlier end of its step or solution.

        Args:
            branches: Open ones; the children of one parent are adjacent.
            positions: Of each branch, in tokens from the root.
            steps: Ends of steps; None: only positions end them. A branch with `to_end` continues past ends of steps.
        """
        raise TypeError(f"{type(self).__name__} must implement write()")

    def write_in_time(
        self, branches: Sequence[Branch], positions: Sequence[int], steps: StepEnds | None
    ) -> ControllerGenerator:
        """Write until the request's deadline at most; return the branches that have not grown by then."""
        starts = [branch.chain.num_tokens for branch in branches]
        yield from by_deadline(self.write(branches, positions, steps), keeps_rest=True)
        if seconds_left() is None:
            return []
        at_start = [branch.chain.num_tokens == start for branch, start in zip(branches, starts, strict=True)]
        return [branch for branch, is_late in zip(branches, at_start, strict=True) if is_late and not branch.is_whole]

    def _is_missing(self, output: object) -> bool:
        """Return True if a task was given up at the request's deadline."""
        return output is None and seconds_left() is not None


class WorkerExpander(Expander):
    """Writes with the worker `generation`: one `BranchTask` per parent if it serves them, else one request per branch.

    In an engine with block reuse, requests with a common prefix share its KV.

    Args:
        least_similarity: Minimum similarity at which a rephrased branch reuses the original prompt's KV, which changes
            answers. None: it never does. A worker that cannot compare hidden states is refused.
    """

    needs = Needs(num_logprobs=1, continues_answers=True)

    def __init__(
        self,
        hints: str | Sequence[str] | None = None,
        *,
        hints_file: str | os.PathLike[str] = PACKAGED_HINTS,
        phrasings: Sequence[str] | None = None,
        least_similarity: float | None = None,
    ) -> None:
        super().__init__(hints, hints_file=hints_file, phrasings=phrasings)
        self.least_similarity = least_similarity_of(least_similarity, self.phrasings, self.hints)

    def draws_alike(self, num_branches: int) -> bool:
        if self.least_similarity is not None:  # branches may stay on the prompt
            return len(set(self.hints)) < num_branches
        return super().draws_alike(num_branches)

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Refuse a similarity gate that the worker cannot serve."""
        super().bind(workers)
        tag = WorkerTag.GENERATION
        worker: Any = worker_for(workers, tag)
        can_compare = self.can_serve(tag, BranchTask) and SIMILARITY_GATE not in declared(worker).refused
        if self.least_similarity is not None and not can_compare:
            refuse_worker(worker, tag, "compare hidden states (least_similarity)", SIMILARITY_GATE, type(self).__name__)

    def write(
        self, branches: Sequence[Branch], positions: Sequence[int], steps: StepEnds | None
    ) -> ControllerGenerator:
        asked = [
            (branch, piece)
            for branch, position in zip(branches, positions, strict=True)
            for piece in branch.advance(position)
        ]
        if not asked:
            return
        own_stops = _stops_of(asked[0][1])
        if steps is not None:
            for branch, piece in asked:
                if not branch.to_end:
                    steps.ask(piece)
        reason = self._why_not_shared([piece for _, piece in asked])
        if reason is None:
            yield from self._write_shared(asked)
        else:
            record("fallback", task="BranchTask", to="GenerationTask", reason=reason)
            if self.needs.num_logprobs:
                ask_logprobs([piece for _, piece in asked])
            yield [piece for _, piece in asked]
            for branch, piece in asked:
                if not self._is_missing(piece.output_str):
                    yield from saw(branch, piece)
        for branch, piece in asked:
            if self._is_missing(piece.output_str):
                continue
            if steps is not None and not branch.to_end:
                steps.close(piece, own_stops)
            branch.chain.absorb()

    def _why_not_shared(self, pieces: Sequence[GenerationTask]) -> str | None:
        if not self.can_serve(WorkerTag.GENERATION, BranchTask):
            return "the worker does not serve it"
        if any(piece.input_tokens is None for piece in pieces):
            return "there are no token ids"
        plain = GenerationTask()
        other = {name for piece in pieces for name in _NO_FIELD if getattr(piece, name) != getattr(plain, name)}
        return f"it has no field for {', '.join(sorted(other))}" if other else None

    def _write_shared(self, asked: Sequence[tuple[Branch, GenerationTask]]) -> ControllerGenerator:
        def together(each: tuple[Branch, GenerationTask]) -> tuple[int, int | None, bool]:
            return id(each[0].parent), each[1].max_tokens, each[0].to_end

        groups = [list(group) for _, group in itertools.groupby(asked, key=together)]
        tasks = [_branch_task(group, self.least_similarity) for group in groups]
        yield tasks
        for task, group in zip(tasks, groups, strict=True):
            if not self._is_missing(task.outputs):
                _write_back(task, group)


class ControllerExpander(Expander):
    """Lets a controller write each branch, in parallel: a chain that stops, a vote, a search.

    A whole branch is one run of the controller. A step is one run with the step's tokens as its budget; the next step
    continues from there.

    Args:
        controller: Cloned for each branch.
        writes_steps: Writes steps; otherwise only whole branches.
    """

    registries: ClassVar = {"controller": controllers}
    needs = Needs(tags=(), num_logprobs=1)

    def __init__(
        self,
        controller: Controller,
        writes_steps: bool = False,
        *,
        hints: str | Sequence[str] | None = None,
        hints_file: str | os.PathLike[str] = PACKAGED_HINTS,
        phrasings: Sequence[str] | None = None,
    ) -> None:
        super().__init__(hints, hints_file=hints_file, phrasings=phrasings)
        if not isinstance(controller, Controller):
            raise ConfigError(
                f"is a {type(controller).__name__}; give the controller that writes branches", "controller"
            )
        self.controller = controller
        self.writes_steps = writes_steps

    def write(
        self, branches: Sequence[Branch], positions: Sequence[int], steps: StepEnds | None
    ) -> ControllerGenerator:
        pieces = []
        for branch, position in zip(branches, positions, strict=True):
            piece = branch.chain.next_chunk(max(1, position - branch.chain.num_tokens))
            if branch.to_end:
                piece.max_tokens = branch.prompt.max_tokens  # the controller has its own limit
            else:
                note(piece, is_chunk=True)
            pieces.append(piece)
        if self.needs.num_logprobs:
            ask_logprobs(pieces)
        visit = ensure_sampling(self.controller)
        process = ParallelProcess([], [], [])
        process.sub_gens = [relay(self.controller.clone().process([piece]), visit) for piece in pieces]
        scope = current_scope.get()
        path = () if scope is None else tuple(scope.branch_path)
        process.branch_paths = [(*path, *branch.path) for branch in branches]
        yield process
        for branch, piece in zip(branches, pieces, strict=True):
            if self._is_missing(piece.output_str):
                continue
            text, ids, fields = output_of(piece), piece.output_tokens, piece.customized_result_fields
            given = fields.get("exit_reason")
            reason = given if given in ("length", DEADLINE) else "stop"
            yield from saw(branch, piece)
            branch.chain.keep(Chunk(text, ids, len(ids or ()), 0, reason), None)
            if branch.to_end or reason != "length" or not (ids or text):
                branch.end()
                branch.chain.ended, branch.chain.finish_reason = True, reason
                if "answer" in fields:
                    branch.answer = fields["answer"]


def adapted_expander(given: Any) -> Expander | None:
    return ControllerExpander(given) if isinstance(given, Controller) else None


def _stops_of(piece: GenerationTask) -> list[str]:
    return [piece.stop] if isinstance(piece.stop, str) else list(piece.stop or ())


def ask_logprobs(pieces: Sequence[GenerationTask]) -> None:
    for piece in pieces:
        piece.num_logprobs = max(piece.num_logprobs or 0, 1)


def saw(branch: Branch, piece: GenerationTask) -> ControllerGenerator:
    steps, ids = piece.logprobs, piece.output_tokens
    if ids == []:
        branch.saw([], 0.0)
    elif not steps or ids is None or len(steps) < len(ids):
        branch.saw(None, None)
    else:
        top: list[float] = []
        logprobs: list[float] = []
        for begin in range(0, len(ids), _POSITIONS):
            some = steps[begin : begin + _POSITIONS]
            top += [math.exp(highest_logprobs(step)[0]) for step in some]
            logprobs += sampled_logprobs(ids[begin : begin + _POSITIONS], some)
            yield []  # let other work run
        branch.saw(logprobs, generation_confidence(top))


def _branch_task(group: Sequence[tuple[Branch, GenerationTask]], least_similarity: float | None) -> BranchTask:
    first, piece = group[0]
    prefix, inputs = first.prefix_tokens, [each.input_tokens or [] for _, each in group]
    lens = [len(branch.prompt.input_tokens or ()) + len(first.inherited_tokens) for branch, _ in group]
    phrasings = [ids[:num_tokens] for ids, num_tokens in zip(inputs, lens, strict=True)]
    has_phrasings = any(phrasing != prefix for phrasing in phrasings)
    begins = has_phrasings and not first.chain.num_tokens  # the gate decides once, when branches begin
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
        stop=_stops_of(piece) or None,
    )
    note(task, purpose=CHAIN if first.chain.num_tokens else CHAIN_START)
    return task


def _write_back(task: BranchTask, group: Sequence[tuple[Branch, GenerationTask]]) -> None:
    texts, ids, reasons = task.outputs, task.output_tokens, task.finish_reasons
    logprobs: Sequence[Sequence[float] | None] = task.logprobs or [None] * len(group)
    confidences = task.confidences
    if texts is None or ids is None or reasons is None or confidences is None:
        raise NoOutputError(
            f"the worker {task.worker_tag!s} left no output in a BranchTask; it failed silently: read its log"
        )
    is_metered = token_counts_of(task) is not None
    for number, (branch, piece) in enumerate(group):
        piece.output_str, piece.output_tokens = texts[number], ids[number]
        piece.finish_reason = reasons[number]
        if is_metered:
            note(piece, counts=TokenCounts(len(ids[number])))
        branch.saw(logprobs[number], confidences[number])
        if task.least_similarity is not None and task.on_prefix is not None and task.on_prefix[number]:
            branch.read(branch.root)
