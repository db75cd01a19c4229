"""inspect_ai: `--model scaffolding_ext/configs:dynasor_cot`, and the solver `scaffolding_ext/stack`.

The entry point `inspect_ai` registers both. Logs hold ledger, trace and exit reason beside each answer: in the output's
`metadata`, and for the solver in the sample's store.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.plugins import behind_thinking, told
from scaffolding_ext.request.results import ScaffoldingResult
from scaffolding_ext.stack.build import load_stack

try:
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageUser,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        modelapi,
    )
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolChoice, ToolInfo
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
