"""OpenTelemetry spans: one per request, with a child for each task and for each decision.

Spans are live: a span begins and ends with its request, task or decision. The provider's span processor exports them;
`BatchSpanProcessor` does so in a thread. Names and attributes follow the semantic conventions for generative AI. No
span holds a prompt, an answer or an error message: only numbers are shown, and texts of listed attributes.
OpenTelemetry is imported when a `Telemetry` is created.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.protocol import Task, current_scope
from scaffolding_ext.protocol.meta import Purpose, TokenCounts
from scaffolding_ext.protocol.worker import model_of, tag_name
from scaffolding_ext.request.figures import FIGURES
from scaffolding_ext.request.ledger import TaskObserver, is_stream

if TYPE_CHECKING:
    from scaffolding_ext.host.request import Request
    from scaffolding_ext.protocol import Worker

_NAME, _EXTRA = "scaffolding_ext", "otel"
_OPERATIONS = {  # in the conventions' words, if they have one
    "GenerationTask": "text_completion",
    "StreamGenerationTask": "text_completion",
    "BranchTask": "text_completion",
    "ChatTask": "chat",
}
_OF_EVERY_EVENT = ("event", "branch", "seconds")
# Decision figures whose texts this package writes. Other texts may come from a model, a user or a server, so they are
# omitted.
_OWN_WORDS = frozenset({"by", "cause", "finish_reason", "reason", "strategy", "task", "to", "unit", "what", "worker"})
_WORD = re.compile(r"[A-Za-z_]\w*(?: \w+)?")  # a whole sentence may quote something


class Telemetry:
    """Creates spans for hosts' requests.

    Args:
        tracer_provider: OpenTelemetry's; None takes the process's.

    Raises:
        MissingDependencyError: OpenTelemetry is not installed.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingDependencyError("opentelemetry-api", _EXTRA) from error
        self._provider = tracer_provider or trace.get_tracer_provider()
        self._tracer = trace.get_tracer(_NAME, tracer_provider=self._provider)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def from_environment(cls) -> Telemetry:
        """Export spans as OpenTelemetry's variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`).

        If the process already has a provider, it is used.

        Raises:
            MissingDependencyError: OpenTelemetry, its SDK or its exporter is not installed.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingDependencyError("opentelemetry-sdk", _EXTRA) from error
        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            found = Resource.create()
            is_named = found.attributes.get("service.name", "unknown_service") != "unknown_service"
            provider = TracerProvider(resource=found if is_named else found.merge(Resource({"service.name": _NAME})))
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
        return cls(provider)

    def begin(
        self, request: Request, controller: str, workers: Mapping[Any, Worker], trace_parent: str | None = None
    ) -> None:
        """For hosts: begin a request's span before it runs, and watch the request unless a sampler drops it.

        Args:
            controller: Name of the controller's class.
            workers: Workers by tag.
            trace_parent: The caller's span, as in W3C's header `traceparent`; None if there is none.
        """
        program, identity = request.program, request.program.identity
        models = {tag_name(tag): model for tag, worker in workers.items() if (model := model_of(worker)) is not None}
        parent = None if trace_parent is None else self._propagator.extract({"traceparent": trace_parent})
        found = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _NAME,
            "gen_ai.agent.name": controller,
            "gen_ai.request.model": next((models[t] for t in ("generation", "target", "draft") if t in models), None),
            "gen_ai.request.seed": program.seeds.seed,
            "gen_ai.response.id": identity.id,
            "scaffolding.sample_id": identity.sample_id,
            "scaffolding.epoch": identity.epoch,
        }
        attributes = {name: value for name, value in found.items() if value is not None}
        span = self._tracer.start_span(f"invoke_agent {controller}", context=parent, attributes=attributes)
        if span.is_recording():
            spans = _RequestSpans(self._tracer, span, models)
            program.meter.observer = spans
            program.trace.observers.append(spans.decided)
            program.lifetime.at_end(functools.partial(spans.end, request))

    def flush(self, seconds: float = 10.0) -> bool:
        """Export the spans of all ended requests; False if the provider is late or shut down."""
        flush = getattr(self._provider, "force_flush", None)  # only the SDK's have it
        return flush is None or bool(flush(int(1000 * seconds)))


class _OpenSpan:
    """The span of a running task; holding the task keeps its id unique."""

    def __init__(self, task: Task, span: Any) -> None:
        self.task = task
        self.span = span
        self.counts: TokenCounts | None = None

    def add(self, counts: TokenCounts) -> None:
        before = self.counts or TokenCounts()
        self.counts = TokenCounts(*(old + new for old, new in zip(before, counts, strict=True)))

    def end(self) -> None:
        if self.counts is not None:
            self.span.set_attributes(_of_counts(self.counts))
        self.span.end()


class _RequestSpans(TaskObserver):
    """The span of one request, and those within it.

    Args:
        models: Model names by worker tag, for workers that name one.
    """

    def __init__(self, tracer: Any, root: Any, models: Mapping[str, str]) -> None:
        from opentelemetry import trace

        self._tracer = tracer
        self._root = root
        self._models = models
        self._inside = trace.set_span_in_context(root)
        self._client, self._failed = trace.SpanKind.CLIENT, trace.StatusCode.ERROR
        self._open: dict[int, _OpenSpan] = {}

    def asked(self, task: Task) -> None:
        if id(task) in self._open:  # a stream continues
            return
        kind, role, scope = type(task).__name__, tag_name(task.worker_tag), current_scope.get()
        operation = _OPERATIONS.get(kind) or _snake(kind.removesuffix("Task"))
        model = self._models.get(role)
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _NAME,
            **({} if model is None else {"gen_ai.request.model": model}),
            "scaffolding.task": kind,
            "scaffolding.worker": role,
            **_branch(() if scope is None else scope.branch_path),
        }
        span = self._tracer.start_span(
            f"{operation} {model or role}", context=self._inside, kind=self._client, attributes=attributes
        )
        self._open[id(task)] = _OpenSpan(task, span)

    def counted(self, task: Task, purpose: Purpose, counts: TokenCounts | None) -> None:
        running = self._open.get(id(task))
        if running is None:
            return
        running.span.set_attribute("scaffolding.purpose", str(purpose))
        if counts is not None:
            running.add(counts)
        if not is_stream(task) or task.end_flag:
            del self._open[id(task)]
            running.end()

    def decided(self, event: Mapping[str, Any]) -> None:
        """Add a span without duration for a decision; figures are not decisions."""
        if event["event"] == FIGURES:
            return
        self._tracer.start_span(event["event"], context=self._inside, attributes=_of_decision(event)).end()

    def end(self, request: Request) -> None:
        for running in self._open.values():
            running.end()
        self._open.clear()
        self._root.set_attributes(_of_end(request))
        if request.failure is not None:
            self._root.set_status(self._failed)
        self._root.end()


def _of_end(request: Request) -> dict[str, Any]:
    ledger, error = request.program.ledger, request.failure
    found = {
        "gen_ai.response.finish_reasons": None if request.exit_reason is None else [request.exit_reason],
        **_of_counts(ledger.total),
        "error.type": None if error is None else type(error).__name__,
        **{
            f"scaffolding.tokens.{name}": counts.decoded for name, counts in ledger.by_purpose.items() if counts.decoded
        },
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_counts(counts: TokenCounts) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": counts.prefilled + counts.reused,
        "gen_ai.usage.cache_read.input_tokens": counts.reused,
        "gen_ai.usage.output_tokens": counts.decoded,
    }


def _of_decision(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision's figures as attributes: numbers, lists of numbers as JSON, and the package's words."""
    shown = {
        f"scaffolding.{name}": value
        if isinstance(value, (str, bool, int, float))
        else json.dumps(value, default=as_json)
        for name, value in event.items()
        if name not in _OF_EVERY_EVENT and _may_be_shown(name, value)
    }
    return {"scaffolding.event": event["event"], **_branch(event["branch"]), **shown}


def _may_be_shown(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return name in _OWN_WORDS and _WORD.fullmatch(value) is not None
    if isinstance(value, (list, tuple)):
        return all(item is None or _may_be_shown("", item) for item in value)
    return isinstance(value, (bool, int, float)) or hasattr(value, "tolist")


def _branch(path: Any) -> dict[str, str]:
    return {"scaffolding.branch": ".".join(map(str, path))} if path else {}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
