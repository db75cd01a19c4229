"""Chains of both kinds: sampling fields, log-probabilities, discarded work, and how they are started."""

import contextvars
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.chain.stream_chain import StreamChain, start_chain
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")


def test_a_silent_worker_is_an_error(prompt):
    for chain in (ChunkChain(prompt(), 25, {}), StreamChain(prompt(), 25, {})):
        chain.advance(5)
        with pytest.raises(NoOutputError):
            chain.absorb()


def test_pieces_take_the_prompts_own_sampling_fields_first(prompt):
    own = {"min_tokens": 3, "seed": 7, "top_p": 0.5}
    params = {"temperature": 0.3, "top_p": 0.9}
    for kind in (ChunkChain, StreamChain):
        (piece,) = kind(prompt(**own), 25, params).advance(5)
        assert (piece.temperature, piece.top_p, piece.min_tokens, piece.seed) == (0.3, 0.5, 3, 7)


@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
def test_a_prefix_has_the_logprobs_of_its_tokens_where_they_are_asked_for(make_chain, prompt, grow):
    class Reporting(ScriptedWorker):
        def _write(self, task, generation, num_tokens):
            super()._write(task, generation, num_tokens)
            if task.num_logprobs:
                task.logprobs = [{token: -0.5} for token in task.output_tokens]

    for num_logprobs, entries in ((1, [{120: -0.5}] * 9), (None, None)):
        chain = make_chain(prompt(), 100, {"num_logprobs": num_logprobs})
        grow(chain, Reporting("x" * 50), 5, 9)
        assert chain.prefix.logprobs == entries


@pytest.mark.parametrize("counts", [TokenCounts(30, 3), TokenCounts(0, 0, 33), TokenCounts(5, 3, 25)])
@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
def test_what_lies_beyond_a_prefix_is_discarded_decoded_or_had_from_a_store(make_chain, counts, prompt, run):
    class Storing(ScriptedWorker):
        """Says of its output that it was decoded, had from a store, or some of each; the prompt has three tokens."""

        def _meter(self, task, _):
            if task.output_tokens:
                note(task, counts=counts)

    worker = Storing("x" * 100)
    chain = make_chain(prompt(), 50, {})
    program = Program()

    def request():
        yield from chain.grow(30)
        yield from chain.leave(Prefix(12, "", None))

    def drive():
        enter_program(program)
        run(worker, program.meter.watch(request()))

    contextvars.copy_context().run(drive)
    ledger = program.ledger.by_purpose
    assert program.ledger.total == counts
    assert sum(ledger[Purpose.PROMPT][1:]) == 3  # what was read
    chain_counts, discarded = ledger[Purpose.CHAIN], ledger[Purpose.DISCARDED]
    assert (chain_counts.decoded + chain_counts.reused, discarded.decoded + discarded.reused) == (12, 18)
    run(worker, chain.leave())  # outside of a program nothing is counted


def test_nothing_is_discarded_of_what_nobody_counted(prompt):
    program = Program()
    chain = ChunkChain(prompt(), 50, {})

    def request():
        yield from chain.grow(30)
        yield from chain.leave(Prefix(10, "", None))

    for (task,) in program.meter.watch(request()):
        task.output_str = "a worker that gives neither ids nor counts"
    assert Purpose.DISCARDED not in program.ledger.by_purpose
    assert program.ledger.num_unmetered_tasks == 1


class Plain(ScriptedWorker):
    task_handlers: ClassVar = {GenerationTask: ScriptedWorker.task_handlers[GenerationTask]}


async def upstreams_handler(worker, task):
    """As upstream's: it reads a field that its own task does not have."""
    return task.streaming_output_queue if task.streaming_output_flag else None


class QueueWorker(ScriptedWorker):
    task_handlers: ClassVar = ScriptedWorker.task_handlers | {StreamGenerationTask: upstreams_handler}


@pytest.mark.parametrize(
    ("worker", "mode", "kind", "lowered"),
    [
        (ScriptedWorker(""), "stream", StreamChain, None),
        (ScriptedWorker(""), "chunk", ChunkChain, None),
        (Plain(""), "stream", ChunkChain, "StreamGenerationTask"),
        (QueueWorker(""), "stream", StreamChain, "streaming"),
    ],
)
def test_a_chain_is_started_as_the_worker_can_serve_it_and_the_trace_says_what_was_lowered(
    worker, mode, kind, lowered, prompt
):
    program, controller = Program(), BaseController()
    controller.bind({"generation": worker})

    def start():
        enter_program(program)
        return start_chain(controller, prompt(), FAMILY, max_tokens=50, mode=mode, streaming_output=mode == "stream")

    chain = contextvars.copy_context().run(start)
    assert type(chain) is kind
    assert [event.get("task") or event.get("what") for event in program.trace] == ([lowered] if lowered else [])
    (task,) = chain.advance(5)
    assert task.streaming_output_flag is (kind is StreamChain and lowered is None)


def test_a_chain_is_started_within_the_tasks_budget_and_the_workers_context(prompt):
    worker = ScriptedWorker("")
    worker.max_seq_len = 400
    controller = BaseController()
    controller.bind({"generation": worker})
    asked = max(map(len, (FAMILY.probe, FAMILY.close, FAMILY.close_closed))) + 7
    for own, wanted, budget in ((None, 9, 9), (5, 9, 5), (None, 10_000, 400 - 3 - asked)):
        chain = start_chain(controller, prompt(max_tokens=own), FAMILY, max_tokens=wanted, answer_tokens=7)
        assert chain.max_tokens == budget


def test_a_prefix_without_log_probabilities_says_what_to_set() -> None:
    step = {5: {"logprob": -0.1}}
    assert Prefix(1, "a", [5], [step]).token_logprobs() == [step]
    assert Prefix(0, "", []).token_logprobs() == []
    with pytest.raises(ConfigError, match=r"num_logprobs: the chain has no log-probabilities: add num_logprobs to its"):
        Prefix(1, "a", [5]).token_logprobs()
