"""Traces from enqueue to handler, seen with the SDK's exporter in memory."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duewheel import App, Cancelled, Context, Discard, Retry, tracing
from duewheel.client.propagation import enriched
from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import HEADERS_BYTES_MAX, HEADERS_COUNT_MAX
from duewheel.core.model import Dispatch

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID, SPAN_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def one(self) -> ReadableSpan:
        [span] = self.exporter.get_finished_spans()
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def dispatch(headers: Mapping[str, str], job_id: str = "j") -> Dispatch:
    return {
        "token": 41,
        "job_id": job_id,
        "generation": 1,
        "slot_ms": 1_700_000_000_000,
        "attempt": 2,
        "timer_partition": 0,
        "dispatched_ms": 0,
        "terms": None,
        "work": {"task": "t", "content_type": "application/json", "payload": b"1", "headers": dict(headers), "policy": None},
    }


def run(handler: Callable[..., Any], layer: object | None, headers: Mapping[str, str], job_id: str = "j") -> Any:
    """Runs a handler as executors do: in context variables of its own; the app's middleware around it."""
    app = App()
    app.task(name="t")(handler)
    if layer is not None:
        app.middleware(layer)
    task, context = app.tasks["t"], Context(dispatch(headers, job_id), "mails")
    if not task.is_async:
        return contextvars.Context().run(task.call, context)

    async def main() -> Any:
        return await task.call(context)

    return contextvars.Context().run(asyncio.run, main())


# --- where jobs are scheduled ---


def test_inject_gives_the_current_trace_and_nothing_where_there_is_none(spans: Spans) -> None:
    assert tracing.inject() == {}
    with spans.tracer.start_as_current_span("request") as span:
        context = span.get_span_context()
        [(name, value)] = tracing.inject().items()
        assert (name, value[:52]) == ("traceparent", f"00-{context.trace_id:032x}-{context.span_id:016x}")


def test_headers_are_added_beside_the_producers_own() -> None:
    own = {"tenant": "x"}
    assert enriched(own, {"traceparent": PARENT}) == {"tenant": "x", "traceparent": PARENT}
    assert own == {"tenant": "x"}
    assert enriched(None, {"traceparent": PARENT}) == {"traceparent": PARENT}
    assert enriched(None, {}) is None


def test_a_producer_that_sets_one_of_the_names_itself_gets_none_of_the_others() -> None:
    own = {"traceparent": "mine"}
    assert enriched(own, {"traceparent": PARENT, "tracestate": "a=1", "baggage": "b=2"}) == own


