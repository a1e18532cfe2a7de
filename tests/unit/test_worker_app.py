"""Apps: which functions may be tasks, and how a dispatch's bytes become their arguments."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import RUN_TIMEOUT_MS_DEFAULT
from duewheel.core.model import Dispatch, Terms
from duewheel.core.retry import RetryPolicy
from duewheel.worker.app import App, Context
from duewheel.worker.payloads import PayloadMismatch, converter, reader
from duewheel.worker.verdicts import Cancelled, ResultTooLarge, Snooze

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    name: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line]
    note: str | None = None
    weights: dict[str, float] = field(default_factory=dict)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


class Options(TypedDict):
    colour: Colour
    size: NotRequired[Literal["s", "m", 42]]


def convert(annotation: Any, text: str) -> Any:
    return converter(annotation)(json.loads(text), "payload")


@pytest.mark.parametrize(
    "annotation, text, value",
    [
        (Any, '{"a": [1]}', {"a": [1]}),
        (int, "7", 7),
        (float, "7", 7.0),
        (bool, "true", True),
        (None, "null", None),
        (list, "[1, null]", [1, None]),
        (list[int | None], "[1, null]", [1, None]),
        (dict[str, list[str]], '{"a": ["b"]}', {"a": ["b"]}),
        (Colour, '"blue"', Colour.BLUE),
        (Literal["x", 1], "1", 1),
        (Line, '{"name": "n", "added": "later"}', Line("n")),
        (Order, '{"id": 1, "lines": [{"name": "n", "count": 2}], "weights": {"a": 1}}', Order(1, [Line("n", 2)], None, {"a": 1.0})),
        (Tree, '{"value": 1, "children": [{"value": 2}]}', Tree(1, [Tree(2)])),
        (Options, '{"colour": "red", "more": 1}', {"colour": Colour.RED, "more": 1}),
        (Order | int, "5", 5),
    ],
)
def test_json_becomes_what_the_annotation_asks_for(annotation: Any, text: str, value: Any) -> None:
    converted = convert(annotation, text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    "annotation, text, message",
    [
        (int, '"7"', 'payload must be a whole number, not "7"'),
        (int, "true", "payload must be a whole number, not true"),
        (int, "7.0", "payload must be a whole number, not 7.0"),
        (float, "true", "payload must be a number, not true"),
        (str, "null", "payload must be a string, not null"),
        (list[int], '[1, "x"]', r"payload\[1\] must be a whole number"),
        (dict[str, int], "[]", "payload must be an object"),
        (Order, '{"lines": []}', "payload lacks id"),
        (Order, '{"id": 1, "lines": [{"count": 1}]}', r"payload.lines\[0\] lacks name"),
        (Colour, '"green"', 'payload must be one of "red", "blue", not "green"'),
        (Colour, "[]", "payload must be one of"),
        (Literal[1], "true", "payload must be one of 1, not true"),
        (Options, "{}", "payload lacks colour"),
        (int | None, '"x"', "payload must be int | None"),
        (str, json.dumps(["x" * 500]), "…"),
    ],
)
def test_a_mismatch_says_where_and_what(annotation: Any, text: str, message: str) -> None:
    with pytest.raises(PayloadMismatch, match=message.replace("|", r"\|")):
        convert(annotation, text)


@pytest.mark.parametrize("annotation", [set, complex, list[bytes], dict[int, str], Callable, App])
def test_an_annotation_that_nothing_can_be_made_for_is_refused_when_registering(annotation: Any) -> None:
    def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = annotation
    with pytest.raises(BadConfiguration, match="a payload cannot be annotated"):
        App().task(handler)


@pytest.mark.parametrize(
    "annotation, content_type, payload, value",
    [
        (bytes, "application/json", b"[1]", b"[1]"),
        (bytes, "application/octet-stream", b"\xff", b"\xff"),
        (Any, "application/octet-stream", b"\xff", b"\xff"),
        (Any, "application/json", b"[1]", [1]),
        (list[int], "Application/JSON; charset=utf-8", b"[1]", [1]),
        (Any, "application/json", b"", None),
        (Order | None, "application/json", b"", None),
        (bytes, "application/json", b"", b""),
        (Any, "application/octet-stream", b"", b""),
    ],
)
def test_the_content_type_decides_how_bytes_are_read(annotation: Any, content_type: str, payload: bytes, value: Any) -> None:
    assert reader(annotation)(payload, content_type) == value


@pytest.mark.parametrize(
    "annotation, content_type, payload, message",
    [
        (Order, "application/octet-stream", b"{}", "must be annotated bytes, not Order"),
        (Any, "application/json", b"{", "cannot be parsed"),
        (Any, "application/json", b"\xff", "cannot be parsed"),
        (Any, "application/json", b" ", "cannot be parsed"),
        (Any, "application/json", b"[" * 100_000, "nested more deeply than Python reads"),
        (float, "application/json", b"9" * 400, "must be a number below 1.8e308"),
        (Order, "application/json", b"", "payload must be an object, not null"),
    ],
)
def test_bytes_that_are_not_what_they_are_said_to_be(annotation: Any, content_type: str, payload: bytes, message: str) -> None:
    with pytest.raises(PayloadMismatch, match=message):
        reader(annotation)(payload, content_type)


DISPATCH: Dispatch = {
    "token": 9,
    "job_id": "j",
    "generation": 2,
    "slot_ms": 1_700_000_000_000,
    "attempt": 3,
    "timer_partition": 0,
    "dispatched_ms": 1_700_000_000_001,
    "terms": None,
    "work": {"task": "t", "content_type": "application/json", "payload": b"5", "headers": {"a": "b"}, "policy": None},
}


def test_parameters_are_filled_by_what_they_are_in_any_order() -> None:
    app = App()
    seen: list[tuple[str, Any]] = []

    @app.task
    def nothing() -> None:
        seen.append(("nothing", None))

    @app.task
    def payload(number: int) -> None:
        seen.append(("payload", number))

    @app.task
    def untyped(value) -> None:  # type: ignore[no-untyped-def]
        seen.append(("untyped", value))

    @app.task
    def context(of: Context) -> None:
        seen.append(("context", of.job_id))

    @app.task
    def payload_first(number: int, of: Context) -> None:
        seen.append(("payload_first", (number, of.job_id)))

    @app.task
    def context_first(of: Context, number: int, extra: str = "default") -> None:
        seen.append(("context_first", (number, of.job_id, extra)))

    @app.task
    def keyword(number: int, /, *, of: Context) -> None:
        seen.append(("keyword", (number, of.job_id)))

    for task in app.tasks.values():
        task.call(Context(DISPATCH))
    assert dict(seen) == {
        "nothing": None,
        "payload": 5,
        "untyped": 5,
        "context": "j",
        "payload_first": (5, "j"),
        "context_first": (5, "j", "default"),
        "keyword": (5, "j"),
    }


def test_the_context_tells_all_about_the_attempt() -> None:
    context = Context(DISPATCH, "mail")
    assert context.idempotency_key == "j/1700000000000"
    assert (context.attempt, context.fencing_token, context.task, context.queue) == (3, 9, "t", "mail")
    assert context.headers == {"a": "b"}
    assert context.dispatched_ms == 1_700_000_000_001


def test_a_task_has_the_functions_name_or_its_own_and_the_function_stays_callable() -> None:
    app = App()

    @app.task
    def first(payload: int) -> int:
        return payload + 1

    @app.task(name="mail.second")
    async def second() -> None: ...

    assert first(1) == 2
    assert {name: task.is_async for name, task in app.tasks.items()} == {"first": False, "mail.second": True}


def two_payloads(a: int, b: int) -> None: ...


def many(*a: int) -> None: ...


def unresolvable(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "handler, message", [(two_payloads, "takes 'b' too"), (many, "any number of arguments"), (unresolvable, "cannot be resolved")]
)
def test_a_function_that_cannot_be_a_handler_is_refused(handler: Callable[..., None], message: str) -> None:
    with pytest.raises(BadConfiguration, match=message):
        App().task(handler)


def test_names_are_unique_and_bounded() -> None:
    app = App()
    app.task(name="x")(two := (lambda: None))
    with pytest.raises(BadConfiguration, match="registered twice"):
        app.task(name="x")(two)
    with pytest.raises(BadConfiguration, match="must be 1 to 255 bytes"):
        app.task(name="é" * 128)(two)
    with pytest.raises(BadConfiguration, match="must be 1 to 255 bytes"):
        app.task(name="")(two)


# --- settings ---


def test_what_a_task_says_of_itself() -> None:
    app = App()
    app.task(name="plain")(lambda: None)
    app.task(
        name="full",
        retry=RetryPolicy(attempts=7),
        timeout=timedelta(minutes=1),
        heartbeat=2.5,
        executor="process",
        concurrency=3,
        keep_result=True,
    )(lambda: None)

    @app.task
    async def coroutine() -> None: ...

    plain, full = app.tasks["plain"], app.tasks["full"]
    assert (plain.executor, plain.policy, plain.run_timeout_ms) == ("thread", RetryPolicy.exponential(), RUN_TIMEOUT_MS_DEFAULT)
    assert (plain.heartbeat_timeout_ms, plain.concurrency, plain.keeps_result) == (0, 0, False)
    assert (full.executor, full.policy.attempts, full.run_timeout_ms) == ("process", 7, 60_000)
    assert (full.heartbeat_timeout_ms, full.concurrency, full.keeps_result) == (2_500, 3, True)
    assert app.tasks["coroutine"].executor == "loop"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"timeout": 0}, "the timeout of task 't' is 0"),
        ({"timeout": -1}, "the timeout of task 't' is -1; it must be a timedelta or seconds, from 0 to 2,592,000 s"),
        ({"heartbeat": timedelta(days=2)}, "the heartbeat of task 't' is"),
        ({"concurrency": 0}, "the concurrency of task 't' is 0; it must be a whole number from 1"),
        ({"concurrency": True}, "the concurrency of task 't' is True"),
        ({"executor": "fork"}, "the executor of task 't' is 'fork'; it must be 'thread', 'process' or left out"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfiguration, match=message):
        App().task(name="t", **settings)(lambda: None)


def test_a_coroutine_function_cannot_run_in_a_thread() -> None:
    async def handler() -> None: ...

    with pytest.raises(BadConfiguration, match="leave its executor out"):
        App().task(name="t", executor="thread")(handler)


# --- the context without a worker ---


def test_a_context_made_from_a_dispatch_alone_works() -> None:
    context = Context(DISPATCH)
    assert (context.queue, context.crashes, context.deadline_ms, context.cancelled) == ("default", 0, 0, False)
    context.heartbeat({"done": 1})
    context.raise_if_cancelled()
    with pytest.raises(Snooze):
        context.snooze(5)
    with pytest.raises(ResultTooLarge, match="the progress has"):
        context.heartbeat("x" * 10_000)


def test_the_context_tells_the_terms() -> None:
    terms: Terms = {"crashes": 2, "is_last_life": True, "expires_ms": 5, "deadline_ms": 77}
    context = Context({**DISPATCH, "terms": terms})
    assert (context.crashes, context.deadline_ms) == (2, 77)


def test_a_cancelled_handler_can_end_itself() -> None:
    class Control:
        cancelled = True

        def beat(self, progress: bytes | None) -> None: ...

    context = Context(DISPATCH, "q", Control())
    assert context.cancelled
    with pytest.raises(Cancelled):
        context.raise_if_cancelled()


# --- middleware ---


class Layer:
    def __init__(self, name: str, said: list[str], fails_in: str = "") -> None:
        self.name, self.said, self.fails_in = name, said, fails_in

    def _say(self, what: str) -> None:
        self.said.append(f"{self.name} {what}")
        if what.split()[0] == self.fails_in:
            raise RuntimeError(f"{self.name} {what}")

    def before(self, context: Context) -> None:
        self._say("before")

    def after(self, context: Context, value: object) -> None:
        self._say(f"after {value}")

    def error(self, context: Context, exception: BaseException) -> None:
        self._say(f"error {type(exception).__name__}")


def call(app: App, name: str) -> Any:
    task = app.tasks[name]
    return asyncio.run(task.call(Context(DISPATCH))) if task.is_async else task.call(Context(DISPATCH))


def layered(said: list[str], *layers: object) -> App:
    """Half of the layers come before the tasks, half after: that must make no difference."""
    app = App()
    for layer in layers[:1]:
        app.middleware(layer)

    @app.task
    def plain() -> str:
        said.append("handler")
        return "value"

    @app.task
    async def coroutine() -> str:
        said.append("handler")
        await asyncio.sleep(0)
        return "value"

    @app.task
    def broken() -> None:
        raise ValueError

    @app.task
    async def broken_later() -> None:
        await asyncio.sleep(0)
        raise ValueError

    for layer in layers[1:]:
        app.middleware(layer)
    return app


@pytest.mark.parametrize("task", ["plain", "coroutine"])
def test_middleware_lies_around_the_handler_like_an_onion(task: str) -> None:
    said: list[str] = []
    app = layered(said, Layer("a", said), Layer("b", said))
    assert call(app, task) == "value"
    assert said == ["a before", "b before", "handler", "b after value", "a after value"]


@pytest.mark.parametrize("task", ["broken", "broken_later"])
def test_middleware_sees_errors_and_does_not_stop_them(task: str) -> None:
    said: list[str] = []
    app = layered(said, Layer("a", said), Layer("b", said))
    with pytest.raises(ValueError):  # noqa: PT011
        call(app, task)
    assert said == ["a before", "b before", "b error ValueError", "a error ValueError"]


@pytest.mark.parametrize("task", ["plain", "coroutine"])
@pytest.mark.parametrize(
    "fails_in, expected",
    [
        ("before", ["a before", "b before", "a error RuntimeError"]),
        ("after", ["a before", "b before", "handler", "b after value", "a error RuntimeError"]),
    ],
)
def test_middleware_that_raises_fails_the_run(task: str, fails_in: str, expected: list[str]) -> None:
    said: list[str] = []
    app = layered(said, Layer("a", said), Layer("b", said, fails_in))
    with pytest.raises(RuntimeError):
        call(app, task)
    assert said == expected


def test_middleware_may_have_one_method_only_and_must_have_one() -> None:
    class Tenant:
        def before(self, context: Context) -> None:
            TENANT.set(context.headers["a"])

    app = App()
    app.middleware(Tenant())
    seen = []

    @app.task
    def handler() -> None:
        seen.append(TENANT.get())

    call(app, "handler")
    assert seen == ["b"]
    with pytest.raises(BadConfiguration, match="has none of the methods before, after, error"):
        app.middleware(object())


def test_without_middleware_nothing_lies_around_the_handler() -> None:
    app = App()

    @app.task
    def handler(context: Context) -> None: ...

    assert app.tasks["handler"].call is handler
