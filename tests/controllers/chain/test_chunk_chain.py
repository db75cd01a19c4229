"""Chains in chunks: exact token ids from chunk to chunk, their ends, and text that chunks split."""

import contextvars
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain, ControlledChain
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, Worker
from scaffolding_ext.protocol.meta import CHAIN, CHAIN_START, purpose_of
from scaffolding_ext.request.program import Program, Question, enter_program

PROMPT_IDS = [7, 8, 9]


@settings(deadline=None)
@given(st.lists(st.integers(0, 0x10FFFF), min_size=1, max_size=40), st.lists(st.integers(1, 15), min_size=1), st.data())
def test_chunks_carry_ids_exactly(prompt, rest_of, grow, reply, steps, data):
    """Prompt and all tokens before are sent by id: the ids here are no tokenizer's for their text."""
    worker = rest_of(reply)
    max_tokens = data.draw(st.integers(1, 50))
    chain = ChunkChain(prompt(), max_tokens, {})
    position = 0
    while not chain.ended:
        before = chain.prefix
        position += steps[len(worker.tasks) % len(steps)]
        grow(chain, worker, position)
        task = worker.tasks[-1]
        assert type(task) is GenerationTask
        assert task.input_tokens == PROMPT_IDS + before.token_ids == PROMPT_IDS + reply[: before.num_tokens]
        assert task.input_str == "Q: " + before.text
        assert chain.prefix.num_tokens == min(position, max_tokens, len(reply))
        assert before.token_ids == reply[: before.num_tokens]  # a prefix is a snapshot
    text = "".join(map(chr, reply[:max_tokens]))
    assert chain.prefix == Prefix(min(max_tokens, len(reply)), text, reply[:max_tokens])
    assert chain.num_generated == chain.prefix.num_tokens
    assert chain.stop() == []
    if len(reply) != max_tokens:
        assert (chain.finish_reason == "length") == (len(reply) > max_tokens)
    assert [purpose_of(task) for task in worker.tasks] == [CHAIN_START] + [CHAIN] * (len(worker.tasks) - 1)


def test_without_ids_the_chain_goes_on_as_text(prompt):
    chain = ChunkChain(prompt(), 100, {})
    for text in ("first ", "second"):
        (task,) = chain.advance(chain.prefix.num_tokens + 10)
        task.output_str = text
        chain.absorb()
    assert chain.prefix == Prefix(20, "first second", None)  # a chunk without ids is taken for as long as asked
    (task,) = chain.advance(30)
    assert (task.input_str, task.input_tokens) == ("Q: first second", None)
    task.output_str, task.output_tokens, task.finish_reason = ".", [1], "stop"
    chain.absorb()
    assert chain.prefix == Prefix(21, "first second.", None)  # ids that are missing once are missing for good


@pytest.mark.parametrize(
    ("produced", "reason", "budget", "ended", "finish_reason"),
    [
        (10, "length", 100, False, None),
        (10, "length", 10, True, "length"),
        (10, "stop", 100, True, "stop"),
        (10, "stop", 10, True, "stop"),
        (4, "stop", 100, True, "stop"),
        (0, "stop", 100, True, "stop"),
        (4, None, 100, True, "stop"),  # workers before finish_reason: a short chunk is an end
        (10, None, 100, False, None),
        (10, None, 10, True, "length"),
        (4, "cancelled", 100, True, "cancelled"),
    ],
)
def test_ends_of_chunks_and_their_reasons(produced, reason, budget, ended, finish_reason, prompt):
    chain = ChunkChain(prompt(), budget, {})
    (task,) = chain.advance(10)
    task.output_str, task.output_tokens, task.finish_reason = "x" * produced, [1] * produced, reason
    chain.absorb()
    assert chain.ended is ended
    if ended:
        assert chain.finish_reason == finish_reason


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1), st.integers(0, 30), st.booleans())
def test_a_marker_is_found_across_pieces_as_soon_as_it_is_whole(prompt, rest_of, grow, steps, position, present):
    text = "<" * position + ("</think>" if present else "</thi nk>") + "/" * 40
    worker = rest_of(text)
    chain = ChunkChain(prompt(), 1000, {})
    reached = 0
    while not chain.ended:
        reached += steps[len(worker.tasks) % len(steps)]
        grow(chain, worker, reached)
        assert chain.has_thought == ("</think>" in text[:reached])


class SplittingWorker(Worker):
    """Writes given token ids, chunk by chunk, each decoded by itself as an engine would."""

    def __init__(self, prompting, text):
        self.prompting = prompting
        self.ids = prompting.encode(text)

    async def _generate(self, task):
        written = len(task.input_tokens) - len(PROMPT_IDS)
        task.output_tokens = self.ids[written : written + task.max_tokens]
        task.output_str = self.prompting.decode(task.output_tokens)
        task.finish_reason = "stop" if written + task.max_tokens >= len(self.ids) else "length"

    task_handlers: ClassVar = {GenerationTask: _generate}


@pytest.mark.parametrize("chunk_len", [1, 2, 3, 5, 100])
def test_characters_that_chunks_split_are_whole(chunk_len, prompt, serve):
    text = "So x\u00b2 \u2265 \u03c0/3 \u2192 5 \u65e5\u672c."

    def in_a_request():
        program = Program()
        program.question = Question(prompting=Prompting.for_model("tinylm/draft"))
        enter_program(program)
        worker = SplittingWorker(program.question.prompting, text)
        assert len(worker.ids) > len(text)  # several tokens a character
        chain = ChunkChain(prompt(), 1000, {})
        while not chain.ended:
            serve(worker, chain.advance(chain.prefix.num_tokens + chunk_len))
            chain.absorb()
        assert chain.text == text

    contextvars.copy_context().run(in_a_request)


def test_a_chain_that_a_controller_writes_yields_what_runs_beside_it_and_then_its_chunk():
    beside, prompt = GenerationTask(), GenerationTask(input_str="Q:", input_tokens=PROMPT_IDS)
    growing = ControlledChain(prompt, 10, NativeGenerationController()).grow(4, [beside])
    assert next(growing) == [beside]
    (chunk,) = next(growing)
    assert (chunk.input_tokens, chunk.max_tokens) == (PROMPT_IDS, 4)
    (alone,) = next(ControlledChain(prompt, 10, NativeGenerationController()).grow(4))
    assert (alone.input_tokens, alone.max_tokens) == (PROMPT_IDS, 4)


def test_each_chunk_draws_from_a_seed_of_its_own(prompt, rest_of, grow):
    worker = rest_of("x" * 100)
    grow(ChunkChain(prompt(seed=7), 100, {}), worker, 10, 20, 30)
    seeds = [task.seed for task in worker.tasks]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("family", ["tinylm", "instruct"])  # one thinks, so the string is held back from its worker
@pytest.mark.parametrize("chunk_len", [1, 7, 50])
def test_a_stop_string_ends_the_chain_wherever_chunks_split_it(chunk_len, family, prompt, rest_of, grow):
    worker = rest_of("first second third fourth")
    chain = ChunkChain(prompt(stop=["third"]), 1000, {})
    chain.family = family_named(family)
    while not chain.ended:
        grow(chain, worker, chain.prefix.num_tokens + chunk_len)
    assert (chain.text, chain.finish_reason) == ("first second ", "stop")