def test_what_does_not_fit_is_left_out_from_the_end_so_that_no_job_is_refused_for_it() -> None:
    added = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "b" * 1_000}
    room = HEADERS_BYTES_MAX - len("x") - sum(map(len, ["traceparent", PARENT, "tracestate", "a=1", "baggage", "b" * 1_000]))
    assert enriched({"x": "y" * room}, added) == {"x": "y" * room, **added}
    assert (enriched({"x": "y" * (room + 1)}, added) or {}).keys() == {"x", "traceparent", "tracestate"}
    full = {f"h{n}": "" for n in range(HEADERS_COUNT_MAX - 1)}
    assert (enriched(full, added) or {}).keys() == {*full, "traceparent"}
    euros = {"x": "€" * (HEADERS_BYTES_MAX // 3)}  # bytes count, not characters
    assert enriched(euros, added) == euros


# --- where they are run ---


def _handler(context: Context) -> None:
    with trace.get_tracer("handler").start_as_current_span("inner"):
        pass


async def _coroutine(context: Context) -> None:
    await asyncio.sleep(0)
    _handler(context)


@pytest.mark.parametrize("handler", [_handler, _coroutine])
def test_a_run_is_a_child_of_the_enqueuing_span_and_its_handlers_spans_are_its_children(
    spans: Spans, handler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer", lambda *names, **more: spans.tracer)
    run(handler, tracing.Tracing(), {"traceparent": PARENT})
    outer, inner = spans.all()["run t"], spans.all()["inner"]
    assert outer.context is not None
    assert outer.parent is not None
    assert inner.parent is not None
    assert (outer.context.trace_id, outer.parent.span_id, outer.parent.is_remote) == (TRACE_ID, SPAN_ID, True)
    assert (inner.parent.span_id, outer.kind) == (outer.context.span_id, trace.SpanKind.CONSUMER)
    assert outer.attributes == {
        "messaging.system": "duewheel",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mails",
        "messaging.message.id": "j",
        "duewheel.task": "t",
        "duewheel.attempt": 2,
        "duewheel.idempotency_key": "j/1700000000000",
        "duewheel.fencing_token": 41,
        "duewheel.outcome": "succeeded",
    }
    assert outer.status.status_code is trace.StatusCode.UNSET


def test_a_run_may_have_a_trace_of_its_own_with_a_link_to_where_it_came_from(spans: Spans) -> None:
    seen = []
    headers = {"traceparent": PARENT, "baggage": "tenant=acme"}
    run(lambda: seen.append(baggage.get_baggage("tenant")), tracing.Tracing("link", spans.provider), headers)
    span = spans.one()
    assert span.context is not None
    assert (span.parent, span.context.trace_id != TRACE_ID, seen) == (None, True, ["acme"])
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(TRACE_ID, SPAN_ID)]


@pytest.mark.parametrize("relation", ["child", "link"])
@pytest.mark.parametrize(
    "headers", [{}, {"traceparent": "00-not-a-trace"}, {"traceparent": PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32)}]
)
def test_without_a_trace_that_can_be_read_a_run_begins_its_own(spans: Spans, relation: Any, headers: Mapping[str, str]) -> None:
    run(lambda: None, tracing.Tracing(relation, spans.provider), headers)
    span = spans.one()
    assert (span.parent, span.links) == (None, ())


def test_a_relation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="relation='cousin' is unknown"):
        tracing.Tracing("cousin")  # type: ignore[arg-type]


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "error, kind, message", [(ValueError("boom"), "ValueError", "boom"), (Retry("later"), "duewheel.Retry", "later"), (Rude(), None, None)]
)
def test_an_error_is_recorded_and_goes_on(spans: Spans, error: Exception, kind: str | None, message: str | None) -> None:
    def handler() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run(handler, tracing.Tracing(tracer_provider=spans.provider), {})
    assert raised.value is error
    span = spans.one()
    [event] = span.events
    assert span.attributes is not None
    assert event.attributes is not None
    assert (span.status.status_code, span.attributes["duewheel.outcome"]) == (trace.StatusCode.ERROR, "failed")
    assert "raise error" in str(event.attributes["exception.stacktrace"]) or kind is None
    if kind is not None:
        assert (span.attributes["error.type"], event.attributes["exception.type"]) == (kind, kind)
        assert (span.status.description, event.attributes["exception.message"]) == (message, message)


@pytest.mark.parametrize("error, outcome", [(Discard("no"), "discarded"), (Cancelled("no"), "cancelled"), (None, "snoozed")])
def test_what_a_handler_says_on_purpose_is_no_error(spans: Spans, error: Exception | None, outcome: str) -> None:
    def handler(context: Context) -> None:
        if error is None:
            context.snooze(5)
        raise error

    with pytest.raises(Exception):  # noqa: B017, PT011
        run(handler, tracing.Tracing(tracer_provider=spans.provider), {})
    span = spans.one()
    assert span.attributes is not None
    assert (span.status.status_code, span.attributes["duewheel.outcome"], span.events) == (trace.StatusCode.UNSET, outcome, ())


def test_a_coroutine_that_is_cancelled_by_its_timeout_is_an_error_and_one_whose_job_was_cancelled_is_none(spans: Spans) -> None:
    class Control:
        def __init__(self, cancelled: bool) -> None:
            self.cancelled = cancelled

        def beat(self, progress: bytes | None) -> None: ...

    layer = tracing.Tracing(tracer_provider=spans.provider)
    for cancelled in (False, True):
        context = Context(dispatch({}), "mails", Control(cancelled))

        def attempt(context: Context = context) -> None:
            layer.before(context)
            layer.error(context, asyncio.CancelledError())

        contextvars.Context().run(attempt)
    outcomes = [(span.attributes or {})["duewheel.outcome"] for span in spans.exporter.get_finished_spans()]
    assert outcomes == ["failed", "cancelled"]


