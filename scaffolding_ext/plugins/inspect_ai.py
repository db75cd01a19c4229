"""inspect_ai: `--model scaffolding_ext/configs:dynasor_cot`, the solver `scaffolding_ext/stack`, and `Until`.

The entry point `inspect_ai` registers both. Logs hold ledger, trace and exit reason beside each answer: in the output's
`metadata`, and for the solver in the sample's store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaffolding_ext.errors import ConfigError, DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.run.until import UntilGoal, UntilKnown
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.plugins import behind_thinking, told
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.stack.build import load_stack

try:
    from inspect_ai.dataset import Sample
    from inspect_ai.log import EvalSpec, read_eval_log
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageUser,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        modelapi,
    )
    from inspect_ai.scorer import SampleScore, Score, value_to_float
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolChoice, ToolInfo
    from inspect_ai.util import EarlyStop, EarlyStopping
except ImportError as error:
    raise MissingDependencyError("inspect_ai", "inspect") from error

STORE = "scaffolding_ext"


@modelapi(name="scaffolding_ext")
class ScaffoldingExtAPI(ModelAPI):  # type: ignore[misc]
    """A stack as a model that answers one question; the stack decides how to sample.

    Args:
        base_url: Not used, like `api_key`: the stack's workers have addresses.
        overrides: `key.path=value` changes of the stack, one or a list.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        overrides: str | Sequence[str] = (),
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self.llm = load_stack(model_name, [overrides] if isinstance(overrides, str) else overrides)

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """Answer the only message; ConfigError if there are tools or several messages."""
        if tools:
            raise ConfigError("a stack calls no tools; remove them from the task")
        if len(input) != 1 or not isinstance(input[0], ChatMessageUser):
            roles = ", ".join(message.role for message in input)
            raise ConfigError(
                f"a stack answers one question but got messages of {roles}; a system prompt belongs in the "
                "stack file's `prompt` section"
            )
        result = await _ended(self.llm.generate_async(input[0].text, timeout=config.timeout))
        return _output(self.model_name, result)

    def max_connections(self) -> int:
        return self.llm.max_parallel_requests

    def close(self) -> None:
        self.llm.shutdown()


@solver(name="stack")  # type: ignore[untyped-decorator]
def stack(config: str, overrides: Sequence[str] = ()) -> Solver:
    """A solver that answers each sample with this stack, whatever the task's model.

    Seeds derive from the sample's id and epoch, as in `scaffolding-ext eval`.
    """
    hosts: list[ScaffoldingLlm] = []  # created by the first sample, so listing solvers loads no model

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if not hosts:
            hosts.append(load_stack(config, overrides))
        sample_id = str(state.sample_id)
        result = await _ended(hosts[0].generate_async(state.input_text, sample_id=sample_id, epoch=state.epoch - 1))
        state.output = _output(config, result)
        state.messages.append(state.output.message)
        state.store.set(STORE, told(result))
        return state

    return solve


class Until(EarlyStopping):  # type: ignore[misc]
    """Ends a task when its result is known, as `eval --until` does: `Task(..., early_stopping=Until("±2"))`.

    Args:
        goal: `±2`, the share of right answers to within 2 points, or `vs LOG ±1`, better, worse, or within 1 point of
            another log of inspect_ai; 2 points if no margin is given.
        scorer: Name of the scorer that counts; None takes the first.
    """

    def __init__(self, goal: str, scorer: str | None = None) -> None:
        self._goal = UntilGoal.of(goal)
        self._scorer = scorer
        self._stop: UntilKnown | None = None
        self._as_number = value_to_float()

    async def start_task(self, task: EvalSpec, samples: list[Sample], epochs: int) -> str:
        """Take the order of the samples; ConfigError if it is not random, DatasetError if the other log lacks one."""
        if not (task.dataset.shuffled or task.config.sample_shuffle):
            raise ConfigError("Until needs samples in random order: shuffle the dataset, or give --sample-shuffle SEED")
        ids = [str(sample.id) for sample in samples]
        baseline = None if self._goal.baseline is None else self._answered_by(self._goal.baseline, ids)
        self._stop = UntilKnown(self._goal, ids, epochs, baseline)
        return "scaffolding_ext.Until"

    async def schedule_sample(self, id: str | int, epoch: int) -> EarlyStop | None:
        """Spare a sample if the result is known."""
        if self._stop is None or not self._stop.is_settled:
            return None
        return EarlyStop(id=id, epoch=epoch, reason=f"the result is known: {self._stop.conclusion}")

    async def complete_sample(self, id: str | int, epoch: int, scores: dict[str, SampleScore]) -> None:
        """Count a sample; without a score it is wrong."""
        assert self._stop is not None
        self._stop.add(str(id), self._value({name: each.score for name, each in scores.items()}))

    async def complete_task(self) -> dict[str, Any]:
        """Return the figures of the result."""
        return {} if self._stop is None else self._stop.figures()

    def _value(self, scores: Mapping[str, Score]) -> float:
        name = self._scorer or next(iter(scores), "")
        return self._as_number(scores[name].value) if name in scores else 0.0

    def _answered_by(self, path: str, ids: Sequence[str]) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for sample in read_eval_log(path).samples or ():
            if sample.scores:
                values.setdefault(str(sample.id), []).append(self._value(sample.scores))
        if lacking := [each for each in ids if each not in values]:
            raise DatasetError(f"{path} has no score for {len(lacking)} of the {len(ids)} samples, as {lacking[0]!r}")
        return {each: sum(values[each]) / len(values[each]) for each in ids}


async def _ended(result: ScaffoldingResult) -> ScaffoldingResult:
    """Wait for a request; cancel it if the sample is cancelled (a limit, or another sample's error)."""
    try:
        return await result
    except BaseException:
        result.cancel()
        raise


def _output(name: str, result: ScaffoldingResult) -> ModelOutput:
    output = ModelOutput.from_content(name, behind_thinking(result))
    total = result.program.ledger.total
    read = total.prefilled + total.reused
    output.usage = ModelUsage(
        input_tokens=read,
        output_tokens=total.decoded,
        total_tokens=read + total.decoded,
        input_tokens_cache_read=total.reused,
    )
    output.metadata = told(result)
    return output
