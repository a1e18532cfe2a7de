"""Taking a partition over from whoever held it before.

A partition that was assigned is not read at once. First this worker must know what its predecessor may have started:

1. Look at the committed offset and its metadata as they stand, without waiting for pending transactions. A name in it means that
   somebody let go without saying so, perhaps dead in the middle of a transaction. It is fenced: whoever calls init_transactions with the
   dead one's ids ends what it left open, in under a second instead of after the transaction timeout. But first the group must confirm
   that we are its member: a worker that was stalled and does not know yet that it was replaced must not fence its successor.
2. Read the committed position again, now waiting for pending offsets: this is final.
3. Put our own name there, for our successor.
4. Read the predecessor's unfinished dispatches back and report each as LOST to its owner, in transactions that also move the position. A
   record that is gone (retention, compaction) is passed over: its owner notices by itself that no outcome ever came.
5. Read on from where the claim ended: nobody ever started what lies there.

An offset without metadata of ours was reset by hand or has expired. Then nobody knows what ran, so everything up to the watermark of
this moment is reported LOST; owners ignore what is not current, and a rewound group repeats nothing by accident.

All of it may take long (a dead broker, a large range) and polling must go on meanwhile, or the group would take the partition away
again. So this is a generator that never blocks: it yields whenever it would have to wait, and the loop resumes it once a round.
Blocking calls run aside, on a helper thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import structlog

from duewheel.core.claims import Claim, decode
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.limits import WORKER_BYTES_MAX
from duewheel.ports import Clock, Cluster, CommitRefused, GroupPosition, GroupReader, Offset, PartitionReader, Record
from duewheel.worker.holding import Holding, Standing

log = structlog.get_logger(__name__)

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Does a part of the work at each `next`, and yields where it would have to wait."""

_COMMITTED_TIMEOUT_S: Final = 5.0
_SETTLED_TIMEOUT_S: Final = 1.0
_BACKOFF_MS: Final = 200
_BACKOFF_MAX_MS: Final = 5_000
# The reader skips to the next unfinished dispatch, instead of reading through, where it lies further ahead than this.
_SKIP_RECORDS: Final = 20_000
# Read back and not handed on yet, in all partitions: so many records, and so many bytes and one poll.
_READ_RECORDS_MAX: Final = 500
_POLL_RECORDS: Final = 50
_ENDED: Final = object()


class Aside(Protocol):
    """Makes a blocking call on a helper thread."""

    def __call__(self, call: Callable[[], T], /) -> Future[T]: ...


class Found(NamedTuple):
    """What a predecessor left of a partition, and where its log begins and ends."""

    position: GroupPosition
    start: int
    end: int


class Desk(Protocol):
    """What a takeover needs of the worker."""

    def give_back(self, holding: Holding, record: Record) -> None:
        """Reports the record's dispatch LOST with the next transaction, or as a dead letter where it cannot be read."""

    def delayed(self, error: Exception) -> None:
        """Notes a failure of the surroundings, after which the same is tried again."""


