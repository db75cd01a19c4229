"""Convert a chosen setting to a stack file, and a stack file to a setting."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from scaffolding_ext import __version__
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.budgets.files import PlannedBudgets
from scaffolding_ext.controllers.budgets.queue_aware_budget import QueueAwareBudgetController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.controllers.vote.weights import UniformWeight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.run.record_chain import sample_of, whole_chain
from scaffolding_ext.evaluation.stack_sections import TunedConfig
from scaffolding_ext.evaluation.tune.choose import Promise
from scaffolding_ext.evaluation.tune.endings import Cut, Ending, Stopped, Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import ASKED, Setting
from scaffolding_ext.evaluation.tune.table import TableRow
from scaffolding_ext.registry import controllers, vote_weights
from scaffolding_ext.stack.build import build_controller
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

_CARRIED = (
    *("temperature", "top_p", "top_k", "min_tokens", "stop"),
    *("frequency_penalty", "presence_penalty", "logit_bias"),
)
_MODEL = "MODEL"  # stands for a model that the log does not name
_MAX_TOKENS = 8192  # of a sample, if the log tells neither a limit nor lengths


def stack_of(
    setting: Setting, row: TableRow, plays: Replay, *, promise: Promise | None, base: StackConfig | None = None
) -> StackConfig:
    """Build a stack that runs a setting, with the workers of a base or with a server on this machine."""
    recording = plays.recording
    controller = controller_of(setting, None if base is None else base.controller, limit_of(recording, base))
    tuned = TunedConfig(
        setting=str(setting),
        model=recording.model or (None if base is None else model_of_stack(base)),
        sampling=None if recording.sampling is None else dict(recording.sampling),
        dataset=recording.dataset,
        data=recording.fingerprint,
        tasks=sorted({each.task for each in recording.questions} - {""}),
        num_questions=len(recording.questions),
        num_samples=recording.num_samples,
        measure=recording.measure,
        cost=plays.cost,
        cost_share=round(row.cost_share.value, 4),
        points=[round(value, 3) for value in row.points],
        promise=None if promise is None else str(promise),
        max_loss=None if promise is None else promise.max_loss,
        date=datetime.date.today().isoformat(),
        version=__version__,
    )
    component = ComponentConfig.model_validate(controller)
    if base is not None:
        own = {name: value for name, value in base.sampling.items() if name != "max_tokens"}  # a controller has it
        sampling = {} if own == base.sampling else {"sampling": own}
        return base.model_copy(update={"controller": component, "tuned": tuned, **sampling})
    given = {"controller": component, "workers": _server(recording.model), "tuned": tuned}
    sampling = _carried(recording, is_vote=setting.num_samples > 1)
    return StackConfig.model_validate({**given, "sampling": sampling} if sampling else given)


def budgets_stack_of(plan: PlannedBudgets, base: StackConfig | None = None) -> StackConfig:
    """Build a stack that gives each request its type's budget, with a base's workers or a server on this machine."""
    args = {"plan": plan.model_dump(mode="json", exclude_none=True)}
    controller = {"type": controllers.name_of(QueueAwareBudgetController), "args": args}
    if base is not None:
        return base.model_copy(update={"controller": ComponentConfig.model_validate(controller)})
    served = {"controller": controller, "workers": _server(plan.model)}
    return StackConfig.model_validate({**served, "max_parallel_requests": plan.demand.queue.places})


def _server(model: str | None) -> dict[str, Any]:
    args = {"base_url": "http://localhost:8000/v1", "model": model or _MODEL, "endpoint": "auto"}
    return {"generation": {"type": "OpenAIWorker", "args": args}}


def edits_of(stack: StackConfig) -> str | None:
    """Name the keys that a user has to check before a tuned stack runs; None if it has the workers of another one."""
    workers = {tag: worker.model_dump(exclude_unset=True) for tag, worker in stack.workers.items()}
    model = model_of_stack(stack)
    if workers != _server(model) or "prompt" in stack.model_fields_set:
        return None
    keys = "base_url and model" if model == _MODEL else "base_url"
    parts = [
        f"Before you run it, set workers.generation.args: {keys}, and prompt.system_prompt and prompt.prompt_suffix, "
        "which no log keeps."
    ]
    recorded = {} if stack.tuned is None else stack.tuned.sampling or {}
    if stack.tuned is not None and "max_tokens" not in recorded:
        parts.append(f"The log names no max_tokens: see that {_max_tokens_in(stack.controller.args)} is enough.")
    left = [f"{name} {value}" for name, value in recorded.items() if name not in {*stack.sampling, "max_tokens"}]
    if left:
        parts.append(f"Not carried over: {', '.join(left)}.")
    return " ".join(parts)


def _max_tokens_in(args: Any) -> int | None:
    """Return the first `max_tokens` of a controller's arguments, at any depth."""
    if isinstance(args, list):
        args = dict(enumerate(args))
    if not isinstance(args, Mapping):
        return None
    return args.get("max_tokens") or next(filter(None, map(_max_tokens_in, args.values())), None)


