"""Contract of every controller, as plain functions for any test runner.

    import pytest
    from scaffolding_ext.testing.controller_contract import CONTROLLER_CHECKS

    @pytest.mark.parametrize("check", CONTROLLER_CHECKS)
    def test_contract(check):
        check(MyController)

A controller that continues through `next_turn` needs a prompting to render the further turn. Set it in the factory:
`controller.prompting = Prompting.for_model("tinylm/target")`.

The prompts are "Question N" and a scripted worker answers N, so an output without its N came from another request.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from scaffolding_ext.errors import EngineError, RequestCancelledError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.sampling_params import says_how_to_sample
from scaffolding_ext.protocol import Controller, GenerationTask, ParallelProcess, ScaffoldingOutput, Task
from scaffolding_ext.protocol.meta import CHAIN_START, Purpose, purpose_of, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import current_program
from scaffolding_ext.testing.doubles import Gate, Reply, ScriptedWorker

MakeController = Callable[[], Controller]
Respond = Callable[[Any], Reply]

_NUMBER = re.compile(r"Question (\d+)")
_WAIT_SECONDS = 30.0  # a request that runs longer counts as hung


def contract_reply(task: Any) -> Reply:
    r"""Default script: a chain of thought ending in `\boxed{N}`, or the rest of it, or `N}` after an open brace."""
    prompt = task.input_str
    if prompt is None:
        raise TypeError("the default script reads a task's input_str; pass your `respond`")
    if isinstance(task, ScoreTask):
        return [-1.0] * len(task.continuation_tokens or task.continuation_str or "")
    match = _NUMBER.search(prompt)
    number = match[1] if match else "none"
    if prompt.endswith("{"):
        return f"{number}}}"
    chain = f"So I get {number}. Again {number}, good.\n" * 8 + f"</think>\nThe answer is \\boxed{{{number}}}."
    written = prompt[match.end() :] if match else ""
    return chain[len(written) :] if chain.startswith(written) else chain


def check_controller_contract(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """Run every check of `CONTROLLER_CHECKS`.

    Args:
        make_controller: Makes the controller under test; called anew for each check.
        respond: The worker's script, if the default does not suit.

    Raises:
        AssertionError: The controller breaks the contract; the message says how.
    """
    for check in CONTROLLER_CHECKS:
        check(make_controller, respond)


def check_gives_text(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """A request returns text, the same again under the same seed, and the prototype does not change."""
    controller = make_controller()
    before = _state(controller)
    with _host(controller, ScriptedWorker(respond)) as llm:
        texts = [_text_of(llm, "Question 17", "17") for _ in range(2)]
    _expect(texts[0] == texts[1], f"the same sample gave two texts, so clones share state: {texts}")
    _expect(_state(controller) == before, "a request changed the prototype controller, not its clone")


def check_clone_is_independent(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """`clone()` returns a new object of the same type, including its sub-controllers."""
    controller = make_controller()
    twin = controller.clone()
    _expect(twin is not controller and type(twin) is type(controller), f"clone() gave {twin!r}")
    held = {id(sub) for _, sub in _subs(twin)}
    for name, sub in _subs(controller):
        _expect(id(sub) not in held, f"clone() shares the sub-controller {name}")
    bind = getattr(twin, "bind", None)
    if bind is not None:  # an unbound sub-controller would fall back silently
        bind(dict.fromkeys(WorkerTag, ScriptedWorker(respond)))
        for name, sub in _subs(twin):
            told = getattr(sub, "capabilities", {"": None})
            _expect(bool(told), f"bind() does not reach the sub-controller {name}")


def check_requests_do_not_mix(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """A request held while another runs from start to end still returns its answer."""
    gate = Gate(_WAIT_SECONDS)
    with _host(make_controller(), ScriptedWorker(respond, before=_only("Question 11", gate))) as llm:
        held = llm.generate_async("Question 11", sample_id="11", timeout=_WAIT_SECONDS)
        _wait_until_held("Question 11", gate)
        _text_of(llm, "Question 22", "22")
        _expect(not held.finished, "a request ended before its task was served")
        gate.open()
        held.result(_WAIT_SECONDS)
        _expect_text(held.outputs, "11")


def check_worker_failure_is_raised(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """A failed task ends its request with a TaskError caused by the worker's error; other requests continue."""
    failure = EngineError("the engine is gone")

    def failing(task: Any) -> Reply:
        program = current_program()
        return failure if program is not None and program.identity.sample_id == "failing" else respond(task)

    with _host(make_controller(), ScriptedWorker(failing)) as llm:
        result = llm.generate_async("Question 13", sample_id="failing", timeout=_WAIT_SECONDS)
        error = result.exception(_WAIT_SECONDS)
        _expect(
            isinstance(error, TaskError), f"a worker's failure became {error!r}; a TaskError should reach the caller"
        )
        _expect(error is not None and error.__cause__ is failure, "the TaskError's cause is not the worker's error")
        _text_of(llm, "Question 14", "14")


