"""Requests as spans of OpenTelemetry: one a request, with a child for each task and for each decision.

The host's loop only keeps what the meter and the trace have at hand anyway. The caller's thread begins the request's
span, and a thread of its own makes the others when the request has ended. Names and attributes are those of the
semantic conventions for generative AI, and no span holds a prompt, an answer or the message of an error. OpenTelemetry
is imported when a `Telemetry` is made.
"""

from __future__ import annotations

import functools
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.protocol.worker import model_of
from scaffolding_ext.protocol.worker_tags import tag_name

if TYPE_CHECKING:
    from scaffolding_ext.host.request import Request
    from scaffolding_ext.protocol import Worker
    from scaffolding_ext.request.ledger import Asked

_log = logging.getLogger(__name__)
_NAME, _EXTRA = "scaffolding_ext", "otel"
_OPERATIONS = {  # what a task does, in the words of the conventions where they have one
    "GenerationTask": "text_completion",
    "StreamGenerationTask": "text_completion",
    "BranchTask": "text_completion",
    "ChatTask": "chat",
}
_OF_EVERY_EVENT = ("event", "branch", "seconds")
_PLAIN = (str, bool, int, float)
_TEXTS = re.compile(r"answer|response|text|output")  # names of figures that hold what a model wrote
_WAIT_SECONDS = 10.0


class _Ended(NamedTuple):
    """A request that has ended: all that its spans are made from."""

    request: Request
    models: Mapping[str, str]
    span: Any
    steps: Asked
    ended: float


