"""Runs the arms of a pre-flight on a stack: the draft alone, coins, the target alone, or samples and their judge."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from scaffolding_ext.controllers.base import BaseController, attributes_of, finish
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.draft_target.baselines import Coin
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.reward import RewardController, prepare, score
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.samples import Sampler
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.evaluation.preflight.arms import (
    DRAFT_ALONE,
    TARGET_ALONE,
    Arm,
    ArmChunk,
    ComparedChain,
    Floats,
    SecondsPerToken,
)
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.scoring import score as scored
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, Worker
from scaffolding_ext.protocol.task_results import mean_token_probability, sampled_logprobs
from scaffolding_ext.protocol.worker import WorkerTag, worker_for, worker_key
from scaffolding_ext.request.program import elapsed, record
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

SAMPLES_ALONE = "samples"


class RunArms(NamedTuple):
    """What a pre-flight ran: the arms, and the seconds of a token by role, fitted to the wall-clock of the arms."""

    arms: list[Arm]
    price: SecondsPerToken


class _JudgedChains(BaseController):
    """The chains of a draft/target controller, each with a judge's verdict about it."""

    required_tags: tuple[WorkerTag, ...] = ()  # its sub-controllers have theirs

    def __init__(self, controller: ConformalDraftTargetController, judge: RewardController) -> None:
        super().__init__()
        self.controller, self.judge = controller, judge

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        chains: list[DraftTargetChain] = []

        def keep(chain: DraftTargetChain) -> float:
            chains.append(chain)
            return 1.0

        own = copy.copy(self.controller)
        own.aggregator = keep
        yield from own.process([task], **kwargs)
        answered = [_answered(task, chain.text) for chain in chains]
        began = elapsed()
        verdicts = yield from score(self.judge, answered)
        num_judged = [chain.num_tokens for chain in chains]
        record("verdicts", verdicts=verdicts, num_judged=num_judged, judged_share=1 - began / elapsed())


class _JudgedSamples(BaseController):
    """Samples of a controller, each with a judge's verdict about it."""

    required_tags: tuple[WorkerTag, ...] = ()  # its sub-controllers have theirs

    def __init__(self, generation_controller: Controller, judge: Controller, num_samples: int) -> None:
        super().__init__()
        self.generation_controller, self.judge, self.num_samples = generation_controller, judge, num_samples

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        task.num_logprobs = task.num_logprobs or 1
        prepare(self.judge, task)
        sampler = Sampler(self.generation_controller, task, self.num_samples)
        yield sampler.start(self.num_samples)
        tasks = [sample.task for sample in sampler.samples]
        began = elapsed()
        verdicts = yield from score(self.judge, tasks)
        record(
            "judged",
            answers=[sample.answer for sample in sampler.samples],
            num_decoded=[sample.num_decoded for sample in sampler.samples],
            confidences=[_confidence(each) for each in tasks],
            verdicts=verdicts,
            judged_share=1 - began / elapsed(),
        )
        finish(task, tasks[0].output_str or "", tasks[0].output_tokens)


def run_arms(
    config: StackConfig,
    samples: Sequence[Example],
    *,
    alphas: Sequence[float],
    num_chains: int,
    clock: Callable[[], float],
    say: Callable[[str], object],
) -> RunArms:
    """Run the arms of a stack on some questions.

    Args:
        config: A stack of a `ConformalDraftTargetController`; or of a controller with samples and a judge: a vote or a
            best of n with a `reward_controller`, or a search.
        samples: The questions, at least 2.
        alphas: Shares of the chunks that the target takes over; a coin decides. Of a draft/target stack.
        num_chains: Chains of each question in each arm.
        clock: Seconds, monotonic.
        say: Told which arm runs.

    Raises:
        ConfigError: The stack has neither draft and target nor a judge, or there are too few questions.
    """
    if len(samples) < 2:
        raise ConfigError(f"has {len(samples)} questions; a pre-flight needs at least 2, and 50 are a good number")
    with build_stack(_uncalibrated(config)) as llm:
        controller = llm.prototype_controller
        made = (
            _draft_and_target(controller, llm.workers, alphas, num_chains)
            if isinstance(controller, ConformalDraftTargetController)
            else {SAMPLES_ALONE: _Planned(_judged(controller, num_chains), llm.workers, None)}
        )
        arms, seconds, judging = [], [], []
        prompts = [sample.prompt for sample in samples]
        for name, (own, workers, alpha) in made.items():
            say(f"{name}: {num_chains} chains of each of {len(samples)} questions")
            attributes_of(own).prompting = attributes_of(controller).prompting
            with ScaffoldingLlm(own, workers, llm.max_parallel_requests, seed=config.seed or 0) as arm_llm:
                began = clock()
                results = arm_llm.generate(prompts)
                seconds.append(clock() - began)
            traces: list[Sequence[Mapping[str, Any]]] = [result.program.trace for result in results]
            chains = [
                chain
                for number, (trace, sample) in enumerate(zip(traces, samples, strict=True))
                for chain in _chains_of(number, trace, sample.target, is_target=name == TARGET_ALONE)
            ]
            arms.append(Arm(name, chains, alpha))
            judging.append(np.mean([_judged_share(trace) for trace in traces]) * seconds[-1])
    return RunArms(arms, _fitted(arms, np.array(seconds), np.array(judging)))


class _Planned(NamedTuple):
    controller: Controller
    workers: Mapping[Any, Worker]
    alpha: float | None


