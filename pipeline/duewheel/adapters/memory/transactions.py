"""Transactions in memory, with the manners of librdkafka and of what our adapter makes of it.

As with librdkafka, records go out in the background while the group's offsets are sent, and all that is certain is that both have arrived
before the transaction is committed: offsets may be pending at the group before any record lies in its log.

Two producers are taken in turn. A fault is judged by its kind, as the real one by its flags: the same call again for what is retriable, as
long as our own clock allows; an abort where one is required; and for anything else the producer is thrown away, as it is where a call
takes too long. What was under way may still take effect then, until `recover` takes the id over: but nothing is committed where offsets
could not be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple

from duewheel.adapters.memory.broker import RECORD_BYTES_MAX, Broker
from duewheel.adapters.memory.logs import Headers
from duewheel.adapters.memory.readers import MemoryGroupReader
from duewheel.adapters.memory.world import Fault, Kind, Process
from duewheel.core.topology import partition_of
from duewheel.ports import Offset, TransactionAborted, TransactionUnknown

CALL_TIMEOUT_S: Final = 8.0
OFFSETS_TIMEOUT_S: Final = 2.0
TIMEOUT_MS: Final = 30_000
LINGER_US: Final = 5_000
INIT_TIMEOUT_S: Final = 5.0
_BACKOFF_S: Final = 0.02
_BACKOFF_MAX_S: Final = 0.5

_Sent = tuple[bytes | None, bytes | None, Headers | None]


class Producer:
    """One transactional producer. Every call passes the process's gate."""

    def __init__(self, process: Process, broker: Broker, transactional_id: str) -> None:
        self.id = transactional_id
        self._process = process
        self._broker = broker
        self._epoch = -1
        self._waiting: dict[tuple[str, int], list[_Sent]] = {}
        self._is_open = False  # at the coordinator
        self._is_sending = False
        self._failed: Fault | None = None  # in the background
        self._begun = 0

    def init(self, timeout_s: float) -> None:
        """Raises Fault where it does not succeed in time."""
        deadline_us = self._process.world.now_us + round(timeout_s * 1_000_000)

        def init() -> None:
            self._process.reach("transactions.init")
            self._epoch = self._broker.transactions.init(self.id)
            self._process.answer("transactions.init")

        _repeat(self._process, init, deadline_us)

    def begin(self) -> None:
        self._waiting = {}
        self._is_open = False
        self._failed = None
        self._begun += 1

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None = None, partition: int = -1, headers: Headers | None = None
    ) -> None:
        if len(value or b"") + len(key or b"") > RECORD_BYTES_MAX:
            raise Fault(Kind.ABORT, f"MSG_SIZE_TOO_LARGE: a record for {topic}", is_by_value=True)
        logs = self._broker.topics.get(topic)
        if partition < 0 and logs is not None:
            partition = partition_of(key or b"", len(logs))
        if not self._waiting:
            begun = self._begun
            self._process.world.later(LINGER_US, lambda: self._send_early(begun))
        self._waiting.setdefault((topic, partition), []).append((key, value, headers))

    def _send_early(self, begun: int) -> None:
        """What waits for longer than others would join it is sent, although nobody has asked for the transaction's end."""
        if begun == self._begun:
            self.send()

    def send(self) -> None:
        """Sends what waits, in the background."""
        if self._waiting and not self._is_sending and self._process.alive:
            self._is_sending = True
            self._process.world.hook.start(self._process, self._send)

    def _send(self) -> None:
        try:
            self._flush(self._process.world.now_us + TIMEOUT_MS * 1_000)
        except Fault as fault:
            self._failed = fault
        finally:
            self._is_sending = False
            self._process.wake()

    def _join(self) -> None:
        """Waits until nothing is sent in the background."""
        while self._is_sending:
            self._process.sleep(LINGER_US / 1_000_000)
        if self._failed is not None:
            raise self._failed

    def flush(self, deadline_us: int) -> None:
        """Sends what waits, partition by partition."""
        self._join()
        self._is_sending = True
        try:
            self._flush(deadline_us)
        finally:
            self._is_sending = False

    def _flush(self, deadline_us: int) -> None:
        while self._waiting:
            (topic, partition), waiting = next(iter(self._waiting.items()))
            records = list(waiting)

            def send(topic: str = topic, partition: int = partition, records: list[_Sent] = records) -> None:
                self._process.reach("transactions.produce")
                log = self._broker.find(topic, partition)
                if log is None:
                    # librdkafka gives it half a minute to appear, which is longer than we wait for a commit.
                    raise Fault(Kind.RETRIABLE, f"UNKNOWN_TOPIC_OR_PART: {topic} [{partition}]")
                limit = self._broker.record_bytes_max.get(topic, RECORD_BYTES_MAX)
                if any(len(value or b"") > limit for _, value, _ in records):
                    raise Fault(Kind.ABORT, f"MSG_SIZE_TOO_LARGE: a record for {topic}", is_by_value=True)
                self._broker.transactions.produce(self.id, self._epoch, TIMEOUT_MS, log, records)
                self._is_open = True

            _repeat(self._process, send, deadline_us)
            sent = self._waiting[topic, partition]
            del sent[: len(records)]
            if not sent:
                del self._waiting[topic, partition]

    def send_offsets(self, group: str, member: tuple[str, int], offsets: Sequence[Offset], deadline_us: int) -> None:
        def send() -> None:
            self._process.reach("transactions.offsets")
            of = self._broker.group(group)
            self._broker.transactions.offsets(self.id, self._epoch, TIMEOUT_MS, of, member, offsets)
            self._is_open = True
            self._process.answer("transactions.offsets")

        _repeat(self._process, send, deadline_us)

    def end(self, commit: bool, deadline_us: int) -> None:
        if not self._is_open:
            return
        where = "transactions.commit" if commit else "transactions.abort"

        def end() -> None:
            try:
                self._process.reach(where)
            except Fault as fault:
                if fault.lands_us is not None:
                    self._process.world.later(fault.lands_us, partial(self._land, self._epoch, commit))
                raise
            self._broker.transactions.end(self.id, self._epoch, commit)
            self._process.answer(where)

        _repeat(self._process, end, deadline_us)
        self._is_open = False

    def _land(self, epoch: int, commit: bool) -> None:
        """What was under way arrives."""
        with suppress(Fault):
            self._broker.transactions.end(self.id, epoch, commit)

    def abort(self, deadline_us: int) -> None:
        with suppress(Fault):
            self._join()
        self._waiting = {}
        self.end(False, deadline_us)


