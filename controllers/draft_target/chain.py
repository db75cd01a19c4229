"""Chain that a small model drafts chunk by chunk, and that a large one scores and sometimes takes over."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chain import CUT
from scaffolding_ext.controllers.chain.chunk_chain import Chunk, ChunkChain, written_chunk
from scaffolding_ext.controllers.chain.ending import forcing
from scaffolding_ext.controllers.chain.probe import asked_answer, forced_answer
from scaffolding_ext.controllers.draft_target.on_worker import OnWorker, on_worker
from scaffolding_ext.controllers.draft_target.scores import mean_nll
from scaffolding_ext.controllers.run import Run
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.prompts.encoding import UNREADABLE
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.meta import Purpose, note
from scaffolding_ext.protocol.relay import Visit, relay
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.figures import Ratio
from scaffolding_ext.request.program import discard, elapsed, record

_BOX = re.compile(r"\\boxed\s*\{")


class Decision(NamedTuple):
    """Decision on a drafted chunk.

    Attributes:
        taken_over: The target writes instead of it, or after it.
        priority: Priority of the chain among those that wait for the target; lower goes first.
        is_final: Holds for the rest of the chain: one model writes it, unscored.
    """

    taken_over: bool
    figures: dict[str, Any]
    priority: float = 0.0
    is_final: bool = False


class Writers(NamedTuple):
    """The two models, and the tokens that each writes per chunk.

    Attributes:
        shares_tokens: They have the same tokenizer, and exchange token ids.
    """

    draft: OnWorker
    target: OnWorker
    draft_tokens: int
    target_tokens: int
    shares_tokens: bool


class DraftTargetChain:
    """A chain while it grows.

    Models with the same tokenizer exchange token ids. Others exchange text, and each worker tokenizes the whole text,
    so that no token is split at the border of two chunks.

    Args:
        scores: Score the drafted chunks.
        keeps_rejected: A rejected chunk stays, and the target continues it; otherwise the target rewrites it.

    Attributes:
        score: Nonconformity of the waiting chunk; None if nothing was written, or chunks are not scored.
        waits_since: Time at which it was ready for its decision, in the program's seconds.
        is_decided: One model writes the rest, unscored.
    """

    def __init__(
        self,
        prompt: GenerationTask,
        index: int,
        writers: Writers,
        scores: bool,
        max_tokens: int,
        keeps_rejected: bool,
        visit: Visit | None = None,
    ) -> None:
        self.index = index
        self.turn = self.num_decided = self.num_taken_over = 0
        self.exit_reason: str | None = None
        self.draft_chunk: Chunk | None = None
        self.score: float | None = None
        self.accepted_scores: list[float] = []
        self.waits_since = self.seconds_drafting = self._began = 0.0
        self.answer: str | None = None
        self.is_decided = False
        self._prompt = prompt
        self._draft, self._target, self._scores = writers.draft.clone(), writers.target.clone(), scores
        self._draft_tokens, self._target_tokens = writers.draft_tokens, writers.target_tokens
        self._keeps_rejected = keeps_rejected
        self._visit = visit
        self._written = ChunkChain(prompt, max_tokens, {}, writers.shares_tokens and prompt.input_tokens is not None)
        self._closing = ""
        self._priority = 0.0

    @property
    def text(self) -> str:
        return self._written.text + self._closing

    @property
    def num_tokens(self) -> int:
        return self._written.num_tokens

    @property
    def token_ids(self) -> list[int] | None:
        """Token ids of the chain; None if it is passed as text, or its answer was forced."""
        return None if self._closing else self._written.prefix.token_ids

    @property
    def wrote_something(self) -> bool:
        """True if the waiting chunk has a token; without one the chain has ended."""
        chunk = self.draft_chunk
        return chunk is not None and bool(chunk.text if chunk.token_ids is None else chunk.token_ids)

    def draft(self) -> ControllerGenerator:
        """Draft the next chunk; it waits for its score and decision."""
        self._began = elapsed()
        self.score = None
        self.draft_chunk = yield from self._write(self._draft, self._draft_tokens)

    def score_draft(self) -> ControllerGenerator:
        """Let the target score the waiting chunk, if chunks are scored and it has a token."""
        if self._scores and self.draft_chunk is not None and self.wrote_something:
            self.score = yield from self._scored(self.draft_chunk)
        self.waits_since = elapsed()
        self.seconds_drafting = self.waits_since - self._began

    def settle(self, taken_over: bool, is_final: bool = False) -> ControllerGenerator:
        """Keep the waiting chunk, or let the target take over for a chunk; return the tokens that the target wrote.

        Args:
            is_final: The same model writes the rest of the chain, unscored.
        """
        chunk, self.draft_chunk = self.draft_chunk, None
        assert chunk is not None, "draft() comes first"
        self.turn += 1
        if is_final:
            self.is_decided, self._scores = True, False
        if not taken_over:
            if self.score is not None:
                self.accepted_scores.append(self.score)
            self._keep(chunk)
            return 0
        self.num_taken_over += 1
        if self._keeps_rejected:
            self._keep(chunk.without_end())
        else:
            discard(Purpose.CHAIN, chunk.num_generated, Purpose.REJECTED)
        if self.exit_reason is not None or self.num_tokens >= self._written.max_tokens:
            return 0
        rest = self._written.max_tokens
        written = yield from self._write(self._target, rest if is_final else self._target_tokens)
        self._keep(written)
        return written.num_tokens

    def carry_out(self, run: Run, decision: Decision) -> ControllerGenerator:
        """Settle the waiting chunk as decided, and record it."""
        chunk, turn, began, was_decided = self.draft_chunk, self.turn, elapsed(), self.is_decided
        assert chunk is not None, "a chunk waits"
        self.num_decided += not was_decided
        self._priority = decision.priority
        num_target_tokens = yield from self.settle(decision.taken_over, decision.is_final)
        rate = {} if was_decided else {"take_over_rate": decision.taken_over}
        self._record(run, decision, turn, began, chunk.num_tokens, num_target_tokens, **rate)

    def _record(
        self,
        run: Run,
        decision: Decision,
        turn: int,
        began: float,
        num_draft_tokens: int,
        num_target_tokens: int,
        **rate: bool,
    ) -> None:
        seconds_waited = began - self.waits_since
        run.event(
            "take_over" if decision.taken_over else "accept",
            chain=self.index,
            turn=turn,
            score=self.score,
            **decision.figures,
            num_draft_tokens=num_draft_tokens,
            num_target_tokens=num_target_tokens,
            seconds_waited=round(seconds_waited, 6),
        )
        rejected = decision.taken_over and not self._keeps_rejected
        level, num_calibration = decision.figures.get("alpha"), decision.figures.get("num_calibration")
        run.sum_up(
            **rate,
            **({} if num_calibration is None else {"decided_by_coin": num_calibration == 0}),
            **({} if level is None else {"alpha": Ratio(level, 1)}),
            draft_tokens=num_draft_tokens,
            target_tokens=num_target_tokens,
            rejected_drafts=rejected,
            rejected_draft_tokens=num_draft_tokens if rejected else 0,
            intensity=Ratio(self.seconds_drafting + elapsed() - began, seconds_waited),
        )

    def end(self, reason: str) -> None:
        self.exit_reason = self.exit_reason or reason

    def conclude(self, family: PromptFamily, sampling_params: dict[str, Any]) -> ControllerGenerator:
        """Extract the chain's answer; without one, the draft model is asked for it."""
        self.answer = extract(self.text)
        if self.answer is None:
            prefix = self._written.prefix
            if self.exit_reason == "end":
                prefix = prefix._replace(token_ids=None)
            forced, close = forcing(self._prompt, prefix, family, sampling_params)
            yield from on_worker([[forced]], WorkerTag.DRAFT)
            self.answer = forced_answer(forced)
            if self.answer is not None:
                self._closing = family.as_shown(close + self.answer + family.answer_end)
            is_closed = asked_answer(forced) is not None
            record("force", chain=self.index, answer=self.answer, cause=str(self.exit_reason), closed=is_closed)
        record("end", chain=self.index, turns=self.turn, reason=self.exit_reason, answer=self.answer)

    def _write(self, writer: OnWorker, max_tokens: int) -> ControllerGenerator:
        asked = max(1, min(max_tokens, self._written.max_tokens - self.num_tokens))
        task = self._written.next_chunk(asked, self.index, self.turn, writer.tag.value)
        priority = self._priority if writer is self._target else 0.0
        note(task, priority=priority, is_chunk=True)
        work = relay(writer.process([task]), before=self._visit)
        chunk: Chunk = yield from written_chunk(work, task)
        if self._written.prefix.token_ids is None:  # drop half a character, which the other model could not read
            chunk = chunk._replace(text=chunk.text.rstrip(UNREADABLE), token_ids=None)
        return chunk

    def _scored(self, chunk: Chunk) -> ControllerGenerator:
        """Let the target score a chunk after the chain so far; return its nonconformity."""
        ids = self._written.prefix.token_ids
        if ids is None or chunk.token_ids is None:
            history = (self._prompt.input_str or "") + self.text
            task = ScoreTask(worker_tag=WorkerTag.TARGET, input_str=history, continuation_str=chunk.text)
        else:
            history_ids = (self._prompt.input_tokens or []) + ids
            task = ScoreTask(worker_tag=WorkerTag.TARGET, input_tokens=history_ids, continuation_tokens=chunk.token_ids)
        note(task, priority=self._priority)
        yield [task]
        if not task.logprobs:
            raise NoOutputError("the worker 'target' left no log-probabilities in a ScoreTask: read its log")
        return mean_nll(task.logprobs)

    def _keep(self, chunk: Chunk) -> None:
        self._written.keep(chunk, self._prompt.stop)
        if self._written.finish_reason in CUT:
            self.exit_reason = self._written.finish_reason
        elif self._written.ended and self._written.finish_reason != "length":
            self.exit_reason = "end"
        elif _BOX.search(self.text) and extract(self.text) is not None:
            self.exit_reason = "answer"
        elif self._written.ended:
            self.exit_reason = "length"
