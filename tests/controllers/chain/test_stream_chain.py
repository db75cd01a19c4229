"""Chains in one stream: read at exact positions, whatever has arrived."""

import contextvars
import itertools
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.stream_chain import StreamChain
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.meta import CHAIN_START, PAUSED, meta_of, purpose_of
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.testing import ScriptedWorker

PROMPT_IDS = [7, 8, 9]


def test_a_stream_is_one_task_that_grows_to_each_position(prompt, grow):
    worker = ScriptedWorker("x" * 18)
    chain = StreamChain(prompt(), 100, {})
    for position in (5, 7, 7, 17):
        grow(chain, worker, position)
        assert not chain.ended
        assert chain.prefix == Prefix(position, "x" * position, [ord("x")] * position)
    grow(chain, worker, 30)
    assert (chain.ended, chain.finish_reason, chain.num_generated) == (True, "stop", 18)
    assert chain.advance(99) == chain.stop() == []
    (task,) = worker.tasks
    assert type(task) is StreamGenerationTask
    assert (task.input_tokens, task.max_tokens, purpose_of(task)) == (PROMPT_IDS, 100, CHAIN_START)


def test_a_stopped_stream_is_cancelled_where_it_is(prompt, grow, run):
    worker = ScriptedWorker("x" * 18)
    chain = StreamChain(prompt(), 100, {})
    grow(chain, worker, 5)
    run(worker, chain.leave())
    (task,) = worker.tasks
    assert task.cancel_flag
    assert (chain.ended, chain.finish_reason, chain.prefix.num_tokens) == (True, "cancelled", 5)


@pytest.mark.parametrize(
    ("reply", "reported", "reason"),
    [("x" * 20, "length", "length"), ("x" * 20, None, "length"), ("x" * 9, "stop", "stop"), ("x" * 9, None, "stop")],
)
def test_ends_of_streams_and_their_reasons(reply, reported, reason, prompt, serve):
    worker = ScriptedWorker(reply)
    chain = StreamChain(prompt(), 10, {})
    (task,) = chain.advance(99)
    serve(worker, [task])
    task.finish_reason = reported
    chain.absorb()
    assert chain.ended
    assert chain.finish_reason == reason


class AheadWorker(Worker):
    """Hands over more of a stream than it is asked for, by a number that the test draws."""

    def __init__(self, ids, tokenizer, extra, end_is_late, max_tokens):
        self.ids, self.tokenizer, self.extra = ids[:max_tokens], tokenizer, extra
        self.finish_reason = "stop" if len(ids) <= max_tokens else "length"
        self.end_is_late = end_is_late

    async def _stream(self, task):
        before = len(task.output_tokens or ())
        arrived = before + task.streaming_step + next(self.extra)
        task.output_tokens = self.ids[:arrived]
        task.output_str = self.tokenizer.decode(task.output_tokens)
        # Where the end comes as an event of its own, all tokens may be there while nobody knows that they are all.
        if arrived > len(self.ids) or (arrived == len(self.ids) and not self.end_is_late):
            task.end_flag, task.finish_reason = True, self.finish_reason

    task_handlers: ClassVar = {StreamGenerationTask: _stream}


TOKENIZER = Prompting.for_model("tinylm/draft")


@settings(deadline=None)
@given(
    st.text(st.sampled_from("ab 1\u00b2\u2265\u03c0\u65e5\n"), min_size=1, max_size=30),
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.booleans(),
    st.integers(1, 60),
)
def test_a_stream_is_read_at_positions_whatever_has_arrived(prompt, grow, text, steps, extra, end_is_late, max_tokens):
    ids = TOKENIZER.encode(text)
    end = min(len(ids), max_tokens)

    def read(surplus, late):
        program = Program()
        program.question = Question(prompting=TOKENIZER)
        enter_program(program)
        worker = AheadWorker(ids, TOKENIZER, itertools.cycle(surplus), late, max_tokens)
        chain = StreamChain(prompt(), max_tokens, {})
        seen, strides = [], itertools.cycle(steps)
        while not chain.ended:
            grow(chain, worker, chain.num_tokens + next(strides))
            seen.append((chain.prefix, chain.ended, chain.finish_reason))
        assert program.trace == []
        return seen

    seen = contextvars.copy_context().run(read, extra, end_is_late)
    assert seen == contextvars.copy_context().run(read, [0], False)
    position = 0
    for (prefix, ended, reason), step in zip(seen, itertools.cycle(steps), strict=False):
        position += step
        assert prefix.num_tokens == min(position, end)
        assert prefix.token_ids == ids[: prefix.num_tokens]
        assert ended == (position >= end)
        assert reason == (None if not ended else "stop" if len(ids) <= max_tokens else "length")
        whole = TOKENIZER.decode(prefix.token_ids)
        assert prefix.text == whole if ended else whole.startswith(prefix.text)
        assert ended or "\ufffd" not in prefix.text


def test_without_a_tokenizer_a_worker_that_runs_ahead_cannot_be_cut_and_the_trace_says_so(prompt, grow):
    program = Program()

    def in_a_request():
        enter_program(program)
        ids = list(range(200, 260))
        worker = AheadWorker(ids, TOKENIZER, itertools.repeat(4), False, 100)
        chain = StreamChain(prompt(), 100, {})
        grow(chain, worker, 10)
        assert chain.prefix == Prefix(14, TOKENIZER.decode(ids[:14]), ids[:14])
        grow(chain, worker, 100)
        assert (chain.ended, chain.num_tokens) == (True, 60)

    contextvars.copy_context().run(in_a_request)
    (event,) = program.trace
    assert (event["event"], event["position"], event["arrived"]) == ("inexact", 10, 14)


@pytest.mark.parametrize("num_late_ends", [0, 1])
def test_a_stream_that_cannot_be_cut_ends_though_all_of_it_came_at_once(num_late_ends, grow):
    """Without a tokenizer the text of a position is not known; the worker may tell the end only when asked again."""
    late = itertools.count()

    class AllAtOnce(Worker):
        async def stream(self, task):
            task.output_str, task.output_tokens, task.finish_reason = "abcdefgh", [*range(8)], "length"
            task.end_flag = next(late) >= num_late_ends

        task_handlers: ClassVar = {StreamGenerationTask: stream}

    chain = StreamChain(GenerationTask(input_str="Q"), 8, {})
    for position in (2, 4, 8, 9):
        grow(chain, AllAtOnce(), position)
    assert (chain.ended, chain.finish_reason, chain.text) == (True, "length", "abcdefgh")


def test_the_bound_of_a_further_stream_counts_from_its_own_beginning(prompt, grow):
    class Ends(Worker):
        async def stream(self, task):
            task.output_str, task.output_tokens = "x" * 10, [*range(10)]
            task.end_flag, task.finish_reason = True, PAUSED

        task_handlers: ClassVar = {StreamGenerationTask: stream}

    chain = StreamChain(prompt(), 100, {}, max_lead=5)
    grow(chain, Ends(), 5)
    (task,) = chain.advance(12)  # behind 10 tokens; may run to 17 of the chain
    assert meta_of(task).may_run_to == 7
