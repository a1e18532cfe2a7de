"""Fencing for the outside world: how a database refuses an attempt that was given up, and does no effect twice.

Duewheel runs an attempt again when it hears nothing of it any more. The first one may not be dead: a process that was suspended, or cut
off, wakes up and goes on where it was. Duewheel refuses what it reports; your database must refuse what it writes. Two things help, and
both live in *your* transaction, on your own connection (psycopg 3 or sqlite3), beside the write that they protect:

    def ship(order: dict, context: Context) -> None:
        with psycopg.connect(…) as connection:                                # one transaction
            if fencing.once(connection, context):                             # False: an attempt of this run has committed it before
                fencing.guard(connection, f"order/{order['id']}", context)    # StaleToken: a later attempt was here
                connection.execute("UPDATE orders SET …")

`guard` keeps the highest token of each resource in a table. One statement compares and raises it, and its row lock lasts until the
transaction ends, so whoever comes meanwhile waits, and compares afterwards:

    attempt 1, token 7     guard: 7 >= nothing           … suspended …     guard: 7 < 9 → StaleToken
    attempt 2, token 9                      guard: 9 >= 7, write, commit

`once` inserts the idempotency key, which all attempts of a run share. Its unique index makes a second writer wait for the first one's
commit (then the answer is False) or rollback (then it is True).

Tokens grow within one job, over all its attempts and runs. Those of two jobs are *not* comparable: they may come from different timer
partitions, which count each for themselves. So a resource belongs to the job that guards it first, and another job is told so. They also
begin anew in an installation that is made anew. `docs/fencing.md` says what to do in both cases, and has recipes for services and stores
that are no SQL databases.

Cost: one statement each, a round trip to the database. Nothing here imports a driver; the connection says which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import quote, unquote

from duewheel.core.errors import BadConfiguration, CallerError, DuewheelError
from duewheel.core.run_ids import parse

if TYPE_CHECKING:
    import sqlite3

    import psycopg

    Connection: TypeAlias = psycopg.Connection[Any] | sqlite3.Connection

__all__ = [
    "POSTGRESQL",
    "SQLITE",
    "Attempt",
    "Claimant",
    "ForeignResource",
    "StaleToken",
    "Statements",
    "check",
    "create_tables",
    "from_headers",
    "guard",
    "once",
    "to_headers",
]

IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"
FENCING_TOKEN_HEADER: Final = "Duewheel-Fencing-Token"
TOKEN_MAX: Final = 2**63 - 1  # a BIGINT

# Any number that nobody else takes for an advisory lock. CREATE TABLE IF NOT EXISTS, twice at the same time, fails in PostgreSQL.
_CREATE_LOCK: Final = 0x6475_6577_6865_656C  # "duewheel"


class Claimant(Protocol):
    """What is needed of an attempt: a handler's `Context` has it, and so has `Attempt`."""

    @property
    def job_id(self) -> str: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def fencing_token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt as a service knows it that a handler calls; see `from_headers`.

    Attributes:
        idempotency_key: the run, as `job_id/slot_ms`.
        fencing_token: higher in each later attempt of the job.
    """

    idempotency_key: str
    fencing_token: int

    @property
    def job_id(self) -> str:
        return self.idempotency_key.rpartition("/")[0]


class StaleToken(DuewheelError):
    """A later attempt of the job has written this resource. Roll back and stop: this attempt was given up, its outcome counts no more.

    Attributes:
        resource: what was to be written.
        token: this attempt's.
        row_token: the resource's; None where only the user's own statement knows it.
    """

    def __init__(self, resource: str, token: int, row_token: int | None) -> None:
        super().__init__(resource, token, row_token)  # exactly the parameters, so that it can be pickled
        self.resource = resource
        self.token = token
        self.row_token = row_token

    def __str__(self) -> str:
        found = "was not changed: it bears a higher token, or is not there" if self.row_token is None else f"bears token {self.row_token}"
        return (
            f"{self.resource!r} {found}; this attempt's token is {self.token}. A later attempt has taken over: roll back and let this "
            f"one end. (Where the installation is new and its tokens began anew, docs/fencing.md says how to begin anew here too.)"
        )


class ForeignResource(CallerError):
    """Another job guards this resource, and tokens of two jobs cannot be compared.

    Attributes:
        resource: what was to be written.
        job_id: of this attempt.
        row_job_id: of the job that guards it.
    """

    def __init__(self, resource: str, job_id: str, row_job_id: str) -> None:
        super().__init__(resource, job_id, row_job_id)
        self.resource = resource
        self.job_id = job_id
        self.row_job_id = row_job_id

    def __str__(self) -> str:
        return (
            f"{self.resource!r} is guarded by job {self.row_job_id!r}, and {self.job_id!r} is another: tokens of two jobs cannot be "
            f"compared. Let one job write it, or give each a resource of its own and order their writes by something of yours; see "
            f"docs/fencing.md"
        )


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL of one database, for migrations and for whoever executes it by himself. Parameters are named, in the driver's style.

    Attributes:
        ddl: makes both tables where they are missing; one statement each.
        guard: parameters resource, job_id, token. One row if the token was taken, none if not (`RETURNING`, or the row count in SQLite).
        guarded: parameter resource. The job id and the token of its row.
        once: parameters key, step. One row if the key is new, none if not.
    """

    ddl: tuple[str, ...]
    guard: str
    guarded: str
    once: str


