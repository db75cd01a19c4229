"""Controllers of a served stack: its own controller, and copies with knobs set by clients."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext import registry
from scaffolding_ext.errors import ConfigError, TokenLimitError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, ControllerGenerator
from scaffolding_ext.protocol.relay import Watch, relay
from scaffolding_ext.request.program import current_program
from scaffolding_ext.serving.refusals import ApiError, unsupported
from scaffolding_ext.serving.settings import Knob
from scaffolding_ext.serving.thinking import Closing
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.build import build_controller
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

_MOST_KEPT = 64


class Switch(Controller):
    """The host's controller; runs the controller that each request names."""

    def clone(self) -> Switch:
        """Return itself: it holds no state of a request."""
        return self

    def generate(self, prompt: str, **kwargs: Any) -> ControllerGenerator:
        """Run a clone of `controller` with the other arguments.

        `closing` ensures that the outcome has an answer; None leaves it as it is.

        Raises:
            TokenLimitError: The clone has decoded more than `most_tokens`.
            NoAnswerError: The outcome has no answer.
        """
        controller, most_tokens = kwargs.pop("controller"), kwargs.pop("most_tokens")
        closing: Closing | None = kwargs.pop("closing", None)
        work = controller.clone().generate(prompt, **kwargs)
        work = work if closing is None else closing.close(work)
        return (yield from relay(work, watch=_TokenLimit(most_tokens)))


class Variants:
    """Builds controllers with other knob values for a running host.

    Args:
        llm: The host, whose controller a `Switch` replaces.
        config: Stack file of the host; without it clients can set no knobs.
        knobs: Knobs that clients may set.
        references: As in `build_stack`.

    Attributes:
        knobs: Knobs that clients may set and this stack has, by path.
        own: The stack's own controller.
    """

    def __init__(
        self,
        llm: ScaffoldingLlm,
        config: StackConfig | None = None,
        knobs: Sequence[Knob] = (),
        references: Mapping[str, Any] | None = None,
    ) -> None:
        self.own: Any = llm.prototype_controller
        llm.prototype_controller = Switch()
        found = () if config is None else (knob for knob in knobs if has_knob(config, knob.path))
        self.knobs = {knob.path: knob for knob in found}
        self._config = config
        self._workers = llm.workers
        self._references = references
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()  # controllers are built on threads beside the event loop

    def of(self, values: Mapping[str, Any]) -> Any:
        """Build or return the controller with these knob values.

        Building reads the controller's files and may take long, so call it on a thread if there are values. The stack's
        workers are already running and not checked again.

        Raises:
            ApiError: A knob may not be set, or its value is invalid.
        """
        if not values:
            return self.own
        for path, value in values.items():
            self._check(path, value)
        key = json.dumps(values, sort_keys=True)
        with self._lock:
            made = self._kept.get(key)
        made = made or self._made(values)
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return made

    def _check(self, path: str, value: Any) -> None:
        name = f"scaffolding.{path[:80]}"
        knob = self.knobs.get(path)
        if knob is None:
            allowed = ", ".join(sorted(self.knobs)) or "none"
            raise unsupported(name, f"cannot be set by clients; they may set: {allowed}")
        if isinstance(value, str) and ":" in value:  # a colon would name code to import
            raise ApiError(400, f"{name}: must not contain a colon", "invalid_value", name)
        if value is not None and not isinstance(value, (str, int, float)):
            raise ApiError(400, f"{name}: must be a number, a text, true, false or null", "invalid_value", name)
        if knob.most is not None and not (isinstance(value, (int, float)) and value <= knob.most):
            raise ApiError(400, f"{name}: must be a number of at most {knob.most:g}", "invalid_value", name)

    def _made(self, values: Mapping[str, Any]) -> Any:
        assert self._config is not None, "there are knobs"
        component = self._config.controller.model_dump()
        for path, value in values.items():
            args, name = _place(component, path)
            args[name] = value
        try:
            turned = self._config.model_copy(update={"controller": ComponentConfig.model_validate(component)})
            controller = build_controller(turned, self._references)
            controller.bind(self._workers)
        except ConfigError as error:
            path = error.key.removeprefix("controller.args.").replace(".args.", ".")
            raise ApiError(
                400, f"scaffolding.{path}: {error.message}", "invalid_value", f"scaffolding.{path}"
            ) from error
        controller.prompting, controller.loops = self.own.prompting, self.own.loops
        return controller


def has_knob(config: StackConfig, path: str) -> bool:
    """True if a stack's controller has this argument; `a.b` is argument `b` of the component in `a`."""
    component: Any = config.controller.model_dump()
    known = registry.controllers
    *parents, name = path.split(".")
    for part in parents:
        known = getattr(known.resolve(component["type"]), "registries", {}).get(part, known)
        component = component.get("args", {}).get(part)
        if not isinstance(component, Mapping) or "type" not in component:
            return False
    return name in Signature.of(known.resolve(component["type"])).parameters


def _place(component: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The arguments that contain a knob, and the knob's name among them."""
    *parents, name = path.split(".")
    for part in parents:
        component = component["args"][part]
    return component.setdefault("args", {}), name


class _TokenLimit(Watch):
    """Ends a request that has decoded more tokens than allowed."""

    def __init__(self, most_tokens: int) -> None:
        super().__init__()
        self._most_tokens = most_tokens

    def count(self, work: Any, began: float) -> None:
        program = current_program()
        if program is not None and program.ledger.num_decoded > self._most_tokens:
            raise TokenLimitError(
                f"the request has decoded {program.ledger.num_decoded} tokens; the limit is {self._most_tokens}: ask "
                "for fewer tokens or samples"
            )
