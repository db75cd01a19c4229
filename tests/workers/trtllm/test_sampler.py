"""TRTLLMWorker's settings reach the releases' samplers: penalties, seeds, biases, stop tokens, priorities."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import ExecutionScope, GenerationTask, StreamGenerationTask, current_scope
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import ThinkingBudget, note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program

pytest.importorskip("torch")
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

MODEL = "tinylm/draft"
PROMPT = "Start with 5. Apply a+3,b-2. Find the total."
newest = pytest.mark.parametrize("tensorrt_llm", ["newest"], indirect=True)
pytestmark = pytest.mark.usefixtures("tensorrt_llm")


def run(worker: Any, *tasks: Any) -> Any:
    async def scenario() -> None:
        await asyncio.gather(*map(worker.run_task, tasks))

    asyncio.run(scenario())
    return tasks[0]


def last_request(worker: TRTLLMWorker) -> Any:
    return worker._loaded.llm.requests[-1]


def generation(**fields: Any) -> GenerationTask:
    return GenerationTask(input_str=PROMPT, max_tokens=8, ignore_eos=True, **{"temperature": 0.0, **fields})


@newest
def test_a_seed_gives_the_same_text_alone_and_beside_others() -> None:
    with TRTLLMWorker(MODEL) as worker:
        texts = [run(worker, generation(temperature=2.0, seed=seed)).output_str for seed in (1, 2)]
        tasks = [generation(temperature=2.0, seed=seed) for seed in (1, 2)]
        run(worker, *tasks)
        assert [task.output_str for task in tasks] == texts


@newest
def test_samples_without_seeds_are_no_copies_and_repeat_with_the_workers_seed() -> None:
    """An engine that is given no seed takes a fixed one."""

    def six(seed: int | None) -> list[Any]:
        with TRTLLMWorker(MODEL, seed=seed) as worker:
            tasks = [generation(temperature=2.0) for _ in range(6)]
            run(worker, *tasks)
            run(worker, generation(temperature=0.0))
            assert last_request(worker)["params"].seed is None
        return [task.output_tokens for task in tasks]

    assert len(set(map(tuple, six(None)))) >= 3  # copies would be one; without a seed, two may agree by chance
    assert six(1) == six(1) != six(2)


@newest
def test_the_seed_of_a_sampled_branch_comes_from_the_run() -> None:
    def branches() -> Any:
        task = BranchTask(prefix_tokens=[5], suffixes=[[6], [6], [6]], max_tokens=6, temperature=3.0)
        with TRTLLMWorker(MODEL) as worker:
            in_request(lambda: worker.run_task(task))
        return task.output_tokens

    first = branches()
    assert first == branches()
    assert len(set(map(tuple, first))) == 3


@newest
def test_penalties_are_honoured_where_the_engine_takes_them() -> None:
    with TRTLLMWorker(MODEL) as worker:
        ids = run(worker, generation(frequency_penalty=100.0)).output_tokens
    assert len(set(ids)) == len(ids) == 8


@newest
def test_biases_stop_tokens_and_guides_go_over() -> None:
    with TRTLLMWorker(MODEL, llm_args={"guided_decoding_backend": "xgrammar"}) as worker:
        plain = run(worker, generation()).output_tokens
        assert run(worker, generation(logit_bias={"7": 100.0})).output_tokens == [7] * 8
        stopped = run(worker, generation(custom_input_params={"stop_token_ids": [plain[2]]}, num_logprobs=1))
        assert (stopped.output_tokens, stopped.finish_reason) == (plain[:3], "stop")
        assert len(stopped.logprobs) == 3
        run(worker, generation(custom_input_params={"guided_decoding": {"regex": r"\d+"}}))
        assert last_request(worker)["params"].guided_decoding.regex == r"\d+"
        with pytest.raises(InvalidTaskError, match=r"stop is \[3\]"):
            run(worker, generation(stop=[3]))
        for hints, message in (
            ({"stop_token_ids": [-1]}, r"stop_token_ids is \[-1\]"),
            ({"guided_decoding": {"colour": 1}}, "guided_decoding is .*it must be a mapping"),
        ):
            with pytest.raises(InvalidTaskError, match=message):
                run(worker, generation(custom_input_params=hints))
        with pytest.raises(InvalidTaskError, match="logit_bias names token 'x'"):
            run(worker, generation(logit_bias={"x": 1.0}))


@newest
def test_a_guide_is_refused_where_the_llm_would_ignore_it() -> None:
    with (
        TRTLLMWorker(MODEL) as worker,
        pytest.raises(InvalidTaskError, match=r"guided_decoding is .*llm_args: \{guided_decoding_backend: xgrammar\}"),
    ):
        run(worker, generation(custom_input_params={"guided_decoding": {"regex": "a"}}))


@newest
def test_an_engine_stops_where_the_text_ends_at_a_stop_string() -> None:
    """The newest releases end the result there, and let the engine go on."""

    async def scenario(worker: TRTLLMWorker) -> tuple[str, int]:
        plain = generation()
        await worker.run_task(plain)
        stop = (plain.output_str or "")[4:6]  # within a token, so that the engine does not see it by itself
        engine = worker._loaded.llm.executor
        num_before = engine.num_steps
        task = StreamGenerationTask(
            input_str=PROMPT, max_tokens=900, ignore_eos=True, stop=stop, streaming_step=900, temperature=0.0
        )
        await worker.run_task(task)
        assert (task.end_flag, task.finish_reason) == (True, "stop")
        await asyncio.to_thread(engine.idle.wait)
        return task.output_str or "", engine.num_steps - num_before

    with TRTLLMWorker(MODEL) as worker:
        text, num_steps = asyncio.run(scenario(worker))
        assert len(worker._loaded.llm.executor.aborted) == 1
    assert len(text) == 4
    assert num_steps < 100


def in_request(scenario: Any) -> Program:
    program = Program(seed=1)

    async def inside() -> None:
        enter_program(program)
        current_scope.set(ExecutionScope("request", (2, 0)))
        await scenario()

    asyncio.run(inside())
    return program


@newest
@pytest.mark.parametrize("is_v2", ["auto", True, False])
def test_the_trace_notes_a_kv_cache_manager_without_retention(is_v2: Any) -> None:
    task = BranchTask(prefix_tokens=[5], suffixes=[[6], [7]], max_tokens=2, temperature=0.0)
    settings = {"kv_cache_config": {"use_kv_cache_manager_v2": is_v2}}
    with TRTLLMWorker(MODEL, llm_args=settings) as worker:
        program = in_request(lambda: worker.run_task(task))
    reasons = [event["reason"] for event in program.trace if event.get("what") == "kv_cache_retention_config"]
    assert bool(reasons) is bool(is_v2)
    assert all("#16251" in reason for reason in reasons)


@newest
def test_priorities_go_over_where_the_engine_orders_by_them() -> None:
    def urgent(**hints: Any) -> GenerationTask:
        task = generation(custom_input_params=hints or None)
        note(task, priority=-3.0)  # the package's own: the lower, the sooner
        return task

    with TRTLLMWorker(MODEL, llm_args={"scheduler_config": {"waiting_queue_policy": "priority"}}) as worker:
        run(worker, generation())
        assert last_request(worker)["priority"] == 0.5
        assert worker.unordered is None
        run(worker, urgent())
        assert 0.5 < last_request(worker)["priority"] <= 1.0
        run(worker, urgent(engine_priority=0.2))
        assert last_request(worker)["priority"] == 0.2
        with pytest.raises(InvalidTaskError, match=r"engine_priority is 3; it must be at least 0 and at most 1"):
            run(worker, urgent(engine_priority=3))
    with TRTLLMWorker(MODEL) as worker:
        program = in_request(lambda: worker.run_task(urgent(engine_priority=0.9)))
        assert last_request(worker)["priority"] == 0.5
    assert [event["what"] for event in program.trace] == ["engine_priority"]
    assert program.trace[0]["reason"] == worker.unordered
    assert "waiting_queue_policy=priority" in worker.unordered


@newest
def test_the_order_of_programs_goes_over_too() -> None:
    with TRTLLMWorker(MODEL, llm_args={"scheduler_config": {"waiting_queue_policy": "priority"}}) as worker:

        async def scenario() -> list[float]:
            program = Program()
            enter_program(program)
            sent = []
            for place in (0.0, 7.0, 2e7, 2e7 + 1):
                program.place.order = lambda progress, place=place: place  # type: ignore[misc]
                await worker.run_task(generation())
                sent.append(last_request(worker)["priority"])
            return sent

        sent = asyncio.run(scenario())
    assert sent == sorted(sent, reverse=True)
    assert len(set(sent)) == 4
    assert sent[0] == 0.5


def sampled(tmp_path: Path, **said: Any) -> str:
    """The embedded model with a `generation_config.json` of its own."""
    folder = shutil.copytree(model_folder(MODEL), tmp_path / "model")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    return str(folder)


@newest
def test_where_nobody_sets_a_temperature_the_model_decides(tmp_path: Path) -> None:
    folder = sampled(tmp_path, do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    with TRTLLMWorker(folder) as worker:
        run(worker, generation(seed=1, temperature=None))
        params = last_request(worker)["params"]
        assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.95, 20)


@newest
def test_what_a_task_with_a_temperature_leaves_out_is_off_though_the_llm_fills_it(tmp_path: Path) -> None:
    folder = sampled(
        tmp_path, do_sample=True, temperature=0.6, top_k=20, min_p=0.1, repetition_penalty=1.05, no_repeat_ngram_size=3
    )
    with TRTLLMWorker(folder, llm_args={"generation_config": "auto"}) as worker:
        run(worker, generation(seed=1, temperature=0.7))
        params = last_request(worker)["params"]
        assert (params.temperature, params.top_k, params.min_p, params.repetition_penalty) == (0.7, 0, 0.0, 1.0)
        assert params.no_repeat_ngram_size == 0
        run(worker, generation(seed=1, temperature=None))
        params = last_request(worker)["params"]
        assert (params.temperature, params.top_k, params.min_p, params.repetition_penalty) == (0.6, 20, 0.1, 1.05)


@newest
def test_a_further_end_of_the_model_leaves_neither_its_id_nor_its_log_probability(tmp_path: Path) -> None:
    with TRTLLMWorker(MODEL) as worker:
        plain = run(worker, generation()).output_tokens
    end = json.loads((Path(model_folder(MODEL)) / "generation_config.json").read_text())["eos_token_id"]
    with TRTLLMWorker(sampled(tmp_path, eos_token_id=[end, plain[2]])) as worker:
        task = run(worker, GenerationTask(input_str=PROMPT, max_tokens=8, temperature=0.01, seed=1, num_logprobs=1))
    assert (task.output_tokens, len(task.logprobs), task.finish_reason) == (plain[:2], 2, "stop")


def test_log_probabilities_of_the_likeliest_alone_are_left_as_they_are() -> None:
    """Of 1.2's PyTorch backend, which does not tell that of the token that was drawn."""
    with TRTLLMWorker(MODEL) as worker:
        task = run(worker, generation(temperature=5.0, seed=1, num_logprobs=1))
        assert len(task.logprobs) == 8
        branches = run(worker, BranchTask(prefix_tokens=[5], suffixes=[[6]], max_tokens=4, temperature=5.0, seeds=[1]))
    assert branches.logprobs is None
    assert 0 < branches.confidences[0] <= 1


