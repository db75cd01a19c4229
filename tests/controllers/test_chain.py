"""Chains: exact token ids from piece to piece, ends and their reasons, markers, discarded work, forced answers."""

import asyncio
import contextvars
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain import (
    ChunkChain,
    Prefix,
    StreamChain,
    asked_answer,
    asking,
    close_with,
    continuation,
)
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.program import Program, enter_program
from scaffolding_ext.prompting import Prompting, family_named
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.tasks import CHAIN, CHAIN_START, PROBE, Purpose, TokenCounts, purpose_of
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
PROMPT_IDS = [7, 8, 9]


def prompt(**fields):
    return GenerationTask(**({"input_str": "Q: ", "input_tokens": PROMPT_IDS} | fields))


def serve(worker, tasks):
    for task in tasks:
        asyncio.run(worker.run_task(task))


def rest_of(chain):
    """A worker that continues a chain from where a task stands."""
    return ScriptedWorker(lambda task: chain[len(task.input_tokens) - len(PROMPT_IDS) :])


def grow(chain, worker, *positions):
    for position in positions:
        serve(worker, chain.advance(position))
        chain.absorb()


# ---- chunks


@settings(deadline=None)
@given(st.lists(st.integers(0, 0x10FFFF), min_size=1, max_size=40), st.lists(st.integers(1, 15), min_size=1), st.data())
def test_chunks_carry_ids_exactly(reply, steps, data):
    """What is sent is prompt and all tokens before, by id: the ids here are no tokenizer's for their text."""
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
    assert chain.prefix == (min(max_tokens, len(reply)), "".join(map(chr, reply[:max_tokens])), reply[:max_tokens])
    assert chain.num_decoded == chain.prefix.num_tokens
    assert chain.stop() == []
    if len(reply) != max_tokens:
        assert (chain.finish_reason == "length") == (len(reply) > max_tokens)
    assert [purpose_of(task) for task in worker.tasks] == [CHAIN_START] + [CHAIN] * (len(worker.tasks) - 1)


def test_without_ids_the_chain_goes_on_as_text():
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


def test_a_prompt_without_ids_is_continued_as_text():
    chain = ChunkChain(prompt(input_tokens=None), 100, {})
    grow(chain, ScriptedWorker(lambda task: "abcdef"[len(task.input_str) - 3 :]), 2)
    (task,) = chain.advance(4)
    assert (task.input_str, task.input_tokens) == ("Q: ab", None)


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
def test_ends_of_chunks_and_their_reasons(produced, reason, budget, ended, finish_reason):
    chain = ChunkChain(prompt(), budget, {})
    (task,) = chain.advance(10)
    task.output_str, task.output_tokens, task.finish_reason = "x" * produced, [1] * produced, reason
    chain.absorb()
    assert chain.ended is ended
    if ended:
        assert chain.finish_reason == finish_reason


def test_a_chunk_asks_for_what_the_budget_leaves_and_for_something():
    chain = ChunkChain(prompt(), 25, {})
    worker = rest_of("x" * 100)
    grow(chain, worker, 10, 5, 40)
    assert [task.max_tokens for task in worker.tasks] == [10, 1, 14]
    assert (chain.ended, chain.finish_reason) == (True, "length")


def test_a_silent_worker_is_an_error():
    for chain in (ChunkChain(prompt(), 25, {}), StreamChain(prompt(), 25, {})):
        chain.advance(5)
        with pytest.raises(NoOutputError):
            chain.absorb()


def test_pieces_take_the_prompts_own_sampling_fields_first():
    own = {"stop": ["end"], "seed": 7, "top_p": 0.5}
    params = {"temperature": 0.3, "top_p": 0.9}
    for kind in (ChunkChain, StreamChain):
        (piece,) = kind(prompt(**own), 25, params).advance(5)
        assert (piece.temperature, piece.top_p, piece.stop, piece.seed) == (0.3, 0.5, ["end"], 7)


def test_each_chunk_draws_from_a_seed_of_its_own():
    worker = rest_of("x" * 100)
    grow(ChunkChain(prompt(seed=7), 100, {}), worker, 10, 20, 30)
    seeds = [task.seed for task in worker.tasks]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


# ---- streams


