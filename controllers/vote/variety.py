"""Several samples of one prompt must differ: they get a temperature where nobody says one, and 0 is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scaffolding_ext.prompts.sampling_params import SAMPLE_TEMPERATURE, refuse_greedy, vary
from scaffolding_ext.protocol import Controller, GenerationTask
from scaffolding_ext.protocol.notes import Purpose, purpose_of
from scaffolding_ext.protocol.worker_tags import WorkerTag, tag_name
from scaffolding_ext.request.program import record


class Variety:
    """Gives the chains of one request a temperature where nobody sets one, and says so once in the trace.

    Args:
        controller: Draws the chains. Where it knows that a worker's model says itself how it is sampled, that holds.
    """

    def __init__(self, controller: Controller) -> None:
        self._sampling: frozenset[str] = getattr(controller, "sampling_workers", frozenset())
        self._told = False

    def __call__(self, work: Iterable[Any]) -> None:
        """Look at the tasks of a step."""
        for task in work:
            if not isinstance(task, GenerationTask) or task.temperature:  # one above 0 says how the task is drawn
                continue
            if task.temperature is None and tag_name(task.worker_tag or WorkerTag.GENERATION) in self._sampling:
                continue
            if purpose_of(task).written is Purpose.CHAIN:
                needed = vary(task)
                if needed and not self._told:
                    self._told = True
                    record("sampling", temperature=SAMPLE_TEMPERATURE, reason="nobody says how to sample")


def check_variety(num_samples: int, **controllers: Controller) -> None:
    """Refuse controllers whose own sampling parameters make several samples alike.

    Args:
        num_samples: Samples that a request draws by default.
        **controllers: The controllers that draw them, by the argument that holds each.

    Raises:
        ConfigError: A temperature is 0.
    """
    for key, params in _sampling(controllers) if num_samples > 1 else ():
        if params.get("temperature") == 0:
            refuse_greedy(f"{key}.temperature")


def _sampling(controllers: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sampling parameters of the controllers and of their sub-controllers that draw."""
    for key, controller in controllers.items():
        yield f"{key}.sampling_params", getattr(controller, "sampling_params", None) or {}
        inner = {name: getattr(controller, name, None) for name in _DRAWERS}
        yield from _sampling({f"{key}.{name}": value for name, value in inner.items() if value is not None})


_DRAWERS = ("generation_controller", "draft_controller", "target_controller")
