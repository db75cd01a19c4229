"""How many blocks of KV the requests of a search hold at once, counted as an engine with block reuse holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.lowering import prefixes_of
from scaffolding_ext.protocol.relay import Watch
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag, tag_name

Request = tuple[Sequence[int], int]  # the ids that it reads, and how many it writes behind them


class HeldBlocks(Watch):
    """Counts the blocks of KV that each step of a search holds at its end.

    Requests share a block where both read it whole and begin with the same tokens up to its end. The rest of a prompt,
    and all that a request writes, is in blocks of its own. The requests of a step count as if they ended together. A
    request of a parallel branch counts with the tokens that it has read.

    Args:
        tokens_per_block: Of the worker `generation`; only its requests count.

    Attributes:
        most: The most blocks that a step has held; None where the token ids of a request are not known.
    """

    __slots__ = ("_open", "_tokens_per_block", "most")

    def __init__(self, tokens_per_block: int) -> None:
        super().__init__()
        self._tokens_per_block = tokens_per_block
        self._open: dict[int, Any] = {}
        self.most: int | None = 0

    def ask(self, work: Any) -> float:
        self._open[id(work)] = work
        return super().ask(work)

    def count(self, work: Any, began: float) -> None:
        held = [each for step in self._open.values() for task in step for each in _requests(task)]
        self._open.pop(id(work), None)
        if self.most is None or any(each is None for each in held):
            self.most = None
        else:
            self.most = max(self.most, num_blocks([each for each in held if each is not None], self._tokens_per_block))


def num_blocks(requests: Sequence[Request], tokens_per_block: int) -> int:
    """Blocks that requests hold together; one that several share counts once."""
    shared: dict[tuple[int, tuple[int, ...]], int] = {}  # a block by the number of the one before it, and its tokens
    num_own = 0
    for ids, num_written in requests:
        before, whole = 0, len(ids) // tokens_per_block
        for begin in range(0, whole * tokens_per_block, tokens_per_block):
            block = before, tuple(ids[begin : begin + tokens_per_block])
            before = shared.setdefault(block, len(shared) + 1)
        num_own += -(-(len(ids) + num_written) // tokens_per_block) - whole
    return len(shared) + num_own


def _requests(task: Any) -> Iterator[Request | None]:
    """The requests of a task of the worker `generation`; None for one whose ids are not known."""
    if tag_name(getattr(task, "worker_tag", None)) != WorkerTag.GENERATION.value:
        return
    if isinstance(task, BranchTask):
        written = task.output_tokens or [[]] * len(task.suffixes)
        for prefix, suffix, ids in zip(prefixes_of(task, task.on_prefix), task.suffixes, written, strict=True):
            yield [*prefix, *suffix], len(ids)
    elif isinstance(task, VerifyTask):
        yield from ((ids, 0) for ids in task.branches)
    elif isinstance(task, ScoreTask):
        read, scored = task.input_tokens, task.continuation_tokens
        yield None if read is None or scored is None else ([*read, *scored], 0)
    elif isinstance(task, GenerationTask):
        yield None if task.input_tokens is None else (task.input_tokens, len(task.output_tokens or ()))