def _statements(parameter: str, token_type: str, time_type: str, now: str, returning: str) -> Statements:
    resource, job_id, token, key, step = (parameter.format(name) for name in ("resource", "job_id", "token", "key", "step"))
    return Statements(
        ddl=(
            f"CREATE TABLE IF NOT EXISTS duewheel_fence (resource TEXT PRIMARY KEY, job_id TEXT NOT NULL, token {token_type} NOT NULL, "
            f"updated_at {time_type} NOT NULL DEFAULT {now})",
            f"CREATE TABLE IF NOT EXISTS duewheel_once (key TEXT NOT NULL, step TEXT NOT NULL, "
            f"created_at {time_type} NOT NULL DEFAULT {now}, PRIMARY KEY (key, step))",
        ),
        guard=(
            f"INSERT INTO duewheel_fence (resource, job_id, token) VALUES ({resource}, {job_id}, {token}) ON CONFLICT (resource) DO UPDATE "
            f"SET token = excluded.token, updated_at = {now} "
            f"WHERE duewheel_fence.job_id = excluded.job_id AND duewheel_fence.token <= excluded.token{returning}"
        ),
        guarded=f"SELECT job_id, token FROM duewheel_fence WHERE resource = {resource}",
        once=f"INSERT INTO duewheel_once (key, step) VALUES ({key}, {step}) ON CONFLICT DO NOTHING{returning}",
    )


# What was written is asked for by RETURNING where a driver may answer late (psycopg's pipelines), and by the row count in SQLite, whose
# older versions have no RETURNING.
POSTGRESQL: Final = _statements("%({})s", "BIGINT", "TIMESTAMPTZ", "CURRENT_TIMESTAMP", " RETURNING 1")
SQLITE: Final = _statements(":{}", "INTEGER", "TEXT", "CURRENT_TIMESTAMP", "")