def limit_of(recording: Recording, base: StackConfig | None) -> int:
    """Return the `max_tokens` of a sample: the base's, the log's, or what holds the log's longest sample."""
    if base is not None:
        args = sample_of(base.controller).get("args", {})
        places = args, args.get("sampling_params") or {}, base.sampling
        found = next((each["max_tokens"] for each in places if each.get("max_tokens")), None)
        if found is not None:
            return int(found)
    recorded = (recording.sampling or {}).get("max_tokens")
    if recorded or "tokens" in recording.missing:
        return int(recorded or _MAX_TOKENS)
    longest = max(int(each.tokens.max()) for each in recording.questions)
    return 1 << max(0, longest - 1).bit_length()


def _carried(recording: Recording, *, is_vote: bool) -> dict[str, Any]:
    """Return recorded sampling fields that a stack has; no temperature of 0 for a vote, whose samples were equal."""
    given = recording.sampling or {}
    found = {name: given[name] for name in _CARRIED if name in given}
    if is_vote and found.get("temperature") == 0:
        del found["temperature"]
    return found


def setting_of(config: StackConfig) -> Setting:
    """Return the setting that a stack plays.

    Raises:
        ConfigError: The stack is wrong, or cannot be replayed on such samples.
    """
    controller = build_controller(config)
    if not isinstance(controller, MajorityVoteController):
        return Setting(_ending_of(config.controller.model_dump()), 1)
    weight = None if isinstance(controller.weight, UniformWeight) else vote_weights.name_of(type(controller.weight))
    ending, rule = _ending_of(config.controller.args["generation_controller"]), controller.allocation
    if ending == Whole() and weight == ASKED:
        ending = Whole(is_asked=True)
    return Setting(
        ending, controller.default_sample_num, rule, weight, in_flight=controller.in_flight, order=controller.order
    )


def _ending_of(component: Mapping[str, Any]) -> Ending:
    """Return the ending of a controller's chains.

    Raises:
        ConfigError: It cannot be replayed on recorded chains.
    """
    kind, args = controllers.resolve(component["type"]), component.get("args", {})
    if kind is NativeGenerationController:
        return Whole()
    if kind is BudgetForcingController and not args.get("exact"):
        return Cut(args["thinking_tokens"])
    if kind is DynasorCoTController:
        controller = controllers.build(component)
        plain = {"type": "ProbeSchedule", "args": {"chunk_size": controller.schedule.chunk_size}}
        rule, schedule = args.get("rule"), args.get("schedule") or plain
        if rule is None:
            threshold = getattr(controller.rule, "threshold", None)
            rule = {"type": "all"} if threshold is None else {"type": "consecutive", "args": {"threshold": threshold}}
        return Stopped(_described(rule), _described(schedule))
    raise ConfigError(
        f"is a {component['type']}; replay plays NativeGenerationController, BudgetForcingController and "
        "DynasorCoTController, and votes over them",
        "controller",
    )


def _described(part: Any) -> dict[str, Any]:
    return {"type": part} if isinstance(part, str) else dict(part)


def controller_of(setting: Setting, base: ComponentConfig | None, max_tokens: int) -> dict[str, Any]:
    """Return the controller that runs a setting, in stack-file form.

    Args:
        base: The controller whose samples it has; None is a plain one.
        max_tokens: Of a sample, unless the base has its own.
    """
    plain = {"type": controllers.name_of(NativeGenerationController)}
    sample = _ended(plain if base is None else sample_of(base), setting.ending, max_tokens)
    if setting.num_samples == 1:
        return sample
    args: dict[str, Any] = {"default_sample_num": setting.num_samples, "allocation": setting.rule_config()}
    if setting.weight is not None:
        args["weight"] = setting.weight
    if setting.in_flight is not None:
        args |= {"in_flight": setting.in_flight, "order": setting.order}
    return {"type": controllers.name_of(MajorityVoteController), "args": {**args, "generation_controller": sample}}


def _ended(sample: dict[str, Any], ending: Ending, max_tokens: int) -> dict[str, Any]:
    if isinstance(ending, Whole):
        whole = whole_chain(sample)
        if controllers.resolve(whole["type"]) is not NativeGenerationController:
            return whole
        own = whole.get("args", {})
        limited = {"max_tokens": max_tokens, **(own.get("sampling_params") or {})}
        return {**whole, "args": {**own, "sampling_params": limited}}
    given = sample.get("args", {}).get("sampling_params") or {}
    sampling = {name: value for name, value in given.items() if name != "max_tokens"}  # a controller has its own
    args: dict[str, Any] = {"sampling_params": sampling} if sampling else {}
    if isinstance(ending, Cut):
        kind, length = BudgetForcingController, {"thinking_tokens": ending.num_tokens}
        return {"type": controllers.name_of(kind), "args": {**length, **args}}
    stop = {"max_tokens": max_tokens, "rule": dict(ending.rule), "schedule": dict(ending.schedule)}
    return {"type": controllers.name_of(DynasorCoTController), "args": {**stop, **args}}


def model_of_stack(config: StackConfig) -> str | None:
    """Return the model of the generation worker, if its arguments name it."""
    worker = config.workers.get("generation")
    return None if worker is None else worker.args.get("model")
