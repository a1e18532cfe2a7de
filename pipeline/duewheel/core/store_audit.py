"""Compares a local store with the fold of the changelog that it is a copy of.

A store is never ahead of the changelog, and behind it at worst. Its mark says how far it has certainly come; in the hands of a live owner
it has come a little further, nobody knows how far. So a value that the changelog has not touched since the mark must be the store's, byte
for byte; of one that it has touched, the store may hold the value at the mark or any that came after:

    changelog   a=1   b=1 ┊ a=2   a=3
    mark                  ┊
    store       a must be 1, 2 or 3; b must be 1

Values beyond the mark are counted (`beyond`). A value at the mark that compaction has removed cannot be compared: the store will take the
newer one over when it is used next.

Timers are not in the changelog. Each job that waits must have one, at the moment that follows from the store's own records; a run that
goes on must have one at the end of its lease, or later where that was put off, and so a record to deliver whose topic did not take it.
Others do nothing, and are not looked at.

Costs: one walk over the store in the order of its keys, two look-ups a job; no memory but for what lies beyond the mark, and for timers
that were put off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from duewheel.core.audit import Audit, Job
from duewheel.core.differences import Difference, Fact, Kind
from duewheel.core.errors import StoreDamaged, UndecodableRecord
from duewheel.core.model import Phase, State
from duewheel.core.step import Defined, timer_ms
from duewheel.core.wheel import due_of, job_of, time_key, timer_key

DEFINITION: Final = b"d"
STATE: Final = b"s"
PROGRESS: Final = b"p"

_NAMES: Final = {DEFINITION: "definition", STATE: "state", PROGRESS: "progress"}
_NONE: Final = 0


class StoreView(Protocol):
    """A store as it was at one moment.

    Raises (all calls):
        StoreDamaged: it cannot be read.
    """

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything of the changelog that is in it, in the order of keys."""

    def get(self, key: bytes) -> bytes | None: ...

    def has_timer(self, key: bytes) -> bool: ...

    def timers(self, start: bytes) -> Iterator[bytes]:
        """Timers from `start` on, in order."""


