"""Names of controllers, workers and their parts; a name's factory is imported on first use."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import re
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError, ScaffoldingExtError, UnknownNameError
from scaffolding_ext.signature import Signature

Factory = Callable[..., Any]
F = TypeVar("F", bound=Factory)
_NONE: Mapping[str, Any] = types.MappingProxyType({})


class Registry:
    """Names and their lazy factories. A name of the form `package.module:Class` needs no registration.

    Args:
        kind: Kind of part, for error messages.
        targets: The `"module:attribute"` of each known name.
        entry_point_group: Group under which other packages add names; read when a name is first looked up.
        base: `"module:Class"` of every part. An unregistered class is only called if it is a subclass.
        adapt: `"module:function"` that makes a part of another object, such as a function; it returns None if it
            cannot.
    """

    def __init__(
        self,
        kind: str,
        targets: Mapping[str, str],
        entry_point_group: str,
        base: str | None = None,
        adapt: str | None = None,
    ) -> None:
        self.kind = kind
        self._base = base
        self._adapt = adapt
        self._targets: dict[str, str | Factory] = dict(targets)
        self._group = entry_point_group
        self._discovered = False

    @overload
    def register(self, name: str, target: str | Factory, *, replace: bool = False) -> None: ...
    @overload
    def register(self, name: str, *, replace: bool = False) -> Callable[[F], F]: ...
    def register(self, name: str, target: str | Factory | None = None, *, replace: bool = False) -> Any:
        """Add a name, by call or as the decorator of a class; a `"module:attribute"` is imported on first use.

        Raises:
            ConfigError: The name is taken, and `replace` is not set.
        """
        if target is None:

            def decorate(factory: F) -> F:
                self.register(name, factory, replace=replace)
                return factory

            return decorate
        taken = self._targets.get(name)
        if taken is not None and taken != target and not replace:
            raise ConfigError(f"the {self.kind} {name!r} is registered already; take another name or pass replace=True")
        self._targets[name] = target
        return None

    def names(self) -> tuple[str, ...]:
        """Return the known names, sorted, including those of installed entry points."""
        self._discover()
        return tuple(sorted(self._targets))

    def resolve(self, name: str) -> Factory:
        """Return the factory of a name.

        Raises:
            UnknownNameError: The name is not registered.
            ConfigError: Its target cannot be imported, or is of the wrong kind.
        """
        target = self._targets.get(name)
        if target is None and ":" in name:
            return self._checked(name, import_target(name))
        if target is None:
            known = self.names()
            target = self._targets.get(name) or self._of_upstream(name)
            if target is None:
                raise UnknownNameError(unknown_name(self.kind, name, known) + "; or write package.module:Class")
        if isinstance(target, str):
            target = import_target(target)
            self._targets[name] = target
        return target

    def obtain(
        self, given: Any, key: str = "", *, build: Build | None = None, references: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the part that a user gives as an object, a name, or `{type, args}`.

        A `{type, args}` among the arguments is built first. Its type is a name of this registry, or of the registry
        that the part's class names for this argument (`registries`).

        Args:
            given: The object, the name of a part that needs no arguments, or a mapping of `type` and `args`.
            key: The argument that it is given for.
            build: Builds a part; None calls its factory.
            references: The live objects of `{$ref: name}`.

        Raises:
            UnknownNameError: The name of a type or a reference is unknown.
            ConfigError: It is none of these, or an argument is wrong; `key` holds the dotted path.
        """
        builder = _Obtaining(build or Component.build, references or {})
        if isinstance(given, str):
            return builder.named(self, given, key, key)
        if isinstance(given, Mapping):
            return builder.described(self, given, key)
        return self.accepted(given, key)

    def accepted(self, part: Any, key: str = "") -> Any:
        """Return the part, or its adaptation to the kind; ConfigError if there is none."""
        if self._is_one(part):
            return part
        if self._adapt is not None and not isinstance(part, type):
            adapted = import_target(self._adapt)(part)
            if adapted is not None:
                return adapted
        article = "an" if self.kind[0] in "aeiou" else "a"
        raise ConfigError(
            f"is {require.shown(part)}; give {article} {self.kind}, the name of one ({', '.join(self.names())}), or "
            "{type: NAME, args: {...}}",
            key,
        )

    def found(self, name: str) -> Any:
        """Return the object at `package.module:name` if it is a part itself; None if it is a class."""
        if name in self._targets or ":" not in name:
            return None
        target: Any = import_target(name)
        if isinstance(target, type) or self._base is None:
            return None
        adapted = None if self._is_one(target) or self._adapt is None else import_target(self._adapt)(target)
        return target if self._is_one(target) else adapted

    def name_of(self, kind: type[Any]) -> str:
        """Return the name under which `resolve` finds a class."""
        path = f"{kind.__module__}:{kind.__qualname__}"
        return next((name for name, target in self._targets.items() if target in (kind, path)), path)

    def _is_one(self, part: Any) -> bool:
        base: Any = None if self._base is None else import_target(self._base)
        return base is None or isinstance(part, base)

    def _of_upstream(self, name: str) -> Factory | None:
        from scaffolding_ext import protocol

        if not protocol.UPSTREAM or self._base is None:
            return None
        found = getattr(importlib.import_module("tensorrt_llm.scaffolding"), name, None)
        base: Any = import_target(self._base)
        return found if isinstance(found, type) and issubclass(found, base) else None

    def _checked(self, name: str, target: Factory) -> Factory:
        base = None if self._base is None else import_target(self._base)
        if isinstance(base, type) and not (isinstance(target, type) and issubclass(target, base)):
            raise ConfigError(
                f"{name!r} is a {type(target).__name__}, not a subclass of {base.__name__}, so not a {self.kind}; name "
                f"such a class, or register the function that makes one: {self.kind}s.register(NAME, function)"
            )
        return target

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for entry in importlib.metadata.entry_points(group=self._group):
            if self._targets.setdefault(entry.name, entry.value) != entry.value:
                message = f"the entry point {entry.name!r} = {entry.value!r} is ignored: the {self.kind} exists already"
                warnings.warn(message, RuntimeWarning, stacklevel=3)