def test_a_stream_is_one_task_that_grows_to_each_position():
    worker = ScriptedWorker("x" * 18)
    chain = StreamChain(prompt(), 100, {})
    for position in (5, 7, 7, 17):
        (task,) = chain.advance(position)
        serve(worker, [task])
        chain.absorb()
        assert not chain.ended
        assert chain.prefix.num_tokens == {5: 5, 7: 7 + (task.streaming_step == 1), 17: 17}[position]
    grow(chain, worker, 30)
    assert (chain.ended, chain.finish_reason, chain.num_decoded) == (True, "stop", 18)
    assert chain.stop() == []
    assert worker.tasks == [task]
    assert type(task) is StreamGenerationTask
    assert (task.input_tokens, task.max_tokens, purpose_of(task)) == (PROMPT_IDS, 100, CHAIN_START)


def test_a_streams_prefix_is_a_snapshot():
    worker = ScriptedWorker("abcdef")
    chain = StreamChain(prompt(), 100, {})
    assert chain.prefix == Prefix(0, "", [])
    (task,) = chain.advance(2)
    serve(worker, [task])
    chain.absorb()
    before = chain.prefix
    task.output_tokens += [1, 2, 3]  # as a worker does that extends the list
    assert before == Prefix(2, "ab", [97, 98])


def test_a_stopped_stream_is_cancelled_where_it_is():
    worker = ScriptedWorker("x" * 18)
    chain = StreamChain(prompt(), 100, {})
    grow(chain, worker, 5)
    (task,) = chain.stop()
    assert task.cancel_flag
    serve(worker, [task])
    chain.absorb()
    assert (chain.ended, chain.finish_reason, chain.prefix.num_tokens) == (True, "cancelled", 5)


@pytest.mark.parametrize(
    ("reply", "reported", "reason"),
    [("x" * 20, "length", "length"), ("x" * 20, None, "length"), ("x" * 9, "stop", "stop"), ("x" * 9, None, None)],
)
def test_ends_of_streams_and_their_reasons(reply, reported, reason):
    worker = ScriptedWorker(reply)
    chain = StreamChain(prompt(), 10, {})
    (task,) = chain.advance(99)
    serve(worker, [task])
    task.finish_reason = reported
    chain.absorb()
    assert chain.ended
    assert chain.finish_reason == reason


def test_a_stream_without_ids_is_probed_as_text():
    chain = StreamChain(prompt(), 100, {})
    (task,) = chain.advance(5)
    task.output_str = "some text"
    chain.absorb()
    probe = asking(chain.prompt, chain.prefix, " so {", {"max_tokens": 3})
    assert (probe.input_str, probe.input_tokens) == ("Q: some text so {", None)


# ---- markers


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1), st.integers(0, 30), st.booleans())
def test_a_marker_is_found_across_pieces_as_soon_as_it_is_whole(steps, position, present):
    text = "<" * position + ("</think>" if present else "</thi nk>") + "/" * 40
    worker = rest_of(text)
    chain = ChunkChain(prompt(), 1000, {})
    reached = 0
    while not chain.ended:
        reached += steps[len(worker.tasks) % len(steps)]
        grow(chain, worker, reached)
        assert chain.contains("</think>") == ("</think>" in chain.prefix.text)
        assert chain.contains("</think>") == ("</think>" in chain.prefix.text)


# ---- discarded work


def inside(program, function, *args):
    def call():
        enter_program(program)
        return function(*args)

    return contextvars.copy_context().run(call)


@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
def test_what_lies_beyond_a_prefix_is_discarded(make_chain):
    program = Program()
    worker = ScriptedWorker(lambda task: "x" * 100)
    chain = make_chain(prompt(), 50, {})
    prefix = chain.prefix

    def request():
        for position in (10, 30):
            yield chain.advance(position)
            chain.absorb()

    for work in program.meter(request()):
        serve(worker, work)
        prefix = prefix if prefix.num_tokens else chain.prefix
    assert inside(program, chain.discard_after, chain.prefix) == 0
    prefix = Prefix(12, "", None)
    assert inside(program, chain.discard_after, prefix) == 18
    assert program.ledger.by_purpose[Purpose.CHAIN].decoded == 12
    assert program.ledger.by_purpose[Purpose.DISCARDED] == TokenCounts(18)
    assert chain.discard_after(prefix) == 18  # outside of a program nothing is counted


