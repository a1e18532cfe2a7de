"""Fencing on a real PostgreSQL and on SQLite: what is refused, what waits for whom, and what is left after a rollback."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pytest
from psycopg.rows import dict_row

from duewheel import fencing
from duewheel.core.errors import BadConfiguration
from duewheel.fencing import Attempt, ForeignResource, StaleToken
from tests.postgres import Postgres

TIMEOUT_S: Final = 20


class Database:
    """A database of either kind, with both tables, and connections to it that are closed in the end."""

    def __init__(self, connect: Callable[..., Any]) -> None:
        self._connect = connect
        self._open: list[Any] = []
        connection = self.connect()
        fencing.create_tables(connection)
        connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0)")
        connection.execute("INSERT INTO account (id, balance) VALUES (1, 100)")
        connection.commit()

    def connect(self, **options: Any) -> Any:
        self._open.append(self._connect(**options))
        return self._open[-1]

    def balance(self) -> int:
        return int(self.value("SELECT balance FROM account"))

    def value(self, query: str) -> Any:
        connection = self.connect()
        value = connection.execute(query).fetchone()[0]
        connection.rollback()
        return value

    def close(self) -> None:
        for connection in self._open:
            connection.close()


def sqlite_database(folder: Path) -> Database:
    return Database(lambda **options: sqlite3.connect(folder / "db", check_same_thread=False, timeout=TIMEOUT_S, **options))


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with closing(sqlite_database(tmp_path)) as database:
        yield database


@pytest.fixture
def postgresql(postgres: Postgres) -> Iterator[Database]:
    conninfo = postgres.database()
    with closing(Database(lambda **options: psycopg.connect(conninfo, **options))) as database:
        yield database


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


def attempt(token: int, job_id: str = "pay/1", slot_ms: int = 1_700_000_000_000) -> Attempt:
    return Attempt(f"{job_id}/{slot_ms}", token)


def waits_for_a_lock(postgresql: Database) -> bool:
    return bool(
        postgresql.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
    )


def await_that(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- guard ---


def test_guard_takes_a_token_that_is_not_older_and_refuses_one_that_is(database: Database) -> None:
    connection = database.connect()
    fencing.guard(connection, "order/17", attempt(7))
    fencing.guard(connection, "order/17", attempt(7))  # one attempt may write twice
    fencing.guard(connection, "order/17", attempt(9))
    connection.commit()
    with pytest.raises(StaleToken, match=r"'order/17' bears token 9; this attempt's token is 8") as caught:
        fencing.guard(connection, "order/17", attempt(8))
    assert (caught.value.resource, caught.value.token, caught.value.row_token) == ("order/17", 8, 9)
    connection.rollback()
    fencing.guard(connection, "order/18", attempt(8))
    connection.commit()
    assert database.value("SELECT token FROM duewheel_fence WHERE resource = 'order/17'") == 9


def test_tokens_of_all_64_bits_are_compared_as_numbers(database: Database) -> None:
    connection = database.connect()
    for token in (0, 9, 10, 2**31, 2**53 + 1, 2**63 - 1):
        fencing.guard(connection, "r", attempt(token))
    with pytest.raises(StaleToken):
        fencing.guard(connection, "r", attempt(2**63 - 2))
    for token in (-1, 2**63):
        with pytest.raises(BadConfiguration, match="must be 0 to 9223372036854775807"):
            fencing.guard(connection, "r", attempt(token))


def test_a_rollback_takes_the_token_back(database: Database) -> None:
    connection = database.connect()
    fencing.guard(connection, "r", attempt(9))
    connection.rollback()
    fencing.guard(connection, "r", attempt(8))


def test_all_runs_of_a_job_share_its_tokens(database: Database) -> None:
    connection = database.connect()
    fencing.guard(connection, "r", attempt(8, slot_ms=1_700_000_000_000))
    fencing.guard(connection, "r", attempt(9, slot_ms=1_700_000_060_000))
    with pytest.raises(StaleToken):
        fencing.guard(connection, "r", attempt(8, slot_ms=1_700_000_000_000))


@pytest.mark.parametrize("token", [1, 7, 1_000])
def test_another_job_is_told_so_whatever_its_token(database: Database, token: int) -> None:
    connection = database.connect()
    fencing.guard(connection, "totals", attempt(7, "report-1"))
    with pytest.raises(ForeignResource, match="guarded by job 'report-1', and 'report-2' is another") as caught:
        fencing.guard(connection, "totals", attempt(token, "report-2"))
    assert (caught.value.resource, caught.value.job_id, caught.value.row_job_id) == ("totals", "report-2", "report-1")
    fencing.guard(connection, "totals", attempt(7, "report-1"))


def test_the_runs_of_a_recurring_job_are_one_job(database: Database) -> None:
    connection = database.connect()
    for token, slot_ms in ((7, 1_764_600_000_000), (9, 1_764_600_060_000)):
        fencing.guard(connection, "totals", attempt(token, f"report@{slot_ms}"))
    with pytest.raises(StaleToken):
        fencing.guard(connection, "totals", attempt(8, "report@1764600000000"))
    with pytest.raises(ForeignResource, match="guarded by job 'report', and 'other' is another"):
        fencing.guard(connection, "totals", attempt(10, "other@1764600120000"))


def test_an_older_writer_waits_for_the_newer_and_is_refused(postgresql: Database) -> None:
    newer, older = postgresql.connect(), postgresql.connect()
    fencing.guard(newer, "account/1", attempt(9))
    newer.execute("UPDATE account SET balance = 90")
    with ThreadPoolExecutor() as pool:
        refused = pool.submit(fencing.guard, older, "account/1", attempt(7))
        await_that(lambda: waits_for_a_lock(postgresql))
        assert not refused.done()
        newer.commit()
        with pytest.raises(StaleToken) as caught:
            refused.result(TIMEOUT_S)
    assert caught.value.row_token == 9
    assert postgresql.balance() == 90


def test_a_newer_writer_waits_for_the_older_and_has_the_last_word(postgresql: Database) -> None:
    newer, older = postgresql.connect(), postgresql.connect()
    fencing.guard(older, "account/1", attempt(7))
    older.execute("UPDATE account SET balance = 70")

    def write() -> None:
        fencing.guard(newer, "account/1", attempt(9))
        newer.execute("UPDATE account SET balance = 90")
        newer.commit()

    with ThreadPoolExecutor() as pool:
        written = pool.submit(write)
        await_that(lambda: waits_for_a_lock(postgresql))
        assert not written.done()
        older.commit()
        written.result(TIMEOUT_S)
    assert postgresql.balance() == 90


def test_a_refused_writer_that_goes_on_holds_up_the_next_only_until_its_rollback(postgresql: Database) -> None:
    connection, other = postgresql.connect(), postgresql.connect()
    fencing.guard(connection, "r", attempt(9))
    connection.commit()
    with pytest.raises(StaleToken):
        fencing.guard(connection, "r", attempt(8))
    with ThreadPoolExecutor() as pool:
        later = pool.submit(fencing.guard, other, "r", attempt(10))
        await_that(lambda: waits_for_a_lock(postgresql))
        connection.rollback()
        later.result(TIMEOUT_S)


def test_a_writer_that_stalls_in_its_transaction_is_ended_by_the_server(postgresql: Database) -> None:
    stalled, other = postgresql.connect(options="-c idle_in_transaction_session_timeout=300"), postgresql.connect()
    fencing.guard(stalled, "account/1", attempt(7))
    stalled.execute("UPDATE account SET balance = 70")
    fencing.guard(other, "account/1", attempt(9))  # waits for the server to end the other
    other.execute("UPDATE account SET balance = 90")
    other.commit()
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        stalled.commit()
    assert postgresql.balance() == 90


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE], ids=lambda level: level.name
)
def test_an_old_snapshot_is_refused_by_the_database_itself(postgresql: Database, level: psycopg.IsolationLevel) -> None:
    newer, older = postgresql.connect(), postgresql.connect()
    older.isolation_level = level
    older.execute("SELECT balance FROM account")  # takes the snapshot
    fencing.guard(newer, "account/1", attempt(9))
    assert fencing.once(newer, attempt(9))
    newer.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        fencing.guard(older, "account/1", attempt(7))
    older.rollback()
    older.execute("SELECT balance FROM account")
    fencing.guard(newer, "account/1", attempt(9, slot_ms=5))
    assert fencing.once(newer, attempt(9, slot_ms=5))
    newer.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        fencing.once(older, attempt(7, slot_ms=5))


def test_many_writers_at_once_leave_the_highest_token_and_its_value(database: Database) -> None:
    accepted: list[int] = []

    def write(token: int) -> None:
        connection = database.connect()
        try:
            fencing.guard(connection, "account/1", attempt(token))
            connection.execute(f"UPDATE account SET balance = {token}")
            accepted.append(token)  # while the resource is held
            connection.commit()
        except StaleToken:
            connection.rollback()
        finally:
            connection.close()

    tokens = [(position * 37) % 101 for position in range(1, 101)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, tokens))
    assert accepted == sorted(accepted)
    assert max(tokens) == database.balance() == database.value("SELECT token FROM duewheel_fence")


# --- once ---


def test_once_is_true_for_one_attempt_of_a_run_and_false_for_all_others(database: Database) -> None:
    connection = database.connect()
    assert fencing.once(connection, attempt(7))
    connection.commit()
    for token in (7, 8, 6):
        assert not fencing.once(connection, attempt(token))
    assert fencing.once(connection, attempt(9, slot_ms=1_700_000_060_000))
    assert fencing.once(connection, attempt(9), step="receipt")
    assert not fencing.once(connection, attempt(9), step="receipt")


def test_once_is_true_again_after_a_rollback(database: Database) -> None:
    connection = database.connect()
    assert fencing.once(connection, attempt(7))
    connection.execute("UPDATE account SET balance = balance - 10")
    connection.rollback()
    assert fencing.once(connection, attempt(8))
    connection.execute("UPDATE account SET balance = balance - 10")
    connection.commit()
    assert database.balance() == 90


def second_answer(database: Database) -> tuple[Any, Future[bool], ThreadPoolExecutor]:
    """Two transactions with the same key: the first one's connection, and the second one's answer, which is to come."""
    first, second = database.connect(), database.connect()
    assert fencing.once(first, attempt(7))
    first.execute("UPDATE account SET balance = balance - 10")
    pool = ThreadPoolExecutor()
    entered = threading.Event()

    def ask() -> bool:
        entered.set()
        answer = fencing.once(second, attempt(9))
        if answer:
            second.execute("UPDATE account SET balance = balance - 10")
        second.commit()
        return answer

    answer = pool.submit(ask)
    assert entered.wait(TIMEOUT_S)
    return first, answer, pool


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_second_writer_waits_for_what_becomes_of_the_first(postgresql: Database, ending: str) -> None:
    first, answer, pool = second_answer(postgresql)
    with pool:
        await_that(lambda: waits_for_a_lock(postgresql))
        assert not answer.done()
        getattr(first, ending)()
        assert answer.result(TIMEOUT_S) is (ending == "rollback")
    assert postgresql.balance() == 90


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_second_writer_waits_for_what_becomes_of_the_first_in_sqlite_too(sqlite: Database, ending: str) -> None:
    first, answer, pool = second_answer(sqlite)
    with pool:
        with pytest.raises(TimeoutError):
            answer.result(0.3)
        getattr(first, ending)()
        assert answer.result(TIMEOUT_S) is (ending == "rollback")
    assert sqlite.balance() == 90


def test_a_sqlite_transaction_that_read_before_another_wrote_is_refused(sqlite: Database) -> None:
    sqlite.connect().execute("PRAGMA journal_mode = WAL")
    first, second = sqlite.connect(isolation_level=None), sqlite.connect(isolation_level=None)
    second.execute("BEGIN")
    second.execute("SELECT balance FROM account").fetchall()  # takes the snapshot
    first.execute("BEGIN IMMEDIATE")
    assert fencing.once(first, attempt(7))
    first.execute("COMMIT")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        fencing.once(second, attempt(8))
    second.execute("ROLLBACK")
    second.execute("BEGIN IMMEDIATE")
    assert not fencing.once(second, attempt(8))


# --- a token in one's own row ---


def test_check_refuses_where_the_users_own_statement_changed_nothing(database: Database) -> None:
    connection = database.connect()
    statement = "UPDATE account SET balance = {0}, token = {0} WHERE id = 1 AND token <= {0}"
    fencing.check(connection.execute(statement.format(9)), "account/1", attempt(9))
    fencing.check(connection.execute(statement.format(9)), "account/1", attempt(9))
    with pytest.raises(StaleToken, match="'account/1' was not changed") as caught:
        fencing.check(connection.execute(statement.format(7)), "account/1", attempt(7))
    assert (caught.value.token, caught.value.row_token) == (7, None)
    connection.commit()
    assert database.balance() == 9


def test_check_wants_a_statement_that_counts_rows(sqlite: Database) -> None:
    with pytest.raises(BadConfiguration, match="counted no rows"):
        fencing.check(sqlite.connect().execute("SELECT 1"), "r", attempt(1))


# --- connections ---


def test_a_connection_that_commits_each_statement_is_refused(postgresql: Database) -> None:
    connection = postgresql.connect(autocommit=True)
    for call in (lambda: fencing.guard(connection, "r", attempt(1)), lambda: fencing.once(connection, attempt(1))):
        with pytest.raises(BadConfiguration, match=r"needs a transaction.*with connection\.transaction\(\)"):
            call()
    with connection.transaction():
        fencing.guard(connection, "r", attempt(1))
        assert fencing.once(connection, attempt(1))
    assert postgresql.value("SELECT count(*) FROM duewheel_once") == 1


def test_a_sqlite_connection_that_commits_each_statement_is_refused(sqlite: Database) -> None:
    connection = sqlite.connect(isolation_level=None)
    for call in (lambda: fencing.guard(connection, "r", attempt(1)), lambda: fencing.once(connection, attempt(1))):
        with pytest.raises(BadConfiguration, match=r"needs a transaction.*BEGIN IMMEDIATE"):
            call()
    connection.execute("BEGIN IMMEDIATE")
    fencing.guard(connection, "r", attempt(1))
    assert fencing.once(connection, attempt(1))
    connection.execute("COMMIT")
    assert sqlite.value("SELECT count(*) FROM duewheel_once") == 1


def test_the_connections_own_factories_do_not_matter(postgresql: Database, sqlite: Database) -> None:
    with_dicts = postgresql.connect(row_factory=dict_row, cursor_factory=psycopg.RawCursor)
    with_rows = sqlite.connect()
    with_rows.row_factory = lambda cursor, row: {"wrong": True}

    class Own(sqlite3.Connection):
        pass

    for connection in (with_dicts, with_rows, sqlite.connect(factory=Own)):
        fencing.guard(connection, "r", attempt(9))
        with pytest.raises(StaleToken):
            fencing.guard(connection, "r", attempt(8))
        assert fencing.once(connection, attempt(9))
        connection.rollback()


def test_a_pipeline_gets_the_same_answers(postgresql: Database) -> None:
    connection = postgresql.connect()
    with connection.pipeline():
        fencing.guard(connection, "r", attempt(9))
        assert fencing.once(connection, attempt(9))
        assert not fencing.once(connection, attempt(9))
        with pytest.raises(StaleToken):
            fencing.guard(connection, "r", attempt(8))


def test_no_driver_is_needed_but_the_users_own() -> None:
    program = """
