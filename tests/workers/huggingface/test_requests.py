"""HuggingFaceWorker where a task is bad, is streamed or is cancelled: its neighbours and its reader see only truth."""

import asyncio
import itertools
import threading

import numpy as np
import pytest

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.protocol import ExecutionScope, GenerationTask, StreamGenerationTask, TaskStatus, current_scope
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.scheduling import LongestPrefix
from scaffolding_ext.workers.huggingface.block_pool import IDLE
from scaffolding_ext.workers.huggingface.engine_request import GREEDY, Ends, EngineRequest, SamplingParams
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"
VOCABULARY, CONTEXT = 512, 2048
WAIT = 60  # seconds until a test gives up


@pytest.fixture(scope="module")
def worker():
    worker = HuggingFaceWorker(MODEL, max_batch_size=8, seed=0)
    yield worker
    worker.shutdown()


def run(worker, tasks):
    async def all_of_them():
        return await asyncio.wait_for(
            asyncio.gather(*(worker.run_task(task) for task in tasks), return_exceptions=True), WAIT
        )

    return asyncio.run(all_of_them())


def test_a_request_waits_in_the_place_of_its_program_unless_its_task_has_one(worker):
    program = Program()
    program.place.order = lambda progress: 7.0
    branches = VerifyTask(branches=[[5, 6]], yes_token=7, no_token=8)
    scored = ScoreTask(input_tokens=[5, 6], continuation_tokens=[7])
    own = GenerationTask(input_tokens=[5, 6], temperature=0.0)
    note(own, priority=0.5)

    async def priorities():
        enter_program(program)
        made = [worker._builder.generation(GenerationTask(input_tokens=[5, 6], temperature=0.0))]
        made += [worker._builder.generation(own), worker._builder.score(scored)]
        return [request.priority for request in (*made, *worker._builder.verify(branches))]

    assert asyncio.run(priorities()) == [7.0, 0.5, 7.0, 7.0]
    assert worker.unordered is None


def prompt():
    return Prompting.for_model(MODEL).encode("Start with 5. Apply a+3,b-2. Find the total.\n")


# ---- bad tasks


BAD = [
    ({"input_tokens": [5, VOCABULARY]}, "contains 512; the model's token ids are 0 to 511"),
    ({"input_tokens": [5, 6.0]}, "integer token ids"),
    ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ({"temperature": float("nan")}, "temperature is nan; it must be a finite number"),
    ({"temperature": 1e-9}, "it must be 0 (greedy) or at least 0.001"),
    ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
    ({"top_p": 1.5}, "top_p is 1.5; it must be above 0 and at most 1"),
    ({"top_k": 2.5}, "top_k is 2.5; it must be a whole number"),
    ({"num_logprobs": -1}, "num_logprobs is -1; it must be at least 0"),
    ({"min_tokens": 0.5}, "min_tokens is 0.5"),
    ({"max_tokens": 2.5}, "max_tokens is 2.5; it must be a whole number"),
    ({"max_tokens": -5}, "max_tokens is -5; it must be at least 1"),
    ({"stop": [7]}, "stop is [7]; it must be a string or a list of strings"),
    ({"input_tokens": [5] * CONTEXT, "max_tokens": None}, "has 2048 tokens, but a request may have 2048 in all"),
    ({"n": 2}, "n is 2"),
    ({"custom_input_params": {"guided_decoding": {"regex": "7"}}}, "custom_input_params has guided_decoding"),
    ({"custom_input_params": {"stop_token_ids": [7]}}, "has stop_token_ids, which HuggingFaceWorker cannot"),
    ({"presence_penalty": 0.5}, "presence_penalty is 0.5"),
    ({"logit_bias": {"5": 1.0}}, "logit_bias"),
    ({"max_tokens": 5000}, "max_tokens is 5000"),
    ({"input_tokens": []}, "input is empty"),
    ({"input_tokens": None}, "both None"),
]


def test_a_bad_task_fails_alone_and_says_why(worker):
    good = GenerationTask(input_tokens=[5, 6, 7], max_tokens=3, temperature=0.0)
    bad = [GenerationTask(**{"input_tokens": [5], "max_tokens": 3, "temperature": 1.0, **fields}) for fields, _ in BAD]
    status, *errors = run(worker, [good, *bad])
    assert status is TaskStatus.SUCCESS
    said = [(type(error), str(error), message) for error, (_, message) in zip(errors, BAD, strict=True)]
    assert [each for each in said if each[0] is not InvalidTaskError or each[2] not in each[1]] == []