def test_logits_are_asked_for_only_where_the_likeliest_do_not_tell() -> None:
    """Of 1.2, which reports the likeliest alone; what both requests read is counted."""
    with TRTLLMWorker(MODEL) as worker:
        likely = run(worker, generation())
        score = run(worker, ScoreTask(input_str=PROMPT, continuation_tokens=likely.output_tokens))
        assert not last_request(worker)["params"].return_context_logits
        assert token_counts_of(score).prefilled == len(likely.output_tokens) + len(ids_of(worker))
        unlikely = ScoreTask(input_str=PROMPT, continuation_str=PROMPT[::-1])
        program = in_request(lambda: worker.run_task(unlikely))
        assert last_request(worker)["params"].return_context_logits
        assert token_counts_of(unlikely).prefilled == 2 * (len(ids_of(worker)) + len(unlikely.logprobs or ()))
    assert [event["what"] for event in program.trace] == ["prompt_logprobs"]


def ids_of(worker: TRTLLMWorker) -> list[int]:
    return worker._reader.ids(None, PROMPT, "input")


@newest
def test_a_budget_of_thinking_goes_to_an_llm_that_keeps_one() -> None:
    def bounded() -> GenerationTask:
        task = generation()
        note(task, thinking=ThinkingBudget(5, "<think>", "</think>", is_open=True))
        return task

    with TRTLLMWorker(MODEL, llm_args={"reasoning_parser": "deepseek-r1"}) as worker:
        assert worker.server_budget is not None
        run(worker, bounded())
        assert last_request(worker)["params"].thinking_token_budget == 5
    with TRTLLMWorker(MODEL) as worker:
        assert worker.server_budget is None
        run(worker, bounded())
        assert last_request(worker)["params"].thinking_token_budget is None
