"""Build the controllers, prompting, workers and host of a `StackConfig`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from scaffolding_ext import registry, require
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.repetition import Loops
from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.sampling_params import checked_sampling_params
from scaffolding_ext.prompts.served_model import served_model
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import BaseWorker
from scaffolding_ext.registry import Component, Factory, Registry, unknown_name
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.config import ComponentConfig, StackConfig
from scaffolding_ext.stack.load import Source, load_config
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds

_NOT_BUILT = object()
# Packages that our classes import when they are built, with the extra that installs them.
_NEEDED = {
    "scaffolding_ext.workers.huggingface.worker.HuggingFaceWorker": ("hf", ("torch", "transformers")),
    "scaffolding_ext.workers.openai.worker.OpenAIWorker": ("openai", ("openai",)),
}


def build_stack(config: StackConfig, references: Mapping[str, Any] | None = None) -> ScaffoldingLlm:
    """Build controllers, workers and host; the host owns the workers. If a step fails, the built workers are shut down.

    Args:
        references: Live objects by the name in `{"$ref": name}`.

    Raises:
        ConfigError: A name is unknown or an argument is wrong; `key` holds the dotted path.
        MissingDependencyError: A worker needs a package that is not installed.
    """
    controller = check_stack(config, references)
    telemetry = None
    if config.opentelemetry:
        telemetry = registry.import_target("scaffolding_ext.plugins.opentelemetry:from_environment")()
    with ExitStack() as undo:
        builder = _Builder(references, config.sampling, undo)
        workers = {tag: builder.component(worker, registry.workers, _at(tag)) for tag, worker in config.workers.items()}
        policy = builder.policy(config.scheduling)
        _set_prompting(controller, workers, config)
        undo.pop_all()  # from here on the host owns the workers and shuts them down if it cannot start
        return ScaffoldingLlm(
            *(controller, workers, config.max_parallel_requests),
            seed=config.seed,
            owns_workers=True,
            scheduling=policy,
            deadline=config.deadline,
            telemetry=telemetry,
        )


class PlannedWorker(NamedTuple):
    """A worker as declared in a stack file.

    Attributes:
        path: Its path in the file.
        factory: Its class, or a function that creates one.
        args: Its arguments; workers among them are not built.
    """

    path: str
    factory: Factory
    args: Mapping[str, Any]

    @property
    def kind(self) -> type[BaseWorker]:
        """The class, which knows the worker's needs; a worker from any other factory has none."""
        if isinstance(self.factory, type) and issubclass(self.factory, BaseWorker):
            return self.factory
        return BaseWorker

    @property
    def tag(self) -> str:
        """The tag that it serves, directly or inside another worker."""
        return self.path.split(".")[1]


class StackPlan(NamedTuple):
    """A checked stack, ready to be built.

    Attributes:
        controller: The outermost controller.
        workers: All workers of the stack, not built; a wrapped worker precedes its wrapper.
    """

    controller: Any
    workers: list[PlannedWorker]


def check_stack(config: StackConfig, references: Mapping[str, Any] | None = None) -> Any:
    """Check every name, argument and role, and return the outermost controller; no worker is built, no model loaded.

    Raises:
        ConfigError: As `build_stack`, except for errors found only by a worker's constructor.
        MissingDependencyError: A worker needs a package that is not installed.
    """
    return plan_stack(config, references).controller


def plan_stack(config: StackConfig, references: Mapping[str, Any] | None = None) -> StackPlan:
    """As `check_stack`, but return the workers to be built, too."""
    if config.prompt is not None and config.prompt.family is not None:
        with require.under("prompt"):
            family_named(config.prompt.family)
    builder = _Builder(references, config.sampling, undo=None)
    controller = _checked_controller(config, builder)
    for tag, worker in config.workers.items():
        builder.component(worker, registry.workers, _at(tag))
    builder.policy(config.scheduling)
    check_placement(builder.workers)
    return StackPlan(controller, builder.workers)


def missing_here(plan: StackPlan) -> list[str]:
    """List what this machine lacks to build a plan's workers; see `BaseWorker.missing_here`."""
    return [f"{worker.path}: {each}" for worker in plan.workers for each in worker.kind.missing_here(worker.args)]


def engine_needs(config: StackConfig, tag: str) -> EngineNeeds:
    """Return the stack's needs of the engine behind one of its workers.

    They combine the needs of the worker's class, or of the worker it wraps, with the tasks and lengths that the
    controllers send. A controller that declares nothing needs nothing.

    Raises:
        ConfigError: The stack is wrong, or has no such worker.
    """
    if tag not in config.workers:
        raise ConfigError(unknown_name("worker", tag, tuple(config.workers)), "workers")
    controller, workers = plan_stack(config)
    told = (worker.kind.engine_needs(worker.args) for worker in workers if worker.tag == tag)
    needs: EngineNeeds = next((each for each in told if each is not None), EngineNeeds())
    sent = (controller.needs_by_tag() if isinstance(controller, BaseController) else {}).get(tag, Needs())
    return needs._replace(
        scores=needs.scores or any(task_type is ScoreTask for _, task_type in sent.tasks),
        logprobs=bool(sent.num_logprobs or sent.sends_ids or "num_logprobs" in config.sampling),
        max_seq_len=needs.max_seq_len or (None if sent.max_tokens is None else sent.max_tokens + 1),
    )


def build_controller(config: StackConfig, references: Mapping[str, Any] | None = None) -> Any:
    """Build only the stack's outermost controller and check that its workers are declared.

    Raises:
        ConfigError: As `check_stack`, for the controllers.
    """
    return _checked_controller(config, _Builder(references, config.sampling, undo=None))


