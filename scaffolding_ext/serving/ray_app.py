"""The server on Ray Serve: a replica is a process with its stacks, behind Ray's proxy and autoscaling.

Ray's commands `serve run` and `serve deploy` start it from a Ray Serve file (`deploy/ray_serve.yaml`):

    applications:
      - name: stacks
        import_path: scaffolding_ext.serving.ray_app:application
        args: {stacks: {vote: configs:majority_vote}}

Requests with the same header `x-session-id` go to the same replica, whose prefix cache knows the conversation. Each
replica keeps separate metrics and also reports them to Ray, which exports them to Prometheus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from scaffolding_ext.errors import ConfigError, MissingDependencyError, ShutdownError
from scaffolding_ext.serving.access import Keys
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.metrics import Metrics
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.settings import Knob, Limits
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import StackConfig, validated
from scaffolding_ext.stack.load import load_config

try:
    from ray import serve
    from ray.serve import metrics as ray_metrics
except ImportError as missing:
    raise MissingDependencyError("ray[serve]", "ray") from missing

NAME = "Stacks"  # name of the deployment
_STICKY = "ray.serve.experimental.consistent_hash_router"
_SECONDS = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]


class Arguments(BaseModel):
    """The fields of an application's `args`.

    Attributes:
        stacks: Stack files by model name; `configs:NAME` is a packaged file.
        overrides: Values for keys of every stack file, such as `{"max_parallel_requests": 16}`.
        limits: Limits of requests, with the fields of `Limits`.
        allow: Controller knobs that clients may set, as for `scaffolding-ext serve --allow`.
        keys_env: Environment variable with the allowed keys; every machine needs it.
        share_prefixes: If True, requests with different keys reuse each other's KV.
        sticky: If True, requests of one session go to one replica; refused if the Ray release cannot do this.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    stacks: dict[str, str] = Field(min_length=1)
    overrides: dict[str, Any] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)
    allow: list[str] = Field(default_factory=list)
    keys_env: str | None = None
    share_prefixes: bool = False
    sticky: bool = True


def application(args: Mapping[str, Any]) -> serve.Application:
    """Build the application from a Ray Serve file. Stacks are read and checked here, before a replica starts.

    The file's `deployments` section overrides the values set here for the deployment `Stacks`: the maximum requests of
    a replica (running and waiting), the session router, and the seconds that running requests have to end.

    Args:
        args: The fields of `Arguments`, as Ray reads them from the file.

    Raises:
        ConfigError: An argument, a stack or a limit is invalid, or this Ray has no session router.
    """
    asked = validated(Arguments, dict(args), "args")
    limits = _limits(asked.limits)
    overrides = [f"{key}={_as_text(value)}" for key, value in asked.overrides.items()]
    configs = {name: load_config(file, overrides) for name, file in asked.stacks.items()}
    for config in configs.values():
        check_stack(config)
    list(map(Knob.read, asked.allow))
    room = sum(config.max_parallel_requests + limits.max_queue for config in configs.values())
    options: dict[str, Any] = {
        "max_ongoing_requests": room,
        "graceful_shutdown_timeout_s": limits.drain_seconds,
        **({"request_router_config": _sticky_router()} if asked.sticky else {}),
    }
    return Stacks.options(**options).bind(configs, asked)


def _limits(given: Mapping[str, Any]) -> Limits:
    unknown = sorted(given.keys() - Limits.__dataclass_fields__.keys())
    if unknown:
        known = ", ".join(Limits.__dataclass_fields__)
        raise ConfigError(f"has {', '.join(unknown)}; known limits: {known}", "limits")
    return Limits(**given)


def _as_text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sticky_router() -> Any:
    from ray.serve.config import RequestRouterConfig

    try:
        __import__(_STICKY)
    except ImportError as error:
        raise ConfigError(
            "is true, but this release of Ray has no session router: set it to false", "sticky"
        ) from error
    return RequestRouterConfig(request_router_class=f"{_STICKY}:ConsistentHashRouter")


class Replica:
    """One replica: stacks and the server over them.

    Args:
        configs: The stacks, by name.
        args: Arguments of the application.
    """

    current: ClassVar[Front | None] = None  # a process has only one replica

    def __init__(self, configs: Mapping[str, StackConfig], args: Arguments) -> None:
        limits, knobs = _limits(args.limits), list(map(Knob.read, args.allow))
        keys = None if args.keys_env is None else _keys(args.keys_env, args.share_prefixes)
        stacks: list[ServedStack] = []
        try:
            for name, config in configs.items():
                stacks.append(ServedStack(name, build_stack(config), limits, config=config, knobs=knobs))
            Replica.current = Front(stacks, limits, keys, metrics=RayMetrics)
        except BaseException:
            for stack in stacks:
                stack.llm.shutdown()
            raise

    async def check_health(self) -> None:
        """Fail if a stack has stopped; Ray then replaces this replica.

        Raises:
            ShutdownError: A stack has stopped.
        """
        front = Replica.current
        down = [name for name, stack in (front.stacks if front else {}).items() if not stack.llm.loop.is_running()]
        if down:
            raise ShutdownError(f"the stacks {', '.join(down)} have stopped")


def _keys(variable: str, share_prefixes: bool) -> Keys:
    if not os.environ.get(variable):
        raise ConfigError(
            f"names the environment variable {variable}, which is not set for this replica: set it in Ray's "
            "runtime_env",
            "keys_env",
        )
    return Keys.read(os.environ[variable].replace(",", "\n"), "keys_env", share_prefixes)


def _app() -> Any:
    assert Replica.current is not None, "Ray asks for the application after the replica is made"
    return Replica.current.app


class _Both:
    """A metric on the replica's page, mirrored to Ray."""

    def __init__(self, own: Any, other: Any, add: str) -> None:
        self._own, self._other, self._add = own, other, add
        self._names: tuple[str, ...] = own._labelnames

    def labels(self, *values: str) -> _BothOf:
        return _BothOf(
            getattr(self._own.labels(*values), self._add),
            getattr(self._other, self._add),
            dict(zip(self._names, values, strict=True)),
        )


class _BothOf:
    def __init__(self, own: Callable[[float], object], other: Callable[..., object], tags: dict[str, str]) -> None:
        self._own, self._other, self._tags = own, other, tags

    def inc(self, amount: float = 1) -> None:
        self._own(amount)
        if amount > 0:  # Ray refuses others
            self._other(amount, tags=self._tags)

    observe = inc


class RayMetrics(Metrics):
    """The server's metrics, also reported to Ray, which adds the names of replica and application."""

    def __init__(self, num_programs: Callable[[], dict[str, int]]) -> None:
        super().__init__(num_programs)
        for name in ("requests", "refusals", "tokens", "exits", "forced", "deadlines"):
            own = getattr(self, f"_{name}")
            counter = ray_metrics.Counter(
                f"scaffolding_{own._name.removeprefix('scaffolding_')}", own._documentation, tag_keys=own._labelnames
            )
            setattr(self, f"_{name}", _Both(own, counter, "inc"))
        for name in ("seconds", "first"):
            own = getattr(self, f"_{name}")
            histogram = ray_metrics.Histogram(
                f"scaffolding_{own._name.removeprefix('scaffolding_')}",
                own._documentation,
                boundaries=_SECONDS,
                tag_keys=own._labelnames,
            )
            setattr(self, f"_{name}", _Both(own, histogram, "observe"))


Stacks = serve.deployment(serve.ingress(_app)(Replica), name=NAME)
