"""The host: a plain `for` over each request's generator, on an event loop in a thread.

Nothing is sent or thrown into a generator, what workers return is dropped, and an exception leaves the caller with an
output that is empty. A request that waited starts in the context of the one that made room for it.
"""

import asyncio
import itertools
import threading
from collections import deque

from tensorrt_llm import HAS_NEWEST_FIELDS, HAS_SCOPES
from tensorrt_llm.scaffolding.controller import ParallelProcess
from tensorrt_llm.scaffolding.execution_scope import ExecutionScope, current_scope
from tensorrt_llm.scaffolding.result import ScaffoldingResult


class ScaffoldingLlm:
    def __init__(self, prototype_controller, workers, max_parallel_requests=64):
        self.prototype_controller = prototype_controller
        self.workers = workers
        self.max_parallel_requests = max_parallel_requests
        self.num_clones = 0
        self.errors = []  # what the real host prints
        self._num_running = 0
        self._pending = deque()
        self._ids = itertools.count()
        self._background = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.shutdown()

    def generate_async(self, prompt):
        result = ScaffoldingResult()

        def submit():
            self.num_clones += 1
            self._pending.append((self.prototype_controller.clone(), prompt, result))
            self._schedule()

        self.loop.call_soon_threadsafe(submit)
        return result

    def generate(self, prompts):
        if isinstance(prompts, str):
            return self.generate_async(prompts).result()
        return [result.result() for result in [self.generate_async(prompt) for prompt in prompts]]

    def shutdown(self, shutdown_workers=False):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        # as the real one, it leaves its loop open
        if shutdown_workers:
            for worker in self.workers.values():
                worker.shutdown()

    def _schedule(self):
        while self._pending and self._num_running < self.max_parallel_requests:
            self._num_running += 1
            task = self.loop.create_task(self._run(*self._pending.popleft()))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _run(self, controller, prompt, result):
        scope = ExecutionScope(f"request-{next(self._ids)}") if HAS_SCOPES else None
        current_scope.set(scope)

        def request():
            output = yield from controller.generate(prompt)
            result.task_collections = controller.task_collections
            result.set_output(output)

        try:
            await self._drive(request(), result)
        except Exception as error:
            self.errors.append(error)
            result.set_output(None)
        finally:
            self._num_running -= 1
            self._schedule()
            await self._end_scope(scope)

    async def _drive(self, generator, result):
        for work in generator:
            if isinstance(work, ParallelProcess):
                await self._fork(work, result)
                continue
            await asyncio.gather(*(self.workers[task.worker_tag].run_task(task) for task in work))
            for task in work:
                if task.streaming_output_flag:
                    for output in task.streaming_output_list:
                        result.set_output_streaming(output)
                    task.streaming_output_list = []

    async def _fork(self, process, result):
        scope = current_scope.get()
        scopes = [scope.child(index) if HAS_SCOPES else None for index in range(len(process.sub_gens))]
        if HAS_NEWEST_FIELDS and process.branch_paths:
            scopes = map(scope.with_branch_path, process.branch_paths)

        async def branch(generator, branch_scope):
            current_scope.set(branch_scope)
            try:
                await self._drive(generator, result)
            finally:
                await self._end_scope(branch_scope)

        await asyncio.gather(*map(branch, process.sub_gens, scopes))

    async def _end_scope(self, scope):
        for worker in set(self.workers.values()) if HAS_SCOPES else ():
            await worker.on_scope_end(scope.scope_id)