def _checked_controller(config: StackConfig, builder: _Builder) -> Any:
    checked_sampling_params(config.sampling, "sampling")
    controller = builder.component(config.controller, registry.controllers, "controller")
    if isinstance(controller, BaseController):
        controller.check_roles(config.workers)
        controller.audit = config.audit
    elif config.audit:
        raise ConfigError(f"{type(controller).__name__} is not a BaseController, so nothing is audited", "audit")
    if config.loops:
        arguments = {} if config.loops is True else config.loops
        Signature.of(Loops).check("Loops", arguments, "loops")
        with require.under("loops"):
            loops = Loops(**arguments)
        if not isinstance(controller, BaseController):
            raise ConfigError(
                f"{type(controller).__name__} is not a BaseController, so its chains are not watched", "loops"
            )
        controller.loops = loops
    return controller


def load_stack(
    source: Source, overrides: Sequence[str] = (), references: Mapping[str, Any] | None = None
) -> ScaffoldingLlm:
    """Load, check and build a stack: a running host that owns its workers; use it in a `with` statement.

    Args:
        source: Path of a YAML file, `configs:NAME` for a packaged one, or a dict of the same structure.
        overrides: `key.path=value` each, applied in order; the value is read as YAML.
        references: Live objects by the name in `{"$ref": name}`.

    Raises:
        ConfigError: As `load_config` and `build_stack`.
        MissingDependencyError: As `build_stack`.
    """
    return build_stack(load_config(source, overrides), references)


def _at(tag: str) -> str:
    return f"workers.{tag}"


class _Builder:
    """Walks components depth first.

    Args:
        references: Live objects by name.
        sampling: Defaults for the `sampling_params` of innermost controllers.
        undo: Collects the shutdown of every built worker. None: workers are checked, not built.

    Attributes:
        workers: The checked workers.
    """

    def __init__(
        self, references: Mapping[str, Any] | None, sampling: Mapping[str, Any], undo: ExitStack | None
    ) -> None:
        self._references = references or {}
        self._sampling = sampling
        self._undo = undo
        self.workers: list[PlannedWorker] = []
        self._controllers: list[str] = []  # paths of the built controllers' arguments

    def component(self, component: ComponentConfig, known: Registry, path: str) -> Any:
        given = {"type": component.type, "args": component.args}
        return known.build(given, path, make=self._build, references=self._references)

    def policy(self, component: ComponentConfig | None) -> Any:
        return None if component is None else self.component(component, registry.policies, "scheduling")

    def _build(self, part: Component) -> Any:
        if part.known is registry.controllers:
            self._add_sampling(part)
        _check_packages(part.factory)
        if part.known is registry.workers and self._undo is None:
            self.workers.append(PlannedWorker(part.path.removesuffix(".args"), part.factory, part.args))
            with require.under(part.path):
                self.workers[-1].kind.check_arguments(**part.args)
            return _NOT_BUILT
        built = part.build()
        if part.known is registry.workers and self._undo is not None:
            self._undo.callback(built.shutdown)
        return built

    def _add_sampling(self, part: Component) -> None:
        """Give an innermost controller the stack's sampling; it is built before its outer controllers."""
        is_innermost = not any(path.startswith(f"{part.path}.") for path in self._controllers)
        self._controllers.append(part.path)
        if self._sampling and is_innermost and "sampling_params" in Signature.of(part.factory).parameters:
            own = part.args.get("sampling_params") or {}
            part.args["sampling_params"] = {**self._sampling, **own} if isinstance(own, Mapping) else own


def _check_packages(factory: Factory) -> None:
    for kind in inspect.getmro(factory) if isinstance(factory, type) else ():
        extra, packages = _NEEDED.get(f"{kind.__module__}.{kind.__qualname__}", ("", ()))
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            raise MissingDependencyError(" and ".join(missing), extra)


def _set_prompting(controller: Any, workers: Mapping[str, Any], config: StackConfig) -> None:
    if "prompt" not in config.model_fields_set:
        return
    if not isinstance(controller, BaseController):
        raise ConfigError(f"{type(controller).__name__} is not a BaseController and takes no prompting", "prompt")
    if config.prompt is None:
        controller.prompting = None
        return
    model, options = config.prompt.model, config.prompt.model_dump(exclude={"model"}, exclude_unset=True)
    served = None
    if model is None:
        with require.under("prompt.model"):
            served = served_model(workers)
        model = None if served is None else served.model
    with require.under("prompt"):
        if model is not None:
            controller.prompting = Prompting.for_model(model, **options)
        elif served is not None and served.is_known:
            controller.prompting = served.text_prompting(**options)
        else:
            raise ConfigError(
                "is missing, and no worker names a model: name the model whose tokenizer reads the prompt", "model"
            )


def check_placement(workers: Iterable[PlannedWorker]) -> None:
    """Refuse workers whose shares of a GPU's memory exceed 1.

    Each share is of the memory that is free when its worker is built, so the sum is a bound for any order.

    Args:
        workers: All workers of a stack, nested ones included.

    Raises:
        ConfigError: The shares exceed 1; `key` is that of the last.
    """
    shares = [(worker, worker.kind.memory_share(worker.args)) for worker in workers]
    shares = [(worker, share) for worker, share in shares if share]
    total = sum(share for _, share in shares)
    if len(shares) > 1 and total > 1 + 1e-9:
        described = ", ".join(f"{worker.tag} {share:g}" for worker, share in shares)
        raise ConfigError(
            f"the workers on the same GPU take more of its memory than there is ({described}, in all {total:g}): give "
            "each a kv_cache_fraction, 1 in all, or serve one of them from a process of its own",
            f"{shares[-1][0].path}.args.kv_cache_fraction",
        )