def test_a_bad_score_task_fails_alone(worker):
    good = ScoreTask(input_tokens=[5, 6], continuation_tokens=[7, 8])
    bad = [
        ScoreTask(input_tokens=[5, 6], continuation_tokens=[7, VOCABULARY]),
        ScoreTask(input_tokens=[-3], continuation_tokens=[7]),
        ScoreTask(input_tokens=[5] * CONTEXT, continuation_tokens=[7]),
    ]
    status, *errors = run(worker, [good, *bad])
    assert status is TaskStatus.SUCCESS
    for error, message in zip(errors, ("continuation_tokens contains 512", "contains -3", "2049 tokens"), strict=True):
        assert isinstance(error, InvalidTaskError)
        assert message in str(error)


def test_numbers_of_numpy_are_numbers(worker):
    fields = {"max_tokens": 20, "temperature": 1.0, "top_k": 50, "seed": 7}
    plain = GenerationTask(input_tokens=prompt(), **fields)
    types = {"max_tokens": np.int32, "temperature": np.float32, "top_k": np.int64, "seed": np.int64}
    given = {name: types[name](value) for name, value in fields.items()}
    other = GenerationTask(input_tokens=list(np.array(prompt())), **given)
    huge = GenerationTask(input_tokens=prompt(), **(fields | {"top_k": 1 << 80, "seed": 1 << 80}))
    assert run(worker, [plain, other, huge]) == [TaskStatus.SUCCESS] * 3
    assert plain.output_tokens == other.output_tokens


def test_a_prompt_one_short_of_the_context_has_room_for_one_token(worker):
    task = GenerationTask(input_tokens=[5] * (CONTEXT - 1), temperature=0.0)
    assert run(worker, [task]) == [TaskStatus.SUCCESS]
    assert len(task.output_tokens) == 1


def test_a_task_that_runs_again_starts_afresh(worker):
    task = GenerationTask(input_tokens=prompt(), max_tokens=20, temperature=0.0)
    run(worker, [task])
    first = task.output_tokens
    run(worker, [task])
    assert task.output_tokens == first


# ---- streaming


async def stream(worker, task):
    """Step a stream to its end; its text and number of tokens after each step."""
    seen = []
    while not task.end_flag:
        await asyncio.wait_for(worker.run_task(task), WAIT)
        seen.append((task.output_str, len(task.output_tokens)))
    return seen


def test_a_token_its_text_and_the_end_it_brings_appear_together():
    tokenizer = load_tokenizer(MODEL).backend_tokenizer
    ids = tokenizer.encode("So I get 7.", add_special_tokens=False).ids
    request = EngineRequest([5], Ends(len(ids)), SamplingParams(0.0, 0, 1.0, 0))
    for position, token in enumerate(ids):
        request.accept(token, None, tokenizer, frozenset())
        snapshot = request.answer()
        assert snapshot.token_ids == ids[: position + 1]
        assert snapshot.text == tokenizer.decode(snapshot.token_ids)
        assert (snapshot.finish_reason is not None) == request.ended == (position == len(ids) - 1)
        assert snapshot.counts.decoded == position + 1


def test_a_failure_behind_the_awaited_tokens_is_no_end():
    request = EngineRequest([5], Ends(9), SamplingParams(0.0, 0, 1.0, 0))
    request.accept(6, None, load_tokenizer(MODEL).backend_tokenizer, frozenset())
    request.end("error", EngineError("out of luck"))
    task = StreamGenerationTask(input_tokens=[5], temperature=0.0)
    with pytest.raises(EngineError, match="out of luck"):
        request.answer().fill(task)


@pytest.mark.parametrize(("stop", "expected"), [("get 8", "So I get 7."), ("get 7", "So I ")])
def test_what_may_become_a_stop_string_is_held_back(stop, expected):
    tokenizer = load_tokenizer(MODEL).backend_tokenizer
    ids = tokenizer.encode("So I get 7.", add_special_tokens=False).ids
    request = EngineRequest([5], Ends(len(ids), (stop,)), SamplingParams(0.0, 0, 1.0, 0))
    texts = []
    while not request.ended:
        request.accept(ids[request.num_decoded], None, tokenizer, frozenset())
        texts.append(request.answer().text)
        whole = tokenizer.decode(ids[: request.num_decoded])
        assert request.ended or not any(texts[-1].endswith(stop[:n]) for n in range(1, len(stop)))
        assert whole.startswith(texts[-1])
    assert texts[-1] == expected
    assert all(expected.startswith(text) for text in texts)