class Returns:
    """Reads dispatches back, for however many partitions are being taken over; polled once a round by the loop."""

    def __init__(self, open_reader: Callable[[], PartitionReader]) -> None:
        self._open_reader = open_reader
        self._reader: PartitionReader | None = None
        self._records: dict[int, list[Record]] = {}

    def start(self, partition: int, offset: int) -> None:
        if self._reader is None:
            self._reader = self._open_reader()
        self._records[partition] = []
        self._reader.assign(partition, offset)

    def poll(self) -> bool:
        """Fetches what is there, unless something waits to be taken, as it does while a commit does not succeed. True if anything came."""
        if self._reader is None or any(self._records.values()):
            return False
        count = size = 0
        while count < _READ_RECORDS_MAX and size < WORKER_BYTES_MAX:
            records = self._reader.poll(0.0, _POLL_RECORDS)
            if not records:
                break
            for record in records:
                if record.partition() in self._records:
                    self._records[record.partition()].append(record)
                    size += len(record.value() or b"")
            count += len(records)
        return count > 0

    def take(self, partition: int) -> tuple[list[Record], int]:
        """The records since the last call, and the offset below which everything was handed out."""
        assert self._reader is not None
        records, self._records[partition] = self._records[partition], []
        return records, self._reader.reached(partition)

    def stop(self, partition: int) -> None:
        if self._records.pop(partition, None) is not None and self._reader is not None:
            self._reader.release(partition)
        if not self._records:
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Takeover:
    """Takes over what one assignment brought.

    Args:
        aside: runs blocking calls on helper threads.
    """

    def __init__(
        self,
        holdings: Sequence[Holding],
        group: str,
        reader: GroupReader,
        cluster: Cluster,
        returns: Returns,
        aside: Aside,
        clock: Clock,
        desk: Desk,
    ) -> None:
        self._holdings = holdings
        self._group = group
        self._reader = reader
        self._cluster = cluster
        self._returns = returns
        self._aside = aside
        self._clock = clock
        self._desk = desk
        self._steps: list[Steps[None]] = [self._look()]

    def advance(self) -> bool:
        """Goes as far as possible without waiting. False when nothing is left to do."""
        for steps in list(self._steps):
            if next(steps, _ENDED) is _ENDED:
                self._steps.remove(steps)
        return bool(self._steps)

    def _look(self) -> Steps[None]:
        """Steps 1 and 2, for all partitions together; then each goes its own way."""
        owners = (yield from self._until_done(self._owners)) or {}
        names = self._gone(owners)
        if names:
            # One partition speaks for all, since membership is one; rather one whose last owner let go of it in good order.
            known = [holding for holding in self._holdings if owners[holding.partition].offset is not None]
            witness = min(known, key=lambda holding: bool(self._gone({holding.partition: owners[holding.partition]})))
            settled = yield from self._until_done(lambda: self._settled(witness))
            yield from self._until_done(lambda: self._prove_membership(witness, settled), _here)
            if not self._holds_anything():
                return  # it was refused until we were told that they are another's
            yield from self._until_done(lambda: self._fence(names))
        found = yield from self._until_done(self._read_positions)
        for holding in self._holdings:
            if holding.held and found is not None:
                self._steps.append(self._settle(holding, found[holding.partition]))

    def _until_done(self, call: Callable[[], T], aside: Aside | None = None) -> Steps[T | None]:
        """What `call` returns, tried again until it does; None if meanwhile there is nothing left to take over."""
        aside = aside or self._aside
        backoff_ms = _BACKOFF_MS
        while True:
            future = aside(call)
            while not future.done():
                yield
            try:
                return future.result()
            except (EnvironmentFailure, CommitRefused) as error:
                self._desk.delayed(error)
            again_ms = self._clock.steady_ms() + backoff_ms
            backoff_ms = min(2 * backoff_ms, _BACKOFF_MAX_MS)
            while self._clock.steady_ms() < again_ms:
                yield
            if not self._holds_anything():
                return None

    def _holds_anything(self) -> bool:
        return any(holding.held for holding in self._holdings)

    def _owners(self) -> Mapping[int, GroupPosition]:
        return self._cluster.owners(self._group, self._holdings[0].topic, [holding.partition for holding in self._holdings])

    def _gone(self, owners: Mapping[int, GroupPosition]) -> list[str]:
        """Who let go without saying so."""
        claims = [decode(metadata, offset) for offset, metadata in owners.values() if offset is not None]
        return sorted({claim.owner for claim in claims if claim is not None} - {"", self._holdings[0].owner})

    def _settled(self, holding: Holding) -> Offset | None:
        """Its position, unless a transaction is about to change it, or the group does not answer."""
        try:
            offset, metadata = self._reader.committed([holding.partition], _SETTLED_TIMEOUT_S)[holding.partition]
        except CommitRefused:
            return None
        return None if offset is None else Offset(holding.topic, holding.partition, offset, metadata)

    def _prove_membership(self, holding: Holding, settled: Offset | None) -> None:
        """Commits what is committed, which changes nothing and is refused to whoever is not a member any more.

        Not over a pending position: that of a transaction which is decided, and whose markers are still under way, would be lost. Then
        fencing must do without proof; at the worst it costs a live successor one transaction, and it recovers. And not when the partition
        was revoked meanwhile: it is another's, and being told so was proof enough.
        """
        if settled is not None and holding.held:
            self._reader.commit([settled])

    def _fence(self, names: Sequence[str]) -> None:
        for name in names:
            self._cluster.fence(name)
            log.info("worker.predecessor_fenced", predecessor=name)

    def _read_positions(self) -> Mapping[int, Found]:
        topic, partitions = self._holdings[0].topic, [holding.partition for holding in self._holdings]
        committed = self._reader.committed(partitions, _COMMITTED_TIMEOUT_S)
        ends = self._cluster.watermarks(topic, partitions)
        return {p: Found(committed[p], *ends[p]) for p in partitions}

    def _settle(self, holding: Holding, found: Found) -> Steps[None]:
        """Steps 3 to 5 for one partition."""
        (offset, metadata), start, end = found
        claim = None if offset is None else decode(metadata, offset)
        if claim is not None and claim.claimed_upto <= end:
            unfinished, upto = claim.unfinished, claim.claimed_upto
            start = max(start, offset or 0)
        else:
            # Not ours, or of a topic that was deleted and made again: then its end lies below what was claimed.
            unfinished, upto = None, end
            start = max(start, offset) if offset is not None and offset <= end else start
        if unfinished is None:
            returned = yield from self._return_range(holding, start, upto)
        else:
            returned = yield from self._return_unfinished(holding, Claim(holding.owner, upto, unfinished))
        self._returns.stop(holding.partition)
        if holding.held:
            self._reader.read_from(holding.partition, upto)
            holding.standing = Standing.OPEN
            log.info("worker.partition_opened", topic=holding.topic, partition=holding.partition, offset=upto, returned=returned)

    def _return_unfinished(self, holding: Holding, claim: Claim) -> Steps[int]:
        holding.begin(claim)
        yield from _committed(holding)  # so that our own name is there before our first transaction
        returned, unfinished = 0, deque(claim.unfinished or ())
        if unfinished:
            self._returns.start(holding.partition, unfinished[0])
        while unfinished and holding.held:
            records, reached = self._returns.take(holding.partition)
            for record in records:
                while unfinished and unfinished[0] < record.offset():
                    holding.finish(unfinished.popleft())  # the record is gone
                if unfinished and unfinished[0] == record.offset():
                    holding.finish(unfinished.popleft())
                    self._desk.give_back(holding, record)
                    returned += 1
            while unfinished and unfinished[0] < reached:
                holding.finish(unfinished.popleft())
            if unfinished and 0 <= reached < unfinished[0] - _SKIP_RECORDS:
                self._returns.start(holding.partition, unfinished[0])
            yield
        yield from _committed(holding)
        return returned

    def _return_range(self, holding: Holding, start: int, upto: int) -> Steps[int]:
        log.warning("worker.claim_unknown", topic=holding.topic, partition=holding.partition, offset=start, upto=upto)
        holding.begin_range(start, upto)
        yield from _committed(holding)
        returned, offset = 0, start
        if offset < upto:
            self._returns.start(holding.partition, offset)
        while offset < upto and holding.held:
            records, reached = self._returns.take(holding.partition)
            for record in records:
                if offset <= record.offset() < upto:
                    self._desk.give_back(holding, record)
                    returned += 1
            if reached > offset:
                offset = min(upto, reached)
                holding.begin_range(offset, upto)
                yield from _committed(holding)  # one batch, one transaction
            else:
                yield
        holding.begin(Claim(holding.owner, upto))
        yield from _committed(holding)
        return returned


def _committed(holding: Holding) -> Steps[None]:
    while holding.changed and holding.held:
        yield


def _here(call: Callable[[], T]) -> Future[T]:
    """For calls that only the polling thread may make, and that are short."""
    future: Future[T] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future
