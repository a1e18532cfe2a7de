"""OpenTelemetry: one trace from whoever asked for a job to the handler that runs it.

    client = duewheel.connect("localhost:9092", propagate=tracing.inject)      where jobs are scheduled
    app.middleware(tracing.Tracing())                                          where they are run

`inject` puts the current trace context into the job's headers: W3C `traceparent`, `tracestate` and `baggage`, or what else the program's
propagator writes. `Tracing` reads it there and opens a span around each attempt, with that context as its parent, and makes it current in
the handler's thread, task or process: spans that the handler opens are its children, and baggage is there again.

    GET /checkout          the span of your web server
    └─ run send_email      attempt 1: error, duewheel.outcome=failed
    └─ run send_email      attempt 2
       └─ SMTP             what the handler opened

A job may run days after it was asked for, and a thousand may come from one request. Where such a trace would be of no use, give each
attempt a trace of its own that links to the one it came from: `Tracing("link")`.

Headers are data. They are the producer's own, so nothing here obeys them: without the middleware they do nothing, a malformed one starts a
new trace, and one that the producer set itself stays as it is, alone (`client.propagation`).

It needs the package opentelemetry-api (`pip install "duewheel[otel]"`), which does nothing until the program configures an SDK. Tasks
with `executor="process"` run in child processes that import the app anew: configure the SDK where the app is made.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from duewheel.core.errors import BadConfiguration
from duewheel.worker.app import Context
from duewheel.worker.verdicts import Cancelled, Discard, Snooze, failure_of

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError as error:
    raise ImportError(
        'duewheel.tracing works with OpenTelemetry, whose package opentelemetry-api is not installed: pip install "duewheel[otel]"'
    ) from error

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

__all__ = ["Tracing", "inject"]

# What a handler may raise without anything having gone wrong.
_NO_FAULT: Final = ((Snooze, "snoozed"), (Discard, "discarded"), (Cancelled, "cancelled"))


def inject() -> dict[str, str]:
    """The current trace context as headers; none where there is no trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


class _Open(NamedTuple):
    """The span of an attempt that runs here."""

    context: Context
    span: trace.Span
    attached: Token[contexts.Context]


# Runs have context variables of their own, whether they are threads' or tasks', so that no run finds another's span here.
_open: ContextVar[tuple[_Open, ...]] = ContextVar("duewheel_spans", default=())


class Tracing:
    """Middleware that opens a span around each attempt.

    Args:
        relation: how the span belongs to the trace that the job came from: as its "child", or as a trace of its own with a "link" to it.
        tracer_provider: whose spans; the program's global one by default.

    Raises:
        BadConfiguration: there is no such relation.
    """

    def __init__(self, relation: Literal["child", "link"] = "child", tracer_provider: trace.TracerProvider | None = None) -> None:
        if relation not in ("child", "link"):
            raise BadConfiguration(
                f"relation={relation!r} is unknown; the span of an attempt may be a 'child' of its origin, or 'link' to it"
            )
        self._relation = relation
        self._tracer = trace.get_tracer("duewheel", tracer_provider=tracer_provider)

    def before(self, context: Context) -> None:
        origin = propagate.extract(context.headers, contexts.get_current())
        parent, links = origin, None
        if self._relation == "link":
            came_from = trace.get_current_span(origin).get_span_context()
            parent = trace.set_span_in_context(trace.INVALID_SPAN, origin)  # its baggage stays
            links = [trace.Link(came_from)] if came_from.is_valid else None
        kind, attributes = trace.SpanKind.CONSUMER, _attributes(context)
        span = self._tracer.start_span(f"run {context.task}", parent, kind, attributes, links)
        attached = contexts.attach(trace.set_span_in_context(span, parent))
        _open.set((*_open.get(), _Open(context, span, attached)))

    def after(self, context: Context, value: Any) -> None:
        if (span := _close(context)) is not None:
            span.set_attribute("duewheel.outcome", "succeeded")
            span.end()

    def error(self, context: Context, exception: BaseException) -> None:
        if (span := _close(context)) is not None:
            _record(span, context, exception)
            span.end()


def _close(context: Context) -> trace.Span | None:
    """Makes the span of this attempt no longer current, and gives it.

    None where it is not ours to end: a coroutine that was left behind may be closed by whoever collects garbage, in any thread, and the
    context variables there are somebody else's.
    """
    spans = _open.get()
    if not spans or spans[-1].context is not context:
        return None
    _open.set(spans[:-1])
    contexts.detach(spans[-1].attached)
    return spans[-1].span


def _record(span: trace.Span, context: Context, exception: BaseException) -> None:
    for kind, outcome in _NO_FAULT:
        if isinstance(exception, kind):
            span.set_attribute("duewheel.outcome", outcome)
            return
    if context.cancelled and isinstance(exception, asyncio.CancelledError):
        span.set_attribute("duewheel.outcome", "cancelled")
        return
    span.set_attribute("duewheel.outcome", "failed")
    failure = failure_of(exception)  # bounded, and whatever the exception's own __str__ does
    span.set_attribute("error.type", failure["type"])
    told = {"exception.type": failure["type"], "exception.message": failure["message"], "exception.stacktrace": failure["traceback"]}
    span.add_event("exception", told)
    span.set_status(trace.StatusCode.ERROR, failure["message"])


def _attributes(context: Context) -> dict[str, AttributeValue]:
    """By OpenTelemetry's conventions for messaging, and what only Duewheel has."""
    return {
        "messaging.system": "duewheel",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": context.queue,
        "messaging.message.id": context.job_id,
        "duewheel.task": context.task,
        "duewheel.attempt": context.attempt,
        "duewheel.idempotency_key": context.idempotency_key,
        "duewheel.fencing_token": context.fencing_token,
    }
