"""Transactions at their coordinator: epochs, what is open, and the markers that end it.

    init          the epoch rises, so that whoever had the id before is fenced, and what it left open is aborted
    produce       opens the transaction, in the partitions that it touches
    offsets       a group's offsets wait beside it, pending
    end           the decision is durable at once; markers follow, each partition's in its own time, and only with the last of them may
                  the same producer begin again

A transaction that stays open for longer than its timeout is aborted by the coordinator, which looks every ten seconds, and its producer
is fenced. Every call carries the epoch; an old one is refused for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from duewheel.adapters.memory.groups import Group
from duewheel.adapters.memory.logs import ABORTED, COMMITTED, Headers, Log
from duewheel.adapters.memory.world import Fault, Kind, World
from duewheel.ports import Offset

LOOK_EVERY_US: Final = 10_000_000


class Standing(Enum):
    """Where a transactional id stands."""

    EMPTY = "empty"
    OPEN = "open"
    ENDING = "ending"  # decided, and not every marker is written


class Transactional:
    """One transactional id.

    Attributes:
        epoch: of whoever may use it now.
        committed: how its last transaction ended; None where there was none since `init`.
    """

    def __init__(self, transactional_id: str) -> None:
        self.id = transactional_id
        self.epoch = -1
        self.standing = Standing.EMPTY
        self.committed: bool | None = None
        self.logs: dict[Log, None] = {}
        self.groups: dict[Group, None] = {}
        self.opened_us = 0
        self.markers_due = 0


class Coordinator:
    """Of all transactional ids."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ids: dict[str, Transactional] = {}

    def init(self, transactional_id: str) -> int:
        """Takes an id over; returns the epoch to use it with.

        Raises:
            Fault: retriable, while an earlier transaction is being ended.
        """
        it = self.ids.get(transactional_id)
        if it is None:
            it = self.ids[transactional_id] = Transactional(transactional_id)
        if it.standing is Standing.OPEN:
            it.epoch += 1
            self._end(it, False, "fenced")
        if it.standing is Standing.ENDING:
            raise Fault(Kind.RETRIABLE, f"CONCURRENT_TRANSACTIONS: {transactional_id} is being ended")
        it.epoch += 1
        it.committed = None
        return it.epoch

    def produce(
        self,
        transactional_id: str,
        epoch: int,
        timeout_ms: int,
        log: Log,
        records: Sequence[tuple[bytes | None, bytes | None, Headers | None]],
    ) -> None:
        """Appends (key, value, headers) records to a partition, invisible until `end`."""
        it = self._begun(transactional_id, epoch, timeout_ms)
        it.logs[log] = None
        for key, value, headers in records:
            log.append(key, value, headers, self._world.now_ms, transactional_id)

    def offsets(
        self,
        transactional_id: str,
        epoch: int,
        timeout_ms: int,
        group: Group,
        member: tuple[str, int],
        offsets: Sequence[Offset],
    ) -> None:
        """Lets a group's offsets wait for the end of the transaction. `member` is a member's id and generation."""
        it = self._begun(transactional_id, epoch, timeout_ms)
        it.groups[group] = None
        group.commit(member, offsets, transactional_id)

    def end(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """Decides. The same decision twice is one, since its answer may have been lost."""
        it = self._checked(transactional_id, epoch)
        if it.standing is Standing.OPEN:
            self._end(it, commit, "aborted")
        elif it.committed is not commit:
            raise Fault(Kind.FATAL, f"INVALID_TXN_STATE: {transactional_id} has no open transaction")

    def _begun(self, transactional_id: str, epoch: int, timeout_ms: int) -> Transactional:
        it = self._checked(transactional_id, epoch)
        if it.standing is Standing.ENDING:
            raise Fault(Kind.RETRIABLE, f"CONCURRENT_TRANSACTIONS: markers of {transactional_id} are being written")
        if it.standing is Standing.EMPTY:
            it.standing = Standing.OPEN
            opened_us = it.opened_us = self._world.now_us
            # The coordinator looks every ten seconds, and finds it at the first look after its timeout.
            look_us = -(-(opened_us + timeout_ms * 1000) // LOOK_EVERY_US) * LOOK_EVERY_US
            self._world.later(look_us - opened_us, lambda: self._time_out(it, opened_us))
        return it

    def _checked(self, transactional_id: str, epoch: int) -> Transactional:
        it = self.ids.get(transactional_id)
        if it is None or it.epoch != epoch:
            raise Fault(Kind.FATAL, f"PRODUCER_FENCED: {transactional_id} was taken over", is_fencing=True)
        return it

    def _time_out(self, it: Transactional, opened_us: int) -> None:
        if it.standing is Standing.OPEN and it.opened_us == opened_us:
            it.epoch += 1
            self._end(it, False, "fenced")

    def _end(self, it: Transactional, commit: bool, how: str) -> None:
        if not commit and self._world.observer is not None:
            self._world.observer.transaction_aborted(it.id, it.opened_us, how)
        logs, groups = list(it.logs), list(it.groups)
        it.standing, it.committed = Standing.ENDING, commit
        it.logs, it.groups = {}, {}
        it.markers_due = len(logs) + len(groups)
        if not it.markers_due:
            it.standing = Standing.EMPTY
        for log in logs:
            self._world.soon(f"marker {log.topic}", lambda log=log: self._mark(it, log, commit))  # type: ignore[misc]
        for group in groups:
            self._world.soon("marker", lambda group=group: self._settle(it, group, commit))  # type: ignore[misc]

    def _mark(self, it: Transactional, log: Log, commit: bool) -> None:
        log.end_transaction(it.id, COMMITTED if commit else ABORTED, self._world.now_ms)
        self._marked(it)

    def _settle(self, it: Transactional, group: Group, commit: bool) -> None:
        group.settle(it.id, commit)
        self._marked(it)

    def _marked(self, it: Transactional) -> None:
        it.markers_due -= 1
        if not it.markers_due:
            it.standing = Standing.EMPTY
