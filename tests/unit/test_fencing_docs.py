"""docs/fencing.md is tested: its Python is executed and does what the page says, its SQL is what the code executes."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from duewheel import fencing
from duewheel.fencing import Attempt
from tests.postgres import Postgres

PAGE = (Path(__file__).parents[2] / "docs" / "fencing.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Everything that the page's Python defines."""
    namespace: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/fencing.md", "exec"), namespace)
    return namespace


@pytest.fixture
def connection(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.database(), autocommit=True) as connection:
        fencing.create_tables(connection)
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)")
        connection.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY, body TEXT)")
        connection.execute("INSERT INTO orders VALUES (17, 'new')")
        connection.execute("INSERT INTO reports VALUES (1, 'empty')")
        yield connection


def value(connection: psycopg.Connection[Any], query: str) -> Any:
    return connection.execute(query.encode()).fetchone()[0]  # type: ignore[index]


def attempt(token: int, slot_ms: int = 5, job_id: str = "order-17") -> Attempt:
    return Attempt(f"{job_id}/{slot_ms}", token)


def squeezed(sql: str) -> str:
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", sql)).strip()


def test_the_tables_are_those_of_the_code() -> None:
    [tables] = [block for block in blocks("sql") if "CREATE TABLE" in block]
    assert [squeezed(statement) for statement in tables.split(";") if statement.strip()] == [squeezed(s) for s in fencing.POSTGRESQL.ddl]


def test_its_sql_is_accepted(connection: psycopg.Connection[Any]) -> None:
    connection.execute("DO $$ BEGIN CREATE ROLE worker; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    for block in blocks("sql"):
        connection.execute(block.encode())


def test_a_booking_happens_once_and_not_late(page: dict[str, Any], connection: psycopg.Connection[Any]) -> None:
    book: Callable[..., None] = page["book"]
    book(connection, {"id": 17}, attempt(7))
    connection.execute("UPDATE orders SET status = 'sent'")
    book(connection, {"id": 17}, attempt(9))
    assert value(connection, "SELECT status FROM orders") == "sent"
    with connection.transaction():
        fencing.guard(connection, "order/17", attempt(9))
    with pytest.raises(fencing.StaleToken):
        book(connection, {"id": 17}, attempt(8, slot_ms=6))
    assert value(connection, "SELECT count(*) FROM duewheel_once") == 1


def test_a_token_in_ones_own_row(page: dict[str, Any], connection: psycopg.Connection[Any]) -> None:
    connection.execute(next(block for block in blocks("sql") if "ALTER TABLE reports" in block).encode())
    page["save"](connection, 1, "second", attempt(9))
    with pytest.raises(fencing.StaleToken):
        page["save"](connection, 1, "first", attempt(7))
    assert value(connection, "SELECT body FROM reports") == "second"


def test_a_service_answers_as_the_page_says(page: dict[str, Any], connection: psycopg.Connection[Any]) -> None:
    def put(status: str, of: Attempt) -> int:
        code: int = page["put_order"](connection, fencing.to_headers(of), {"id": 17, "status": status})[0]
        return code

    assert put("second", attempt(9)) == 200
    assert put("again", attempt(9)) == 200
    assert put("first", attempt(7, slot_ms=4)) == 412
    assert put("other", attempt(99, job_id="other")) == 409
    assert value(connection, "SELECT status FROM orders") == "second"
    assert page["put_order"](connection, {}, {"id": 17, "status": "x"})[0] == 400
    assert put("third", attempt(11, slot_ms=6)) == 200
    assert value(connection, "SELECT status FROM orders") == "third"


# --- conditional writes ---


class NoSuchKey(Exception):
    pass


class ClientError(Exception):
    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class Store:
    """As much of boto3's client as the page needs; an ETag is the content's MD5, as in S3. `before_put` is called before each write."""

    exceptions = SimpleNamespace(NoSuchKey=NoSuchKey, ClientError=ClientError)

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.before_put: list[Callable[[], None]] = []
        self.puts = 0

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        if Key not in self.objects:
            raise NoSuchKey
        body, metadata = self.objects[Key]
        return {"Body": io.BytesIO(body), "ETag": self._etag(body), "Metadata": metadata}

    def put_object(
        self,
        Bucket: str,  # noqa: N803
        Key: str,  # noqa: N803
        Body: bytes,  # noqa: N803
        Metadata: dict[str, str],  # noqa: N803
        IfMatch: str | None = None,  # noqa: N803
        IfNoneMatch: str | None = None,  # noqa: N803
    ) -> None:
        self.puts += 1
        if self.before_put:
            self.before_put.pop(0)()
        present = self.objects.get(Key)
        if IfNoneMatch == "*" and present is not None:
            raise ClientError(412)
        if IfMatch is not None and (present is None or self._etag(present[0]) != IfMatch):
            raise ClientError(404 if present is None else 412)
        self.objects[Key] = (Body, Metadata)

    @staticmethod
    def _etag(body: bytes) -> str:
        return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def put(page: dict[str, Any], store: Store, document: Any, of: Attempt) -> None:
    page["put_fenced"](store, "bucket", "key", document, of)


def test_an_object_keeps_the_later_attempts_content(page: dict[str, Any]) -> None:
    store = Store()
    put(page, store, "first", attempt(7))
    put(page, store, "second", attempt(9))
    with pytest.raises(fencing.StaleToken):
        put(page, store, "late", attempt(7))
    with pytest.raises(fencing.ForeignResource):
        put(page, store, "other", attempt(99, job_id="other"))
    body, metadata = store.objects["key"]
    assert b"second" in body
    assert metadata == {"duewheel-fencing-token": "9"}


@pytest.mark.parametrize("document", ["same", "different"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_later_attempt_between_reading_and_writing_wins(page: dict[str, Any], document: str, is_there: bool) -> None:
    store = Store()
    if is_there:
        put(page, store, "same", attempt(5))
    store.before_put = [lambda: put(page, store, document, attempt(9))]
    with pytest.raises(fencing.StaleToken):
        put(page, store, "same", attempt(7))
    assert store.objects["key"][1] == {"duewheel-fencing-token": "9"}


def test_an_older_attempt_between_reading_and_writing_is_overwritten(page: dict[str, Any]) -> None:
    store = Store()
    store.before_put = [lambda: put(page, store, "first", attempt(7))]
    put(page, store, "second", attempt(9))
    assert b"second" in store.objects["key"][0]


def test_an_object_that_goes_meanwhile_is_made_anew(page: dict[str, Any]) -> None:
    store = Store()
    put(page, store, "first", attempt(7))
    store.before_put = [store.objects.clear]
    put(page, store, "second", attempt(9))
    assert b"second" in store.objects["key"][0]


def test_something_else_that_writes_all_the_time_is_an_error_in_the_end(page: dict[str, Any]) -> None:
    store = Store()

    def meddle(number: int) -> Callable[[], None]:
        return lambda: store.objects.update(key=(b'{"job_id": "order-17", "token": 1, "n": %d}' % number, {}))

    store.before_put = [meddle(number) for number in range(9)]
    with pytest.raises(TimeoutError, match="kept changing"):
        put(page, store, "x", attempt(9))
    assert store.puts == 5