def test_nothing_is_discarded_of_what_nobody_counted():
    program = Program()
    chain = ChunkChain(prompt(), 50, {})

    def request():
        (task,) = chain.advance(30)
        yield [task]
        chain.absorb()

    for (task,) in program.meter(request()):
        task.output_str = "a worker that gives neither ids nor counts"
    assert inside(program, chain.discard_after, Prefix(10, "", None)) == 0
    assert program.ledger.num_unmetered_tasks == 1


# ---- asking and closing


def test_a_continuation_sends_ids_where_all_are_known_and_text_always():
    prompting = Prompting.for_model("tinylm/draft")
    program = Program(seed=1)
    program.prompting = prompting
    prefix = Prefix(2, "ab", [97, 98])

    def sent(task=None, at=prefix, suffix="{"):
        made = inside(program, continuation, task or prompt(), at, 5, suffix)
        return made.input_str, made.input_tokens

    assert sent() == ("Q: ab{", [*PROMPT_IDS, 97, 98, *prompting.encode("{")])
    assert sent(suffix="") == ("Q: ab", [*PROMPT_IDS, 97, 98])
    assert sent(prompt(input_tokens=None)) == ("Q: ab{", None)
    assert sent(at=Prefix(2, "ab", None)) == ("Q: ab{", None)
    assert sent(prompt(input_str=None)) == (None, [*PROMPT_IDS, 97, 98, *prompting.encode("{")])
    unprompted = continuation(prompt(), prefix, 5, "{")
    assert (unprompted.input_str, unprompted.input_tokens) == ("Q: ab{", None)


def test_asking_honours_every_sampling_field_and_draws_a_seed():
    program = Program(seed=1)
    params = {"max_tokens": 4, "temperature": 0.0, "top_p": 0.5, "top_k": 3, "stop": ["}"]}
    task = inside(program, asking, prompt(), Prefix(0, "", []), FAMILY.probe, params)
    assert {name: getattr(task, name) for name in params} == params
    assert task.seed == Program(seed=1).next_seed()
    assert purpose_of(task) == PROBE


@pytest.mark.parametrize(("response", "answer"), [("5} so", "5"), ("}", None), ("5", None), ("", None)])
def test_the_answer_that_was_asked_for(response, answer):
    assert asked_answer(GenerationTask(output_str=response)) == answer


@pytest.mark.parametrize("token_ids", [[97, 98, 1, 2], None])
def test_closing_writes_prefix_and_answer(token_ids):
    program = Program()
    program.prompting = Prompting.for_model("tinylm/draft")
    task = prompt()
    inside(program, close_with, task, Prefix(2, "ab", token_ids), FAMILY.close, "5", FAMILY, "certain")
    ending = "</think>\nThe answer is \\boxed{5}."
    assert task.output_str == "ab" + ending
    assert task.output_tokens == (token_ids and [97, 98, *program.prompting.encode(ending)])
    assert task.customized_result_fields["answer"] == "5"
    assert task.customized_result_fields["exit_reason"] == "certain"


# ---- text that chunks split


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
def test_characters_that_chunks_split_are_whole(chunk_len):
    text = "So x\u00b2 \u2265 \u03c0/3 \u2192 5 \u65e5\u672c."

    def in_a_request():
        program = Program()
        program.prompting = Prompting.for_model("tinylm/draft")
        enter_program(program)
        worker = SplittingWorker(program.prompting, text)
        assert len(worker.ids) > len(text)  # several tokens a character
        chain = ChunkChain(prompt(), 1000, {})
        while not chain.ended:
            serve(worker, chain.advance(chain.prefix.num_tokens + chunk_len))
            chain.absorb()
        assert chain.text == text

    contextvars.copy_context().run(in_a_request)


@pytest.mark.parametrize("chunk_len", [1, 4, 7, 50])
def test_a_stop_string_ends_the_chain_wherever_chunks_split_it(chunk_len):
    worker = rest_of("first second third fourth")
    chain = ChunkChain(prompt(stop=["third"]), 1000, {})
    while not chain.ended:
        grow(chain, worker, chain.prefix.num_tokens + chunk_len)
    assert (chain.text, chain.finish_reason) == ("first second ", "stop")
