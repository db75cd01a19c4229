"""A chain of thought whose chunks a controller writes, and the chunk that one wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaffolding_ext.controllers.chain.chain import LOOP
from scaffolding_ext.controllers.chain.chunk_chain import Chunk, ChunkChain
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Task
from scaffolding_ext.protocol.notes import Purpose, notes_of, set_notes
from scaffolding_ext.protocol.task_results import finish_reason_of, output_of
from scaffolding_ext.request.ledger import Ledger, Meter

_STOPPED_BY_MODEL = (None, "length", "end")  # exit reasons after which the finish reason says whether the chain ended


class ControlledChain(ChunkChain):
    """A controller writes each piece of the chain, and may end before the piece is full.

    Args:
        prompt: As for every chain.
        max_tokens: As for every chain.
        controller: Writes; it is cloned for each piece.
    """

    def __init__(self, prompt: GenerationTask, max_tokens: int, controller: Controller) -> None:
        super().__init__(prompt, max_tokens, {})
        self._controller = controller

    def grow(self, num_tokens: int, beside: Sequence[Task] = ()) -> ControllerGenerator:
        if beside:
            yield list(beside)
        wanted = min(num_tokens, self.max_tokens)
        while not self.ended and self.num_tokens < wanted:
            before = self.num_tokens
            task = self.next_chunk(wanted - before, *([before] if before else []))
            set_notes(task, notes_of(task)._replace(is_chunk=True))
            chunk = yield from written_chunk(self._controller.clone().process([task]), task)
            self.keep(chunk, self.prompt.stop)
            if self.num_tokens > wanted:  # a controller that does not keep to the task's `max_tokens`
                self.cut(wanted)
            if self.num_tokens == before:
                return


def written_chunk(work: Iterable[object], task: GenerationTask) -> ControllerGenerator:
    """Work to `yield from`: a controller's work on a task.

    Args:
        work: Its generator.
        task: What it writes into, noted as a chunk, with its `max_tokens`.

    Returns:
        The chunk.
    """
    spent = Ledger()
    yield from Meter(spent).watch(work)
    ids, reason = task.output_tokens, finish_reason_of(task) or "length"
    exit_reason = task.customized_result_fields.get("exit_reason")
    if reason == "length" and exit_reason not in _STOPPED_BY_MODEL:
        reason = LOOP if exit_reason == LOOP else "stop"
    decoded = spent.by_purpose.get(Purpose.CHAIN)
    num_tokens = (task.max_tokens or 0) if ids is None else len(ids)
    return Chunk(output_of(task), ids, num_tokens, 0 if decoded is None else decoded.decoded, reason)
