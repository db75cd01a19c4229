"""A worker that scores texts with a user's function, in processes that are killed when they overrun."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from scaffolding_ext import require
from scaffolding_ext.answers.pool import KillablePool, OverrunError
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import RewardTask, TaskStatus
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.protocol.tasks import REWARD
from scaffolding_ext.protocol.worker import BaseWorker

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler


class CheckWorker(BaseWorker):
    """Serves `RewardTask` with a Python function, such as code tests or an exact answer. Give it the tag `reward`.

    The function gets a dict with `prompt`, `text` and `has_ended` and returns a number. Each call runs in another
    process, which imports the function by name and is killed at the deadline.

    Args:
        function: `"module:function"`.
        deadline_seconds: Maximum duration of a call once a process is free. A call that overruns leaves no score, but
            `overran` in `custom_output_params`.
        num_processes: Maximum number of processes, started on demand.

    Raises:
        ConfigError: An argument is outside its range.
    """

    model = None

    def __init__(self, function: str, deadline_seconds: float = 5.0, num_processes: int = 2) -> None:
        if not isinstance(function, str) or function.count(":") != 1:
            raise ConfigError(f"is {function!r}; give 'module:function'", "function")
        self._deadline = require.number("deadline_seconds", deadline_seconds, above=0)
        self._pool = KillablePool(function, require.whole("num_processes", num_processes))

    def shutdown(self) -> None:
        """End the processes; tasks in flight fail with an EngineError."""
        self._pool.close()

    async def _check(self, task: RewardTask) -> TaskStatus:
        given = task.custom_input_params or {}
        job = {
            "prompt": given.get("prompt", ""),
            "text": given.get("text", task.input_str or ""),
            "has_ended": given.get("has_ended", True),
        }
        note(task, counts=TokenCounts())  # no model runs
        try:
            value = await asyncio.wrap_future(self._pool.submit(self._deadline, job))
            task.custom_output_params = {REWARD: require.number("the checker's score", value)}
        except OverrunError:
            task.custom_output_params = {"overran": True}
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {RewardTask: _check}
