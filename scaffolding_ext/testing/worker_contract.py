"""Contract of every worker, as plain functions for any test runner.

    import pytest
    from scaffolding_ext.testing.worker_contract import WORKER_CHECKS

    @pytest.mark.parametrize("check", WORKER_CHECKS)
    def test_contract(check):
        check(MyWorker)

A check passes if the worker's `task_handlers` lack its task type.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.served_model import served_model
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Task, TaskStatus, Worker, standins
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag, declared

MakeWorker = Callable[[], Worker]
T = TypeVar("T", bound=Task)

PROMPT = "Question 17"
_WAIT_SECONDS = 30.0  # a call that runs longer counts as hung
_MAX_TOKENS = 16
_MANY_TOKENS = 128  # for tasks that must end long before
_STREAM_TOKENS = 32  # that an engine may run ahead of its reader
_FINISH_REASONS = (None, "stop", "length")


@dataclass
class _UnheardOf(Task):
    """A task type unknown to every worker."""


def check_worker_contract(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """Run every check of `WORKER_CHECKS`.

    Args:
        make_worker: Makes the worker under test; called anew for each check, which shuts the worker down.
        prompt: A prompt that the worker can continue for at least some tokens.

    Raises:
        AssertionError: The worker breaks the contract; the message says how.
    """
    for check in WORKER_CHECKS:
        check(make_worker, prompt)


def check_says_what_it_serves(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """`task_handlers` is a mapping by task type, and the worker declares context length and model."""
    with make_worker() as worker:
        handlers = worker.task_handlers
        _expect(isinstance(handlers, Mapping) and len(handlers) > 0, f"task_handlers is {handlers!r}")
        for task_type, handler in handlers.items():
            _expect(
                isinstance(task_type, type) and issubclass(task_type, Task | standins.Task),
                f"{task_type!r} is not a task type",
            )
            _expect(callable(handler), f"the handler of {task_type.__name__} is {handler!r}")
        length = declared(worker).max_seq_len
        _expect(length is None or (type(length) is int and length > 0), f"max_seq_len is {length!r}; tokens, or None")
        if GenerationTask in handlers:
            _expect(
                hasattr(worker, "model") or any(isinstance(inner, Worker) for inner in vars(worker).values()),
                "it lacks the attribute `model`; set it to None if there is no model",
            )
            model = getattr(worker, "model", None)
            _expect(model is None or isinstance(model, str), f"model is {model!r}; a name, or None")


def check_generates(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """A GenerationTask gets text, token ids within `max_tokens`, a finish reason, and matching counts."""
    with make_worker() as worker:
        if GenerationTask not in worker.task_handlers:
            return
        task = asyncio.run(_served(worker, _generation(prompt)))
        _expect(isinstance(task.output_str, str) and bool(task.output_str), f"output_str is {task.output_str!r}")
        ids = task.output_tokens
        _expect(isinstance(ids, list) and all(type(token) is int for token in ids), f"output_tokens is {ids!r}")
        num_tokens = len(task.output_tokens or ())
        _expect(0 < num_tokens <= _MAX_TOKENS, f"{num_tokens} tokens came back; max_tokens is {_MAX_TOKENS}")
        reason = getattr(task, "finish_reason", None)
        _expect(reason in _FINISH_REASONS, f"finish_reason is {reason!r}; it must be one of {_FINISH_REASONS}")
        _expect(num_tokens == _MAX_TOKENS or reason != "length", f"cut off by length at {num_tokens} tokens")
        counts = token_counts_of(task)
        _expect(counts is not None, "no token counts; record them with note(task, counts=TokenCounts(...))")
        if counts is not None:
            _expect(min(counts) >= 0, f"negative counts: {counts}")
            _expect(counts.decoded == num_tokens, f"{num_tokens} tokens were decoded, {counts.decoded} are counted")
            _expect(counts.prefilled + counts.reused > 0, f"a prompt was read but not counted: {counts}")


def check_repeats_itself(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """The same task with the same seed gives the same text and the same total of tokens."""
    with make_worker() as worker:
        if GenerationTask not in worker.task_handlers:
            return

        async def twice() -> tuple[GenerationTask, GenerationTask]:
            tasks = [_generation(prompt, temperature=1.0, seed=5) for _ in range(2)]
            return await _served(worker, tasks[0]), await _served(worker, tasks[1])

        first, second = asyncio.run(twice())
        _expect(_text(first) == _text(second), f"one seed gave two texts: {_text(first)!r} and {_text(second)!r}")
        _expect(first.output_tokens == second.output_tokens, "one seed gave the same text from different token ids")
        totals = [sum(token_counts_of(task) or ()) for task in (first, second)]
        _expect(totals[0] == totals[1], f"the same task has {totals[0]} tokens, and then {totals[1]}")


def check_tasks_do_not_mix(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """Concurrent tasks give the same texts as sequential ones."""
    with make_worker() as worker:
        if GenerationTask not in worker.task_handlers:
            return
        prompts = [prompt, prompt + "1", prompt + "23"]

        async def scenario() -> tuple[list[str | None], list[str | None]]:
            alone = [_text(await _served(worker, _generation(text))) for text in prompts]
            beside = await asyncio.gather(*(_served(worker, _generation(text)) for text in prompts))
            return alone, list(map(_text, beside))

        alone, beside = asyncio.run(scenario())
        _expect(alone == beside, f"sequential tasks give {alone}, concurrent ones {beside}")


def check_streams(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """A stream grows at each step, keeps earlier tokens, sets `end_flag`, and equals plain generation."""
    with make_worker() as worker:
        if not {GenerationTask, StreamGenerationTask} <= set(worker.task_handlers):
            return

        async def scenario() -> None:
            plain = await _served(worker, _generation(prompt))
            stream = _stream(prompt)
            before: list[int] = []
            while not stream.end_flag:
                await _served(worker, stream)
                ids = list(stream.output_tokens or ())
                _expect(ids[: len(before)] == before, f"a stream took tokens back: {before} became {ids}")
                _expect(stream.end_flag or len(ids) > len(before), "a step that did not end the stream gave nothing")
                counts = token_counts_of(stream)
                _expect(
                    counts is not None and counts.decoded + counts.reused >= len(ids),
                    f"a stream of {len(ids)} tokens has the counts {counts}; they are cumulative",
                )
                before = ids
            _expect(before == plain.output_tokens, f"the stream gave {before}, plain generation {plain.output_tokens}")
            _expect(_text(stream) == _text(plain), f"streamed text is {_text(stream)!r}, plain {_text(plain)!r}")

        asyncio.run(scenario())


def check_a_stream_can_be_cancelled(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """With `cancel_flag` set, the next step ends the stream with its current text; other tasks are still served."""
    with make_worker() as worker:
        if StreamGenerationTask not in worker.task_handlers:
            return

        async def scenario() -> None:
            stream = await _served(worker, _stream(prompt))
            before = list(stream.output_tokens or ())
            stream.cancel_flag = True
            await _served(worker, stream)
            _expect(stream.end_flag, "a cancelled stream did not end")
            ids = list(stream.output_tokens or ())
            _expect(ids[: len(before)] == before, f"a cancelled stream took tokens back: {before} became {ids}")
            await _served(worker, _stream(prompt))

        asyncio.run(scenario())


def check_a_call_can_be_cancelled(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """Cancelling a call ends it and its work at once; the worker continues to serve others."""
    with make_worker() as worker:
        if GenerationTask not in worker.task_handlers:
            return

        async def scenario() -> None:
            await _served(worker, _generation(prompt))  # lets the worker start its background tasks
            before = asyncio.all_tasks()
            task = _generation(prompt)
            call = asyncio.ensure_future(worker.run_task(task))
            await asyncio.sleep(0)  # let it begin
            call.cancel()
            done, _ = await asyncio.wait([call], timeout=_WAIT_SECONDS)
            _expect(bool(done), "a cancelled call went on")
            _expect(call.cancelled() or call.exception() is None, "a cancelled call failed with another error")
            left = asyncio.all_tasks() - before
            _expect(not left, f"a cancelled call left work running: {left}")
            written = _written(task)
            await _served(worker, _generation(prompt))
            _expect(_written(task) == written, "a cancelled call went on: its task was written into afterwards")

        asyncio.run(scenario())


def check_stops(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """A stop string is refused, or it cuts the text before it and ends decoding at once, even inside a token.

    Token ids, if there are any, end with the token that completes the string.
    """
    with make_worker() as worker:
        if GenerationTask not in worker.task_handlers:
            return

        async def scenario() -> None:
            plain = await _served(worker, _generation(prompt, max_tokens=_MANY_TOKENS))
            whole, ids = _text(plain) or "", plain.output_tokens
            beginnings = [
                _text(await _served(worker, _generation(prompt, max_tokens=num))) or "" for num in range(1, _MAX_TOKENS)
            ]
            stop = _inside_a_token(beginnings)
            task = _generation(prompt, stop=stop, max_tokens=_MANY_TOKENS)
            if await _outcome(worker, task) is not TaskStatus.SUCCESS:
                return
            expected = whole[: whole.find(stop)]
            _expect(_text(task) == expected, f"stopped at {stop!r} the text is {_text(task)!r}, not {expected!r}")
            num_needed = 1 + next(number for number, text in enumerate(beginnings) if stop in text)
            counts = token_counts_of(task)
            _expect(
                counts is not None and counts.decoded <= num_needed + _STREAM_TOKENS,
                f"a text that stops at {stop!r} after {num_needed} tokens has the counts {counts}; end decoding there",
            )
            if ids is not None:
                _expect(
                    task.output_tokens == ids[:num_needed],
                    f"stopped at {stop!r} the token ids are {task.output_tokens}, not {ids[:num_needed]}; they must "
                    "end with the token that completes the string",
                )

        asyncio.run(scenario())


def _inside_a_token(beginnings: list[str]) -> str:
    """Two characters of a text that begin inside a token, if one has several; given the text after each token."""
    text = beginnings[-1]
    places = [len(before) + 1 for before, after in itertools.pairwise(beginnings) if len(after) > len(before) + 1]
    stops = [text[start : start + 2] for start in places if text.find(text[start : start + 2]) == start]
    return stops[-1] if stops else text[len(text) // 2 :][:2]


def check_texts_continue(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """Token ids of a prompt and of appended texts decode to these texts, without spaces between them."""
    with make_worker() as worker:
        served = served_model({WorkerTag.GENERATION: worker})
        if served is None or served.model is None:
            return
        prompting = Prompting.for_model(served.model, tokenizer=declared(served.worker).tokenizer)
        task = _generation(prompt)
        prompting.apply(task, raw=True)
        parts = (".", "\n\n", "}\n", " 12", "x")
        ids = [token for part in parts for token in prompting.encode(part) or ()]
        start = prompting.decode(list(task.input_tokens or ()))
        expected = f"{start}{''.join(parts)}"
        found = prompting.decode(list(task.input_tokens or ()) + ids)
        _expect(found == expected, f"the tokens of {expected!r} in parts decode to {found!r}")


def check_scores(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """A ScoreTask returns a log-probability per continuation token and decodes nothing."""
    with make_worker() as worker:
        if not {GenerationTask, ScoreTask} <= set(worker.task_handlers):
            return

        async def scenario() -> ScoreTask:
            text = _text(await _served(worker, _generation(prompt)))
            return await _served(worker, ScoreTask(input_str=prompt, continuation_str=text))

        task = asyncio.run(scenario())
        values = task.logprobs or []
        _expect(len(values) > 0, "a ScoreTask came back without log-probabilities")
        _expect(all(math.isfinite(v) and v <= 0 for v in values), f"not natural-log probabilities: {values}")
        counts = token_counts_of(task)
        _expect(counts is not None and counts.decoded == 0, f"scoring decodes nothing, but the counts are {counts}")


def check_failures_are_told(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """A task that cannot be served ends in an error or a bad status, never in a text.

    Covers unknown tasks, missing or overlong prompts, and invalid fields.
    """
    with make_worker() as worker:
        outcome = asyncio.run(_outcome(worker, _UnheardOf()))
        _expect(outcome is not TaskStatus.SUCCESS, "it reported success for a task that is not in task_handlers")
        if GenerationTask not in worker.task_handlers:
            return
        for what, task in (
            ("no prompt", GenerationTask(max_tokens=1)),
            ("a prompt of no tokens", GenerationTask(input_tokens=[], max_tokens=1)),
            ("a token id of -1", GenerationTask(input_tokens=[-1], max_tokens=1)),
            ("a budget of -1 tokens", GenerationTask(input_str=prompt, max_tokens=-1)),
        ):
            outcome = asyncio.run(_outcome(worker, task))
            _expect(
                outcome is not TaskStatus.SUCCESS,
                f"a task with {what} was served with the text {task.output_str!r}; raise an error with the reason",
            )
        length = declared(worker).max_seq_len
        if length is not None:
            task = GenerationTask(input_tokens=[1] * (length + 1), max_tokens=1)
            outcome = asyncio.run(_outcome(worker, task))
            _expect(
                outcome is not TaskStatus.SUCCESS, f"{length + 1} prompt tokens were served; max_seq_len is {length}"
            )


def check_shutdown_ends_it(make_worker: MakeWorker, prompt: str = PROMPT) -> None:
    """`shutdown` may be called twice; a later task is served or fails, but neither hangs nor returns an empty text."""
    worker = make_worker()
    worker.shutdown()
    worker.shutdown()
    if GenerationTask not in worker.task_handlers:
        return
    task = _generation(prompt)
    outcome = asyncio.run(_outcome(worker, task))
    _expect(outcome is not TaskStatus.SUCCESS or bool(task.output_str), "after shutdown a task came back empty")


WORKER_CHECKS = (
    check_says_what_it_serves,
    check_generates,
    check_repeats_itself,
    check_tasks_do_not_mix,
    check_streams,
    check_a_stream_can_be_cancelled,
    check_a_call_can_be_cancelled,
    check_stops,
    check_texts_continue,
    check_scores,
    check_failures_are_told,
    check_shutdown_ends_it,
)


def _generation(prompt: str, **fields: Any) -> GenerationTask:
    """Greedy unless the fields say otherwise, since a server's default temperature is unknown."""
    return GenerationTask(**{"input_str": prompt, "max_tokens": _MAX_TOKENS, "temperature": 0.0, **fields})


