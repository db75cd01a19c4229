"""Forced answers of a search's branches: the thinking is closed, and the model goes on with the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.controllers.base import finish
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.ending import close_with, forcing, without_end
from scaffolding_ext.controllers.chain.probe import forced_answer
from scaffolding_ext.controllers.deadline import by_deadline
from scaffolding_ext.controllers.prompting import prompt_family
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.request.program import record, seconds_left

ANSWER_LEN = 48  # tokens of a forced answer


def rank(node: Branch) -> tuple[bool, float, tuple[int, ...]]:
    """Order from the best to the worst: scored before unscored, by value, then by path."""
    return node.score is None, -node.value, node.path


class Closed(NamedTuple):
    prefix: Prefix  # what the branch had written
    suffix: str  # what was put behind it to ask for the answer


class Closings:
    """Forces answers of branches, and remembers from where."""

    def __init__(self) -> None:
        self._closed: dict[tuple[int, ...], Closed] = {}

    def missing(self, nodes: Sequence[Branch]) -> list[Branch]:
        """Return the branches that have no answer and were not asked for one yet."""
        return [node for node in nodes if node.answer is None and node.path not in self._closed]

    def force(self, nodes: Sequence[Branch], reads_all: bool) -> ControllerGenerator:
        """Force the answers that a choice between nodes reads: all missing ones, or one if no node has any.

        They are given up at the request's deadline, unless none of the nodes would have an answer.

        Args:
            reads_all: The choice reads all nodes' answers, as a vote does; otherwise the best node's.
        """
        missing = self.missing(nodes)
        if not reads_all:
            missing = [min(missing, key=rank)] if len(missing) == len(nodes) else []
        work = self.close(missing)
        yield from (work if len(missing) == len(nodes) else by_deadline(work, keeps_rest=True))

    def close(self, nodes: Sequence[Branch]) -> ControllerGenerator:
        """Force an answer of each branch in one step; a branch that the deadline cuts off may be asked again."""
        family, asked = prompt_family(), []
        for node in nodes:
            prefix = node.chain.prefix
            if node.is_whole:
                prefix = without_end(prefix)
            task, suffix = forcing(node.prompt, prefix, family, {"max_tokens": ANSWER_LEN, "temperature": 0.0})
            self._closed[node.path] = Closed(prefix, suffix)
            asked.append(task)
        if not asked:
            return
        yield asked
        for node, task in zip(nodes, asked, strict=True):
            if task.output_str is None and seconds_left() is not None:  # cut off at the deadline
                del self._closed[node.path]
            else:
                node.answer = forced_answer(task)
        record("force", paths=[node.path for node in nodes], answers=[node.answer for node in nodes])

    def write_out(self, task: GenerationTask, node: Branch, exit_reason: str) -> None:
        """Write a branch, with its forced answer if any, into the request's task."""
        chain, closed = node.chain, self._closed.get(node.path)
        if closed is not None and node.answer is not None:
            close_with(task, closed.prefix, closed.suffix, node.answer, prompt_family(), exit_reason)
            return
        if task.num_logprobs and not node.hint:
            task.logprobs = chain.prefix.logprobs
        finish(task, chain.text, chain.prefix.token_ids, node.answer, exit_reason)