def check_ledger_counts_decoded_tokens(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """The ledger's decoded tokens, including discarded ones, match the worker's."""
    worker = ScriptedWorker(respond)
    with _host(make_controller(), worker) as llm:
        result = llm.generate("Question 15", timeout=_WAIT_SECONDS)
    decoded = sum(counts.decoded for counts in map(token_counts_of, worker.tasks) if counts is not None)
    counted = result.program.ledger.total.decoded
    _expect(counted == decoded, f"the worker decoded {decoded} tokens, the ledger has {counted}")


def check_cancel_ends_the_request(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """A cancelled request fails with RequestCancelledError while its task is still held; the host continues."""
    gate = Gate(_WAIT_SECONDS)
    with _host(make_controller(), ScriptedWorker(respond, before=_only("Question 18", gate))) as llm:
        result = llm.generate_async("Question 18", timeout=_WAIT_SECONDS)
        _wait_until_held("Question 18", gate)
        result.cancel()
        error = result.exception(_WAIT_SECONDS)
        _expect(isinstance(error, RequestCancelledError), f"a cancelled request ended with {error!r}")
        _text_of(llm, "Question 19", "19")


def check_samples_differ(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """Chain pieces sampled from one prompt differ: the same seed, or greedy decoding, would repeat one text.

    An unset temperature is the worker's default, which may be 0.
    """
    worker = ScriptedWorker(respond)
    with _host(make_controller(), worker) as llm:
        _text_of(llm, "Question 20", "20")
    chains = [task for task in worker.tasks if isinstance(task, GenerationTask) and _is_of_a_chain(task)]
    num_of_prompt = Counter((str(task.worker_tag), task.input_str) for task in chains)
    samples = [task for task in chains if num_of_prompt[str(task.worker_tag), task.input_str] > 1]
    asked = Counter((str(task.worker_tag), task.input_str, task.seed) for task in samples if task.seed is not None)
    twice = sorted({seed for (_, _, seed), num in asked.items() if num > 1 and seed is not None})
    _expect(not twice, f"several samples of one prompt have the seed {twice}; derive each from the sample's number")
    starts = [task for task in samples if purpose_of(task) == CHAIN_START]  # the script may repeat later pieces
    greedy = [task for task in starts if task.temperature == 0 or not says_how_to_sample(task)]
    _expect(
        not greedy,
        f"{len(greedy)} samples of one prompt have no temperature above 0, so a worker that defaults to greedy "
        "draws one text for all: draw them with controllers.vote.sampler.Sampler, or set a temperature",
    )


def check_runs_in_a_plain_for_loop(make_controller: MakeController, respond: Respond = contract_reply) -> None:
    """The controller runs under upstream's host: iterated by `for`, without sent values or an open program."""
    worker = ScriptedWorker(respond)
    controller = make_controller().clone()
    outputs: list[Any] = []

    def request() -> Any:
        outputs.append((yield from controller.generate("Question 21")))

    async def drive(work_items: Iterable[Any]) -> None:
        for work in work_items:
            if isinstance(work, ParallelProcess):
                for branch in work.sub_gens:
                    await drive(branch)
            else:
                await asyncio.gather(*(worker.run_task(task) for task in work))

    contextvars.Context().run(lambda: asyncio.run(drive(request())))  # keep its program out of the caller's context
    _expect_text(outputs, "21")


CONTROLLER_CHECKS = (
    check_gives_text,
    check_clone_is_independent,
    check_requests_do_not_mix,
    check_worker_failure_is_raised,
    check_ledger_counts_decoded_tokens,
    check_cancel_ends_the_request,
    check_samples_differ,
    check_runs_in_a_plain_for_loop,
)


def _is_of_a_chain(task: GenerationTask) -> bool:
    return purpose_of(task).written is Purpose.CHAIN


def _subs(controller: Controller) -> list[tuple[str, Controller]]:
    """Sub-controllers with the attribute that holds them, directly or in a container."""
    found = []
    for name, value in vars(controller).items():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        found += [(repr(name), item) for item in items if isinstance(item, Controller)]
    return found


def _only(prompt: str, gate: Gate) -> Callable[[Task], Awaitable[None]]:
    """Hold the tasks of one prompt at the gate; let others through."""

    async def before(task: Task) -> None:
        if prompt in (getattr(task, "input_str", None) or ""):
            await gate(task)

    return before


def _wait_until_held(prompt: str, gate: Gate) -> None:
    try:
        gate.wait_for()
    except TimeoutError as error:
        raise AssertionError(f"no task with the text {prompt!r} reached the worker") from error


def _host(controller: Controller, worker: ScriptedWorker) -> ScaffoldingLlm:
    return ScaffoldingLlm(controller, dict.fromkeys(WorkerTag, worker), seed=0)


def _text_of(llm: ScaffoldingLlm, prompt: str, number: str) -> str:
    result = llm.generate_async(prompt, sample_id=number, timeout=_WAIT_SECONDS).result(_WAIT_SECONDS)
    return _expect_text(result.outputs, number)


def _expect_text(outputs: list[Any], number: str) -> str:
    output = outputs[0] if outputs else None
    text = output.text if isinstance(output, ScaffoldingOutput) else None
    _expect(bool(text), f"the request returned {output!r}; expected a ScaffoldingOutput with text")
    _expect(number in str(text), f"the text for question {number} lacks its answer: {text!r}")
    return str(text)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _state(value: Any) -> Any:
    """A comparable snapshot: containers and controllers by content, everything else by identity."""
    if isinstance(value, Controller):
        return {name: _state(item) for name, item in vars(value).items() if name != "_capabilities"}
    if isinstance(value, dict):
        return {key: _state(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_state(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    return value if isinstance(value, (str, int, float, type(None))) else id(value)
