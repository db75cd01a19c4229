"""The life of a HuggingFaceWorker: its engine's thread and memory go with the last that holds it."""

import asyncio
import gc
import subprocess
import weakref

import pytest

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODEL = "tinylm/draft"
WAIT = 60  # seconds until a test gives up


def make():
    return HuggingFaceWorker(MODEL, max_batch_size=4, max_seq_len=256, seed=0)


class Remains:
    """Return the objects that must be gone once a worker is gone."""

    def __init__(self, worker):
        self.thread = worker._engine._thread
        self._held = [weakref.ref(worker._engine), weakref.ref(worker._engine._batch._runner._model)]

    def assert_gone(self):
        self.thread.join(WAIT)
        assert not self.thread.is_alive()
        gc.collect()
        assert [held() for held in self._held] == [None, None]


def test_a_worker_that_nobody_holds_stops_and_frees_its_model():
    worker = make()
    remains = Remains(worker)
    assert asyncio.run(worker.run_task(GenerationTask(input_tokens=[5], max_tokens=4))) is TaskStatus.SUCCESS
    assert remains.thread.is_alive()
    del worker
    remains.assert_gone()


def test_a_worker_that_is_dropped_with_a_stream_open_stops_too():
    worker = make()
    remains = Remains(worker)
    stream = StreamGenerationTask(input_tokens=[5], max_tokens=200, ignore_eos=True)
    asyncio.run(worker.run_task(stream))
    assert not stream.end_flag
    del worker
    remains.assert_gone()


def test_a_worker_whose_task_is_awaited_is_held_by_it():
    async def drop_and_wait():
        task = GenerationTask(input_tokens=[5], max_tokens=100, ignore_eos=True)
        running = asyncio.ensure_future(make().run_task(task))  # nobody else holds it
        assert await asyncio.wait_for(running, WAIT) is TaskStatus.SUCCESS
        return task

    assert len(asyncio.run(drop_and_wait()).output_tokens) == 100


def test_a_with_block_is_enough():
    with make() as worker:
        remains = Remains(worker)
        assert remains.thread.is_alive()
    assert not remains.thread.is_alive()
    with pytest.raises(EngineError, match="shut down"):
        asyncio.run(worker.run_task(GenerationTask(input_tokens=[5], max_tokens=4)))
    worker.shutdown()  # a second time does nothing
    del worker
    remains.assert_gone()


def test_leaving_without_a_shutdown_ends_cleanly(warm_torch):
    code = (
        "import asyncio\n"
        "from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker\n"
        "from scaffolding_ext.protocol import StreamGenerationTask\n"
        f"held, dropped = HuggingFaceWorker({MODEL!r}), HuggingFaceWorker({MODEL!r})\n"
        "for worker in (held, dropped):\n"
        "    asyncio.run(worker.run_task(StreamGenerationTask(input_tokens=[5], max_tokens=2000, ignore_eos=True)))\n"
        "del worker, dropped\n"  # while its engine is in the middle of a request
    )
    run = subprocess.run([warm_torch / "python", "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")
