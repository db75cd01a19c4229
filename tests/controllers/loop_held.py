"""Controllers among long requests with hostile answers, to see how long they hold the host's event loop.

The worker answers at once, with chains of 8,192 tokens and answers that are slow to compare, so all time is the
controllers' own. A step is one callback of the loop: while it runs, nothing else on the loop does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note, purpose_of
from scaffolding_ext.protocol.standins import TaskHandler
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import BaseWorker

NUM_TOKENS = 8192
WIDTH = 16  # samples of a vote
_TOKEN = "word"
_IDS = list(range(1000, 1000 + NUM_TOKENS + 64))
_TEXT = " ".join([_TOKEN] * (NUM_TOKENS + 64))
_TOP = [{token: TokenLogprob(-0.5), 1: TokenLogprob(-2.0)} for token in _IDS]
_PARTS = range(40)
_ROWS = r"\\".join("&".join(f"a^{row}{column}" for column in range(6)) for row in range(6))
# None equals another of its kind, and their text leaves most pairs open: every pair is looked at part by part.
HOSTILE: tuple[Callable[[int], str], ...] = (
    lambda n: "(" + ",".join(f"x^{part}{n}" for part in _PARTS) + ")",
    lambda n: r"\begin{pmatrix}" + _ROWS + rf"{n}\end{{pmatrix}}",
    lambda n: r"\cup ".join(f"({part},{part + n}x)" for part in _PARTS),
    lambda n: ",".join(rf"\pm{n + part}" for part in _PARTS),
    lambda n: "(" * 60 + str(n) + ")" * 60,
    lambda n: "9" * 200 + f"{n}/" + "7" * 200,
    lambda n: r"\$" * 200 + str(n),
    lambda n: f"9^{{9^{{9^{n}}}}}",
)  # fmt: skip


class Hostile(BaseWorker):
    """Writes chains of a number of tokens, and answers that are all different and slow to compare.

    Args:
        num_tokens: Of a chain that nothing ends before.
        forms: Makers of answers by their number; they take turns.
    """

    model: ClassVar[None] = None

    def __init__(self, num_tokens: int = NUM_TOKENS, forms: tuple[Callable[[int], str], ...] = HOSTILE) -> None:
        self._num_tokens = num_tokens
        self._numbers = itertools.count()
        self._answers = [make(number)[:480] for number in range(64) for make in forms]

    def _answer(self) -> str:
        return self._answers[next(self._numbers) % len(self._answers)]

    def _write(self, task: GenerationTask, num_tokens: int, tail: str) -> None:
        task.output_str = _TEXT[: num_tokens * (len(_TOKEN) + 1)] + tail
        task.output_tokens = _IDS[:num_tokens]
        if task.num_logprobs is not None:
            task.logprobs = _TOP[:num_tokens]
        note(task, counts=TokenCounts(num_tokens, 8))

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        await asyncio.sleep(0)  # an engine takes its time
        if purpose_of(task).written is Purpose.CHAIN:
            num_tokens = min(self._num_tokens, task.max_tokens or self._num_tokens)
            at_end = num_tokens == self._num_tokens
            self._write(task, num_tokens, rf" \boxed{{{self._answer()}}}" if at_end else "")
        else:
            num_tokens = min(20, task.max_tokens or 20)
            self._write(task, num_tokens, "")
            task.output_str = self._answer() + "}"
        task.finish_reason = "length" if num_tokens == task.max_tokens else "stop"
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        await asyncio.sleep(0)
        so_far = 0 if task.output_tokens is None else len(task.output_tokens)
        most = min(self._num_tokens, task.max_tokens or self._num_tokens)
        num_tokens = so_far if task.cancel_flag else min(most, so_far + (task.streaming_step or 1))
        task.end_flag = bool(task.cancel_flag) or num_tokens == most
        self._write(task, num_tokens, rf" \boxed{{{self._answer()}}}" if num_tokens == self._num_tokens else "")
        task.finish_reason = None if not task.end_flag else "length" if num_tokens == task.max_tokens else "stop"
        return TaskStatus.SUCCESS

    async def _score(self, task: ScoreTask) -> TaskStatus:
        await asyncio.sleep(0)
        num_tokens = len(task.continuation_tokens or ()) or len(task.continuation_str or "") // 5
        task.logprobs = [-0.5] * num_tokens
        note(task, counts=TokenCounts(0, num_tokens))
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        GenerationTask: _generate,
        StreamGenerationTask: _stream,
        ScoreTask: _score,
    }


class Longest(BaseController):
    """Scores a text by its length."""

    scores: list[float] | None = None

    def process(self, tasks: list[Any], **kwargs: Any) -> Iterator[Any]:  # type: ignore[override]
        self.scores = [float(len(task.output_str)) for task in tasks]
        yield []


def _native() -> Controller:
    return NativeGenerationController({"temperature": 0.7, "max_tokens": NUM_TOKENS})


def _dynasor(chunk_size: int, **arguments: Any) -> Controller:
    return DynasorCoTController(max_tokens=NUM_TOKENS, chunk_size=chunk_size, certainty_threshold=999, **arguments)


# Each made for a number of tokens between two looks at a chain.
CONTROLLERS: dict[str, Callable[[int], Controller]] = {
    "native": lambda _: _native(),
    "budget forcing": lambda _: BudgetForcingController(NUM_TOKENS // 2),
    "chain, streamed": _dynasor,
    "chain, in chunks": lambda chunk_size: _dynasor(chunk_size, mode="chunk"),
    "vote": lambda _: MajorityVoteController(_native(), 4 * WIDTH, allocation=None),
    "vote in rounds": lambda _: MajorityVoteController(_native(), WIDTH),
    "vote of chains": lambda chunk_size: MajorityVoteController(_dynasor(chunk_size), 4),
    "deepconf": lambda chunk_size: DeepConfController(WIDTH, max_tokens=NUM_TOKENS, check_every=chunk_size),
    "best of n": lambda _: BestOfNController(_native(), Longest(), WIDTH),
    "branching": lambda _: KVShareBranchingController(WIDTH, max_tokens=NUM_TOKENS, selector="vote"),
    "search": lambda chunk_size: SearchController(
        {"type": "Rebase", "args": {"width": WIDTH}},
        "mean_logprob",
        steps=min(1024, 2 * chunk_size),
        budget=4 * WIDTH,
        max_tokens=NUM_TOKENS,
    ),
    "draft and target": lambda chunk_size: ConformalDraftTargetController(
        coverage="conditional",
        alpha=0.4,
        draft_tokens=chunk_size,
        target_tokens=chunk_size,
        num_chains=8,
        max_tokens=NUM_TOKENS,
    ),
}


def run(controller: Controller, num_requests: int, watched: Callable[[asyncio.AbstractEventLoop], Any]) -> None:
    """Run requests at once, on a loop that is watched meanwhile."""
    workers = {tag: Hostile() for tag in ("generation", "draft", "target")}
    with ScaffoldingLlm(controller, workers, seed=0) as llm, watched(llm.loop):
        llm.generate(["question"] * num_requests)