class Telemetry:
    """Makes the spans of a host's requests.

    Args:
        tracer_provider: OpenTelemetry's; None takes the one of the process.
        max_waiting: Requests that may wait for their spans. Those of further ones are dropped, and counted.

    Attributes:
        num_dropped: Requests without spans, since too many waited.

    Raises:
        MissingDependencyError: OpenTelemetry is not installed.
        ConfigError: `max_waiting` is below 1.
    """

    def __init__(self, tracer_provider: Any = None, max_waiting: int = 10_000) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingDependencyError("opentelemetry-api", _EXTRA) from error
        self.num_dropped = 0
        self._provider = tracer_provider or trace.get_tracer_provider()
        self._tracer = trace.get_tracer(_NAME, tracer_provider=self._provider)
        self._waiting: queue.Queue[_Ended | threading.Event | None] = queue.Queue(
            require.whole("max_waiting", max_waiting)
        )
        self._propagator = TraceContextTextMapPropagator()
        self._num_hosts = 0
        self._thread: threading.Thread | None = None  # while there are hosts
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls) -> Telemetry:
        """Spans that go where OpenTelemetry's own variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`).

        Where the process has a provider already, that one gets them.

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

    def join(self, workers: Mapping[Any, Worker]) -> dict[str, str]:
        """For hosts, before their first request: their spans are made from here on.

        Returns:
            The model of each worker that says which it serves, by the worker's tag.
        """
        with self._lock:
            self._num_hosts += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._make_all, name="scaffolding-spans", daemon=True)
                self._thread.start()
        models = {tag_name(tag): model_of(worker) for tag, worker in workers.items()}
        return {tag: model for tag, model in models.items() if model is not None}

    def leave(self) -> None:
        """For hosts that are shut down: make the spans that are left."""
        self.flush()
        with self._lock:
            self._num_hosts -= 1
            thread = self._thread if not self._num_hosts else None
            if thread is not None:
                self._waiting.put(None)
                self._thread = None
        if thread is not None:
            thread.join(_WAIT_SECONDS)

    def begin(
        self, request: Request, controller: str, models: Mapping[str, str], trace_parent: str | None = None
    ) -> None:
        """For hosts, on the caller's thread, before a request runs: begin its span, and keep what happens in it.

        Where a sampler leaves the request out, nothing is kept.

        Args:
            request: Runs a controller.
            controller: Its class.
            models: What `join` returned.
            trace_parent: The caller's span, as W3C's header `traceparent` says it; None where there is none.
        """
        program, identity = request.program, request.program.identity
        parent = None
        if trace_parent is not None:
            parent = self._propagator.extract({"traceparent": trace_parent})
        model = next((models[tag] for tag in ("generation", "target", "draft") if tag in models), None)
        found = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _NAME,
            "gen_ai.agent.name": controller,
            "gen_ai.request.model": model,
            "gen_ai.request.seed": program.seeds.seed,
            "gen_ai.response.id": identity.id,
            "scaffolding.sample_id": identity.sample_id,
            "scaffolding.epoch": identity.epoch,
        }
        span = self._tracer.start_span(
            f"invoke_agent {controller}",
            context=parent,
            attributes={name: value for name, value in found.items() if value is not None},
        )
        if span.is_recording():
            steps: Asked = []
            program.meter.steps = steps
            program.lifetime.at_end(functools.partial(self._end, request, models, span, steps))

    def flush(self, seconds: float = _WAIT_SECONDS) -> bool:
        """Make the spans of all requests that have ended, and have the provider export them; False where it is late."""
        made = threading.Event()
        try:
            self._waiting.put(made, timeout=seconds)
        except queue.Full:
            return False
        flush = getattr(self._provider, "force_flush", None)
        return made.wait(seconds) and (flush is None or bool(flush(int(1000 * seconds))))

    def _end(self, request: Request, models: Mapping[str, str], span: Any, steps: Asked) -> None:
        try:
            self._waiting.put_nowait(_Ended(request, models, span, steps, time.monotonic()))
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                _log.warning("spans are dropped: more than %d requests wait for theirs", self._waiting.maxsize)

    def _make_all(self) -> None:
        while True:
            item = self._waiting.get()
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._make(item)
            except Exception:
                _log.exception("the spans of a request could not be made")

    def _make(self, ended: _Ended) -> None:
        from opentelemetry import trace

        program, root = ended.request.program, ended.span
        shift = time.time_ns() - time.monotonic_ns()
        least = root.start_time or 0  # nothing begins before its request, however the two clocks have drifted

        def at(seconds: float) -> int:
            return max(least, int(seconds * 1e9) + shift)

        inside = trace.set_span_in_context(root)
        for name, attributes, began, done in _tasks(ended.steps, ended.models):
            span = self._tracer.start_span(
                name, context=inside, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=at(began)
            )
            span.end(at(done))
        for event in program.trace:
            when = at(program.lifetime.began + event["seconds"])
            span = self._tracer.start_span(
                event["event"], context=inside, attributes=_of_decision(event), start_time=when
            )
            span.end(when)
        root.set_attributes(_of_end(ended.request))
        if ended.request.failure is not None:
            root.set_status(trace.StatusCode.ERROR)
        root.end(at(ended.ended))


def _of_end(request: Request) -> dict[str, Any]:
    """What is known of a request when it has ended."""
    ledger, error = request.program.ledger, request.failure
    decoded, prefilled, reused = ledger.total
    found = {
        "gen_ai.response.finish_reasons": None if request.exit_reason is None else [request.exit_reason],
        "gen_ai.usage.input_tokens": prefilled + reused,
        "gen_ai.usage.cache_read.input_tokens": reused,
        "gen_ai.usage.output_tokens": decoded,
        "error.type": None if error is None else type(error).__name__,
        **{
            f"scaffolding.tokens.{name}": counts.decoded for name, counts in ledger.by_purpose.items() if counts.decoded
        },
    }
    return {name: value for name, value in found.items() if value is not None}


def _tasks(steps: Asked, models: Mapping[str, str]) -> list[tuple[str, dict[str, Any], float, float]]:
    """Name, attributes, begin and end of each task; all steps of one stream are one task."""
    spans: list[tuple[str, dict[str, Any], float, float]] = []
    of_stream: dict[int, int] = {}
    open_ones: list[int] = []
    for item in steps:
        if isinstance(item, float):  # the end of the tasks before it
            for number in open_ones:
                spans[number] = (*spans[number][:3], item)
            open_ones = []
            continue
        began, scope, kind, stream, tag, purpose, *counts = item
        number = of_stream.get(stream, len(spans)) if stream else len(spans)
        open_ones.append(number)
        if number < len(spans):
            _add_tokens(spans[number][1], counts)
            continue
        if stream:
            of_stream[stream] = number
        operation = _OPERATIONS.get(kind.__name__) or _snake(kind.__name__.removesuffix("Task"))
        role = tag_name(tag)
        model = models.get(role)
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _NAME,
            **({} if model is None else {"gen_ai.request.model": model}),
            "scaffolding.task": kind.__name__,
            "scaffolding.worker": role,
            "scaffolding.purpose": str(purpose),
            **_branch(() if scope is None else scope.branch_path),
        }
        _add_tokens(attributes, counts)
        spans.append((f"{operation} {model or role}", attributes, began, began))
    return spans


def _add_tokens(attributes: dict[str, Any], counts: Sequence[int | None]) -> None:
    decoded, prefilled, reused = counts
    if decoded is not None and prefilled is not None and reused is not None:
        for name, number in (
            ("input_tokens", prefilled + reused),
            ("cache_read.input_tokens", reused),
            ("output_tokens", decoded),
        ):
            key = f"gen_ai.usage.{name}"
            attributes[key] = attributes.get(key, 0) + number


def _of_decision(event: Mapping[str, Any]) -> dict[str, Any]:
    """A decision's figures as attributes: numbers and texts as they are, all else as JSON; no answers."""
    figures = {name: value for name, value in event.items() if name not in _OF_EVERY_EVENT}
    shown = {
        f"scaffolding.{name}": value if isinstance(value, _PLAIN) else json.dumps(value, default=as_json)
        for name, value in figures.items()
        if value is not None and not _TEXTS.search(name)
    }
    return {"scaffolding.event": event["event"], **_branch(event["branch"]), **shown}


def _branch(path: Any) -> dict[str, str]:
    return {"scaffolding.branch": ".".join(map(str, path))} if path else {}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
