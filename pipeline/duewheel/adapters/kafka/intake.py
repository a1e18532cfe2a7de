"""The intake topic from the producer's side: records go out in bulk, and each is answered for.

librdkafka sends in the background and reports on each record through a callback, which runs inside whichever thread happens to call
`poll`. A caller of `append` wants one plain answer. So a thread that waits either polls, for itself and for everybody, or, when
another is polling already, sleeps until that one has come back from it:

    thread A   produce ── poll … poll (reports A and B) ── done
    thread B   produce ── sleep ─────────────────────────── woken: done

One report costs about 1 µs, so every record has one, also at full speed: 300,000 records/s on one core without encoding.

There are two producers. For a caller who waits, each record leaves at once. For many, records wait up to 5 ms for company: without,
a loop that encodes as it goes sends requests of a few records each, at half the speed.

What a failure means is the important part. Once a record has been handed over, an error or a timeout says nothing of whether a broker
stored it: the acknowledgement may be what got lost. That is said to the caller (`BrokerUnavailable`), whose remedy is to send the
same job id again, which is safe unless it replaces. An error before the hand-over, or a refusal by the broker, means that the record
is not stored.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from duewheel.adapters.kafka.settings import LINGER_MS, KafkaConfig
from duewheel.core.errors import BadConfiguration, BrokerUnavailable, CallerError, EnvironmentFailure, TopicMissing
from duewheel.core.topology import making
from duewheel.ports import Receipt

Report = Callable[[KafkaError | None, Message], None]

log = structlog.get_logger(__name__)

# librdkafka looks for overdue records once a second, and lets a request under way come to its own end. A record that has not been
# reported on by then never will be.
REPORT_GRACE_S: Final = 5.0

TIMEOUT_S_MAX: Final = 86_400.0

# No call into C is longer, so that Ctrl-C is noticed.
SLICE_S: Final = 0.5

# A topic that was made a moment ago is not known to every broker yet.
PROPAGATION_S: Final = 1.0

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
        BadConfiguration: `timeout_s` is no waiting time, or librdkafka does not accept the settings.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, timeout_s: float) -> None:
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise BadConfiguration(f"timeout_s={timeout_s:g} is outside 0 to {TIMEOUT_S_MAX:g} seconds; zero would mean for ever")
        timeout_ms = math.ceil(timeout_s * 1_000)
        self._single = _Channel(kafka.producer(timeout_ms, linger_ms=0))
        self._bulk = _Channel(kafka.producer(timeout_ms, linger_ms=LINGER_MS))
        self._address = kafka.bootstrap_servers
        self._topic = topic
        self._timeout_s = timeout_s
        self._connecting = threading.Lock()
        self._closed = False
        self._said = False  # that no broker answers, once
        self._ready = False  # the topic has been seen
        self._single.producer()  # wrong settings are told now, not at the first job

    def append(self, key: bytes, value: bytes) -> Receipt:
        """See `ports.IntakeLog`."""
        self._connect()
        channel, producer = self._single, self._single.producer()
        receipts: list[Receipt] = []
        errors: list[KafkaError] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                receipts.append(Receipt(_known(message.partition()), _known(message.offset())))

        self._produce(channel, producer, key, value, report)
        self._wait(channel, producer, lambda: bool(receipts or errors))
        if receipts:
            return receipts[0]
        raise self._failure(channel, producer, errors[0] if errors else _overdue(), key)

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        """See `ports.IntakeLog`."""
        self._connect()
        channel, producer = self._bulk, self._bulk.producer()
        tally = _Tally()
        progress_at = 0.0

        def settle() -> None:
            nonlocal progress_at
            while tally.failures:
                tag, key, error = tally.failures.popleft()
                failed(tag, self._failure(channel, producer, error, key))
            if (now := time.monotonic()) >= progress_at:
                progress_at = now + PROGRESS_EVERY_S
                progressed(tally.acknowledged)

        try:
            for tag, key, value in records:
                self._produce(channel, producer, key, value, functools.partial(tally.report, tag, key))
                tally.sent += 1
                if tally.sent % COLLECT_EVERY == 0:
                    channel.poll(producer, 0, _never)
                    settle()
                if tally.failed:
                    break
        finally:
            self._wait(channel, producer, lambda: tally.settled, settle)
            progress_at = 0.0
            settle()
        if not tally.settled:
            raise self._failure(channel, producer, _overdue())

    def close(self) -> None:
        """See `ports.IntakeLog`."""
        self._closed = True
        for channel in (self._single, self._bulk):
            channel.flush(self._timeout_s + REPORT_GRACE_S)

    def _connect(self) -> None:
        """Returns once the topic is known to exist. A missing topic would else be noticed only after librdkafka's patience.

        One thread looks, and the others wait for it, each for no longer than its own time.
        """
        deadline = time.monotonic() + self._timeout_s
        if not self._connecting.acquire(timeout=self._timeout_s):
            raise self._unanswered(self._single.complaint(self._single.producer()) or "another thread still waits for it")
        try:
            if self._closed:
                raise CallerError("this client is closed; make another")
            if not self._ready:
                self._find_topic(self._single.producer(), deadline)
                self._ready = True
        finally:
            self._connecting.release()

    def _find_topic(self, producer: Producer, deadline: float) -> None:
        start = time.monotonic()
        while True:
            left_s = deadline - time.monotonic()
            try:
                error = producer.list_topics(self._topic, max(0.01, min(SLICE_S, left_s))).topics[self._topic].error
            except KafkaException as unanswered:
                why = self._single.complaint(producer) or unanswered.args[0].str()
                if left_s > SLICE_S:
                    self._say_waiting(why)
                    continue
                raise self._unanswered(why) from unanswered
            if error is None:
                return
            if time.monotonic() - start > PROPAGATION_S:
                raise self._failure(self._single, producer, error)
            time.sleep(0.05)

    def _unanswered(self, why: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"no broker answered at {self._address} within {self._timeout_s:g} s ({why}); nothing was sent")

    def _say_waiting(self, why: str) -> None:
        if not self._said:
            log.warning("intake.waiting", address=self._address, timeout_s=self._timeout_s, error=why)
        self._said = True

    def _produce(self, channel: _Channel, producer: Producer, key: bytes, value: bytes, report: Report) -> None:
        """Hands a record over, waiting while the buffer is full; it empties itself, as records are sent or run out of time."""
        while True:
            try:
                producer.produce(self._topic, value, key, -1, report)
                return
            except BufferError:
                # Down to three quarters: with room for one, every record would run into the wall again.
                enough = len(producer) * 3 // 4
                while len(producer) > enough:
                    channel.poll(producer, SLICE_S, _never)
            except KafkaException as error:
                raise self._failure(channel, producer, error.args[0], key) from error

    def _wait(self, channel: _Channel, producer: Producer, done: Callable[[], bool], between: Callable[[], None] = lambda: None) -> None:
        """Until `done`, or until no report can come any more."""
        deadline = time.monotonic() + self._timeout_s + REPORT_GRACE_S
        while not done() and time.monotonic() < deadline:
            channel.poll(producer, SLICE_S, done)
            between()

    def _failure(self, channel: _Channel, producer: Producer, error: KafkaError, key: bytes | None = None) -> EnvironmentFailure:
        """What to raise for an error; and another producer for the next call, if this one is beyond repair."""
        if error.fatal() or error.code() == KafkaError._FATAL:
            channel.discard(producer)
        if error.code() in _MISSING:
            self._ready = False
            return TopicMissing(f"topic {self._topic} does not exist at {self._address}; make it with: {making(self._topic)}")
        what = "a record" if key is None else f"job {key.decode(errors='replace')}"
        if error.code() in _REFUSED:
            return EnvironmentFailure(
                f"{what} was refused by {self._address} for topic {self._topic} ({error.str()}) and is not stored. "
                "Are the topic's settings as declared (duewheel topics plan), and may this user write to it?"
            )
        return BrokerUnavailable(
            f"{what} was not acknowledged by {self._address} within {self._timeout_s:g} s ({error.str()}). "
            "Whether it is stored is unknown. Doing the same again with the same job_id is safe, "
            "but where it replaces (on_conflict), the job may then run once more"
        )


class _Channel:
    """A producer that several threads use at once: made at its first use, and made anew where it is beyond repair."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._making = threading.Lock()
        self._turn = threading.Condition()
        self._polled = False  # somebody is inside poll(); guarded by _turn
        self._producer: Producer | None = None
        self._heard: deque[str] = deque(maxlen=1)  # librdkafka's last complaint

    def producer(self) -> Producer:
        with self._making:
            if self._producer is None:
                self._producer = self._make()
            return self._producer

    def discard(self, producer: Producer) -> None:
        with self._making:
            if self._producer is producer:
                self._producer = None

    def flush(self, timeout_s: float) -> None:
        if self._producer is not None:
            self._producer.flush(timeout_s)

    def complaint(self, producer: Producer) -> str | None:
        """What librdkafka has against the brokers, if it has said so."""
        producer.poll(0)
        return self._heard[0] if self._heard else None

    def poll(self, producer: Producer, timeout_s: float, done: Callable[[], bool]) -> None:
        """Runs reports, the caller's and other threads', or waits until another thread has; not at all where `done`.

        `done` is asked under the lock: the caller's report may have run in another thread since it last looked, and then no poll would
        ever see it.
        """
        with self._turn:
            if done():
                return
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

    def _make(self) -> Producer:
        heard = self._heard  # and not self, which would make a circle of references, so that nothing would be closed in time
        try:
            return Producer({**self._settings, "error_cb": lambda error: heard.append(error.str())})
        except (KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else error
            raise BadConfiguration(f"the Kafka client refuses its settings: {reason}; see the options (-X NAME=VALUE)") from error


class _Tally:
    """What has become of the records of one `append_many`. Reports come in any thread, but never two at a time."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.failures: deque[tuple[Any, bytes, KafkaError]] = deque()

    def report(self, tag: Any, key: bytes, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self.failures.append((tag, key, error))

    @property
    def settled(self) -> bool:
        return self.acknowledged + self.failed == self.sent


def _never() -> bool:
    return False


def _overdue() -> KafkaError:
    return KafkaError(KafkaError._MSG_TIMED_OUT)


def _known(number: int | None) -> int:
    """Offsets and partitions of acknowledged records are always there; the client's types allow for messages without."""
    assert number is not None
    return number