class Component(NamedTuple):
    """A part that a user describes, before it is built.

    Attributes:
        args: Its arguments, with the parts among them built.
    """

    known: Registry
    type: str
    factory: Factory
    args: dict[str, Any]
    path: str

    def build(self) -> Any:
        """Build the part; ConfigError if it cannot be built, or is of another kind."""
        try:
            with require.under(self.path):
                return self.known.accepted(self.factory(**self.args))
        except ScaffoldingExtError:
            raise
        except Exception as error:  # a third party's constructor may raise anything
            explained = None
            if isinstance(error, TypeError):
                explained = Signature.of(self.factory).explained(self.type, self.args, self.path, error)
            message = f"{self.type} cannot be built: {type(error).__name__}: {error}"
            raise explained or ConfigError(message, self.path) from error


Build = Callable[[Component], Any]


class _Obtaining(NamedTuple):
    """Builds described parts, innermost first."""

    build: Build
    references: Mapping[str, Any]

    def described(self, known: Registry, given: Mapping[str, Any], path: str) -> Any:
        if "$ref" in given:
            return self._referenced(given, path)
        for key in given.keys() - {"type", "args"}:
            raise ConfigError(unknown_name("key", str(key), ("type", "args")), _joined(path, key))
        name, args = given.get("type"), given.get("args", {})
        if not isinstance(name, str):
            raise ConfigError(f"is {require.shown(given)}; give {{type: NAME, args: {{...}}}}", path)
        if not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args):
            raise ConfigError(f"is {require.shown(args)}; give a mapping of arguments", _joined(path, "args"))
        return self.named(known, name, _joined(path, "type"), _joined(path, "args"), args)

    def named(self, known: Registry, name: str, type_path: str, path: str, args: Mapping[str, Any] = _NONE) -> Any:
        with require.under(type_path):
            part = None if args else known.found(name)
            if part is not None:
                return part
            factory = known.resolve(name)
        registries = getattr(factory, "registries", {})
        made = {
            key: self._with_parts(registries.get(key, known), value, _joined(path, key)) for key, value in args.items()
        }
        Signature.of(factory).check(name, made, path)
        return self.build(Component(known, name, factory, made, path))

    def _with_parts(self, known: Registry, value: Any, path: str) -> Any:
        """Return a value of a document with its descriptions replaced by parts."""
        if isinstance(value, list):
            return [self._with_parts(known, item, f"{path}.{index}") for index, item in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        name = value.get("type")
        is_component = isinstance(name, str) and (value.keys() <= {"type", "args"} or name in known.names())
        if is_component or "$ref" in value:
            return self.described(known, value, path)
        return {key: self._with_parts(known, item, f"{path}.{key}") for key, item in value.items()}

    def _referenced(self, given: Mapping[str, Any], path: str) -> Any:
        name = given["$ref"]
        if len(given) > 1:
            raise ConfigError(f"has keys besides $ref ({', '.join(map(str, given))}): give only $ref", path)
        if name not in self.references:
            message = unknown_name("reference", str(name), tuple(self.references))
            raise UnknownNameError(f"{message}; pass it in load_stack(..., references={{...}})", path)
        return self.references[name]


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def unknown_name(what: str, name: str, known: tuple[str, ...]) -> str:
    """Return the error message for an unknown name, with the closest known name and all known names."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {what} {name!r}{hint}; known: {', '.join(known) or 'none'}"


def import_target(target: str) -> Factory:
    """Import the object at `"module:attribute"`; ConfigError if that fails, or it is not callable."""
    module_name, _, attribute = target.partition(":")
    try:
        factory = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except ScaffoldingExtError:  # it already says how to install a missing package
        raise
    except ModuleNotFoundError as error:
        hint = ""
        if error.name is not None and module_name.startswith(error.name):
            file = f"{error.name.partition('.')[0]}.py"
            hint = f"; install it, or put its folder on PYTHONPATH: PYTHONPATH={os.getcwd()} finds {file} in the "
            hint += "current folder"
        raise ConfigError(f"cannot import {target!r}: {error}{hint}") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import {target!r}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"{target!r} is a {type(factory).__name__}; name a class or a function that makes one")
    return factory


# One block per registry: `variable | kind | base of its parts | function of that module that adapts others`, then
# one line per module: the names of its classes, `name=Class` if a name differs.
_TABLE = """
controllers | controller | protocol:Controller
    controllers.basic.native_generation: NativeGenerationController
    controllers.chain.dynasor_cot: DynasorCoTController DynasorGenerationController
    controllers.draft_target.conformal_draft_target: ConformalDraftTargetController
    controllers.budgets.budget_forcing: BudgetForcingController
    controllers.budgets.queue_aware_budget: QueueAwareBudgetController
    controllers.vote.majority_vote: MajorityVoteController
    controllers.vote.deepconf: DeepConfController
    controllers.basic.best_of_n: BestOfNController
    controllers.tree.search: SearchController
    controllers.tree.kv_share_branching: KVShareBranchingController
    evaluation.run.record_chain: RecordChainController
    controllers.reward: RewardController
    controllers.basic.process_reward: ProcessRewardController
workers | worker | protocol:Worker
    workers.checker: CheckWorker
    workers.compare: CompareWorker
    workers.budgeted: BudgetedWorker
    workers.huggingface.worker: HuggingFaceWorker
    workers.openai.worker: OpenAIWorker
    testing.doubles: ScriptedWorker
    workers.trtllm.worker: TRTLLMWorker
stopping_rules | stopping rule | controllers.chain.stopping.base:StoppingRule | rule_of_function
    controllers.chain.stopping.agreement: consecutive=Consecutive window=Window total_variation=TotalVariation
    controllers.chain.stopping.text: pattern=PatternStop
    controllers.chain.stopping.confidence: confidence=AnswerConfidence
    controllers.chain.stopping.several: any=AnyOf all=AllOf
probe_schedules | probe schedule | controllers.chain.probing:ProbeSchedule
    controllers.chain.probing: ProbeSchedule
answer_probes | answer probe | controllers.chain.probe:AnswerProbe
    controllers.chain.probe: AnswerProbe
take_over_rules | take-over rule | controllers.draft_target.take_over:TakeOverRule
    controllers.draft_target.conformal_rule: conformal=ConformalRule
    controllers.draft_target.growing_rule: growing=GrowingRule
    controllers.draft_target.coin: coin=Coin
    controllers.draft_target.router: router=Router
allocation_rules | allocation rule | controllers.vote.allocation.base:AllocationRule
    controllers.vote.allocation.agreement: AgreementDoubling EarlyStoppingWindow
    controllers.vote.allocation.adaptive_consistency: BetaConsistency
    controllers.vote.allocation.leader_change: Curtailment LeaderChange
    controllers.vote.allocation.skyline: DynamicSkyline InitialStepSkyline
    controllers.vote.allocation.baselines: Even LengthThreshold
    controllers.vote.allocation.threshold: StaticThreshold ThresholdEvery
vote_weights | vote weight | controllers.vote.weights:Weight | weight_of_function
    controllers.vote.weights: uniform=UniformWeight answer_probability=AnswerProbabilityWeight
    controllers.vote.weights: mean_logprob=MeanLogprobWeight reward=RewardWeight
    controllers.vote.weights: shortness=ShortnessWeight
search_strategies | search strategy | controllers.tree.strategies.base:Strategy
    controllers.tree.strategies.adaptive_branching: AdaptiveBranching
    controllers.tree.strategies.beam: Beam
    controllers.tree.strategies.best_first: BestFirst
    controllers.tree.strategies.best_of_n: BestOfN
    controllers.tree.strategies.dvts: DVTS
    controllers.tree.strategies.mcts: MCTS
    controllers.tree.strategies.particle_filter: ParticleFilter
    controllers.tree.strategies.rebase: Rebase
search_expanders | search expander | controllers.tree.expand:Expander | adapted_expander
    controllers.tree.expand: controller=ControllerExpander worker=WorkerExpander
search_scorers | search scorer | controllers.tree.score:Scorer | adapted_scorer
    controllers.tree.score: checker=CheckerScorer controller=ControllerScorer mean_logprob=LogprobScorer
    controllers.tree.score: random=RandomScorer verdict=VerdictScorer
search_selectors | search selector | controllers.tree.select:Selector
    controllers.tree.select: best=Best vote=Vote
search_stops | search stop | controllers.tree.stops:SearchStop
    controllers.tree.stops: accepted=Accepted agreement=Agreement certaindex=Certaindex unchanged=Unchanged
policies | scheduling policy | scheduling:Policy
    scheduling: EarliestDeadline Fifo Gang LeastAttained LongestPrefix ShortestRemaining
"""


def _registries() -> dict[str, Registry]:
    found: dict[str, Registry] = {}
    for block in re.split(r"\n(?=\w)", _TABLE.strip()):
        first, *modules = block.splitlines()
        variable, kind, base, *adapt = first.split(" | ")
        if not base.startswith("collections"):
            base = f"scaffolding_ext.{base}"
        targets = {}
        for line in modules:
            module, _, names = line.strip().partition(":")
            for entry in names.split():
                name, _, target = entry.partition("=")
                targets[name] = f"scaffolding_ext.{module}:{target or name}"
        adapts = f"{base.partition(':')[0]}:{adapt[0]}" if adapt else None
        found[variable] = Registry(kind, targets, f"scaffolding_ext.{variable}", base, adapts)
    return found


_known = _registries()
controllers = _known["controllers"]
workers = _known["workers"]
stopping_rules = _known["stopping_rules"]
probe_schedules = _known["probe_schedules"]
answer_probes = _known["answer_probes"]
take_over_rules = _known["take_over_rules"]
allocation_rules = _known["allocation_rules"]
vote_weights = _known["vote_weights"]
search_strategies = _known["search_strategies"]
search_expanders = _known["search_expanders"]
search_scorers = _known["search_scorers"]
search_selectors = _known["search_selectors"]
search_stops = _known["search_stops"]
policies = _known["policies"]