@pytest.mark.parametrize("step", [0, None, -3, 1])
def test_every_step_of_a_stream_brings_something(worker, step):
    plain = GenerationTask(input_tokens=prompt(), max_tokens=40, temperature=0.0)
    run(worker, [plain])
    task = StreamGenerationTask(input_tokens=prompt(), max_tokens=40, streaming_step=step, temperature=0.0)
    lengths = [0, *(length for _, length in asyncio.run(stream(worker, task)))]
    assert all(after > before for before, after in itertools.pairwise(lengths))
    assert (task.output_tokens, task.output_str) == (plain.output_tokens, plain.output_str)


def test_streamed_text_is_never_taken_back(worker):
    plain = GenerationTask(input_tokens=prompt(), max_tokens=60, temperature=0.0)
    run(worker, [plain])
    stop = plain.output_str[20:27]
    task = StreamGenerationTask(input_tokens=prompt(), max_tokens=60, stop=[stop], temperature=0.0)
    seen = asyncio.run(stream(worker, task))
    assert task.output_str == plain.output_str[: plain.output_str.index(stop)]
    assert all(task.output_str.startswith(text) for text, _ in seen)


@pytest.mark.parametrize("task_type", [GenerationTask, StreamGenerationTask])
def test_streamed_outputs_have_lists_of_their_own(worker, task_type):
    task = task_type(input_tokens=prompt(), max_tokens=40, streaming_output_flag=True)
    if task_type is GenerationTask:
        run(worker, [task])
    else:
        asyncio.run(stream(worker, task))
    lists = [output.token_ids for output in task.streaming_output_list]
    assert len({id(ids) for ids in (*lists, task.output_tokens)}) == len(lists) + 1
    assert all(a == b[: len(a)] and len(a) < len(b) for a, b in itertools.pairwise(lists))
    assert lists[-1] == task.output_tokens[: len(lists[-1])]


# ---- cancelled work


def test_what_a_cancelled_task_has_cost_is_in_it(worker):
    task = GenerationTask(input_tokens=[9, 8, 7], max_tokens=1900, ignore_eos=True, temperature=0.0)

    async def cancel():
        before = worker.metrics.num_decoded
        waiting = asyncio.ensure_future(worker.run_task(task))
        while worker.metrics.num_decoded < before + 3:  # noqa: ASYNC110  (the engine tells nobody)
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    counts = token_counts_of(task)
    assert counts.prefilled + counts.reused == 3
    assert counts.decoded >= 3


def test_a_stream_is_forgotten_under_the_scope_that_opened_it(worker):
    async def open_here_end_there():
        token = current_scope.set(ExecutionScope("request", (1,)))
        task = StreamGenerationTask(input_tokens=prompt(), max_tokens=20, temperature=0.0)
        await worker.run_task(task)
        assert list(worker._streams) == ["request:1"]
        current_scope.reset(token)
        await stream(worker, task)

    asyncio.run(open_here_end_there())
    assert worker._streams == {}


def test_the_longest_prefix_orders_by_the_prompt_tokens_in_the_cache():
    known, new = list(range(10, 50)), list(range(60, 100))
    with HuggingFaceWorker(MODEL, tokens_per_block=16, seed=0) as worker:
        run(worker, [GenerationTask(input_tokens=known, max_tokens=1)])
        program = Program()
        program.place.order = LongestPrefix().priority

        async def priorities():
            enter_program(program)
            tasks = [GenerationTask(input_tokens=ids, max_tokens=1) for ids in (new, known, [*known[:20], *new])]
            return [worker._builder.generation(task).priority for task in tasks]

        assert asyncio.run(priorities()) == [0, -32, -16]


def test_the_engine_says_which_programs_are_idle():
    with HuggingFaceWorker(MODEL, tokens_per_block=16, seed=0, eviction_policy="idle_first") as worker:
        scope = current_scope.set(ExecutionScope(request_id="a"))
        run(worker, [GenerationTask(input_tokens=list(range(10, 50)), max_tokens=3) for _ in range(2)])
        current_scope.reset(scope)
        pool = worker._engine.pool
        assert not pool._num_open
        assert {(block.owner, pool._worth(block)) for block in pool._cached} == {("a", IDLE)}


def request_of(num_decoded):
    request = EngineRequest([5], Ends(20), GREEDY)
    request.num_decoded = num_decoded
    return request


def test_late_word_of_an_earlier_wish_does_not_end_a_later_one():
    async def wait():
        request = request_of(3)
        later = asyncio.ensure_future(request.wait(10))
        await asyncio.sleep(0)
        request.notify()  # about 3 tokens, which nobody waits for any more
        for _ in range(3):
            await asyncio.sleep(0)
        assert not later.done()
        assert request.wanted == 10  # the wish stands again
        request.num_decoded = 10
        threading.Thread(target=request.notify).start()
        await later

    asyncio.run(wait())