import sys
sys.modules["psycopg"] = None  # an import of it fails
from duewheel import fencing
assert "sqlite3" not in sys.modules
import sqlite3
connection = sqlite3.connect(":memory:")
fencing.create_tables(connection)
fencing.guard(connection, "r", fencing.Attempt("job/1", 1))
assert fencing.once(connection, fencing.Attempt("job/1", 1))
connection.close()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=TIMEOUT_S)


def test_another_driver_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadConfiguration, match=r"not with types\.SimpleNamespace; .*driver_connection"):
        fencing.once(SimpleNamespace(), attempt(1))  # type: ignore[arg-type]


async def _refused_async(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        with pytest.raises(BadConfiguration, match=r"psycopg\.\S*AsyncConnection; use a plain psycopg.Connection"):
            fencing.once(connection, attempt(1))  # type: ignore[arg-type]
        # The statements are there for whoever has a connection of that kind.
        parameters = {"resource": "r", "job_id": "j", "token": 9}
        for token, taken in ((9, True), (8, False), (10, True)):
            cursor = await connection.execute(fencing.POSTGRESQL.guard.encode(), {**parameters, "token": token})
            assert (await cursor.fetchone() is not None) is taken


def test_an_asynchronous_connection_is_refused_with_what_to_do(postgres: Postgres) -> None:
    conninfo = postgres.database()
    with psycopg.connect(conninfo) as connection:
        fencing.create_tables(connection)
    asyncio.run(_refused_async(conninfo))


# --- tables ---


def test_tables_may_be_made_by_many_at_the_same_time(postgres: Postgres) -> None:
    conninfo = postgres.database()
    barrier = threading.Barrier(8)

    def make(autocommit: bool) -> None:
        with psycopg.connect(conninfo, autocommit=autocommit) as connection:
            barrier.wait(TIMEOUT_S)
            fencing.create_tables(connection)

    with ThreadPoolExecutor(8) as pool:
        for made in [pool.submit(make, number % 2 == 0) for number in range(8)]:
            made.result(TIMEOUT_S)
    with psycopg.connect(conninfo) as connection:
        assert fencing.once(connection, attempt(1))


def test_making_tables_does_not_commit_what_the_caller_began(database: Database) -> None:
    connection = database.connect()
    connection.execute("UPDATE account SET balance = 0")
    fencing.create_tables(connection)
    connection.rollback()
    assert database.balance() == 100


def test_both_tables_say_when_their_rows_were_written(database: Database) -> None:
    connection = database.connect()
    fencing.guard(connection, "r", attempt(1))
    fencing.once(connection, attempt(1))
    connection.commit()
    month_ago = "now() - interval '30 days'" if isinstance(connection, psycopg.Connection) else "datetime('now', '-30 days')"
    assert connection.execute(f"DELETE FROM duewheel_once WHERE created_at < {month_ago}").rowcount == 0
    assert connection.execute(f"DELETE FROM duewheel_once WHERE created_at > {month_ago}").rowcount == 1
    assert connection.execute(f"DELETE FROM duewheel_fence WHERE updated_at < {month_ago}").rowcount == 0
    assert connection.execute(f"DELETE FROM duewheel_fence WHERE updated_at > {month_ago}").rowcount == 1


# --- errors and headers ---


@pytest.mark.parametrize("error", [StaleToken("r", 1, 2), StaleToken("r", 1, None), ForeignResource("r", "a", "b")], ids=str)
def test_errors_survive_the_way_out_of_a_process(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("job_id", ["order-17", "a/b/c", 'ü "quoted" %41\\', "x" * 255])
def test_headers_carry_an_attempt(job_id: str) -> None:
    sent = attempt(2**63 - 1, job_id)
    headers = fencing.to_headers(sent)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    received = fencing.from_headers({name.lower(): value for name, value in headers.items()})
    assert received == sent
    assert received.job_id == job_id


MALFORMED_KEYS = ["", "a/1", '"', '""', '"a"']
MALFORMED_TOKENS = ["", "-1", "1.0", "٣", str(2**63), "9" * 5_000]


@pytest.mark.parametrize("key, token", [*((key, "1") for key in MALFORMED_KEYS), *(('"a/1"', token) for token in MALFORMED_TOKENS)])
def test_malformed_headers_are_refused(key: str, token: str) -> None:
    with pytest.raises(BadConfiguration, match="must be"):
        fencing.from_headers({"Idempotency-Key": key, "Duewheel-Fencing-Token": token})