def _stream(prompt: str) -> StreamGenerationTask:
    return StreamGenerationTask(input_str=prompt, max_tokens=_MAX_TOKENS, streaming_step=2, temperature=0.0)


def _text(task: GenerationTask) -> str | None:
    return task.output_str


def _written(task: GenerationTask) -> tuple[Any, ...]:
    """Everything that a worker has written to a task."""
    return task.output_str, list(task.output_tokens or ()), token_counts_of(task)


async def _served(worker: Worker, task: T) -> T:
    status = await _in_time(worker.run_task(task))
    _expect(status in (None, TaskStatus.SUCCESS), f"a {type(task).__name__} ended with {status}")
    return task


async def _outcome(worker: Worker, task: Task) -> TaskStatus | Exception:
    """Status of a task (None counts as success), or the error it raised; a time-out fails the check."""
    try:
        return await _in_time(worker.run_task(task)) or TaskStatus.SUCCESS
    except AssertionError:  # the time-out's
        raise
    except Exception as error:  # an engine's own errors may have any type
        return error


async def _in_time(call: Awaitable[TaskStatus | None]) -> TaskStatus | None:
    try:
        return await asyncio.wait_for(call, _WAIT_SECONDS)
    except asyncio.TimeoutError:
        raise AssertionError(f"a task was not served within {_WAIT_SECONDS} s") from None


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
