"""Read logs of inspect_ai, `.eval` and JSON, with inspect_ai's reader; the epochs of a sample are its samples."""

from __future__ import annotations

from pathlib import Path

from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.logs.samples import Log, LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.logs.stated import sampling_of, stated

_SERVICES = ("azure", "bedrock", "vertex")  # between a provider and its model's name


def read_inspect(path: Path, fingerprint: str) -> Log:
    """Read the questions of one log, graded by its first scorer.

    Raises:
        MissingDependencyError: inspect_ai is not installed.
        DatasetError: The log cannot be read, or has no samples.
    """
    try:
        from inspect_ai.log import read_eval_log
        from inspect_ai.scorer import value_to_float
    except ImportError as error:
        raise MissingDependencyError("inspect_ai", "inspect") from error
    try:
        log = read_eval_log(str(path))
    except Exception as error:  # inspect_ai raises many types for a file that is not its log
        raise DatasetError(f"{path}: inspect_ai cannot read it: {error}") from error
    if not log.samples:
        raise DatasetError(f"{path}: has no samples, and its status is {log.status!r}; give the log of a finished run")
    as_number = value_to_float()
    questions: dict[str, LoggedQuestion] = {}
    for sample in sorted(log.samples, key=lambda each: each.epoch):
        if sample.error is not None:
            continue
        target = sample.target if isinstance(sample.target, str) else next(iter(sample.target), None)
        question = questions.setdefault(
            str(sample.id), LoggedQuestion(str(sample.id), target or None, run=log.eval.model, task=log.eval.task)
        )
        score = next(iter((sample.scores or {}).values()), None)
        kept = None if score is None or not score.answer else stated(score.answer)
        answer = kept if kept is not None else stated(sample.output.completion)
        usage = sample.model_usage or {}
        # a grading model also has a row
        own = [usage[log.eval.model]] if log.eval.model in usage else usage.values()
        tokens = sum(each.output_tokens for each in own) if usage else None
        correct = None if score is None else as_number(score.value) == 1.0
        question.samples.append(LoggedSample(answer, correct, tokens, sample.total_time))
    configs = log.eval.model_generate_config, log.plan.config  # the model's, and the task's or the command's
    sampling = sampling_of(*(each.model_dump(exclude_none=True) for each in configs))
    return Log(str(path), fingerprint, list(questions.values()), _without_provider(log.eval.model), sampling)


def _without_provider(model: str) -> str:
    """Return a server's name for a model that inspect_ai calls `vllm/NAME` or `openai-api/SERVICE/NAME`."""
    provider, _, name = model.partition("/")
    service, _, own = name.partition("/")
    has_service = provider == "openai-api" or service in _SERVICES
    return own if own and has_service else name or model
