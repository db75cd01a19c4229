"""The stack file of a chosen setting, and the setting of a stack file."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from scaffolding_ext import __version__
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.controllers.vote.weights import UniformWeight
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.recordings.recording import Recording
from scaffolding_ext.evaluation.trial.promise import Promise
from scaffolding_ext.evaluation.trial.space import Setting, Whole
from scaffolding_ext.evaluation.trial.trial import TableRow, Trial
from scaffolding_ext.registry import controllers
from scaffolding_ext.stack.build import build_controller
from scaffolding_ext.stack.config import ComponentConfig, StackConfig, TunedConfig

_SERVER = {"base_url": "http://localhost:8000/v1", "model": "MODEL"}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def stack_of(
    setting: Setting, row: TableRow, trial: Trial, *, promise: Promise | None, base: StackConfig | None = None
) -> StackConfig:
    """A stack that runs a setting.

    Args:
        setting: The setting.
        row: What it came to on questions that did not choose it.
        trial: What it was chosen on.
        promise: What is promised of further questions; None promises nothing.
        base: Whose workers, prompt and sampling are kept; None asks a server on this machine for the recorded model.
    """
    recording = trial.recording
    controller = ComponentConfig.model_validate(_controller(setting, None if base is None else base.controller))
    tuned = TunedConfig(
        setting=str(setting),
        model=recording.model if base is None else _model_of(base),
        sampling=_sampling(recording) or None,
        data=recording.fingerprint,
        tasks=sorted({each.task for each in recording.questions} - {""}),
        num_questions=len(recording.questions),
        num_samples=recording.num_samples,
        measure=recording.measure,
        cost=trial.cost,
        cost_share=round(row.cost_share.value, 4),
        points=[round(value, 3) for value in row.points],
        promise=None if promise is None else str(promise),
        max_loss=None if promise is None else promise.max_loss,
        date=datetime.date.today().isoformat(),
        version=__version__,
    )
    if base is not None:
        return base.model_copy(update={"controller": controller, "tuned": tuned})
    server = {**_SERVER, "model": recording.model or _SERVER["model"]}
    worker = ComponentConfig.model_validate({"type": "OpenAIWorker", "args": server})
    given: dict[str, Any] = {"controller": controller, "workers": {"generation": worker}, "tuned": tuned}
    if _sampling(recording):
        given["sampling"] = _sampling(recording)
    return StackConfig(**given)


def setting_of(config: StackConfig) -> Setting:
    """What a stack does with the samples of a question.

    Raises:
        ConfigError: The stack is wrong, or nobody can replay it on recorded samples.
    """
    controller = build_controller(config)
    if isinstance(controller, NativeGenerationController):
        return Setting(Whole(), 1)
    if not isinstance(controller, MajorityVoteController):
        raise ConfigError(
            f"is a {type(controller).__name__}; replay takes a MajorityVoteController, and single chains", "controller"
        )
    if not isinstance(controller.generation_controller, NativeGenerationController):
        raise ConfigError(
            f"is a {type(controller.generation_controller).__name__}; the samples of the log are whole chains: give "
            "NativeGenerationController",
            "controller.args.generation_controller",
        )
    weight = None if isinstance(controller.weight, UniformWeight) else config.controller.args.get("weight")
    return Setting(Whole(), controller.default_sample_num, controller.allocation, weight)


def _controller(setting: Setting, base: ComponentConfig | None) -> dict[str, Any]:
    sample = _sample(base)
    if setting.num_samples == 1:
        return sample
    args: dict[str, Any] = {"default_sample_num": setting.num_samples, "allocation": setting.rule_config()}
    if setting.weight is not None:
        args["weight"] = setting.weight
    return {
        "type": controllers.name_of(MajorityVoteController),
        "args": {**args, "generation_controller": sample},
    }


def _sample(base: ComponentConfig | None) -> dict[str, Any]:
    """The controller of one sample: the innermost one of the base."""
    if base is None:
        return {"type": controllers.name_of(NativeGenerationController)}
    own: Mapping[str, Any] = base.model_dump(exclude_unset=True)
    while "generation_controller" in own.get("args", {}):
        own = own["args"]["generation_controller"]
    return dict(own)


def _model_of(config: StackConfig) -> str | None:
    worker = config.workers.get("generation")
    return None if worker is None else worker.args.get("model")


def _sampling(recording: Recording) -> dict[str, Any]:
    given = recording.sampling or {}
    return {name: given[name] for name in _SAMPLING if given.get(name) is not None}
