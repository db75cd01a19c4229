"""Draws a recording from a stack: whole chains of every question, looked at on the way; resumable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.record_chain import RecordChainController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.run_folder import claimed
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.registry import controllers
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

_WHEN_IT_STOPS = ("rule", "certainty_threshold", "effort", "schedule", "chunk_size")  # arguments that nobody records
NEVER: dict[str, Any] = {
    "type": "unchanged",
    "args": {"rounds": 10**9},
}  # a stop that never fires
_SAMPLES_OF = "generation_controller"  # the argument that names who draws one sample


class Drawn(NamedTuple):
    """What came of drawing: the signal that ended it early, or None, and the first failure of a sample, or None."""

    stopped_by: int | None
    first_error: str | None


def recording_stack(
    config: StackConfig, num_samples: int = 1, look_every: int | None = None, num_logprobs: int = 20
) -> StackConfig:
    """The stack that records the samples of another one.

    A vote's samples are recorded, and not the vote. A chain's looks are recorded, and it is not stopped. A search runs
    to its end, or through all its widths; its solutions are the samples.

    Args:
        config: A stack of one chain, of a vote over chains, or of a search.
        num_samples: Samples of each question.
        look_every: Tokens between two looks at a chain; at least 1. None takes half of those between two looks of a
            `DynasorCoTController`, and records no looks at chains that nobody stops.
        num_logprobs: Log-probabilities a token that the worker is asked for, for chains with looks; 0 where it reports
            none.

    Raises:
        ConfigError: The stack is wrong, or its samples are no chains.
    """
    check_stack(config)
    own: Mapping[str, Any] = config.controller.model_dump()
    while _SAMPLES_OF in own.get("args", {}):
        own = own["args"][_SAMPLES_OF]
    kind, args = controllers.resolve(own["type"]), dict(own.get("args", {}))
    if kind is DynasorCoTController:
        stopping = DynasorCoTController(**{name: args[name] for name in ("chunk_size",) if args.get(name)})
        look_every = look_every or max(1, stopping.schedule.chunk_size // 2)
        args = {name: value for name, value in args.items() if name not in _WHEN_IT_STOPS}
    elif kind is SearchController:
        args = {**args, "stop": NEVER} if args.get("widths") else {**args, "stop": None}
        num_samples = 1
    elif kind is NativeGenerationController:
        if look_every is not None:
            sampling = dict(args.get("sampling_params") or {})
            length = {"max_tokens": sampling.pop("max_tokens")} if "max_tokens" in sampling else {}
            own, args = {"type": controllers.name_of(DynasorCoTController)}, {"sampling_params": sampling, **length}
    else:
        raise ConfigError(
            f"is a {own['type']}; samples are recorded of a NativeGenerationController, of a DynasorCoTController, of "
            "a vote over one of them, and of a SearchController",
            "controller.type",
        )
    component = {"type": own["type"], "args": args}
    if look_every is not None and kind is not SearchController:
        component = {
            "type": controllers.name_of(RecordChainController),
            "args": {
                "spacing": require.whole("look_every", look_every),
                "num_logprobs": num_logprobs,
                _SAMPLES_OF: component,
            },
        }
    settings = config.evaluation.model_copy(update={"epochs": require.whole("samples", num_samples)})
    return config.model_copy(update={"controller": ComponentConfig.model_validate(component), "evaluation": settings})


def draw(config: StackConfig, store: Path, say: Callable[[str], object]) -> Drawn:
    """Run a recording stack on its dataset; what the folder has of it is not drawn again.

    Args:
        config: The stack, as `recording_stack` makes it.
        store: Folder of the recording; `read_recording` reads it.
        say: Told what an interrupt does.

    Raises:
        ConfigError: The stack is wrong, or the folder has a recording of another stack.
        DatasetError: The dataset is unusable.
        OutputError: The folder cannot be written.
    """
    with claimed(store, resume=True) as goes_on:
        run = Session.of(config, store)
        if goes_on:
            run.take_up(is_mended=True)
        stopped_by = run.go(say)
    return Drawn(stopped_by, run.tally.first_error)
