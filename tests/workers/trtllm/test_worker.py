"""TRTLLMWorker over the fake LLM API, whose LLM serves the embedded model for real, in each of its releases."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from typing import Any

import pytest

from scaffolding_ext.controllers.tree.expand import WorkerExpander
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.errors import ConfigError, EngineError, InvalidTaskError, MissingDependencyError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ExecutionScope, GenerationTask, StreamGenerationTask, TaskStatus, current_scope
from scaffolding_ext.protocol.branching import SIMILARITY_GATE, BranchTask, LayerExit, VerifyTask
from scaffolding_ext.protocol.meta import PAUSED, note, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program

pytest.importorskip("torch")
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

MODEL = "tinylm/draft"
PROMPT = "Start with 5. Apply a+3,b-2. Find the total."
RELEASES = ("1.2", "1.2.1", "newest")
each_release = pytest.mark.parametrize("tensorrt_llm", RELEASES, indirect=True)
pytestmark = pytest.mark.usefixtures("tensorrt_llm")


def llm_of(worker: TRTLLMWorker) -> Any:
    return worker._loaded.llm


def run(worker: Any, *tasks: Any) -> Any:
    async def scenario() -> None:
        await asyncio.gather(*map(worker.run_task, tasks))

    asyncio.run(scenario())
    return tasks[0]


@pytest.fixture(scope="module")
def reference() -> Any:
    with HuggingFaceWorker(MODEL, max_batch_size=4) as worker:
        yield worker


def long_task(**fields: Any) -> StreamGenerationTask:
    return StreamGenerationTask(input_str=PROMPT, max_tokens=40, ignore_eos=True, **fields)


@each_release
def test_greedy_text_is_that_of_the_transformers_worker(reference: Any) -> None:
    with TRTLLMWorker(MODEL) as worker:
        expected = run(reference, GenerationTask(input_str=PROMPT, max_tokens=24, temperature=0.0))
        task = run(worker, GenerationTask(input_str=PROMPT, max_tokens=24, num_logprobs=2, temperature=0.0))
        assert (task.output_str, task.output_tokens, task.finish_reason) == (
            *(expected.output_str, expected.output_tokens),
            expected.finish_reason,
        )
        assert all(token in step for step, token in zip(task.logprobs, task.output_tokens, strict=True))
        assert task.usage_prompt_tokens == len(load_tokenizer(MODEL)(PROMPT).input_ids)


@pytest.mark.parametrize("tensorrt_llm", ["1.2.1", "newest"], indirect=True)
def test_a_release_that_reports_the_likeliest_only_is_asked_for_logits(tensorrt_llm: Any) -> None:
    with TRTLLMWorker(MODEL) as worker:
        for _ in range(2):
            run(worker, ScoreTask(input_str=PROMPT, continuation_str=PROMPT))
        asked = [request["params"].return_context_logits for request in llm_of(worker).requests]
    assert asked == ([False, True] * 2 if tensorrt_llm.__version__ == "1.2.1" else [False, False])


def without_salts(llm: Any) -> Any:
    """An LLM of a release that knows no cache salts."""

    class Old(type(llm)):  # type: ignore[misc]
        def generate_async(
            self,
            inputs: Any,
            sampling_params: Any = None,
            streaming: bool = False,
            kv_cache_retention_config: Any = None,
        ) -> Any:
            return self._submit(inputs, sampling_params, streaming, None, kv_cache_retention_config, None)

    llm.__class__ = Old
    return llm


def test_scores_beside_reused_kv_are_refused_where_there_are_no_salts(tensorrt_llm: Any) -> None:
    llm = without_salts(tensorrt_llm.LLM(model_folder(MODEL)))
    try:
        with pytest.raises(
            ConfigError, match=r"serve_scores: is True, but TensorRT-LLM .* whose KV it reuses.*add a worker"
        ):
            TRTLLMWorker(llm, serve_scores=True)
        worker = TRTLLMWorker(llm)
        assert ScoreTask not in worker.task_handlers
        with pytest.raises(InvalidTaskError, match=r"does not serve ScoreTask: .*whose KV it reuses"):
            run(worker, ScoreTask(input_str=PROMPT, continuation_str="5"))
        with pytest.raises(InvalidTaskError, match=r"return_context_logits is True, but .*whose KV it reuses"):
            run(worker, GenerationTask(input_str=PROMPT, max_tokens=1, return_context_logits=True, temperature=0.0))
        assert run(worker, GenerationTask(input_str=PROMPT, max_tokens=1, temperature=0.0)).output_str
    finally:
        llm.shutdown()


def test_an_llm_that_is_there_is_taken_as_it_is_and_left_running(tensorrt_llm: Any) -> None:
    llm = tensorrt_llm.LLM(
        model_folder(MODEL),
        kv_cache_config=importlib.import_module("tensorrt_llm.llmapi").KvCacheConfig(enable_block_reuse=False),
    )
    try:
        with TRTLLMWorker(llm) as worker:
            assert (worker.model, ScoreTask in worker.task_handlers) == (model_folder(MODEL), True)
            run(worker, ScoreTask(input_str=PROMPT, continuation_str="5"))
            assert llm.requests[-1]["salt"] is None
        assert not llm.executor.is_shutdown
        with pytest.raises(EngineError, match="has been shut down"):
            run(worker, GenerationTask(input_str=PROMPT, max_tokens=1, temperature=0.0))
        with pytest.raises(ConfigError, match=r"kv_cache_fraction: is 0.5, but the LLM is already loaded"):
            TRTLLMWorker(llm, kv_cache_fraction=0.5)
    finally:
        llm.shutdown()


def test_a_stream_has_no_backlog() -> None:
    """Once the engine is done, the next step has everything, however small its step."""

    async def scenario(worker: TRTLLMWorker) -> None:
        task = long_task()
        await worker.run_task(task)
        await asyncio.to_thread(llm_of(worker).executor.idle.wait)
        await worker.run_task(task)
        assert (len(task.output_tokens or ()), task.end_flag, task.finish_reason) == (40, True, "length")

    with TRTLLMWorker(MODEL) as worker:
        asyncio.run(scenario(worker))


def test_a_cancelled_stream_is_aborted_and_keeps_what_it_has() -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        task = StreamGenerationTask(
            input_str=PROMPT, max_tokens=900, ignore_eos=True, streaming_step=3, temperature=0.0
        )
        await worker.run_task(task)
        task.cancel_flag = True
        await worker.run_task(task)
        assert task.end_flag
        assert 3 <= len(task.output_tokens or ()) < 900
        assert token_counts_of(task).decoded == len(task.output_tokens or ())

    with TRTLLMWorker(MODEL) as worker:
        asyncio.run(scenario(worker))
        assert llm_of(worker).executor.aborted == [0]


def test_a_stream_that_is_too_far_ahead_is_aborted() -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        engine = llm_of(worker).executor
        task = StreamGenerationTask(
            input_str=PROMPT, max_tokens=900, ignore_eos=True, streaming_step=3, temperature=0.0
        )
        note(task, may_run_to=10)
        await worker.run_task(task)
        await asyncio.to_thread(engine.idle.wait)
        await worker.run_task(task)
        assert (task.end_flag, task.finish_reason) == (True, PAUSED)
        assert 10 <= len(task.output_tokens or ()) < 900
        assert engine.aborted == [0]
        assert (
            await worker.run_task(GenerationTask(input_str=PROMPT, max_tokens=1, temperature=0.0)) is TaskStatus.SUCCESS
        )

    with TRTLLMWorker(MODEL) as worker:
        asyncio.run(scenario(worker))
        assert not worker._streams
        assert not worker._client._calls


def test_a_sampled_stream_with_a_seed_ends_where_its_limit_is_whatever_the_time() -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        for fields, num_tokens in (({"seed": 1, "temperature": 0.7}, 10), ({"temperature": 0.0}, 30)):
            task = StreamGenerationTask(input_str=PROMPT, max_tokens=30, ignore_eos=True, streaming_step=3, **fields)
            note(task, may_run_to=10)
            await worker.run_task(task)
            note(task, may_run_to=40)
            while not task.end_flag:
                await worker.run_task(task)
            assert (len(task.output_tokens or ()), task.finish_reason) == (
                num_tokens,
                PAUSED if num_tokens == 10 else "length",
            )

    with TRTLLMWorker(MODEL) as worker:
        llm_of(worker).executor.may_run.set()
        asyncio.run(scenario(worker))


@pytest.mark.parametrize("streaming", [True, False])
def test_what_nobody_waits_for_any_more_is_aborted(streaming: bool) -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        engine = llm_of(worker).executor
        engine.may_run.clear()
        task = long_task() if streaming else GenerationTask(input_str=PROMPT, max_tokens=40, temperature=0.0)
        call = asyncio.ensure_future(worker.run_task(task))
        await asyncio.sleep(0)  # so that it has begun
        await asyncio.to_thread(engine.submitted.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(engine.abort_came.wait)
        assert engine.aborted == [0]
        engine.may_run.set()
        assert (
            await worker.run_task(GenerationTask(input_str=PROMPT, max_tokens=1, temperature=0.0)) is TaskStatus.SUCCESS
        )

    with TRTLLMWorker(MODEL) as worker:
        asyncio.run(scenario(worker))
        assert not worker._streams
        assert not worker._client._calls


def test_the_end_of_a_scope_aborts_its_streams_and_no_others() -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        tasks = []
        for name in ("one", "two"):
            current_scope.set(ExecutionScope(name))
            tasks.append(StreamGenerationTask(input_str=PROMPT, max_tokens=900, ignore_eos=True, temperature=0.0))
            await worker.run_task(tasks[-1])
        await worker.on_scope_end("one")
        assert llm_of(worker).executor.aborted == [0]
        await worker.run_task(tasks[1])
        assert not tasks[1].end_flag
        await worker.on_scope_end("two")

    with TRTLLMWorker(MODEL) as worker:
        asyncio.run(scenario(worker))
        assert not worker._client._calls


def test_a_request_that_takes_too_long_fails_by_name_and_is_aborted() -> None:
    with TRTLLMWorker(MODEL, request_timeout=0.05) as worker:
        engine = llm_of(worker).executor
        engine.may_run.clear()
        with pytest.raises(EngineError, match=r"within request_timeout \(0\.05 s\), in which it sent 0 tokens"):
            run(worker, GenerationTask(input_str=PROMPT, max_tokens=5, temperature=0.0))
        assert engine.aborted == [0]
    with pytest.raises(ConfigError, match="request_timeout: is 0; it must be above 0"):
        TRTLLMWorker(MODEL, request_timeout=0)


def test_shutdown_ends_what_is_in_flight() -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        engine = llm_of(worker).executor
        engine.may_run.clear()
        call = asyncio.ensure_future(worker.run_task(GenerationTask(input_str=PROMPT, max_tokens=5, temperature=0.0)))
        await asyncio.sleep(0)  # so that it has begun
        await asyncio.to_thread(engine.submitted.wait)
        await asyncio.to_thread(worker.shutdown)
        with pytest.raises(EngineError, match="the worker has been shut down"):
            await call

    asyncio.run(scenario(TRTLLMWorker(MODEL)))


@pytest.mark.parametrize("tensorrt_llm", ["1.2.1", "newest"], indirect=True)
def test_a_request_that_the_engine_refuses_fails_alone(tensorrt_llm: Any) -> None:
    """The newest releases end its result without raising the error."""

    async def scenario(worker: TRTLLMWorker) -> list[Any]:
        tasks = [GenerationTask(input_tokens=ids, max_tokens=4, temperature=0.0) for ids in ([5, 6], [5, 0], [5, 7])]
        return await asyncio.gather(*map(worker.run_task, tasks), return_exceptions=True)

    with TRTLLMWorker(MODEL) as worker:
        first, refused, last = asyncio.run(scenario(worker))
    assert first is last is TaskStatus.SUCCESS
    assert isinstance(refused, EngineError)
    assert "a token that the engine refuses" in str(refused)
    is_newest = tensorrt_llm.__version__ == "newest"
    assert type(refused.__cause__).__name__ == ("NoneType" if is_newest else "RequestError")
    with TRTLLMWorker(MODEL) as worker:
        llm_of(worker).args.max_num_tokens = 8  # less than it was loaded with
        with pytest.raises(EngineError, match=r"refused a request.*max_num_tokens"):
            run(worker, GenerationTask(input_tokens=[5] * 9, max_tokens=1, temperature=0.0))


def test_reused_tokens_are_counted() -> None:
    with TRTLLMWorker(MODEL) as worker:
        ids = load_tokenizer(MODEL)(PROMPT * 4).input_ids
        first, second = (run(worker, GenerationTask(input_tokens=ids, max_tokens=3, temperature=0.0)) for _ in range(2))
    assert token_counts_of(first)[1:] == (len(ids), 0)
    reused = len(ids) // 32 * 32
    assert token_counts_of(second)[1:] == (len(ids) - reused, reused)


def test_waiting_in_the_engine_goes_into_the_ledger() -> None:
    async def scenario(worker: TRTLLMWorker) -> Program:
        program = Program()
        enter_program(program)
        await worker.run_task(GenerationTask(input_str=PROMPT, max_tokens=2, temperature=0.0))
        return program

    with TRTLLMWorker(MODEL) as worker:
        program = asyncio.run(scenario(worker))
    assert program.ledger.queue_seconds > 0
    assert program.ledger.to_json()["queue_seconds"] == round(program.ledger.queue_seconds, 6)


@pytest.mark.parametrize(("depth", "priorities"), [(1, [51, 26, 1]), (3, [26, 13, 1])])
@each_release
def test_branches_share_their_prefix_and_say_how_long_to_keep_it(
    tensorrt_llm: Any, depth: int, priorities: list[int]
) -> None:
    prefix = load_tokenizer(MODEL)(PROMPT * 4).input_ids
    task = BranchTask(
        prefix_tokens=prefix,
        suffixes=[[5], [6, 7], []],
        max_tokens=4,
        temperature=0.0,  # a drawn text may end before its fourth token
        branch_scores=[1.0, 0.5, 0.0],
        depth=depth,
        custom_input_params={"engine_priority": 0.9, "cache_salt": "mine"},
    )
    is_newest = tensorrt_llm.__version__ == "newest"
    llm_args = {"scheduler_config": {"waiting_queue_policy": "priority"}} if is_newest else {}
    with TRTLLMWorker(MODEL, llm_args=llm_args) as worker:
        run(worker, task)
        requests = llm_of(worker).requests
    assert [len(ids) for ids in task.output_tokens or ()] == [4, 4, 4]
    assert all(0 < confidence <= 1 for confidence in task.confidences or ())
    counts = token_counts_of(task)
    assert (counts.decoded, sum(counts)) == (12, 12 + 3 * len(prefix) + 3)
    assert counts.reused == 2 * (len(prefix) // 32 * 32)
    ranges = [request["retention"].token_range_retention_configs for request in requests]
    assert [[(r.token_start, r.token_end, r.priority) for r in own] for own in ranges] == [
        [(0, len(prefix), 100), (len(prefix), None, priority)] for priority in priorities
    ]
    assert [request["retention"].decode_retention_priority for request in requests] == priorities
    assert {request["salt"] for request in requests} == {"mine"}
    assert {request["priority"] for request in requests} == {0.9 if is_newest else None}


def test_a_layer_exit_is_refused_where_an_engine_gives_its_last_layer_alone() -> None:
    controller = KVShareBranchingController(
        2, scorer={"type": "verdict", "args": {"layer_exit": {"max_entropy": 1.0, "max_change": 0.5}}}
    )
    with (
        TRTLLMWorker(MODEL) as worker,
        pytest.raises(
            ConfigError, match=r"TRTLLMWorker cannot stop at a layer \(layer_exit\).*only the logits of its last layer"
        ),
    ):
        ScaffoldingLlm(controller, {"generation": worker})


def test_branches_with_phrasings_of_their_own_are_requests_on_these_and_a_gate_is_refused() -> None:
    task = BranchTask(prefix_tokens=[5, 6], phrasings=[[5, 6], [7, 8, 9]], suffixes=[[10], [10]], max_tokens=2)
    gated = KVShareBranchingController(
        2, expander=WorkerExpander(["A", "B"], phrasings=["So {question}"], least_similarity=0.9)
    )
    with TRTLLMWorker(MODEL) as worker:
        with pytest.raises(
            ConfigError, match=r"TRTLLMWorker cannot compare hidden states.*an engine returns no hidden"
        ):
            gated.bind({"generation": worker})
        run(worker, task)
        ranges = [each["retention"].token_range_retention_configs[0] for each in llm_of(worker).requests]
        assert "hidden states" in worker.refused[SIMILARITY_GATE]
        with pytest.raises(InvalidTaskError, match=r"least_similarity is 0\.9, but this worker gives no hidden states"):
            run(worker, dataclasses.replace(task, least_similarity=0.9))
    assert task.on_prefix == [True, False]
    assert [each.token_end for each in ranges] == [2, 3]


def test_a_branch_that_fails_takes_the_others_with_it() -> None:
    with TRTLLMWorker(MODEL) as worker:
        task = BranchTask(prefix_tokens=[5, 6], suffixes=[[7], [0], [8]], max_tokens=300, seeds=[1, 2, 3])
        with pytest.raises(EngineError, match="a token that the engine refuses"):
            run(worker, task)
        assert not worker._client._calls
        assert token_counts_of(task).decoded >= 0
        with pytest.raises(
            InvalidTaskError, match=r"branch_scores is \[2\]; give a score in \[0, 1\] for each of the 1 branches"
        ):
            run(worker, BranchTask(prefix_tokens=[5], suffixes=[[6]], branch_scores=[2]))
        with pytest.raises(InvalidTaskError, match="depth is 0"):
            run(worker, BranchTask(prefix_tokens=[5], suffixes=[[6]], depth=0))


def test_verdicts_are_those_of_the_transformers_worker(reference: Any) -> None:
    """Lowering asks for twenty log-probabilities, and both verdicts are among them."""
    ids = load_tokenizer(MODEL)(PROMPT).input_ids
    with TRTLLMWorker(MODEL) as worker:
        top = run(worker, GenerationTask(input_tokens=ids, max_tokens=1, num_logprobs=2, temperature=0.0)).logprobs[0]
        yes, no = list(top)[:2]
        task, expected = (
            run(one, VerifyTask(branches=[ids], yes_token=yes, no_token=no)) for one in (worker, reference)
        )
        assert task.scores == pytest.approx(expected.scores, abs=1e-3)
        assert token_counts_of(task).decoded == 0
        with pytest.raises(InvalidTaskError, match="layer_exit is LayerExit"):
            run(worker, VerifyTask(branches=[ids], yes_token=5, no_token=6, layer_exit=LayerExit(1.0, 1.0)))


def test_without_tensorrt_llm_the_error_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] == "tensorrt_llm":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="tensorrt_llm is not installed; install it as NVIDIA documents"):
        TRTLLMWorker(MODEL)
