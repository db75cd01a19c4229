"""Workers: dispatch by the exact type of the task, from a dict of the class."""

from abc import ABC
from collections.abc import Callable

from tensorrt_llm import HAS_SCOPES
from tensorrt_llm.scaffolding.task import Task, TaskStatus


class Worker(ABC):  # noqa: B024  (as the real one)
    task_handlers = {}  # noqa: RUF012  (as the real one)

    def register_task_handler(self, task_cls: type[Task], handler: Callable[[object, Task], TaskStatus]):
        type(self).task_handlers[task_cls] = handler

    async def run_task(self, task: Task) -> TaskStatus:
        worker_cls = type(self)
        if type(task) not in worker_cls.task_handlers:
            return TaskStatus.WORKER_NOT_SUPPORTED
        return await worker_cls.task_handlers[type(task)](self, task)

    def shutdown(self):  # noqa: B027  (a hook)
        pass

    def __enter__(self):
        return self

    if HAS_SCOPES:

        async def on_scope_end(self, scope_id: str) -> None:
            pass

        async def async_shutdown(self):
            pass

        def __exit__(self, exc_type, exc_val, exc_tb):
            self.shutdown()

    else:

        def __exit__(self):  # no `with` statement can end with it
            self.shutdown()
