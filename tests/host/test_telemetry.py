"""Spans of OpenTelemetry: one a request, a child for each task and decision, from what the trace and the meter know."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import MissingDependencyError, RequestTimeoutError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.host.telemetry import Telemetry
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.request.program import record
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

WIDTH, NUM_REQUESTS = 16, 64
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class InstantWorker(Worker):
    """Answers at once."""

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        task.output_str, task.output_tokens = "\\boxed{1}", [1]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter: InMemorySpanExporter) -> Telemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Telemetry(provider)


def spans_of(exporter: InMemorySpanExporter) -> tuple[Any, list[Any]]:
    """The span of the one request, and its children by their begin."""
    spans = exporter.get_finished_spans()
    (root,) = (span for span in spans if span.name.startswith("invoke_agent "))
    children = [span for span in spans if span is not root]
    assert all(child.parent.span_id == root.context.span_id for child in children)
    assert all(root.start_time <= child.start_time <= child.end_time <= root.end_time for child in children)
    return root, sorted(children, key=lambda span: span.start_time)


def test_a_request_is_a_span_with_a_child_a_task_and_a_decision(
    telemetry: Telemetry, exporter: InMemorySpanExporter
) -> None:
    worker = ScriptedWorker("7} and so on and on and on")
    worker.model = "tinylm/draft"  # type: ignore[attr-defined]
    controller = DynasorCoTController(chunk_size=4, certainty_threshold=1)
    with ScaffoldingLlm(controller, {"generation": worker}, seed=3, telemetry=telemetry) as llm:
        result = llm.generate("How many?", sample_id="q1")
    root, children = spans_of(exporter)
    ledger = result.program.ledger
    assert root.name == "invoke_agent DynasorCoTController"
    assert root.kind is SpanKind.INTERNAL
    assert root.status.status_code is StatusCode.UNSET
    expected = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "scaffolding_ext",
        "gen_ai.agent.name": "DynasorCoTController",
        "gen_ai.request.model": "tinylm/draft",
        "gen_ai.request.seed": result.program.seeds.seed,
        "gen_ai.response.id": result.id,
        "gen_ai.response.finish_reasons": ("certain",),
        "gen_ai.usage.input_tokens": ledger.total.prefilled + ledger.total.reused,
        "gen_ai.usage.cache_read.input_tokens": ledger.total.reused,
        "gen_ai.usage.output_tokens": ledger.total.decoded,
        "scaffolding.sample_id": "q1",
        "scaffolding.epoch": 0,
    }
    assert expected.items() <= dict(root.attributes).items()
    decisions = [span for span in children if "scaffolding.event" in span.attributes]
    tasks = [span for span in children if "scaffolding.task" in span.attributes]
    assert [span.name for span in decisions] == [e["event"] for e in result.program.trace if e["event"] != "figures"]
    assert {span.name for span in tasks} == {"text_completion tinylm/draft"}
    assert all(span.kind is SpanKind.CLIENT for span in tasks)
    for name in ("input_tokens", "output_tokens"):
        key = f"gen_ai.usage.{name}"
        assert sum(span.attributes[key] for span in tasks) == root.attributes[key]
    purposes = {span.attributes["scaffolding.purpose"] for span in tasks}
    assert purposes == {"chain", "probe"}
    streams = [span for span in tasks if span.attributes["scaffolding.task"] == "StreamGenerationTask"]
    assert len(streams) == 1  # all its steps are one task


def test_no_span_holds_what_was_asked_or_answered(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    with ScaffoldingLlm(
        MajorityVoteController(DynasorCoTController(chunk_size=4, certainty_threshold=1), 3),
        {"generation": ScriptedWorker("4242} secret " * 9)},
        seed=0,
        telemetry=telemetry,
    ) as llm:
        llm.generate("A private question?")
    spans = [json.loads(span.to_json()) for span in exporter.get_finished_spans()]
    for span in spans:  # ids and times are digits by chance
        del span["context"], span["parent_id"], span["start_time"], span["end_time"]
        span["attributes"].pop("gen_ai.request.seed", None)
    text = json.dumps(spans)
    assert "vote" in text
    assert "private" not in text
    assert "secret" not in text
    assert "4242" not in text


def test_branches_of_a_vote_are_told_apart(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), 3, allocation=None)
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, seed=0, telemetry=telemetry) as llm:
        llm.generate("question")
    _, children = spans_of(exporter)
    tasks = [span for span in children if "scaffolding.task" in span.attributes]
    assert sorted(span.attributes["scaffolding.branch"] for span in tasks) == ["0", "1", "2"]


def test_a_failed_request_says_with_what(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    def respond(task: Any) -> Any:
        raise ValueError("a private text")

    with (
        ScaffoldingLlm(
            NativeGenerationController(), {"generation": ScriptedWorker(respond)}, telemetry=telemetry
        ) as llm,
        pytest.raises(TaskError),
    ):
        llm.generate("question")
    root, _ = spans_of(exporter)
    assert root.attributes["error.type"] == "TaskError"
    assert root.status.status_code is StatusCode.ERROR
    assert "private" not in root.to_json()


def test_the_clients_span_is_the_parent(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    llm = ScaffoldingLlm(NativeGenerationController(), {"generation": InstantWorker()}, seed=0, telemetry=telemetry)
    front = Front([ServedStack("plain", llm, Limits())])
    with FrontThread(front) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        client.chat.completions.create(
            model="plain", messages=[{"role": "user", "content": "How?"}], extra_headers={"traceparent": PARENT}
        )
    root, _ = spans_of(exporter)
    assert root.name == "invoke_agent NativeGenerationController"
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]


def test_what_a_sampler_leaves_out_has_no_spans(exporter: InMemorySpanExporter) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ScaffoldingLlm(
        NativeGenerationController(), {"generation": InstantWorker()}, telemetry=Telemetry(provider)
    ) as llm:
        assert llm.generate("question").program.meter.observer is None
    assert exporter.get_finished_spans() == ()


def test_hosts_may_share_one_and_end_one_after_the_other(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    def host() -> ScaffoldingLlm:
        return ScaffoldingLlm(NativeGenerationController(), {"generation": InstantWorker()}, telemetry=telemetry)

    with host() as first:
        with host() as second:
            second.generate("question")
        first.generate("question")
    with host() as third:
        third.generate("question")
    roots = [span for span in exporter.get_finished_spans() if span.name.startswith("invoke_agent")]
    assert len(roots) == 3


def calls_a_task(count: Any, telemetry: Telemetry | None) -> float:
    controller = MajorityVoteController(NativeGenerationController({"temperature": 0.7}), WIDTH, allocation=None)
    count.num = 0
    with ScaffoldingLlm(controller, {"generation": InstantWorker()}, seed=0, telemetry=telemetry) as llm:
        llm.generate(["warm up"] * 8)
        with count.on_loop(llm.loop):
            llm.generate(["question"] * NUM_REQUESTS)
    return float(count.num) / (NUM_REQUESTS * WIDTH)


def test_spans_of_a_task_cost_a_bounded_number_of_calls(
    call_count: Any, telemetry: Telemetry, within_ceiling: Callable[[str, float], None]
) -> None:
    spans = calls_a_task(call_count, telemetry) - calls_a_task(call_count, None)
    within_ceiling("spans, calls a task of a vote of 16", spans)


def test_flushing_works_after_the_host_was_shut_down(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    with ScaffoldingLlm(NativeGenerationController(), {"generation": InstantWorker()}, telemetry=telemetry) as llm:
        llm.generate("question")
    assert telemetry.flush()
    assert len(exporter.get_finished_spans()) == 2


class Recorder(NativeGenerationController):
    """Records decisions that hold texts of others."""

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        record("checks", checks=["a private text"], scores=[0.5, None], num_checks=1)
        record("stream_lost", error="private", num_tokens=3)
        record("mixed", values=[1, "a private text"])
        record("stop", reason="certain", answer="private", figures={"private": 1})
        record("lowered", task="BranchTask", to="GenerationTask", reason="the server says: a private text")
        yield from super().process(tasks, **kwargs)


def test_decisions_show_numbers_and_own_words_alone(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    with ScaffoldingLlm(Recorder(), {"generation": InstantWorker()}, telemetry=telemetry) as llm:
        llm.generate("question")
    _, children = spans_of(exporter)
    shown = {span.name: dict(span.attributes) for span in children if "scaffolding.event" in span.attributes}
    assert shown == {
        "checks": {"scaffolding.event": "checks", "scaffolding.scores": "[0.5, null]", "scaffolding.num_checks": 1},
        "stream_lost": {"scaffolding.event": "stream_lost", "scaffolding.num_tokens": 3},
        "mixed": {"scaffolding.event": "mixed"},
        "stop": {"scaffolding.event": "stop", "scaffolding.reason": "certain"},
        "lowered": {
            "scaffolding.event": "lowered",
            "scaffolding.task": "BranchTask",
            "scaffolding.to": "GenerationTask",
        },
    }


class StreamThenTask(NativeGenerationController):
    """Reads a stream to its end, and then asks again."""

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        stream = StreamGenerationTask(input_str="question", worker_tag="generation", streaming_step=1)
        while not stream.end_flag:
            yield [stream]
        yield from super().process(tasks, **kwargs)


def test_spans_end_with_their_tasks(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    with ScaffoldingLlm(StreamThenTask(), {"generation": ScriptedWorker("abc")}, telemetry=telemetry) as llm:
        llm.generate("question")
    ended = [span.attributes.get("scaffolding.task", "request") for span in exporter.get_finished_spans()]
    assert ended == ["StreamGenerationTask", "GenerationTask", "request"]


def test_a_stream_that_is_left_open_has_a_span(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    async def hold(task: Any) -> None:
        await asyncio.Event().wait()

    worker = ScriptedWorker("7", before=hold)
    controller = DynasorCoTController(chunk_size=4, certainty_threshold=1)
    with ScaffoldingLlm(controller, {"generation": worker}, telemetry=telemetry) as llm:
        assert isinstance(llm.generate_async("question", timeout=0.01).exception(), RequestTimeoutError)
    _, children = spans_of(exporter)
    (stream,) = [span for span in children if "scaffolding.task" in span.attributes]
    assert stream.attributes["scaffolding.task"] == "StreamGenerationTask"


def test_a_task_that_never_ends_has_a_span(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    async def hold(task: Any) -> None:
        await asyncio.Event().wait()

    worker = ScriptedWorker("7", before=hold)
    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}, telemetry=telemetry) as llm:
        result = llm.generate_async("question", timeout=0.01)
        assert isinstance(result.exception(), RequestTimeoutError)
    root, (task,) = spans_of(exporter)
    assert root.attributes["error.type"] == "RequestTimeoutError"
    assert task.attributes["scaffolding.task"] == "GenerationTask"


def test_nothing_is_imported_without_the_extra_and_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\n"
        "import scaffolding_ext.host.telemetry, scaffolding_ext.stack.build, scaffolding_ext.host.llm\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[otel\]'"):
        Telemetry()
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[otel\]'"):
        Telemetry.from_environment()


def test_a_stack_file_sends_spans_where_the_environment_says(tmp_path: Path) -> None:
    """A process of its own, since OpenTelemetry has one provider a process, and a collector that takes what comes."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(content) if self.headers.get("content-encoding") == "gzip" else content)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    stack = {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "7"}}},
        "opentelemetry": True,
    }
    (tmp_path / "stack.yaml").write_text(json.dumps(stack))
    code = (
        "from scaffolding_ext import load_stack\nwith load_stack('stack.yaml') as llm:\n    llm.generate('How many?')\n"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        serving = threading.Thread(target=collector.serve_forever)
        serving.start()
        try:
            place = f"http://127.0.0.1:{collector.server_port}"
            environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": place, "OTEL_SERVICE_NAME": "mine"}
            subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=tmp_path, env=environment)
        finally:
            collector.shutdown()
            serving.join()
    (request,) = map(ExportTraceServiceRequest.FromString, bodies)
    (resource,) = request.resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "mine"
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"invoke_agent NativeGenerationController", "text_completion generation"}
