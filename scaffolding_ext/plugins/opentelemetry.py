"""OpenTelemetry spans: one per request, with a child for each decision of its trace.

No span holds a prompt, an answer or an error message: only numbers are shown, and texts of listed attributes. Names
follow the semantic conventions for generative AI.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scaffolding_ext.documents import as_json
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.request.figures import FIGURES

if TYPE_CHECKING:
    from scaffolding_ext.host.request import Request

_NAME = "scaffolding_ext"
# Figures whose texts this package writes. Other texts may come from a model, a user or a server, and are omitted.
_OWN_WORDS = frozenset({"by", "cause", "finish_reason", "reason", "strategy", "task", "to", "unit", "what", "worker"})
_WORD = re.compile(r"[A-Za-z_]\w*(?: \w+)?")  # a whole sentence may quote something


class Telemetry:
    """Creates spans for hosts' requests, with OpenTelemetry's provider; None takes the process's."""

    def __init__(self, tracer_provider: Any = None) -> None:
        self._trace = _imported("trace")
        self._provider = tracer_provider or self._trace.get_tracer_provider()
        self._tracer = self._trace.get_tracer(_NAME, tracer_provider=self._provider)
        self._propagator = _imported("trace.propagation.tracecontext").TraceContextTextMapPropagator()

    def begin(self, request: Request, controller: str, trace_parent: str | None = None) -> None:
        """For hosts: begin a request's span below the caller's, and watch its trace unless a sampler drops it."""
        program, identity = request.program, request.program.identity
        parent = None if trace_parent is None else self._propagator.extract({"traceparent": trace_parent})
        found = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _NAME,
            "gen_ai.agent.name": controller,
            "gen_ai.request.seed": program.seeds.seed,
            "gen_ai.response.id": identity.id,
            "scaffolding.sample_id": identity.sample_id,
            "scaffolding.epoch": identity.epoch,
        }
        span = self._tracer.start_span(f"invoke_agent {controller}", context=parent, attributes=_known(found))
        if span.is_recording():
            program.trace.observers.append(functools.partial(self._decided, self._trace.set_span_in_context(span)))
            program.lifetime.at_end(functools.partial(self._end, request, span))

    def _decided(self, inside: Any, event: Mapping[str, Any]) -> None:
        """Add a span without duration for a decision; figures are not decisions."""
        if event["event"] != FIGURES:
            self._tracer.start_span(event["event"], context=inside, attributes=_of_decision(event)).end()

    def _end(self, request: Request, span: Any) -> None:
        ledger, error, total = request.program.ledger, request.failure, request.program.ledger.total
        found = {
            "gen_ai.response.finish_reasons": None if request.exit_reason is None else [request.exit_reason],
            "gen_ai.usage.input_tokens": total.prefilled + total.reused,
            "gen_ai.usage.cache_read.input_tokens": total.reused,
            "gen_ai.usage.output_tokens": total.decoded,
            "error.type": None if error is None else type(error).__name__,
            **{f"scaffolding.tokens.{name}": each.decoded or None for name, each in ledger.by_purpose.items()},
        }
        span.set_attributes(_known(found))
        if error is not None:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def flush(self, seconds: float = 10.0) -> bool:
        """Export the spans of all ended requests; False if the provider is late or shut down."""
        flush = getattr(self._provider, "force_flush", None)  # only the SDK's have it
        return flush is None or bool(flush(int(1000 * seconds)))


def from_environment() -> Telemetry:
    """Export spans as OpenTelemetry's variables say, by the provider of the process if it has one."""
    trace, sdk = _imported("trace"), _imported("sdk.trace")
    exporter = _imported("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter
    provider = trace.get_tracer_provider()
    if not isinstance(provider, sdk.TracerProvider):
        provider = sdk.TracerProvider()
        provider.add_span_processor(_imported("sdk.trace.export").BatchSpanProcessor(exporter()))
        trace.set_tracer_provider(provider)
    return Telemetry(provider)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(f"opentelemetry.{module}")
    except ImportError as error:
        raise MissingDependencyError("opentelemetry-sdk", "otel") from error


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _of_decision(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision's figures as attributes: numbers, lists of numbers as JSON, and the package's words."""
    shown = {
        f"scaffolding.{name}": each if isinstance(each, (str, bool, int, float)) else json.dumps(each, default=as_json)
        for name, each in event.items()
        if name not in ("event", "branch", "seconds") and _may_be_shown(name, each)
    }
    branch = {"scaffolding.branch": ".".join(map(str, event["branch"]))} if event["branch"] else {}
    return {"scaffolding.event": event["event"], **branch, **shown}


def _may_be_shown(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return name in _OWN_WORDS and _WORD.fullmatch(value) is not None
    if isinstance(value, (list, tuple)):
        return all(item is None or _may_be_shown("", item) for item in value)
    return isinstance(value, (bool, int, float)) or hasattr(value, "tolist")
