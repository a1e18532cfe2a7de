"""Transactions that survive what brokers do to them.

Two transactional producers are taken in turn: a producer whose markers are still being written answers the next AddOffsets with
CONCURRENT_TRANSACTIONS, so one alone reaches two thirds of the transactions of a pair (half of them with three brokers).

Every error is judged by its flags, never by its code, since the same code comes as retriable and as abort-required:

    retriable        → the same call again, with back-off, until our own clock runs out
    abort required   → flush, abort, `TransactionAborted`: nothing of it is visible
    anything else    → the producer is thrown away. During commit that is `TransactionUnknown`, before it `TransactionAborted`

A producer that a broker refused a record is aborted in good order and then thrown away, too: it would go on with sequence numbers behind
those that the broker never saw, so that its next transaction fails, or hangs (measured). A new one takes 0.1 s.

A producer that was thrown away is never used again: librdkafka has no client side of KIP-890, so its late marker could land in the
next transaction. Its successor with the same transactional id calls init_transactions, which bumps the epoch and thereby ends
whatever was open.

`send_offsets_to_transaction` ignores its timeout and may hang for ever when the coordinator's broker goes (librdkafka 5456, 5511).
All finishing calls therefore run on a helper thread under our own clock; a thread that overruns is abandoned with its producer. A gate
lies between the offsets and the commit, which either the helper passes or whoever gives it up shuts: behind a gate that was shut nothing
can have been committed, so that a hang before it costs an abort and two seconds, and none of what a doubt costs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from duewheel.adapters.kafka.helper import Helper
from duewheel.adapters.kafka.settings import TRANSACTION_CALL_TIMEOUT_S, KafkaConfig
from duewheel.ports import Offset, TransactionAborted, TransactionUnknown

log = structlog.get_logger(__name__)

_INIT_TIMEOUT_S: Final = 5.0  # one try of init_transactions; callers go on polling between tries
# Sending offsets takes milliseconds. Where it hangs, because the coordinator's broker died, a new producer finds the new coordinator. As
# that may take some seconds to be chosen there are some tries; then each takes longer, since each leaves a thread behind.
_OFFSETS_TIMEOUT_S: Final = 2.0
_QUICK_TRIES: Final = 4
_BACKOFF_S: Final = 0.02
_BACKOFF_MAX_S: Final = 0.5
_ABORT_FLUSH_S: Final = 5.0
# What brokers say of a record that is too large for its topic, or has no key where the topic is compacted; and the client, of a size.
_BY_VALUE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG})


class _Shut(Exception):
    """The gate was shut before the offsets had been sent."""


class _Finishing(NamedTuple):
    """A transaction on its way to its end.

    Attributes:
        end: what becomes of it.
        gate: held by the helper thread once it commits, or by whoever gave it up before; never by both.
        offsets_until_s: until when its offsets must have been sent, by the monotonic clock.
    """

    end: Future[None]
    gate: threading.Lock
    offsets_until_s: float


class KafkaTransactions:
    """`ports.TransactionalOutput` on Kafka.

    Args:
        kafka: where the cluster is.
        name: what the transactional ids begin with; must be new for each process, since it is how successors fence it. Later names of
            the same process add a number to it.
        groups: the consumers whose offsets will be committed, by consumer group.
        call_timeout_s: our own limit for finishing one transaction.
    """

    def __init__(
        self, kafka: KafkaConfig, name: str, groups: Mapping[str, Consumer], call_timeout_s: float = TRANSACTION_CALL_TIMEOUT_S
    ) -> None:
        self.name = self._first_name = name
        self._names = 1
        self._kafka = kafka
        self._groups = groups
        self._call_timeout_s = call_timeout_s
        self._producers: list[Producer | None] = [None, None]
        self._cut_off = [False, False]
        self._abandoned: list[tuple[Producer, Future[None]]] = []  # of threads that hang; freeing one would block
        self._hung = 0  # tries to send offsets, one after the other
        self._undecided: list[str] = []  # earlier names, of whose producers one was thrown away, perhaps with a transaction open
        self._turn = 0
        self._helper = Helper("duewheel-transactions")

    def recover(self) -> bool:
        try:
            while self._undecided:
                for index in range(len(self._producers)):
                    fence_producer(self._kafka, self._undecided[-1], index)
                self._undecided.pop()
        except KafkaException as error:
            log.warning("transactions.init_failed", transactional_id=self._undecided[-1], error=str(error))
            return False
        for index, producer in enumerate(self._producers):
            if producer is None:
                self._producers[index] = self._initialised(index)
                if self._producers[index] is None:
                    return False  # and the other would have to be waited for as well
        return True

    def take_new_name(self) -> None:
        if None in self._producers:
            self._undecided.append(self.name)
        self._names += 1
        self.name = f"{self._first_name}.{self._names}"
        for producer in self._producers:
            if producer is not None:
                producer.purge()
        self._producers = [None, None]

    def begin(self) -> _KafkaTransaction:
        self._turn ^= 1
        self._renew(self._turn)
        # Both: what one that was thrown away left open is ended before anything else is written.
        if None in self._producers and not self.recover():
            raise TransactionAborted("no transactional producer could be initialised; is the cluster reachable?")
        producer = self._producers[self._turn]
        assert producer is not None
        metadata = {group: consumer.consumer_group_metadata() for group, consumer in self._groups.items()}
        try:
            producer.begin_transaction()
        except KafkaException as error:
            self._discard(producer, error)
            raise TransactionUnknown(str(error)) from error
        return _KafkaTransaction(self, producer, metadata)

    def close(self) -> None:
        """Lets go of the producers. Nothing is open: transactions end with their blocks."""
        self._helper.stop()
        self._producers = [None, None]

    def _initialised(self, index: int) -> Producer | None:
        def note(error: KafkaError) -> None:
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                self._cut_off[index] = True

        transactional_id = f"{self.name}-{index}"
        producer = Producer({**self._kafka.transactional(transactional_id), "error_cb": note})
        try:
            producer.init_transactions(_INIT_TIMEOUT_S)
        except KafkaException as error:
            log.warning("transactions.init_failed", transactional_id=transactional_id, error=str(error))
            return None
        producer.poll(0)
        self._cut_off[index] = False  # whatever was before, it is connected now
        return producer

    def _renew(self, index: int) -> None:
        """Drops a producer that was cut off from every broker since its last turn: often its next send_offsets hangs for ever, although the
        brokers are back (measured with one broker, restarted). Idle, it leaves nothing behind; a new one takes 0.1 s.
        """
        producer = self._producers[index]
        if producer is not None:
            producer.poll(0)
            if self._cut_off[index]:
                self._discard(producer, "it was cut off from every broker")

    def _discard(self, producer: Producer, reason: object) -> None:
        log.warning("transactions.producer_discarded", name=self.name, error=str(reason))
        index = self._producers.index(producer)
        self._producers[index] = None
        producer.purge()

    def _discard_both(self, reason: object) -> None:
        for producer in self._producers:
            if producer is not None:
                self._discard(producer, reason)

    def _abandon(self, producer: Producer, hanging: Future[None], where: str, seconds: float) -> None:
        """The helper thread hangs inside this producer; both stay behind.

        Its partner goes as well. It has lost the same connections, and measured after a broker's restart, its next call hung too.
        """
        log.error("transactions.call_hung", name=self.name, where=where, seconds=seconds)
        self._abandoned = [(left, call) for left, call in self._abandoned if not call.done()]
        self._abandoned.append((producer, hanging))
        self._producers = [None, None]
        self._helper.stop()
        self._helper = Helper("duewheel-transactions")

    # --- what a transaction asks of its output ---

    def _finish(self, producer: Producer, metadata: Mapping[str, Any], offsets: Mapping[str, Sequence[Offset]]) -> _Finishing:
        now_s = time.monotonic()
        deadline, gate = now_s + self._call_timeout_s, threading.Lock()
        offsets_until_s = now_s + self._offsets_timeout_s()
        groups = [
            ([TopicPartition(o.topic, o.partition, o.offset, metadata=o.metadata) for o in positions], metadata[group])
            for group, positions in offsets.items()
        ]

        def finish() -> None:
            for positions, member in groups:
                _repeat(partial(producer.send_offsets_to_transaction, positions, member, self._call_timeout_s), deadline)
            if not gate.acquire(blocking=False):
                raise _Shut
            _repeat(lambda: producer.commit_transaction(max(0.1, deadline - time.monotonic())), deadline)

        return _Finishing(self._helper.start(finish), gate, offsets_until_s)

    def _offsets_timeout_s(self) -> float:
        return min(self._call_timeout_s, _OFFSETS_TIMEOUT_S * 2.0 ** max(0, self._hung + 1 - _QUICK_TRIES))

    def _settle(self, producer: Producer, finishing: _Finishing) -> None:
        try:
            self._await_end(producer, finishing)
        except KafkaException as error:
            failure = error.args[0]
            if failure.txn_requires_abort() and not failure.fatal():
                self._abort(producer)
                if producer in self._producers:
                    # Whatever failed, librdkafka has purged what was still queued, and goes on behind a gap in its sequence numbers: the
                    # next transaction would fail too (OUT_OF_ORDER_SEQUENCE_NUMBER).
                    self._discard(producer, failure)
                raise TransactionAborted(str(failure), is_by_value=failure.code() in _BY_VALUE) from error
            if failure.code() == KafkaError._FENCED:
                self._discard_both(failure)  # whoever fences does so by name, and both have it
            else:
                self._discard(producer, failure)
            if not finishing.gate.locked() and not failure.fatal():
                raise TransactionAborted(f"offsets could not be sent: {failure}", is_by_offsets=True) from error
            raise TransactionUnknown(str(failure)) from error
        self._hung = 0

    def _await_end(self, producer: Producer, finishing: _Finishing) -> None:
        try:
            return finishing.end.result(max(0.0, finishing.offsets_until_s - time.monotonic()))
        except TimeoutError as error:
            if finishing.gate.acquire(blocking=False):
                limit_s = self._offsets_timeout_s()
                self._hung += 1
                self._abandon(producer, finishing.end, "send_offsets", limit_s)
                raise TransactionAborted(f"sending offsets took longer than {limit_s:.0f} s", is_by_offsets=True) from error
        try:
            finishing.end.result(self._call_timeout_s + 1.0)
        except TimeoutError as error:
            self._abandon(producer, finishing.end, "commit", self._call_timeout_s)
            raise TransactionUnknown(f"commit took longer than {self._call_timeout_s:.0f} s") from error

    def _abort(self, producer: Producer) -> None:
        deadline = time.monotonic() + self._call_timeout_s

        def abort() -> None:
            # Without the flush, EndTxn may overtake AddPartitionsToTxn: fatal INVALID_TXN_STATE (librdkafka 4849).
            producer.flush(_ABORT_FLUSH_S)
            _repeat(lambda: producer.abort_transaction(max(0.1, deadline - time.monotonic())), deadline)

        aborting = self._helper.start(abort)
        try:
            aborting.result(self._call_timeout_s + _ABORT_FLUSH_S)
        except TimeoutError:
            self._abandon(producer, aborting, "abort", self._call_timeout_s + _ABORT_FLUSH_S)
        except KafkaException as error:
            self._discard(producer, error)


class _KafkaTransaction:
    __slots__ = ("_metadata", "_open", "_output", "_producer", "produce")

    def __init__(self, output: KafkaTransactions, producer: Producer, metadata: Mapping[str, Any]) -> None:
        self._output = output
        self._producer = producer
        self._metadata = metadata
        self._open = True
        self.produce: Callable[..., None] = producer.produce  # librdkafka's own, with nothing of ours in between

    def __enter__(self) -> _KafkaTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open:
            self._open = False
            self._output._abort(self._producer)
            if isinstance(error, (KafkaException, BufferError)):
                is_by_value = isinstance(error, KafkaException) and error.args[0].code() in _BY_VALUE
                raise TransactionAborted(str(error), is_by_value=is_by_value) from error

    def commit(self, offsets: Mapping[str, Sequence[Offset]]) -> None:
        self.commit_later(offsets).settle()

    def commit_later(self, offsets: Mapping[str, Sequence[Offset]]) -> _KafkaPendingCommit:
        self._open = False
        return _KafkaPendingCommit(self._output, self._producer, self._output._finish(self._producer, self._metadata, offsets))


class _KafkaPendingCommit:
    __slots__ = ("_finishing", "_output", "_producer")

    def __init__(self, output: KafkaTransactions, producer: Producer, finishing: _Finishing) -> None:
        self._output = output
        self._producer = producer
        self._finishing = finishing

    def settle(self) -> None:
        self._output._settle(self._producer, self._finishing)


def _repeat(call: Callable[[], None], deadline: float) -> None:
    """Makes the same call again while its error is retriable and time is left."""
    backoff_s = _BACKOFF_S
    while True:
        try:
            return call()
        except KafkaException as error:
            failure = error.args[0]
            if failure.fatal() or not failure.retriable() or time.monotonic() + backoff_s > deadline:
                raise
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)


def fence_producer(kafka: KafkaConfig, name: str, index: int) -> None:
    """Ends what the producer `index` of the owner called `name` left open, by taking over its transactional id.

    A transaction left open by kill -9 blocks its readers for the transaction timeout; this releases them in under a second.

    Raises:
        KafkaException: a coordinator did not answer in time; call again.
    """
    Producer(kafka.transactional(f"{name}-{index}")).init_transactions(_INIT_TIMEOUT_S)
