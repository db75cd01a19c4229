"""Sends a trace's calls again, each branch with a queue of its own: what it gets wrong, the real one does not play."""

import asyncio

from tensorrt_llm.scaffolding.task import GenerationTask, TaskStatus

_FIRST_TOKEN = 100  # ids are drawn from here on; which they are is no matter


class _Branch:
    """One branch's events, one after the other; conversations are its own."""

    def __init__(self, worker):
        self._worker = worker
        self._segments = {}
        self.queue = asyncio.Queue()
        self.runner = asyncio.ensure_future(self._run())

    async def _run(self):
        while (event := await self.queue.get()) is not None:
            if event.event_type == "message":
                await self._message(event)
            elif event.event_type == "drop_kv_cache":
                self._segments.clear()

    async def _message(self, event):
        segments = self._segments.setdefault(event.conversation_id, [])
        num_tokens = event.tokens or 0
        if event.role == "assistant":
            if (event.completion_tokens or 0) <= 0:
                raise ValueError("an assistant's message needs completion tokens")
            tokens = [token for segment in segments for token in segment]
            task = GenerationTask(input_tokens=tokens, max_tokens=event.completion_tokens, ignore_eos=True)
            if await self._worker.run_task(task) is not TaskStatus.SUCCESS:
                raise RuntimeError("a call failed")
            num_tokens = event.completion_tokens
        segments.append([_FIRST_TOKEN] * num_tokens)


class ReplayEngine:
    def __init__(self, worker):
        self._worker = worker
        self._branches = {}

    async def launch_trace(self, trace):
        self._branches[()] = _Branch(self._worker)
        open_forks = []
        for event in trace.events:
            path = tuple(event.branch_path or ())
            if event.event_type == "parallel_start":
                children = [(*path, index) for index in range(event.num_branches or 0)]
                self._branches |= {child: _Branch(self._worker) for child in children}
                open_forks.append(children)
            elif event.event_type == "parallel_end":
                await self._close(open_forks.pop())
            else:
                await self._branches[path].queue.put(event)
        await self._close([()])

    async def _close(self, paths):
        for path in paths:
            self._branches[path].queue.put_nowait(None)
        await asyncio.gather(*(self._branches.pop(path).runner for path in paths))
