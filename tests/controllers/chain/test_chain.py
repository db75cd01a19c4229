"""Chains: exact token ids from piece to piece, ends and their reasons, markers, discarded work, forced answers."""

import asyncio
import contextvars
import itertools
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain import (
    ChunkChain,
    Prefix,
    StreamChain,
    asked_answer,
    asking,
    close_with,
    conclude,
    continuation,
    start_chain,
)
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.program import Program, enter_program
from scaffolding_ext.prompting import Prompting, family_named
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.tasks import CHAIN, CHAIN_START, PROBE, Purpose, TokenCounts, purpose_of, set_token_counts
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
        run(worker, chain.grow(position))


def run(worker, work):
    for tasks in work:
        serve(worker, tasks)


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
    text = "".join(map(chr, reply[:max_tokens]))
    assert chain.prefix == Prefix(min(max_tokens, len(reply)), text, reply[:max_tokens])
    assert chain.num_generated == chain.prefix.num_tokens
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


def test_a_chunk_asks_for_what_is_missing_and_the_budget_leaves():
    chain = ChunkChain(prompt(), 25, {})
    worker = rest_of("x" * 100)
    grow(chain, worker, 10, 5, 40)
    assert [task.max_tokens for task in worker.tasks] == [10, 15]
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
        grow(chain, worker, position)
        assert not chain.ended
        assert chain.prefix == Prefix(position, "x" * position, [ord("x")] * position)
    grow(chain, worker, 30)
    assert (chain.ended, chain.finish_reason, chain.num_generated) == (True, "stop", 18)
    assert chain.advance(99) == chain.stop() == []
    (task,) = worker.tasks
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
    run(worker, chain.leave())
    (task,) = worker.tasks
    assert task.cancel_flag
    assert (chain.ended, chain.finish_reason, chain.prefix.num_tokens) == (True, "cancelled", 5)


