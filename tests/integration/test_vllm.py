"""OpenAIWorker on a real vLLM on the CPU, with the embedded models: `make vllm` installs it and runs this.

SCAFFOLDING_VLLM names the program `vllm` of an installed one. Two servers run: `target` with the option that tells
cached tokens, under an alias; `draft` without it, with a reasoning parser on chats.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import threading
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("openai")
pytest.importorskip("torch")

import openai

from scaffolding_ext import (
    ConformalDraftTargetController,
    DynasorCoTController,
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    OpenAIWorker,
    ScaffoldingLlm,
)
from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import REUSE, Purpose, TokenCounts, meta_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing.worker_contract import WORKER_CHECKS
from scaffolding_ext.tinylm.grammar import sample_problem
from scaffolding_ext.workers.openai.worker import ServerWarning
from tests.integration.conftest import Running, free_port, named, running
from tests.serving.test_tool_calls import prompted

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]
GREEDY = {"temperature": 0.0}
NATS = 1e-3  # float32 on both sides


def questions(number: int) -> list[str]:
    rng = random.Random(11)
    return [sample_problem(rng, "held_out").question for _ in range(number)]


def vllm(name: str, *options: str, model: str | None = None) -> tuple[Callable[[int], list[str]], dict[str, str]]:
    """The command that serves an embedded model under the alias, and its environment."""
    program, model = named("SCAFFOLDING_VLLM"), model or model_folder(f"tinylm/{name}")
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    environment["VLLM_SERVER_DEV_MODE"] = "1"  # lets a study empty the prefix cache
    # With chunked prefill a seeded request whose prompt is read in two steps ends this CPU build.
    fixed = ("--max-model-len", "2048", "--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill")
    fixed += ("--max-num-batched-tokens", "8192", "--served-model-name", name, "--host", "127.0.0.1")
    return lambda port: [program, "serve", model, "--port", str(port), *fixed, *options], environment


def served(name: str, log: Path, *options: str, port: int | None = None) -> Any:
    command, environment = vllm(name, *options)
    return running(command, log, environment, port)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    dense = ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
    log = tmp_path_factory.mktemp("target") / "log"
    with served("target", log, "--enable-prompt-tokens-details", *dense) as server:
        yield server


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served("draft", tmp_path_factory.mktemp("draft") / "log", "--reasoning-parser", "deepseek_r1") as server:
        yield server


@pytest.fixture(scope="module")
def worker(target: Running) -> Iterator[OpenAIWorker]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ServerWarning)
        found = OpenAIWorker(target.url, "target", tokenizer="tinylm/target")
    with found:
        yield found


@pytest.fixture(scope="module")
def reference() -> Iterator[HuggingFaceWorker]:
    with HuggingFaceWorker("tinylm/target") as found:
        yield found


def run(worker: Any, *tasks: Any) -> Any:
    async def all_of_them() -> None:
        await asyncio.gather(*map(worker.run_task, tasks))

    asyncio.run(all_of_them())
    return tasks[0]


def results(worker: Any, controller: Any, asked: list[str], **more: Any) -> list[Any]:
    with ScaffoldingLlm(controller, {"generation": worker, **more}, seed=3) as llm:
        return llm.generate(asked)


def metrics(server: Running) -> Counter[str]:
    """Counters of `/metrics` once nothing runs, those that are about tokens."""
    while True:
        with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as reply:
            text = reply.read().decode()
        found: Counter[str] = Counter()
        for name, value in re.findall(r"^vllm:(\w+?)(?:\{[^}]*\})? ([0-9.e+-]+)$", text, re.MULTILINE):
            found[name] += float(value)  # type: ignore[assignment]
        if not found["num_requests_running"] and not found["num_requests_waiting"]:
            return found
        time.sleep(0.2)


# ---- the same as in this process


def test_an_alias_finds_its_tokenizer(target: Running) -> None:
    with OpenAIWorker(target.url, "target", endpoint="auto") as worker:
        assert (worker.flavor, worker.max_seq_len) == ("vllm", 2048)
        assert worker.model == model_folder("tinylm/target")
        assert not {"ScoreTask", "StreamGenerationTask"} & worker.refused.keys()


def dynasor() -> DynasorCoTController:
    probe = AnswerProbe(max_tokens=8, sampling_params=GREEDY)
    return DynasorCoTController(max_tokens=500, chunk_size=32, probe=probe, sampling_params=GREEDY)


@pytest.mark.parametrize(
    "make", [lambda: NativeGenerationController({**GREEDY, "max_tokens": 500}), dynasor], ids=["chain", "dynasor"]
)
def test_greedy_texts_and_decisions_are_equal(
    worker: OpenAIWorker, reference: HuggingFaceWorker, make: Callable[[], Any]
) -> None:
    asked = questions(12)
    there, here = results(worker, make(), asked), results(reference, make(), asked)
    assert [each.outputs[0].text for each in there] == [each.outputs[0].text for each in here]
    assert [each.exit_reason for each in there] == [each.exit_reason for each in here]
    stops = [
        [
            (event["position"], event["answer"])
            for each in found
            for event in each.program.trace.decisions
            if event["event"] == "stop"
        ]
        for found in (there, here)
    ]
    assert stops[0] == stops[1]


def test_draft_and_target_on_two_servers_are_equal(
    worker: OpenAIWorker, reference: HuggingFaceWorker, draft: Running
) -> None:
    def controller() -> ConformalDraftTargetController:
        return ConformalDraftTargetController(
            NativeGenerationController(GREEDY),
            NativeGenerationController(GREEDY),
            rule={"type": "growing", "args": {"alpha": 0.25}},  # type: ignore[arg-type]
            num_chains=1,
            draft_tokens=32,
            target_tokens=32,
            max_tokens=300,
            answer_sampling_params=GREEDY,
        )

    asked = questions(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ServerWarning)
        drafter = OpenAIWorker(draft.url, "draft", tokenizer="tinylm/draft")
    found = []
    with drafter, HuggingFaceWorker("tinylm/draft") as own:
        for drafts, targets in ((drafter, worker), (own, reference)):
            with ScaffoldingLlm(controller(), {"draft": drafts, "target": targets}, seed=3) as llm:
                found.append([each.outputs[0].text for each in llm.generate(asked)])
    assert found[0] == found[1]


def test_a_seeded_vote_repeats(worker: OpenAIWorker) -> None:
    first, again = (results(worker, vote(), questions(3)) for _ in range(2))
    assert [each.outputs[0].text for each in first] == [each.outputs[0].text for each in again]


def test_scores_and_verdicts_are_equal(worker: OpenAIWorker, reference: HuggingFaceWorker) -> None:
    backend = load_tokenizer("tinylm/target").backend_tokenizer
    prompt = backend.encode(f"<|user|>{questions(1)[0]}<|assistant|><think>\n", add_special_tokens=False).ids
    text = backend.encode("Okay, by tens first.\na+3~5+3=8", add_special_tokens=False).ids
    there, here = (run(each, ScoreTask(input_tokens=prompt, continuation_tokens=text)) for each in (worker, reference))
    assert there.logprobs == pytest.approx(here.logprobs, abs=NATS)
    yes, no = text[0], text[1]
    verdicts = [VerifyTask(branches=[prompt, prompt + text], yes_token=yes, no_token=no) for _ in range(2)]
    there, here = (run(each, task) for each, task in zip((worker, reference), verdicts, strict=True))
    assert there.scores == pytest.approx(here.scores, abs=NATS)


@pytest.mark.parametrize("check", WORKER_CHECKS)
def test_the_contract_of_every_worker(target: Running, check: Any) -> None:
    check(lambda: OpenAIWorker(target.url, "target", tokenizer="tinylm/target"))


# ---- what is counted


def vote() -> MajorityVoteController:
    return MajorityVoteController(NativeGenerationController({"temperature": 0.7, "max_tokens": 400}), 4)


def flying() -> MajorityVoteController:
    native = NativeGenerationController({"temperature": 0.7, "max_tokens": 400})
    return MajorityVoteController(native, 8, in_flight=3)


@pytest.mark.parametrize("make", [vote, dynasor])
def test_the_ledger_is_equal_to_the_servers_counters(
    target: Running, worker: OpenAIWorker, make: Callable[[], Any]
) -> None:
    """Our counts lack the tokens that the server decodes until it notices that a chain was stopped."""
    before = metrics(target)
    found = results(worker, make(), questions(6))
    grown = metrics(target)
    grown.subtract(before)
    totals = [each.program.ledger.total for each in found]
    unseen = grown["generation_tokens_total"] - sum(total.decoded for total in totals)
    assert unseen == 0 if make is vote else unseen >= 0
    assert sum(total.prefilled + total.reused for total in totals) == grown["prompt_tokens_total"]
    reused = sum(total.reused for total in totals)
    assert reused <= grown["prompt_tokens_cached_total"]  # a closed stream does not tell its own
    assert reused == grown["prompt_tokens_cached_total"] if make is vote else reused > 0
    assert all(each.program.ledger.num_unknown_reuse_tasks == 0 for each in found)


def test_a_vote_that_rolls_repeats_and_leaves_the_server_idle(target: Running, worker: OpenAIWorker) -> None:
    """`metrics` returns once nothing runs; cancelled samples are discarded."""

    def rolled() -> list[Any]:
        return results(worker, flying(), questions(6))

    first, again = rolled(), rolled()
    assert metrics(target)["num_requests_running"] == 0
    assert [(each.answer, each.outputs[0].text) for each in first] == [(e.answer, e.outputs[0].text) for e in again]
    ends = [[event for event in each.program.trace if event["event"] == "vote"][-1] for each in first]
    assert min(event["num_samples"] for event in ends) < 8
    ledger = [each.program.ledger.by_purpose for each in first]
    assert any(counts.get(Purpose.DISCARDED, TokenCounts()).decoded for counts in ledger)


@pytest.mark.parametrize("make", [dynasor, flying], ids=["dynasor", "vote in flight"])
def test_pieces_of_several_tokens_change_no_text_and_no_count(
    worker: OpenAIWorker, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    """Tokens decoded behind a cancel grow by at most a piece of each chain."""

    def run() -> list[Any]:
        return results(worker, make(), questions(6))

    def told(found: list[Any]) -> list[Any]:
        return [(each.answer, each.outputs[0].text, counted(each)) for each in found]

    def counted(result: Any) -> dict[Any, int]:
        parts = result.program.ledger.by_purpose
        return {purpose: counts.decoded for purpose, counts in parts.items() if purpose != Purpose.DISCARDED}

    def lost(found: list[Any]) -> int:
        return sum(each.program.ledger.by_purpose.get(Purpose.DISCARDED, TokenCounts()).decoded for each in found)

    in_pieces = run()
    monkeypatch.setattr("scaffolding_ext.workers.openai.requests._MOST_INTERVAL", 1)
    singly = run()
    assert told(in_pieces) == told(singly)
    assert lost(in_pieces) <= lost(singly) + 64 * 8 * 6


def test_closed_streams_count_their_prompts(target: Running, worker: OpenAIWorker) -> None:
    before = metrics(target)

    async def closed(number: int) -> StreamGenerationTask:
        task = StreamGenerationTask(
            input_tokens=[5 + number] * 40, max_tokens=600, temperature=0.0, ignore_eos=True, streaming_step=8
        )
        await worker.run_task(task)
        task.cancel_flag = True
        await worker.run_task(task)
        return task

    async def scenario() -> list[StreamGenerationTask]:
        return await asyncio.gather(*map(closed, range(6)))

    tasks = asyncio.run(scenario())
    grown = metrics(target)
    grown.subtract(before)
    counts = [meta_of(task).counts for task in tasks]
    assert all(each is not None for each in counts)
    assert sum(each.prefilled + each.reused for each in counts) == grown["prompt_tokens_total"] == 240
    assert 48 <= sum(each.decoded for each in counts) <= grown["generation_tokens_total"] <= 6 * 600


def test_a_default_server_is_told_of_its_option(draft: Running) -> None:
    with pytest.warns(ServerWarning, match="--enable-prompt-tokens-details"):
        worker = OpenAIWorker(draft.url, "draft")
    with worker:
        task = run(worker, GenerationTask(input_str="Start with 5.", max_tokens=4, temperature=0.0))
        assert meta_of(task).uncounted == REUSE
        assert "ScoreTask" not in worker.refused


# ---- what a user meets


def test_a_stack_beyond_the_servers_length_is_shown_by_check_and_runs(target: Running, tmp_path: Path) -> None:
    question = questions(1)[0]
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": question, "answer": "1"}))
    stack = ["--config", "configs:native", "--model", "target", "--base_url", target.url]
    stack += ["--set", "controller.args.sampling_params={max_tokens: 4096, temperature: 0.0}"]
    checked = CliRunner().invoke(main, ["check", "configs:native", *stack[2:], "--question", question])
    assert "is 4096 tokens after the prompt, and the worker takes 2048 in all" in " ".join(checked.output.split())
    done = CliRunner().invoke(
        main, ["eval", *stack, "--dataset", str(tmp_path / "q.jsonl"), "--output_path", str(tmp_path / "r")]
    )
    assert done.exit_code == 0, done.output
    (record,) = read_records(tmp_path / "r" / "samples.jsonl")
    assert record.error is None
    assert [event for event in record.trace if event.get("what") == "budget"]


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_that_the_server_separated_is_no_content(draft: Running, stream: bool) -> None:
    worker = {"type": "OpenAIWorker", "args": {"base_url": draft.url, "model": "draft", "endpoint": "chat"}}
    native = {
        "type": "NativeGenerationController",
        "args": {"sampling_params": {"temperature": 0.0, "max_tokens": 600}},
    }
    stack = load_config({"controller": native, "workers": {"generation": worker}})
    with (
        build_stack(stack) as llm,
        FrontThread(Front([ServedStack("m", llm, Limits())], Limits())) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages = [{"role": "user", "content": questions(1)[0]}]
        reply = client.chat.completions.create(model="m", messages=messages, stream=stream)
        said = [part.choices[0].delta for part in reply if part.choices] if stream else [reply.choices[0].message]
    content = "".join(part.content or "" for part in said)
    thinking = "".join(getattr(part, "reasoning_content", None) or "" for part in said)
    assert content.startswith("The answer is")
    assert "Okay" in thinking
    assert "Okay" not in content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("votes", [1, 3])
@pytest.mark.parametrize("name", [None, "weather", "time"])
def test_a_required_call_follows_its_schema(worker: OpenAIWorker, name: str | None, votes: int, stream: bool) -> None:
    """The model knows nothing of calls: the guide makes them. Both schemas have a definition of one name."""
    own = {"weather": {"city": "Paris"}, "time": {"city": "UTC"}}
    tools = [
        {
            "type": "function",
            "function": {
                "name": each,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"$ref": "#/$defs/City"}},
                    "required": ["city"],
                    "additionalProperties": False,
                    "$defs": {"City": {"enum": [call["city"]]}},
                },
            },
        }
        for each, call in own.items()
    ]
    plain = NativeGenerationController({"temperature": 1.0, "max_tokens": 200})
    controller = prompted(plain if votes == 1 else MajorityVoteController(plain, votes, allocation=None), "instruct")
    with (
        ScaffoldingLlm(controller, {"generation": worker}, seed=3) as llm,
        FrontThread(Front([ServedStack("m", llm, Limits())], Limits())) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client,
    ):
        choice: Any = "required" if name is None else {"type": "function", "function": {"name": name}}
        asked: Any = {"messages": [{"role": "user", "content": "How is it in Paris?"}], "tools": tools}
        reply = client.chat.completions.create(model="m", tool_choice=choice, stream=stream, **asked)
        choices = [part.choices[0] for part in (reply if stream else [reply])]
    said = [each.delta if stream else each.message for each in choices]
    (call,) = [call for part in said for call in part.tool_calls or ()]
    assert call.function.name in own if name is None else call.function.name == name
    assert json.loads(call.function.arguments) == own[call.function.name]
    assert choices[-1].finish_reason == "tool_calls"


def test_a_restart_costs_time_and_no_samples(tmp_path: Path) -> None:
    """The server is killed in the middle of a run, and comes back."""
    port, log = free_port(), tmp_path / "log"
    asked = questions(24)
    (tmp_path / "q.jsonl").write_text("".join(json.dumps({"question": each, "answer": "1"}) + "\n" for each in asked))
    arguments = ["eval", "--config", "configs:native", "--model", "draft", "--base_url", f"http://127.0.0.1:{port}/v1"]
    arguments += ["--dataset", str(tmp_path / "q.jsonl"), "--output_path", str(tmp_path / "run")]
    arguments += ["--set", "max_parallel_requests=8"]
    arguments += ["--set", "controller.args.sampling_params={max_tokens: 500, temperature: 0.7}"]
    samples = tmp_path / "run" / "samples.jsonl"
    done: list[Any] = []
    with served("draft", log, port=port) as server:
        running_eval = threading.Thread(target=lambda: done.append(CliRunner().invoke(main, arguments)))
        running_eval.start()
        while not samples.exists() or len(samples.read_text().splitlines()) < 2:
            time.sleep(0.1)
        server.kill()
        num_before = len(samples.read_text().splitlines())
    assert num_before < len(asked)
    with served("draft", log, port=port):
        running_eval.join(300)
    assert done[0].exit_code == 0, done[0].output
    assert "a server is down; waiting up to 600 s" in done[0].stderr
    records = read_records(samples)
    assert len(records) == len(asked)
    assert all(record.error is None for record in records)