def guard(connection: Connection, resource: str, attempt: Claimant) -> None:
    """Refuses this attempt if a later one of its job has guarded `resource`; else holds off everybody until your transaction ends.

    Call it in the transaction of the write that it protects, before that write. Calling it again with the same token changes nothing. A
    writer that holds the resource makes others wait: let the database end one that stalls (`idle_in_transaction_session_timeout`).

    Args:
        connection: psycopg's or sqlite3's, in the transaction that writes.
        resource: what is to be written, in your words, such as "order/17". One job alone may guard it, with all its runs where it recurs.
        attempt: the handler's context.

    Raises:
        StaleToken: a later attempt was here. Nothing was changed.
        ForeignResource: another job guards it. Nothing was changed.
        BadConfiguration: the connection is of another driver, or commits each statement by itself.
    """
    token, run = attempt.fencing_token, parse(attempt.job_id)
    job_id = attempt.job_id if run is None else run.job_id  # runs of one recurring job share its partition, and so count together
    if not 0 <= token <= TOKEN_MAX:
        raise BadConfiguration(f"fencing token {token} is none: it must be 0 to {TOKEN_MAX}")
    database = _database(connection)
    database.demand_transaction("guard")
    if database.changes(database.statements.guard, {"resource": resource, "job_id": job_id, "token": token}):
        return
    row_job_id, row_token = database.row(database.statements.guarded, {"resource": resource})
    if row_job_id != job_id:
        raise ForeignResource(resource, job_id, row_job_id)
    raise StaleToken(resource, token, row_token)


def once(connection: Connection, attempt: Claimant, step: str = "") -> bool:
    """Whether this run is to do its effect now: True for one transaction that commits, False ever after.

    The key and the effect commit together or not at all. While another attempt's transaction is open with the same key, this waits for
    its end.

    Args:
        connection: psycopg's or sqlite3's, in the transaction of the effect.
        attempt: the handler's context; all attempts of a run share one key.
        step: which effect, where a run has several in transactions of their own.

    Raises:
        BadConfiguration: the connection is of another driver, or commits each statement by itself.
    """
    database = _database(connection)
    database.demand_transaction("once")
    return database.changes(database.statements.once, {"key": attempt.idempotency_key, "step": step})


def check(cursor: psycopg.Cursor[Any] | sqlite3.Cursor, resource: str, attempt: Claimant) -> None:
    """For a token in your own row: refuses this attempt if the statement that compared tokens changed nothing.

        cursor = connection.execute("UPDATE orders SET …, token = %s WHERE id = %s AND token <= %s", …)
        fencing.check(cursor, f"order/{order_id}", context)

    Raises:
        StaleToken: no row was changed. Where the row may be missing, look for that first: it looks the same.
        BadConfiguration: the cursor has executed nothing that changes rows.
    """
    if cursor.rowcount < 0:
        raise BadConfiguration("fencing.check needs the cursor of an INSERT, UPDATE or DELETE that was executed; this one counted no rows")
    if cursor.rowcount == 0:
        raise StaleToken(resource, attempt.fencing_token, None)


def create_tables(connection: Connection) -> None:
    """Makes the tables of `guard` and `once` where they are missing, in your transaction if there is one.

    Several processes may do it at the same time. Whoever has migrations puts `POSTGRESQL.ddl` or `SQLITE.ddl` there instead.
    """
    _database(connection).create_tables()


# ---------------------------------------------------------------------------------------------------------------- over HTTP


def to_headers(attempt: Claimant) -> dict[str, str]:
    """The two headers with which a handler calls a service: the key as the IETF's draft has it (a quoted string), and the token."""
    return {IDEMPOTENCY_KEY_HEADER: f'"{quote(attempt.idempotency_key)}"', FENCING_TOKEN_HEADER: str(attempt.fencing_token)}


def from_headers(headers: Mapping[str, str]) -> Attempt:
    """What `to_headers` made, read by the service. Names may be in any case.

    Raises:
        BadConfiguration: one of them is missing or malformed; answer 400.
    """
    found = {name.lower(): value.strip() for name, value in headers.items()}
    key, token = found.get(IDEMPOTENCY_KEY_HEADER.lower(), ""), found.get(FENCING_TOKEN_HEADER.lower(), "")
    quoted = len(key) > 2 and key[0] == key[-1] == '"'
    if not quoted or "/" not in key:
        raise BadConfiguration(f'{IDEMPOTENCY_KEY_HEADER} must be "job_id/slot_ms", percent-encoded and in double quotes, not {key!r}')
    if not (token.isascii() and token.isdecimal() and len(token) < 20 and int(token) <= TOKEN_MAX):
        raise BadConfiguration(f"{FENCING_TOKEN_HEADER} must be a whole number from 0 to {TOKEN_MAX}, not {token!r}")
    return Attempt(unquote(key[1:-1]), int(token))