@pytest.mark.parametrize(
    ("reply", "reported", "reason"),
    [("x" * 20, "length", "length"), ("x" * 20, None, "length"), ("x" * 9, "stop", "stop"), ("x" * 9, None, "stop")],
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


# ---- positions of streams


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
def test_a_stream_is_read_at_positions_whatever_has_arrived(text, steps, extra, end_is_late, max_tokens):
    ids = TOKENIZER.encode(text)
    end = min(len(ids), max_tokens)

    def read(surplus, late):
        program = Program()
        program.prompting = TOKENIZER
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


def test_without_a_tokenizer_a_worker_that_runs_ahead_cannot_be_cut_and_the_trace_says_so():
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


@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
def test_a_prefix_has_the_logprobs_of_its_tokens_where_they_are_asked_for(make_chain):
    class Reporting(ScriptedWorker):
        def _write(self, task, generation, num_tokens):
            super()._write(task, generation, num_tokens)
            if task.num_logprobs:
                task.logprobs = [{token: -0.5} for token in task.output_tokens]

    for num_logprobs, entries in ((1, [{120: -0.5}] * 9), (None, None)):
        chain = make_chain(prompt(), 100, {"num_logprobs": num_logprobs})
        grow(chain, Reporting("x" * 50), 5, 9)
        assert chain.prefix.logprobs == entries


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
        for marker in ("</think>", "<", "//", "think"):
            assert chain.contains(marker) == (marker in text[:reached])


# ---- discarded work


def inside(program, function, *args):
    def call():
        enter_program(program)
        return function(*args)

    return contextvars.copy_context().run(call)


@pytest.mark.parametrize("counts", [TokenCounts(30, 3), TokenCounts(0, 0, 33), TokenCounts(5, 3, 25)])
@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
def test_what_lies_beyond_a_prefix_is_discarded_decoded_or_had_from_a_store(make_chain, counts):
    class Storing(ScriptedWorker):
        """Says of its output that it was decoded, had from a store, or some of each; the prompt has three tokens."""

        def _meter(self, task, _):
            if task.output_tokens:
                set_token_counts(task, counts)

    worker = Storing("x" * 100)
    chain = make_chain(prompt(), 50, {})
    program = Program()

    def request():
        yield from chain.grow(30)
        yield from chain.leave(Prefix(12, "", None))

    def drive():
        enter_program(program)
        run(worker, program.meter(request()))

    contextvars.copy_context().run(drive)
    ledger = program.ledger.by_purpose
    assert program.ledger.total == counts
    assert sum(ledger[Purpose.PROMPT][1:]) == 3  # what was read
    chain_counts, discarded = ledger[Purpose.CHAIN], ledger[Purpose.DISCARDED]
    assert (chain_counts.decoded + chain_counts.reused, discarded.decoded + discarded.reused) == (12, 18)
    run(worker, chain.leave())  # outside of a program nothing is counted


def test_nothing_is_discarded_of_what_nobody_counted():
    program = Program()
    chain = ChunkChain(prompt(), 50, {})

    def request():
        yield from chain.grow(30)
        yield from chain.leave(Prefix(10, "", None))

    for (task,) in program.meter(request()):
        task.output_str = "a worker that gives neither ids nor counts"
    assert Purpose.DISCARDED not in program.ledger.by_purpose
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


# ---- concluding


def concluded(reply, budget=100, answer="4} and", position=None, make_chain=ChunkChain, **options):
    """What `conclude` writes for a chain that was grown to a position (else to its end), and the trace."""
    program, task = Program(), prompt()
    worker = ScriptedWorker(lambda asked: answer if purpose_of(asked) == PROBE else reply)

    def request():
        chain = make_chain(task, budget, {})
        yield from chain.grow(budget if position is None else position)
        yield from conclude(task, chain, FAMILY, {"max_tokens": 9}, **options)

    def drive():
        enter_program(program)
        run(worker, program.meter(request()))

    contextvars.copy_context().run(drive)
    result = (task.output_str, task.customized_result_fields["answer"], task.customized_result_fields["exit_reason"])
    return result, [event["event"] for event in program.trace], program.ledger.by_purpose


THOUGHT = "so it is \\boxed{9}."


@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
@pytest.mark.parametrize(
    ("reply", "options", "output", "answer", "reason"),
    [
        (THOUGHT, {}, THOUGHT, "9", "end"),
        ("done</think>" + THOUGHT, {}, "done</think>" + THOUGHT, "9", "end"),
        ("no idea", {}, "no idea" + FAMILY.close + "4" + FAMILY.answer_end, "4", "end"),
        ("no idea", {"insist_on_answer": False}, "no idea", None, "end"),
        ("no</think> idea", {}, "no</think> idea" + FAMILY.close_closed + "4" + FAMILY.answer_end, "4", "end"),
        ("no idea", {"answer": "none"}, "no idea", None, "end"),
        # at its budget, and left for a reason
        (THOUGHT, {"budget": 5}, THOUGHT[:5] + FAMILY.close + "4" + FAMILY.answer_end, "4", "length"),
        (THOUGHT * 2, {"budget": len(THOUGHT)}, THOUGHT + FAMILY.close + "4" + FAMILY.answer_end, "4", "length"),
        (
            THOUGHT,
            {"position": 5, "exit_reason": "bored"},
            THOUGHT[:5] + FAMILY.close + "4" + FAMILY.answer_end,
            "4",
            "bored",
        ),
        ("</think>" + THOUGHT * 2, {"position": 26, "exit_reason": "x"}, "</think>" + THOUGHT[:18], "9", "x"),
    ],
)
def test_a_chain_is_concluded_with_its_own_answer_or_one_that_is_asked_for(
    make_chain, reply, options, output, answer, reason
):
    written, events, ledger = concluded(reply, make_chain=make_chain, **options)
    assert written == (output, answer, reason)
    asked = answer == "4" or options.get("answer") == "none"
    assert events == (["end", "force"] if asked else ["end"])
    assert Purpose.DISCARDED not in ledger
    assert (Purpose.PROBE in ledger) is asked


def test_the_token_that_ended_a_chain_is_not_read_again_when_it_is_asked():
    """Some engines hand over the token that ends a text; behind it a model would begin another text."""
    program, sent = Program(), []
    end_id = TOKENIZER.encode("<|end|>")[-1]
    ids = TOKENIZER.encode("no idea")

    class Ending(Worker):
        async def _generate(self, task):
            sent.append(task)
            probing = purpose_of(task) == PROBE
            task.output_tokens = TOKENIZER.encode("4}") if probing else [*ids, end_id]
            task.output_str = "4}" if probing else "no idea"
            task.finish_reason = "stop"

        task_handlers: ClassVar = {GenerationTask: _generate}

    task = prompt()

    def request():
        chain = ChunkChain(task, 100, {})
        yield from chain.grow(100)
        yield from conclude(task, chain, FAMILY, {"max_tokens": 9})

    def drive():
        program.prompting = TOKENIZER
        enter_program(program)
        run(Ending(), program.meter(request()))

    contextvars.copy_context().run(drive)
    close = TOKENIZER.encode(FAMILY.close)
    assert sent[1].input_tokens == PROMPT_IDS + ids + close
    ending = FAMILY.close + "4" + FAMILY.answer_end
    assert task.output_str == "no idea" + ending
    assert task.output_tokens == ids + TOKENIZER.encode(ending)
    assert program.ledger.by_purpose[Purpose.DISCARDED].decoded == 1


# ---- starting


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
def test_a_chain_is_started_as_the_worker_can_serve_it_and_the_trace_says_what_was_lowered(worker, mode, kind, lowered):
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


def test_a_chain_is_started_within_the_tasks_budget_and_the_workers_context():
    worker = ScriptedWorker("")
    worker.max_seq_len = 400
    controller = BaseController()
    controller.bind({"generation": worker})
    asked = max(map(len, (FAMILY.probe, FAMILY.close, FAMILY.close_closed))) + 7
    for own, wanted, budget in ((None, 9, 9), (5, 9, 5), (None, 10_000, 400 - 3 - asked)):
        chain = start_chain(controller, prompt(max_tokens=own), FAMILY, max_tokens=wanted, answer_tokens=7)
        assert chain.max_tokens == budget


@pytest.mark.parametrize("num_late_ends", [0, 1])
def test_a_stream_that_cannot_be_cut_ends_though_all_of_it_came_at_once(num_late_ends):
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


def test_a_prefix_without_log_probabilities_says_what_to_set() -> None:
    step = {5: {"logprob": -0.1}}
    assert Prefix(1, "a", [5], [step]).token_logprobs() == [step]
    assert Prefix(0, "", []).token_logprobs() == []
    with pytest.raises(ConfigError, match=r"num_logprobs: the chain has no log-probabilities: add num_logprobs to its"):
        Prefix(1, "a", [5]).token_logprobs()