class StoreAudit:
    """One comparison.

    Args:
        audit: the fold of the changelog.
        mark: everything below this offset is in the store.
        peek_definition, decode_state: read values, as in `ports.Codec`.

    Attributes:
        compared: how many records were compared.
        beyond: how many keys the changelog has touched since the mark.
    """

    def __init__(
        self, audit: Audit, mark: int, peek_definition: Callable[[bytes], Defined], decode_state: Callable[[bytes | None], State]
    ) -> None:
        self._audit = audit
        self._mark = mark
        self._peek_definition = peek_definition
        self._decode_state = decode_state
        self._later: dict[bytes, list[int]] = {}
        self._put_off: dict[str, int] = {}
        self._progress = _NONE
        self.compared = 0

    @property
    def beyond(self) -> int:
        return len(self._later)

    def take(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Takes in a changelog record. Call it before `audit` takes it."""
        digest = _NONE if value is None else hash(value)
        if offset >= self._mark:
            values = self._later.get(key)
            if values is None:
                values = self._later[key] = [self._expected(key)]
            values.append(digest)
        if key == PROGRESS:
            self._progress = digest

    def compare(self, store: StoreView, is_mine: Callable[[bytes], bool]) -> Iterator[Difference]:
        """What differs.

        Args:
            is_mine: whether a key's job is one of those that the fold holds.
        """
        matched = 0
        try:
            for key, value in store.records():
                if key != PROGRESS and not is_mine(key[1:]):
                    continue
                self.compared += 1
                matched += self._expected(key) != _NONE
                yield from self._compared(store, key, value)
            if matched < self._count():
                yield from self._missing(store)
            yield from self._timers_put_off(store)
        except StoreDamaged as error:
            yield Difference(Kind.STORE_UNREADABLE, self._audit.partition, None, {"error": str(error)})

    def _expected(self, key: bytes) -> int:
        """The digest that the changelog has for a key at the cut."""
        if key == PROGRESS:
            return self._progress
        job = self._audit.jobs.get(key[1:].decode(errors="replace"))
        if job is None:
            return _NONE
        return job.definition if key[:1] == DEFINITION else job.state if key[:1] == STATE else _NONE

    def _count(self) -> int:
        jobs = self._audit.jobs.values()
        return sum((job.definition != _NONE) + (job.state != _NONE) for job in jobs) + (self._progress != _NONE)

    def _compared(self, store: StoreView, key: bytes, value: bytes) -> Iterator[Difference]:
        expected, later = self._expected(key), self._later.get(key)
        if not self._agrees(hash(value), expected, later):
            kind = Kind.STORE_EXTRA if expected == _NONE and later is None else Kind.STORE_VALUE
            yield self._difference(kind, key, value)
        if key[:1] == DEFINITION:
            yield from self._timer_missing(store, key[1:].decode(errors="replace"), value)

    def _agrees(self, found: int, expected: int, later: list[int] | None) -> bool:
        """Whether the store may hold this value, `_NONE` for nothing."""
        if later is None:
            return found == expected
        at_mark, *_ = later
        return found in later or at_mark == _NONE

    def _missing(self, store: StoreView) -> Iterator[Difference]:
        keys = [PROGRESS] if self._progress != _NONE else []
        for job_id, job in self._audit.jobs.items():
            keys += [DEFINITION + job_id.encode()] if job.definition != _NONE else []
            keys += [STATE + job_id.encode()] if job.state != _NONE else []
            for key in keys:
                if store.get(key) is None and not self._agrees(_NONE, self._expected(key), self._later.get(key)):
                    yield self._difference(Kind.STORE_MISSING, key, None)
            keys.clear()

    # --- timers ---

    def _timer_missing(self, store: StoreView, job_id: str, definition: bytes) -> Iterator[Difference]:
        try:
            known = self._peek_definition(definition)
            value = store.get(STATE + job_id.encode())
            state = None if value is None else self._decode_state(value)
        except UndecodableRecord:
            return  # damaged, and found to be so
        wake_ms = timer_ms(known, state)
        if not wake_ms or store.has_timer(timer_key(wake_ms, job_id)):
            return
        goes_on = state is not None and state["generation"] == known.generation and state["phase"] != Phase.WAITING
        if goes_on or (known.delivery is not None and known.recurrence is None):
            self._put_off[job_id] = wake_ms
            return
        yield self._no_timer(job_id, wake_ms)

    def _timers_put_off(self, store: StoreView) -> Iterator[Difference]:
        if not self._put_off:
            return
        for key in store.timers(time_key(min(self._put_off.values()))):
            job_id = job_of(key)
            if job_id in self._put_off and due_of(key) >= self._put_off[job_id]:
                del self._put_off[job_id]
        for job_id, wake_ms in self._put_off.items():
            yield self._no_timer(job_id, wake_ms)

    def _no_timer(self, job_id: str, wake_ms: int) -> Difference:
        return Difference(Kind.STORE_TIMER, self._audit.partition, job_id, {"timer_ms": wake_ms})

    # --- telling ---

    def _difference(self, kind: Kind, key: bytes, value: bytes | None) -> Difference:
        job_id = None if key == PROGRESS else key[1:].decode(errors="backslashreplace")
        job = self._audit.jobs.get(job_id or "")
        facts: dict[str, Fact] = {"record": _NAMES.get(key[:1], "unknown record")}
        facts["store"] = None if value is None else self._told(key, value)
        facts["changelog"] = _told_of(job, key) if self._expected(key) != _NONE else None
        return Difference(kind, self._audit.partition, job_id, facts)

    def _told(self, key: bytes, value: bytes) -> str:
        try:
            if key[:1] == DEFINITION:
                known = self._peek_definition(value)
                return f"generation {known.generation}, {len(value)} bytes"
            if key[:1] == STATE:
                state = self._decode_state(value)
                return f"{state['phase']}, token {state['token']}, generation {state['generation']}, {len(value)} bytes"
        except UndecodableRecord as error:
            return f"{len(value)} bytes, {error.reason}"
        return f"{len(value)} bytes"


def _told_of(job: Job | None, key: bytes) -> str:
    if job is None:
        return "another value"
    if key[:1] == DEFINITION:
        return f"generation {job.generation}"
    return f"{job.phase}, token {job.token}, generation {job.state_generation}"
