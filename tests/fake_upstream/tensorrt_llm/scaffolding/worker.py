"""Workers: dispatch by the exact type of the task, from a dict of the class."""

from abc import ABC

from tensorrt_llm.scaffolding.task import TaskStatus


class Worker(ABC):  # noqa: B024  (as the real one)
    task_handlers = {}  # noqa: RUF012  (as the real one)

    def register_task_handler(self, task_cls, handler):
        type(self).task_handlers[task_cls] = handler

    async def run_task(self, task):
        if type(task) not in self.task_handlers:
            return TaskStatus.WORKER_NOT_SUPPORTED
        return await self.task_handlers[type(task)](self, task)

    async def on_scope_end(self, scope_id):  # noqa: B027  (a hook)
        pass

    def shutdown(self):  # noqa: B027  (a hook)
        pass

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        self.shutdown()
