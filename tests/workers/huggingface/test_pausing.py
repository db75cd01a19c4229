"""Streams that pause, what goes before them, and that nothing of it changes a text or loses a request."""

import asyncio
import contextlib

import pytest

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import PROBE, note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"
WAIT = 60  # seconds until a test gives up
BLOCK_BYTES = 16 * 2 * 3 * 3 * 32 * 4  # tokens x (keys, values) x layers x heads x head size x float32
LITTLE = {"max_seq_len": 16, "tokens_per_block": 16, "kv_cache_bytes": 2 * BLOCK_BYTES}  # one block, one for padding


def make(**options):
    return HuggingFaceWorker(MODEL, **{"max_seq_len": 512, "seed": 0, **options})


def stream(seed, num_tokens=60, run_to=None, prompt=None):
    task = StreamGenerationTask(
        input_tokens=prompt or [5, 6, 7 + seed], max_tokens=num_tokens, temperature=0.9, seed=seed, ignore_eos=True
    )
    note(task, may_run_to=run_to)
    return task


def probe(number):
    task = GenerationTask(input_tokens=[9, 10 + number], max_tokens=4, ignore_eos=True)
    note(task, purpose=PROBE)
    return task


async def paused(worker, num_paused, turns=None):
    """Until so many streams rest, and the engine with them.

    Where several wait, they need a lock: what others wait for goes before streams that run ahead, so that probes
    without a pause between them would keep these from ever getting there.
    """
    while worker.metrics.num_paused < num_paused:
        async with turns or contextlib.nullcontext():
            await worker.run_task(probe(0))  # a turn of the engine


async def grown(worker, task, turns, spacing=7):
    """Have a stream grow to its end by one spacing after the other, resting behind each."""
    while not task.end_flag:
        read = len(task.output_tokens or ())
        task.streaming_step = spacing
        note(task, may_run_to=read + spacing + 3)
        await worker.run_task(task)
        if read + spacing + 3 < task.max_tokens and read % 2:
            await paused(worker, 1, turns)
    return task.output_tokens, task.output_str


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 1}, {"max_batch_size": 2, "enable_block_reuse": False}])
def test_a_text_is_the_same_with_and_without_pauses(options):
    async def texts(run_to):
        with make(**options) as worker:
            tasks = [stream(seed) for seed in range(6)]
            if run_to is None:
                for task in tasks:
                    task.streaming_step = 60
                await asyncio.wait_for(asyncio.gather(*map(worker.run_task, tasks)), WAIT)
                return [(task.output_tokens, task.output_str) for task in tasks]
            turns = asyncio.Lock()
            return await asyncio.wait_for(asyncio.gather(*(grown(worker, task, turns) for task in tasks)), WAIT)

    assert asyncio.run(texts(True)) == asyncio.run(texts(None))


def test_a_stream_pauses_where_it_was_told_and_goes_on_when_asked():
    async def scenario():
        with make() as worker:
            task = stream(1, run_to=9)
            task.streaming_step = 4
            await worker.run_task(task)
            num_read = len(task.output_tokens)  # 4, or more that came before this side looked
            await paused(worker, 1)
            before = worker.metrics.num_decoded
            for number in range(20):
                await worker.run_task(probe(number))
            assert worker.metrics.num_decoded - before == 20 * 3  # the probes alone: a text's last token needs no KV
            await worker.run_task(task)
            assert len(task.output_tokens) == max(9, num_read + 4)  # what is asked for goes before the bound
            note(task, may_run_to=None)
            task.streaming_step = 60
            await worker.run_task(task)
            assert len(task.output_tokens) == 60
            assert task.finish_reason == "length"

    asyncio.run(asyncio.wait_for(scenario(), WAIT))


@pytest.mark.parametrize(("max_batch_size", "memory"), [(1, LITTLE), (4, {})])
@pytest.mark.parametrize("end", ["cancel_flag", "scope", "shutdown"])
def test_a_paused_stream_ends_as_others_do(end, max_batch_size, memory):
    """With one block the stream has lost its own to the probes, too."""

    async def scenario():
        with make(max_batch_size=max_batch_size, **memory) as worker:
            task = stream(1, num_tokens=12, run_to=5)
            await worker.run_task(task)
            await paused(worker, 1)
            if max_batch_size == 1:
                await worker.run_task(
                    probe(1)
                )  # it takes the place, whether or not one did while the stream came to rest
                assert worker.metrics.num_preempted >= 1
            if end == "cancel_flag":
                task.cancel_flag = True
                assert await worker.run_task(task) is TaskStatus.SUCCESS
                assert task.finish_reason == "cancelled"
                assert token_counts_of(task).decoded == 5
            elif end == "scope":
                (scope_id,) = worker._streams
                await worker.on_scope_end(scope_id)
                await worker.run_task(probe(1))
            else:
                task.streaming_step = 50
                waiting = asyncio.ensure_future(worker.run_task(task))
                worker.shutdown()
                with pytest.raises(EngineError):
                    await waiting
            metrics = worker.metrics
            assert (metrics.num_running, metrics.num_waiting, metrics.num_paused) == (0, 0, 0)
            assert not worker._engine._unfinished

    asyncio.run(asyncio.wait_for(scenario(), WAIT))


def test_what_others_wait_for_goes_before_chains_that_came_earlier():
    async def scenario():
        with make(max_batch_size=2) as worker:
            ended = []

            async def run(name, task):
                await worker.run_task(task)
                ended.append(name)

            chains = [GenerationTask(input_tokens=[5, i], max_tokens=120, ignore_eos=True) for i in range(12)]
            score = ScoreTask(input_tokens=[5, 6], continuation_tokens=[7, 8])
            with worker._engine._wake:  # the engine gets them all at once
                calls = [asyncio.ensure_future(run("chain", chain)) for chain in chains]
                calls += [asyncio.ensure_future(run("urgent", task)) for task in (probe(1), score)]
                await asyncio.sleep(0)
            await asyncio.gather(*calls)
            assert ended[:2] == ["urgent", "urgent"]

    asyncio.run(asyncio.wait_for(scenario(), WAIT))


def test_chains_are_served_between_probes_without_end():
    """Probes come as long as the chain has not ended: it must end all the same."""

    async def scenario():
        with make(max_batch_size=1) as worker:
            chain = asyncio.ensure_future(
                worker.run_task(GenerationTask(input_tokens=[5, 6], max_tokens=8, ignore_eos=True))
            )

            async def keep_probing(number):
                while not chain.done():
                    await worker.run_task(probe(number))

            await asyncio.gather(*(keep_probing(number) for number in range(6)))
            assert worker.metrics.num_waiting == 0

    asyncio.run(asyncio.wait_for(scenario(), WAIT))