# ---------------------------------------------------------------------------------------------------------------- drivers


class _PostgreSQL:
    """psycopg 3. Cursors are its plain ones, with plain rows, whatever the connection's own factories make."""

    statements = POSTGRESQL

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def demand_transaction(self, what: str) -> None:
        from psycopg.pq import TransactionStatus

        # Within `with connection.transaction():` there is one, autocommit or not.
        if self._connection.autocommit and self._connection.info.transaction_status == TransactionStatus.IDLE:
            raise _no_transaction(what, "set connection.autocommit to False, or use `with connection.transaction():`")

    def changes(self, statement: str, parameters: Mapping[str, object]) -> bool:
        return self._execute(statement, parameters).fetchone() is not None

    def row(self, statement: str, parameters: Mapping[str, object]) -> tuple[Any, ...]:
        row = self._execute(statement, parameters).fetchone()
        assert row is not None
        return row

    def create_tables(self) -> None:
        # Without parameters, all go as one message, which is one transaction, also where the connection commits each message.
        self._execute(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK}); {'; '.join(self.statements.ddl)}", None)

    def _execute(self, statement: str, parameters: Mapping[str, object] | None) -> psycopg.Cursor[tuple[Any, ...]]:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        return Cursor(self._connection, row_factory=tuple_row).execute(statement.encode(), parameters)


class _SQLite:
    """sqlite3. The first write of a transaction takes the database's only write lock, so `guard` and `once` belong at its beginning."""

    statements = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def demand_transaction(self, what: str) -> None:
        # An isolation level makes the module begin one by itself; Python 3.12's `autocommit` False has always one open.
        autocommits = self._connection.isolation_level is None or getattr(self._connection, "autocommit", None) is True
        if autocommits and not self._connection.in_transaction:
            raise _no_transaction(what, "execute BEGIN IMMEDIATE before, or connect with isolation_level='IMMEDIATE'")

    def changes(self, statement: str, parameters: Mapping[str, object]) -> bool:
        return self._connection.execute(statement, dict(parameters)).rowcount == 1

    def row(self, statement: str, parameters: Mapping[str, object]) -> tuple[Any, ...]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        row: tuple[Any, ...] = cursor.execute(statement, dict(parameters)).fetchone()
        return row

    def create_tables(self) -> None:
        for statement in self.statements.ddl:  # executescript would commit what the caller has begun
            self._connection.execute(statement)


def _database(connection: object) -> _PostgreSQL | _SQLite:
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__}
    if ("psycopg", "Connection") in kinds:
        return _PostgreSQL(connection)  # type: ignore[arg-type]
    if ("sqlite3", "Connection") in kinds:
        return _SQLite(connection)  # type: ignore[arg-type]
    hint = (
        "use a plain psycopg.Connection in a thread, or execute fencing.POSTGRESQL's statements yourself"
        if ("psycopg", "AsyncConnection") in kinds
        else "give it the driver's own connection (of SQLAlchemy: session.connection().connection.driver_connection), or execute the "
        "statements of docs/fencing.md yourself"
    )
    kind = type(connection)
    raise BadConfiguration(
        f"duewheel.fencing works with connections of psycopg 3 and sqlite3, not with {kind.__module__}.{kind.__qualname__}; {hint}"
    )


def _no_transaction(what: str, remedy: str) -> BadConfiguration:
    return BadConfiguration(
        f"fencing.{what} needs a transaction, and this connection commits each statement by itself: what is compared now would protect no "
        f"later write; {remedy}"
    )