class _Finishing(NamedTuple):
    """A transaction on its way to its end.

    Attributes:
        end: what becomes of it.
        gate: who has passed it, or shut it: the commit, or whoever gave up waiting for the offsets. One of them at most.
        offsets_until_us: until when its offsets must have been sent.
    """

    end: Future[None]
    gate: list[str]
    offsets_until_us: int


class MemoryTransactions:
    """`ports.TransactionalOutput` in memory.

    Args:
        groups: the members whose offsets will be committed, by consumer group.
    """

    def __init__(
        self,
        process: Process,
        broker: Broker,
        name: str,
        groups: Mapping[str, MemoryGroupReader],
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self.name = self._first_name = name
        self._names = 1
        self._process = process
        self._broker = broker
        self._groups = groups
        self._call_timeout_s = call_timeout_s
        self._producers: list[Producer | None] = [None, None]
        self._turn = 0
        self._undecided: list[str] = []

    def recover(self) -> bool:
        try:
            while self._undecided:
                for index in range(len(self._producers)):
                    fence_producer(self._process, self._broker, self._undecided[-1], index)
                self._undecided.pop()
        except Fault:
            return False
        for index, producer in enumerate(self._producers):
            if producer is None:
                self._producers[index] = self._initialised(index)
                if self._producers[index] is None:
                    return False
        return True

    def take_new_name(self) -> None:
        if None in self._producers:
            self._undecided.append(self.name)
        self._names += 1
        self.name = f"{self._first_name}.{self._names}"
        self._producers = [None, None]

    def begin(self) -> _MemoryTransaction:
        self._turn ^= 1
        if None in self._producers and not self.recover():
            raise TransactionAborted("no transactional producer could be initialised")
        producer = self._producers[self._turn]
        assert producer is not None
        members = {group: reader.member for group, reader in self._groups.items()}
        try:
            self._process.reach("transactions.begin")
            producer.begin()
        except Fault as fault:
            self._discard(producer)
            raise TransactionUnknown(str(fault)) from fault
        return _MemoryTransaction(self, producer, members)

    def close(self) -> None:
        self._producers = [None, None]

    def _initialised(self, index: int) -> Producer | None:
        producer = Producer(self._process, self._broker, f"{self.name}-{index}")
        try:
            producer.init(INIT_TIMEOUT_S)
        except Fault:
            return None
        return producer

    def _discard(self, producer: Producer) -> None:
        if producer in self._producers:
            self._producers[self._producers.index(producer)] = None

    def _deadline_us(self) -> int:
        return self._process.world.now_us + round(self._call_timeout_s * 1_000_000)

    def _finish(self, producer: Producer, members: Mapping[str, tuple[str, int]], offsets: Mapping[str, Sequence[Offset]]) -> _Finishing:
        deadline_us, gate = self._deadline_us(), list[str]()
        offsets_until_us = min(deadline_us, self._process.world.now_us + round(OFFSETS_TIMEOUT_S * 1_000_000))

        def finish() -> None:
            producer.send()
            for group, positions in offsets.items():
                producer.send_offsets(group, members[group], positions, deadline_us)
            if not gate:
                gate.append("commit")
                producer.flush(deadline_us)
                producer.end(True, deadline_us)

        return _Finishing(self._process.aside(finish), gate, offsets_until_us)

    def _settle(self, producer: Producer, finishing: _Finishing) -> None:
        end, gate, offsets_until_us = finishing
        left_us = max(0, offsets_until_us - self._process.world.now_us)
        if not self._process.await_done(end, left_us / 1_000_000) and not gate:
            gate.append("given up")
            self._producers = [None, None]
            raise TransactionAborted(f"sending offsets took longer than {OFFSETS_TIMEOUT_S:.0f} s", is_by_offsets=True)
        if not self._process.await_done(end, self._call_timeout_s + 1.0):
            self._producers = [None, None]
            raise TransactionUnknown(f"commit took longer than {self._call_timeout_s:.0f} s")
        error = end.exception()
        if error is None:
            return
        if not isinstance(error, Fault):
            raise error
        if error.kind is Kind.ABORT:
            self._abort(producer)
            raise TransactionAborted(str(error), is_by_value=error.is_by_value) from error
        if error.is_fencing:
            self._producers = [None, None]
        self._discard(producer)
        if not gate and error.kind is not Kind.FATAL:
            raise TransactionAborted(f"offsets could not be sent: {error}", is_by_offsets=True) from error
        raise TransactionUnknown(str(error)) from error

    def _abort(self, producer: Producer) -> None:
        deadline_us = self._deadline_us()
        aborting = self._process.aside(lambda: producer.abort(deadline_us))
        if not self._process.await_done(aborting, self._call_timeout_s + 5.0):
            self._producers = [None, None]
        elif (error := aborting.exception()) is not None:
            if not isinstance(error, Fault):
                raise error
            self._discard(producer)


class _MemoryTransaction:
    """`ports.Transaction`."""

    def __init__(self, output: MemoryTransactions, producer: Producer, members: Mapping[str, tuple[str, int]]) -> None:
        self._output = output
        self._producer = producer
        self._members = members
        self._open = True
        self.produce: Callable[..., None] = producer.produce

    def __enter__(self) -> _MemoryTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open:
            self._open = False
            self._output._abort(self._producer)
            if isinstance(error, Fault):
                raise TransactionAborted(str(error), is_by_value=error.is_by_value) from error

    def commit(self, offsets: Mapping[str, Sequence[Offset]]) -> None:
        self.commit_later(offsets).settle()

    def commit_later(self, offsets: Mapping[str, Sequence[Offset]]) -> _MemoryPendingCommit:
        self._open = False
        return _MemoryPendingCommit(self._output, self._producer, self._output._finish(self._producer, self._members, offsets))


class _MemoryPendingCommit:
    """`ports.PendingCommit`."""

    def __init__(self, output: MemoryTransactions, producer: Producer, finishing: _Finishing) -> None:
        self._output = output
        self._producer = producer
        self._finishing = finishing

    def settle(self) -> None:
        self._output._settle(self._producer, self._finishing)


def _repeat(process: Process, call: Callable[[], None], deadline_us: int) -> None:
    """Makes the same call again while its fault is retriable and time is left."""
    backoff_s = _BACKOFF_S
    while True:
        try:
            return call()
        except Fault as fault:
            if fault.kind is not Kind.RETRIABLE or process.world.now_us + backoff_s * 1_000_000 > deadline_us:
                raise
        process.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)


def fence_producer(process: Process, broker: Broker, name: str, index: int) -> None:
    """Ends what the producer `index` of the owner called `name` left open. Raises Fault where that does not succeed in time."""
    Producer(process, broker, f"{name}-{index}").init(INIT_TIMEOUT_S)