def test_runs_beside_each_other_keep_their_own_spans(spans: Spans) -> None:
    app = App()
    app.middleware(tracing.Tracing(tracer_provider=spans.provider))
    gate = threading.Barrier(8, timeout=10)

    @app.task(name="t")
    def handler(context: Context) -> int:
        gate.wait()
        return trace.get_current_span().get_span_context().trace_id

    traces = {n: f"00-{n + 1:032x}-00f067aa0ba902b7-01" for n in range(8)}
    seen: dict[int, int] = {}

    def work(n: int) -> None:
        seen[n] = contextvars.Context().run(app.tasks["t"].call, Context(dispatch({"traceparent": traces[n]}, str(n))))

    threads = [threading.Thread(target=work, args=(n,)) for n in traces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == {n: n + 1 for n in traces}
    assert len(spans.exporter.get_finished_spans()) == 8


def test_coroutines_that_interleave_keep_their_own_spans(spans: Spans) -> None:
    app = App()
    app.middleware(tracing.Tracing(tracer_provider=spans.provider))

    @app.task(name="t")
    async def handler(context: Context) -> tuple[int, int]:
        before = trace.get_current_span().get_span_context().trace_id
        await asyncio.sleep(0.01 if int(context.job_id) % 2 else 0.02)
        return before, trace.get_current_span().get_span_context().trace_id

    async def main() -> list[tuple[int, int]]:
        calls: list[asyncio.Task[tuple[int, int]]] = [
            asyncio.create_task(app.tasks["t"].call(Context(dispatch({"traceparent": f"00-{n + 1:032x}-00f067aa0ba902b7-01"}, str(n)))))
            for n in range(6)
        ]
        return list(await asyncio.gather(*calls))

    assert asyncio.run(main()) == [(n + 1, n + 1) for n in range(6)]


def test_a_span_is_no_longer_current_after_its_run(spans: Spans) -> None:
    layer, context = tracing.Tracing(tracer_provider=spans.provider), Context(dispatch({"traceparent": PARENT}))

    def thread() -> tuple[bool, bool]:
        layer.before(context)
        within = trace.get_current_span().get_span_context().is_valid
        layer.after(context, None)
        return within, trace.get_current_span().get_span_context().is_valid

    assert contextvars.Context().run(thread) == (True, False)


def test_a_coroutine_closed_by_somebody_else_leaves_their_span_alone(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    """As when a loop is gone, and a coroutine that was left behind is collected in the middle of another run."""
    layer = tracing.Tracing(tracer_provider=spans.provider)
    left, other = Context(dispatch({}, "left")), Context(dispatch({}, "other"))
    contextvars.Context().run(layer.before, left)

    def thread() -> None:
        layer.before(other)
        within = trace.get_current_span()
        layer.error(left, GeneratorExit())
        assert trace.get_current_span() is within
        layer.after(other, None)

    contextvars.Context().run(thread)
    contextvars.Context().run(layer.after, left, None)
    assert [(span.attributes or {})["messaging.message.id"] for span in spans.exporter.get_finished_spans()] == ["other"]
    assert caplog.records == []


def test_K9_without_the_middleware_headers_that_look_like_a_trace_do_nothing(spans: Spans) -> None:
    seen: list[Any] = []

    def handler(context: Context) -> None:
        seen.append((dict(context.headers), trace.get_current_span().get_span_context().is_valid, baggage.get_all()))

    headers = {"traceparent": PARENT, "baggage": "tenant=acme"}
    run(handler, None, headers)
    assert seen == [(headers, False, {})]
    assert spans.exporter.get_finished_spans() == ()


def test_the_propagator_that_the_program_configured_is_used(spans: Spans) -> None:
    from opentelemetry.propagators.textmap import CarrierT, Getter, Setter, TextMapPropagator, default_getter, default_setter

    class Own(TextMapPropagator):
        fields = {"x-trace"}  # noqa: RUF012

        def inject(self, carrier: CarrierT, context: contexts.Context | None = None, setter: Setter[CarrierT] = default_setter) -> None:
            setter.set(carrier, "x-trace", "7")

        def extract(
            self, carrier: CarrierT, context: contexts.Context | None = None, getter: Getter[CarrierT] = default_getter
        ) -> contexts.Context:
            found = getter.get(carrier, "x-trace")
            return baggage.set_baggage("own", found[0] if found else None, context)

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Own())
    try:
        headers = tracing.inject()
        seen: list[object] = []
        run(lambda: seen.append(baggage.get_baggage("own")), tracing.Tracing(tracer_provider=spans.provider), headers)
    finally:
        propagate.set_global_textmap(before)
    assert (headers, seen) == ({"x-trace": "7"}, ["7"])


MISSING = """
import sys
sys.modules["opentelemetry"] = None
import duewheel
try:
    import duewheel.tracing
except ImportError as error:
    print(error)
"""


def test_a_missing_package_is_named_with_how_to_get_it() -> None:
    said = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, check=True).stdout
    assert 'pip install "duewheel[otel]"' in said
