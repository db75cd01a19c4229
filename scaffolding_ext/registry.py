"""Names of controllers, workers and their parts; a name's factory is imported on first use."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError, ScaffoldingExtError
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
            ConfigError: The name is not registered, or its target cannot be imported, or is of the wrong kind.
        """
        target = self._targets.get(name)
        if target is None and ":" in name:
            return self._checked(name, import_target(name))
        if target is None:
            known = self.names()
            target = self._targets.get(name) or self._of_upstream(name)
            if target is None:
                raise ConfigError(unknown_name(self.kind, name, known) + "; or write package.module:Class")
        if isinstance(target, str):
            target = import_target(target)
            self._targets[name] = target
        return target

    def build(
        self, given: Any, key: str = "", *, make: Build | None = None, references: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the part that a user gives as an object, a name, or `{type, args}`.

        A `{type, args}` among the arguments is built first. Its type is a name of this registry, or of the registry
        that the part's class names for this argument (`registries`).

        Args:
            given: The object, the name of a part that needs no arguments, or a mapping of `type` and `args`.
            key: The argument that it is given for.
            make: Builds a part; None calls its factory.
            references: The live objects of `{$ref: name}`.

        Raises:
            ConfigError: The name of a type or a reference is unknown, it is none of these, or an argument is wrong;
                `key` holds the dotted path.
        """
        builder = _PartBuilder(make or Component.build, references or {})
        if isinstance(given, str):
            return builder.named(self, given, key, key)
        if isinstance(given, Mapping):
            return builder.described(self, given, key)
        return self.accepted(given, key)

    def accepted(self, part: Any, key: str = "") -> Any:
        """Return the part, or its adaptation to the kind; ConfigError if there is none."""
        found = self._adapted(part)
        if found is not None:
            return found
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
        return None if isinstance(target, type) or self._base is None else self._adapted(target)

    def _adapted(self, part: Any) -> Any:
        """Return the part if it is of the kind, or its adaptation; None if it is neither."""
        if self._is_one(part):
            return part
        return None if self._adapt is None or isinstance(part, type) else import_target(self._adapt)(part)

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


class _PartBuilder(NamedTuple):
    """Builds described parts, innermost first."""

    make: Build
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
        return self.make(Component(known, name, factory, made, path))

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
            raise ConfigError(f"{message}; pass it in load_stack(..., references={{...}})", path)
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


# A table per kind of part: the import path of each name.
controllers = Registry(
    "controller",
    {
        "NativeGenerationController": "scaffolding_ext.controllers.basic.native_generation:NativeGenerationController",
        "DynasorCoTController": "scaffolding_ext.controllers.chain.dynasor_cot:DynasorCoTController",
        "DynasorGenerationController": "scaffolding_ext.controllers.chain.dynasor_cot:DynasorGenerationController",
        "ConformalDraftTargetController": "scaffolding_ext.controllers.draft_target.conformal_draft_target"
        ":ConformalDraftTargetController",
        "BudgetForcingController": "scaffolding_ext.controllers.budgets.budget_forcing:BudgetForcingController",
        "QueueAwareBudgetController": "scaffolding_ext.controllers.budgets.queue_aware_budget"
        ":QueueAwareBudgetController",
        "MajorityVoteController": "scaffolding_ext.controllers.vote.majority_vote:MajorityVoteController",
        "DeepConfController": "scaffolding_ext.controllers.vote.deepconf:DeepConfController",
        "BestOfNController": "scaffolding_ext.controllers.basic.best_of_n:BestOfNController",
        "SearchController": "scaffolding_ext.controllers.tree.search:SearchController",
        "KVShareBranchingController": "scaffolding_ext.controllers.tree.kv_share_branching:KVShareBranchingController",
        "RecordChainController": "scaffolding_ext.evaluation.run.record_chain:RecordChainController",
        "RewardController": "scaffolding_ext.controllers.reward:RewardController",
        "ProcessRewardController": "scaffolding_ext.controllers.basic.process_reward:ProcessRewardController",
    },
    "scaffolding_ext.controllers",
    "scaffolding_ext.protocol:Controller",
)
workers = Registry(
    "worker",
    {
        "CheckWorker": "scaffolding_ext.workers.checker:CheckWorker",
        "CompareWorker": "scaffolding_ext.workers.compare:CompareWorker",
        "BudgetedWorker": "scaffolding_ext.workers.budgeted:BudgetedWorker",
        "HuggingFaceWorker": "scaffolding_ext.workers.huggingface.worker:HuggingFaceWorker",
        "OpenAIWorker": "scaffolding_ext.workers.openai.worker:OpenAIWorker",
        "ScriptedWorker": "scaffolding_ext.testing.doubles:ScriptedWorker",
        "TRTLLMWorker": "scaffolding_ext.workers.trtllm.worker:TRTLLMWorker",
    },
    "scaffolding_ext.workers",
    "scaffolding_ext.protocol:Worker",
)
stopping_rules = Registry(
    "stopping rule",
    {
        "consecutive": "scaffolding_ext.controllers.chain.stopping.agreement:Consecutive",
        "window": "scaffolding_ext.controllers.chain.stopping.agreement:Window",
        "total_variation": "scaffolding_ext.controllers.chain.stopping.agreement:TotalVariation",
        "pattern": "scaffolding_ext.controllers.chain.stopping.text:PatternStop",
        "confidence": "scaffolding_ext.controllers.chain.stopping.confidence:AnswerConfidence",
        "any": "scaffolding_ext.controllers.chain.stopping.several:AnyOf",
        "all": "scaffolding_ext.controllers.chain.stopping.several:AllOf",
    },
    "scaffolding_ext.stopping_rules",
    "scaffolding_ext.controllers.chain.stopping.base:StoppingRule",
    "scaffolding_ext.controllers.chain.stopping.base:rule_of_function",
)
probe_schedules = Registry(
    "probe schedule",
    {"ProbeSchedule": "scaffolding_ext.controllers.chain.probing:ProbeSchedule"},
    "scaffolding_ext.probe_schedules",
    "scaffolding_ext.controllers.chain.probing:ProbeSchedule",
)
answer_probes = Registry(
    "answer probe",
    {"AnswerProbe": "scaffolding_ext.controllers.chain.probe:AnswerProbe"},
    "scaffolding_ext.answer_probes",
    "scaffolding_ext.controllers.chain.probe:AnswerProbe",
)
take_over_rules = Registry(
    "take-over rule",
    {
        "conformal": "scaffolding_ext.controllers.draft_target.conformal_rule:ConformalRule",
        "growing": "scaffolding_ext.controllers.draft_target.growing_rule:GrowingRule",
        "coin": "scaffolding_ext.controllers.draft_target.coin:Coin",
        "router": "scaffolding_ext.controllers.draft_target.router:Router",
    },
    "scaffolding_ext.take_over_rules",
    "scaffolding_ext.controllers.draft_target.take_over:TakeOverRule",
)
allocation_rules = Registry(
    "allocation rule",
    {
        "AgreementDoubling": "scaffolding_ext.controllers.vote.allocation.agreement:AgreementDoubling",
        "EarlyStoppingWindow": "scaffolding_ext.controllers.vote.allocation.agreement:EarlyStoppingWindow",
        "BetaConsistency": "scaffolding_ext.controllers.vote.allocation.adaptive_consistency:BetaConsistency",
        "Curtailment": "scaffolding_ext.controllers.vote.allocation.leader_change:Curtailment",
        "LeaderChange": "scaffolding_ext.controllers.vote.allocation.leader_change:LeaderChange",
        "DynamicSkyline": "scaffolding_ext.controllers.vote.allocation.skyline:DynamicSkyline",
        "InitialStepSkyline": "scaffolding_ext.controllers.vote.allocation.skyline:InitialStepSkyline",
        "Even": "scaffolding_ext.controllers.vote.allocation.baselines:Even",
        "LengthThreshold": "scaffolding_ext.controllers.vote.allocation.baselines:LengthThreshold",
        "StaticThreshold": "scaffolding_ext.controllers.vote.allocation.threshold:StaticThreshold",
        "ThresholdEvery": "scaffolding_ext.controllers.vote.allocation.threshold:ThresholdEvery",
        "ValueOfVote": "scaffolding_ext.controllers.vote.allocation.value_of_vote:ValueOfVote",
    },
    "scaffolding_ext.allocation_rules",
    "scaffolding_ext.controllers.vote.allocation.base:AllocationRule",
)
vote_weights = Registry(
    "vote weight",
    {
        "uniform": "scaffolding_ext.controllers.vote.weights:UniformWeight",
        "answer_probability": "scaffolding_ext.controllers.vote.weights:AnswerProbabilityWeight",
        "mean_logprob": "scaffolding_ext.controllers.vote.weights:MeanLogprobWeight",
        "reward": "scaffolding_ext.controllers.vote.weights:RewardWeight",
        "shortness": "scaffolding_ext.controllers.vote.weights:ShortnessWeight",
    },
    "scaffolding_ext.vote_weights",
    "scaffolding_ext.controllers.vote.weights:Weight",
    "scaffolding_ext.controllers.vote.weights:weight_of_function",
)
search_strategies = Registry(
    "search strategy",
    {
        "AdaptiveBranching": "scaffolding_ext.controllers.tree.strategies.adaptive_branching:AdaptiveBranching",
        "Beam": "scaffolding_ext.controllers.tree.strategies.beam:Beam",
        "BestFirst": "scaffolding_ext.controllers.tree.strategies.best_first:BestFirst",
        "BestOfN": "scaffolding_ext.controllers.tree.strategies.best_of_n:BestOfN",
        "DVTS": "scaffolding_ext.controllers.tree.strategies.dvts:DVTS",
        "MCTS": "scaffolding_ext.controllers.tree.strategies.mcts:MCTS",
        "ParticleFilter": "scaffolding_ext.controllers.tree.strategies.particle_filter:ParticleFilter",
        "Rebase": "scaffolding_ext.controllers.tree.strategies.rebase:Rebase",
    },
    "scaffolding_ext.search_strategies",
    "scaffolding_ext.controllers.tree.strategies.base:Strategy",
)
search_expanders = Registry(
    "search expander",
    {
        "controller": "scaffolding_ext.controllers.tree.expand:ControllerExpander",
        "worker": "scaffolding_ext.controllers.tree.expand:WorkerExpander",
    },
    "scaffolding_ext.search_expanders",
    "scaffolding_ext.controllers.tree.expand:Expander",
    "scaffolding_ext.controllers.tree.expand:adapted_expander",
)
search_scorers = Registry(
    "search scorer",
    {
        "checker": "scaffolding_ext.controllers.tree.score:CheckerScorer",
        "controller": "scaffolding_ext.controllers.tree.score:ControllerScorer",
        "mean_logprob": "scaffolding_ext.controllers.tree.score:LogprobScorer",
        "random": "scaffolding_ext.controllers.tree.score:RandomScorer",
        "verdict": "scaffolding_ext.controllers.tree.score:VerdictScorer",
    },
    "scaffolding_ext.search_scorers",
    "scaffolding_ext.controllers.tree.score:Scorer",
    "scaffolding_ext.controllers.tree.score:adapted_scorer",
)
search_selectors = Registry(
    "search selector",
    {"best": "scaffolding_ext.controllers.tree.select:Best", "vote": "scaffolding_ext.controllers.tree.select:Vote"},
    "scaffolding_ext.search_selectors",
    "scaffolding_ext.controllers.tree.select:Selector",
)
search_stops = Registry(
    "search stop",
    {
        "accepted": "scaffolding_ext.controllers.tree.stops:Accepted",
        "agreement": "scaffolding_ext.controllers.tree.stops:Agreement",
        "certaindex": "scaffolding_ext.controllers.tree.stops:Certaindex",
        "unchanged": "scaffolding_ext.controllers.tree.stops:Unchanged",
    },
    "scaffolding_ext.search_stops",
    "scaffolding_ext.controllers.tree.stops:SearchStop",
)
policies = Registry(
    "scheduling policy",
    {
        "EarliestDeadline": "scaffolding_ext.scheduling:EarliestDeadline",
        "Fifo": "scaffolding_ext.scheduling:Fifo",
        "Gang": "scaffolding_ext.scheduling:Gang",
        "LeastAttained": "scaffolding_ext.scheduling:LeastAttained",
        "LongestPrefix": "scaffolding_ext.scheduling:LongestPrefix",
        "ShortestRemaining": "scaffolding_ext.scheduling:ShortestRemaining",
    },
    "scaffolding_ext.policies",
    "scaffolding_ext.scheduling:Policy",
)
