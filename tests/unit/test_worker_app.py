"""Apps: which functions may be tasks, and how a dispatch's bytes become their arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from duewheel.core.errors import BadConfiguration
from duewheel.core.model import Dispatch
from duewheel.worker.app import App, Context
from duewheel.worker.payloads import PayloadMismatch, converter, reader


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
