"""Spans of OpenTelemetry: one a request, a child for each decision of the trace."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import openai
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import MissingDependencyError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.plugins.opentelemetry import Telemetry, from_environment
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask, TaskStatus, Worker
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
from opentelemetry.trace import SpanKind, StatusCode

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


def test_a_request_is_a_span_with_a_child_a_decision(telemetry: Telemetry, exporter: InMemorySpanExporter) -> None:
    worker = ScriptedWorker("7} and so on and on and on")
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
    assert [span.name for span in children] == [e["event"] for e in result.program.trace if e["event"] != "figures"]


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


class Recorder(NativeGenerationController):
    """Records decisions that hold texts of others."""

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        record("checks", checks=["a private text"], scores=[0.5, None], num_checks=1)
        record("stream_lost", error="private", num_tokens=3)
        record("mixed", values=[1, "a private text"])
        record("stop", reason="certain", answer="private", figures={"private": 1})
        record("fallback", task="BranchTask", to="GenerationTask", reason="the server says: a private text")
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
        "fallback": {
            "scaffolding.event": "fallback",
            "scaffolding.task": "BranchTask",
            "scaffolding.to": "GenerationTask",
        },
    }


def test_nothing_is_imported_without_the_extra_and_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\n"
        "import scaffolding_ext.plugins.opentelemetry, scaffolding_ext.stack.build, scaffolding_ext.host.llm\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[otel\]'"):
        Telemetry()
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[otel\]'"):
        from_environment()


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
    assert names == {"invoke_agent NativeGenerationController"}