def _uncalibrated(config: StackConfig) -> StackConfig:
    """A draft/target stack without the calibration that it does not have yet."""
    args = config.controller.args
    if config.controller.type.rpartition(":")[2] != ConformalDraftTargetController.__name__:
        return config
    kept = {key: value for key, value in args.items() if key not in ("alpha", "coverage", "calibration")}
    component = ComponentConfig(type=config.controller.type, args=kept | {"rule": Coin(0.0, scores=True)})
    return config.model_copy(update={"controller": component})


def _draft_and_target(
    controller: ConformalDraftTargetController, workers: Mapping[Any, Worker], alphas: Sequence[float], num_chains: int
) -> dict[str, _Planned]:
    def with_rule(rule: Coin) -> ConformalDraftTargetController:
        own = copy.copy(controller)
        own.rule, own.num_chains = rule, num_chains
        return own

    judge = RewardController(worker_tag=WorkerTag.TARGET.value)
    found = {DRAFT_ALONE: _Planned(_JudgedChains(with_rule(Coin(0.0, scores=True)), judge), workers, 0.0)}
    for alpha in alphas:
        found[f"draft/target {alpha:g}"] = _Planned(with_rule(Coin(alpha, scores=True)), workers, alpha)
    alone = dict(workers)
    target: Any = worker_for(workers, WorkerTag.TARGET)
    alone[worker_key(workers, WorkerTag.DRAFT)] = target
    return found | {TARGET_ALONE: _Planned(with_rule(Coin(0.0)), alone, 1.0)}


def _judged(controller: Controller, num_samples: int) -> _JudgedSamples:
    judge = getattr(controller, "reward_controller", None)
    sampled = getattr(controller, "generation_controller", None)
    if judge is None and isinstance(controller, SearchController):
        judge = RewardController(worker_tag=WorkerTag.GENERATION.value)
        sampled = NativeGenerationController({"temperature": 0.7, "max_tokens": controller.max_tokens})
    if judge is None or sampled is None:
        raise ConfigError(
            f"is a {type(controller).__name__} with no second model and no judge: a pre-flight is for a "
            "ConformalDraftTargetController, for a vote or a best of n with a reward_controller, and for a search",
            "controller.type",
        )
    return _JudgedSamples(sampled, judge, num_samples)


def _chains_of(
    question: int, trace: Sequence[Mapping[str, Any]], target: str, *, is_target: bool
) -> list[ComparedChain]:
    events: dict[str, list[Mapping[str, Any]]] = {}
    for event in trace:
        events.setdefault(event["event"], []).append(event)
    if "judged" in events:
        (own,) = events["judged"]
        columns = (own[name] for name in ("answers", "num_decoded", "verdicts", "confidences"))
        return [
            ComparedChain(question, answer, _is_right(answer, target), 0, tokens, 0, tokens, (), verdict, confidence)
            for answer, tokens, verdict, confidence in zip(*columns, strict=True)
        ]
    verdicts = events.get("verdicts", [{}])[0]
    decided = events.get("accept", []) + events.get("take_over", [])
    found = []
    for end in sorted(events.get("end", ()), key=lambda event: int(event["chain"])):
        number = end["chain"]
        own_chunks = sorted((e for e in decided if e["chain"] == number), key=lambda event: int(event["turn"]))
        chunks = [
            ArmChunk(
                event["turn"],
                event["score"],
                event["num_draft_tokens"],
                event["num_target_tokens"],
                event["event"] == "take_over",
            )
            for event in own_chunks
        ]
        num_draft = sum(chunk.num_draft_tokens for chunk in chunks)
        num_target = sum(chunk.num_target_tokens for chunk in chunks)
        found.append(
            ComparedChain(
                question,
                end["answer"],
                _is_right(end["answer"], target),
                0 if is_target else num_draft,
                num_target + (num_draft if is_target else 0),
                sum(chunk.num_draft_tokens for chunk in chunks if chunk.score is not None),
                verdicts["num_judged"][number] if verdicts else 0,
                chunks,
                verdicts["verdicts"][number] if verdicts else None,
            )
        )
    return found


def _is_right(answer: str | None, target: str) -> bool:
    return scored(answer, target).correct


def _answered(task: GenerationTask, text: str) -> GenerationTask:
    answered = copy.copy(task)
    answered.output_str, answered.output_tokens = text, None
    return answered


def _confidence(task: GenerationTask) -> float | None:
    try:
        logprobs = sampled_logprobs(task.output_tokens, task.logprobs or [])
    except NoOutputError:
        return None
    return mean_token_probability(logprobs) if logprobs else None


def _judged_share(trace: Sequence[Mapping[str, Any]]) -> float:
    """The share of a request's seconds in which its judge was waited for."""
    return float(next((event["judged_share"] for event in trace if "judged_share" in event), 0.0))


def _fitted(arms: Sequence[Arm], seconds: Floats, judging: Floats) -> SecondsPerToken:
    """Seconds of a token by role that explain the wall-clock of the arms best, none below 0.

    A role that no arm tells apart from another has 0: its seconds are in the other's.

    Args:
        seconds: Wall-clock of each arm.
        judging: Of them, those in which a judge was waited for.
    """
    names = ("num_draft", "num_target", "num_scored", "num_judged")
    rows = np.array([[sum(getattr(chain, name) for chain in arm.chains) for name in names] for arm in arms], float)
    found, _ = nnls(rows[:, :3] / (seconds - judging)[:, None], np.ones(len(rows)))
    num_judged = float(rows[:, 3].sum())
    draft, target, scored_token = (float(each) for each in found)
    return SecondsPerToken(draft, target, scored_token, float(judging.sum()) / num_judged if num_judged else 0.0)
