"""The intake topic from the producer's side: records go out in bulk, and each is answered for.

librdkafka sends in the background and reports on each record through a callback, which runs inside whichever thread happens to call
`poll`. A caller of `append` wants one plain answer. So a thread that waits either polls, for itself and for everybody, or, when
another is polling already, sleeps until that one has come back from it:

    thread A   produce ── poll … poll (reports A and B) ── done
    thread B   produce ── sleep ─────────────────────────── woken: done

One report costs about 1 µs, so every record has one, also at full speed: 300,000 records/s on one core without encoding.

What a failure means is the important part. Once a record has been handed over, an error or a timeout says nothing of whether a broker
stored it: the acknowledgement may be what got lost. That is said to the caller (`BrokerUnavailable`), whose remedy is to send the
same job id again. An error before the hand-over, or a refusal by the broker, means that the record is not stored.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import BadConfiguration, BrokerUnavailable, CallerError, EnvironmentFailure, TopicMissing
from duewheel.ports import Receipt

# librdkafka looks for overdue records once a second, and lets a request under way come to its own end. A record that has not been
# reported on by then never will be.
REPORT_GRACE_S: Final = 5.0

# No call into C is longer, so that Ctrl-C is noticed.
SLICE_S: Final = 0.5

# At full speed reports are collected every so many records: a few milliseconds.
COLLECT_EVERY: Final = 1_000
PROGRESS_EVERY_S: Final = 0.1

_MISSING: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)
_REFUSED: Final = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
)


class KafkaIntake:
    """The intake topic `topic` of a cluster; implements `ports.IntakeLog`.

    Connects at the first append.

    Args:
        timeout_s: how long a record may wait for its acknowledgement, and how long a first connection may take.

    Raises:
        BadConfiguration: librdkafka does not accept the settings.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, timeout_s: float) -> None:
        self._settings = kafka.producer(round(timeout_s * 1_000))
        self._address = kafka.bootstrap_servers
        self._topic = topic
        self._timeout_s = timeout_s
        self._connecting = threading.Lock()
        self._turn = threading.Condition()
        self._polled = False  # somebody is inside poll(); guarded by _turn
        self._closed = False
        self._ready = False  # the topic has been seen; guarded by _connecting
        self._producer = self._make()

    def append(self, key: bytes, value: bytes) -> Receipt:
        """See `ports.IntakeLog`."""
        producer = self._connect()
        receipts: list[Receipt] = []
        errors: list[KafkaError] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                receipts.append(Receipt(_known(message.partition()), _known(message.offset())))

        self._produce(producer, key, value, report)
        self._wait(producer, lambda: bool(receipts or errors))
        if receipts:
            return receipts[0]
        raise self._failure(producer, errors[0] if errors else KafkaError(KafkaError._MSG_TIMED_OUT))

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        """See `ports.IntakeLog`."""
        producer = self._connect()
        tally = _Tally()
        progress_at = 0.0

        def settle() -> None:
            nonlocal progress_at
            while tally.failures:
                tag, error = tally.failures.popleft()
                failed(tag, self._failure(producer, error))
            if (now := time.monotonic()) >= progress_at:
                progress_at = now + PROGRESS_EVERY_S
                progressed(tally.acknowledged)

        try:
            for tag, key, value in records:
                self._produce(producer, key, value, functools.partial(tally.report, tag))
                tally.sent += 1
                if tally.sent % COLLECT_EVERY == 0:
                    self._poll(producer, 0)
                    settle()
                if tally.failed:
                    break
        finally:
            self._wait(producer, lambda: tally.settled, settle)
            progress_at = 0.0
            settle()
        if not tally.settled:
            raise self._failure(producer, KafkaError(KafkaError._MSG_TIMED_OUT))

    def close(self) -> None:
        """See `ports.IntakeLog`."""
        self._closed = True
        self._producer.flush(self._timeout_s + REPORT_GRACE_S)

    def _make(self) -> Producer:
        try:
            return Producer(self._settings)
        except (KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else error
            raise BadConfiguration(f"the Kafka client refuses its settings: {reason}; see the options (-X NAME=VALUE)") from error

    def _connect(self) -> Producer:
        """The producer, once the topic is known to exist. A missing topic would else be noticed only after librdkafka's patience."""
        with self._connecting:
            if self._closed:
                raise CallerError("this client is closed; make another")
            if not self._ready:
                self._find_topic()
                self._ready = True
            return self._producer

    def _find_topic(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                found = self._producer.list_topics(self._topic, max(0.01, min(SLICE_S, left_s))).topics[self._topic].error
                break
            except KafkaException as error:
                if left_s <= SLICE_S:
                    raise BrokerUnavailable(
                        f"no broker answered at {self._address} within {self._timeout_s:g} s ({error.args[0].str()}); nothing was sent"
                    ) from error
        if found is not None:
            raise self._failure(self._producer, found)

    def _produce(self, producer: Producer, key: bytes, value: bytes, report: Callable[[KafkaError | None, Message], None]) -> None:
        """Hands a record over, waiting while the buffer is full; it empties itself, as records are sent or run out of time."""
        while True:
            try:
                producer.produce(self._topic, value, key, -1, report)
                return
            except BufferError:
                self._poll(producer, SLICE_S)
            except KafkaException as error:
                raise self._failure(producer, error.args[0]) from error

    def _poll(self, producer: Producer, timeout_s: float) -> None:
        """Runs reports, ours and other threads', or waits until another thread has."""
        with self._turn:
            if self._polled:
                self._turn.wait(timeout_s)
                return
            self._polled = True
        try:
            producer.poll(timeout_s)
        finally:
            with self._turn:
                self._polled = False
                self._turn.notify_all()

    def _wait(self, producer: Producer, done: Callable[[], bool], between: Callable[[], None] = lambda: None) -> None:
        """Until `done`, or until no report can come any more."""
        deadline = time.monotonic() + self._timeout_s + REPORT_GRACE_S
        while not done() and time.monotonic() < deadline:
            self._poll(producer, SLICE_S)
            between()

    def _failure(self, producer: Producer, error: KafkaError) -> EnvironmentFailure:
        """What to raise for an error; and another producer for the next call, if this one is beyond repair."""
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._replace(producer)
        if error.code() in _MISSING:
            self._ready = False
            return TopicMissing(f"topic {self._topic} does not exist at {self._address}; make it with: duewheel topics apply")
        if error.code() in _REFUSED:
            return EnvironmentFailure(
                f"{self._address} refuses records for topic {self._topic}: {error.str()}; nothing was stored. "
                "Are the topic's settings as declared (duewheel topics plan), and may this user write to it?"
            )
        return BrokerUnavailable(
            f"no acknowledgement from {self._address} within {self._timeout_s:g} s ({error.str()}): whether the record was stored is "
            "unknown. Scheduling again with the same job_id is safe"
        )

    def _replace(self, producer: Producer) -> None:
        with self._connecting:
            if self._producer is producer:
                self._producer = self._make()


class _Tally:
    """What has become of the records of one `append_many`. Reports come in any thread, but never two at a time."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.failures: deque[tuple[Any, KafkaError]] = deque()

    def report(self, tag: Any, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self.failures.append((tag, error))

    @property
    def settled(self) -> bool:
        return self.acknowledged + self.failed == self.sent


def _known(number: int | None) -> int:
    """Offsets and partitions of acknowledged records are always there; the client's types allow for messages without."""
    assert number is not None
    return number
