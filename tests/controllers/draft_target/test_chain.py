"""A drafted chain: what the target reads behind a rejected chunk that stays, and where it draws its seeds from."""

import asyncio
import contextvars
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain, Writers
from scaffolding_ext.controllers.draft_target.on_worker import OnWorker
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, Worker
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.request.seeds import derive_seed

TOKENIZER = Prompting.for_model("tinylm/draft")
END = TOKENIZER.encode("<|end|>")[-1]
PROMPT_IDS = TOKENIZER.encode("Q: ")


class Writing(Worker):
    """Writes the same ids for every task, decoded by themselves."""

    def __init__(self, ids, finish_reason):
        self.ids, self.finish_reason, self.tasks = ids, finish_reason, []

    async def _generate(self, task):
        self.tasks.append(task)
        task.output_tokens, task.output_str = list(self.ids), TOKENIZER.decode(self.ids)
        task.finish_reason = self.finish_reason

    task_handlers: ClassVar = {GenerationTask: _generate}


def taken_over(draft, target, concludes=False, **options):
    """A chain whose first chunk the target has taken over, and that is then asked for its answer, if it concludes."""
    task = GenerationTask(input_str="Q: ", input_tokens=PROMPT_IDS, seed=5)
    writers = [OnWorker(NativeGenerationController(), tag) for tag in (WorkerTag.DRAFT, WorkerTag.TARGET)]
    keeps_rejected = options.get("keeps_rejected", False)
    both = Writers(*writers, 20, 20, options.get("shares_tokens", False))
    chain = DraftTargetChain(task, 3, both, None, options.get("max_tokens", 100), keeps_rejected)

    def drive():
        program = Program()
        program.question = Question(prompting=TOKENIZER, raw=True)
        enter_program(program)
        works = [chain.draft, chain.score_draft, lambda: chain.settle(True)]
        if concludes:
            works.append(lambda: chain.conclude(TOKENIZER.family, {"max_tokens": 5}))
        for work in works:
            for tasks in program.meter.watch(work()):
                for piece in tasks:
                    worker = draft if piece.worker_tag == WorkerTag.DRAFT else target
                    asyncio.run(worker.run_task(piece))

    contextvars.copy_context().run(drive)
    return chain


HALF = TOKENIZER.encode("so \u2265")[:-1]  # ends inside a character


@pytest.mark.parametrize(
    ("drafted", "finish_reason", "kept"),
    [
        (TOKENIZER.encode("so x"), "length", TOKENIZER.encode("so x")),
        (TOKENIZER.encode("so x"), "stop", TOKENIZER.encode("so x")),
        ([*TOKENIZER.encode("so x"), END], "stop", TOKENIZER.encode("so x")),
        ([*TOKENIZER.encode("so x"), END], "length", [*TOKENIZER.encode("so x"), END]),  # a part of the chain
        (HALF, "stop", HALF),
    ],
)
def test_behind_a_rejected_chunk_that_stays_the_target_reads_its_ids_without_the_end(drafted, finish_reason, kept):
    written = TOKENIZER.encode(" = 5")
    target = Writing(written, "length")
    chain = taken_over(Writing(drafted, finish_reason), target, keeps_rejected=True, shares_tokens=True)
    (task,) = target.tasks
    assert task.input_tokens == PROMPT_IDS + kept
    assert chain.token_ids == kept + written
    assert chain.text == TOKENIZER.decode(kept + written)
    assert (chain.num_tokens, chain.exit_reason) == (len(drafted) + len(written), None)  # as it was paid for


def test_a_rejected_chunk_that_goes_is_not_read():
    target = Writing(TOKENIZER.encode("anew"), "stop")
    chain = taken_over(
        Writing([*TOKENIZER.encode("so x"), END], "stop"), target, keeps_rejected=False, shares_tokens=True
    )
    assert target.tasks[0].input_tokens == PROMPT_IDS
    assert (chain.text, chain.num_tokens, chain.exit_reason) == ("anew", len(target.ids), "end")


def test_models_of_two_tokenizers_read_text_without_half_characters():
    target = Writing(TOKENIZER.encode(" = 5"), "length")
    chain = taken_over(Writing(HALF, "length"), target, keeps_rejected=True, shares_tokens=False)
    (task,) = target.tasks
    assert (task.input_str, task.input_tokens) == ("Q: so ", None)
    assert (chain.text, chain.token_ids) == ("so  = 5", None)


@pytest.mark.parametrize(
    ("written", "finish_reason", "is_open"), [([*TOKENIZER.encode("anew"), END], "stop", False), (HALF, "length", True)]
)
def test_a_chain_that_ended_is_asked_for_its_answer_in_text_without_its_end_token(written, finish_reason, is_open):
    draft = Writing(TOKENIZER.encode("so x"), "length")
    chain = taken_over(draft, Writing(written, finish_reason), concludes=True, keeps_rejected=False, shares_tokens=True)
    asking = draft.tasks[-1]
    close = TOKENIZER.family.close
    assert chain.exit_reason == (None if is_open else "end")
    assert asking.input_tokens == (PROMPT_IDS + written + TOKENIZER.encode(close) if is_open else None)
    assert is_open or asking.input_str == "Q: anew" + close


def test_each_chunk_derives_its_seed_from_chain_turn_and_writer():
    draft, target = Writing(HALF, "length"), Writing(HALF, "length")
    taken_over(draft, target, keeps_rejected=True, shares_tokens=True)
    seeds = [task.seed for worker in (draft, target) for task in worker.tasks]
    assert seeds == [derive_seed(5, 3, 0, "draft"), derive_seed(5, 3, 1, "target")]
