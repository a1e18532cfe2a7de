"""Consumers as the engine wants them: records out, errors as errors, and an offset up to which everything was seen.

Readiness is decided by offsets alone. A read_committed consumer never hands out the markers and aborted records at a partition's end, so
the last record's offset plus one may stay below the watermark for ever. librdkafka's end-of-partition event carries the position that
the fetcher has reached behind them: `reached` is the larger of the two. Under constant inflow the event never comes, and is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from duewheel.adapters.kafka.helper import Helper
from duewheel.adapters.kafka.positions import settled
from duewheel.adapters.kafka.settings import CLOSE_TIMEOUT_S, QUEUE_FULL_BACKOFF_MS, KafkaConfig
from duewheel.ports import CommitRefused, GroupPosition, Offset, RebalanceListener, Record

log = structlog.get_logger(__name__)

# Records that librdkafka may hold for us, a consumer: enough for several batches, little enough that many consumers fit.
_QUEUED_RECORDS: Final = 20_000
_QUEUED_KBYTES: Final = 16_384
_QUEUE: Final = {
    "enable.partition.eof": True,
    "queued.min.messages": _QUEUED_RECORDS,
    "queued.max.messages.kbytes": _QUEUED_KBYTES,
    "fetch.queue.backoff.ms": QUEUE_FULL_BACKOFF_MS,
}
_COMPLAIN_EVERY_S: Final = 10.0


class _Reading:
    """What both kinds of reader share: polling a batch, sorting out events, remembering how far each partition was seen."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.consumer = consumer
        self._topic = topic
        self._reached: dict[int, int] = {}

    def reached(self, partition: int) -> int:
        return self._reached.get(partition, -1)

    def poll(self, timeout_s: float, count_max: int) -> list[Record]:
        # consume(n, timeout) waits for all n, or the whole time; so wait for one, then take what is there.
        first = self.consumer.poll(timeout_s)
        if first is None:
            return []
        messages: list[Any] = [first]
        if count_max > 1:
            messages += self.consumer.consume(count_max - 1, 0)
        for message in messages:
            if message.error() is not None:
                return self._sorted_out(messages)
        self._note(messages)
        return messages

    def _sorted_out(self, messages: list[Any]) -> list[Record]:
        records = [message for message in messages if message.error() is None]
        self._note(records)
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._raise_reached(message.partition(), message.offset())
            elif error.fatal():
                raise KafkaException(error)
            else:
                log.warning("reader.error", topic=self._topic, error=str(error))
        return records

    def _note(self, records: Sequence[Record]) -> None:
        last = {record.partition(): record.offset() for record in records}  # later ones overwrite earlier ones
        for partition, offset in last.items():
            self._raise_reached(partition, offset + 1)

    def _raise_reached(self, partition: int, offset: int) -> None:
        if offset > self._reached.get(partition, -1):
            self._reached[partition] = offset


class KafkaReader(_Reading):
    """`ports.PartitionReader` on Kafka."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        super().__init__(Consumer(kafka.reader(**_QUEUE)), topic)
        self._assigned: set[int] = set()

    def assign(self, partition: int, offset: int) -> None:
        self.release(partition)
        self._assigned.add(partition)
        self._reached[partition] = -1
        self.consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])

    def release(self, partition: int) -> None:
        if partition in self._assigned:
            self._assigned.remove(partition)
            self.consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def close(self) -> None:
        self.consumer.close()


class KafkaGroupReader(_Reading):
    """`ports.GroupReader` on Kafka. A partition gained stays paused until `read_from`."""

    def __init__(self, kafka: KafkaConfig, topic: str, group: str) -> None:
        super().__init__(Consumer({**kafka.member(group, **_QUEUE), "error_cb": self._complain}), topic)
        self._complained_s = -_COMPLAIN_EVERY_S
        self._kafka = kafka
        self._group = group

    def _complain(self, error: KafkaError) -> None:
        """librdkafka tells of each failed connection; once in a while is enough."""
        now_s = time.monotonic()
        if now_s - self._complained_s >= _COMPLAIN_EVERY_S:
            self._complained_s = now_s
            log.warning("reader.cluster_trouble", error=error.str())

    def join(self, listener: RebalanceListener) -> None:
        def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            # With an offset, any: without one librdkafka asks for the committed one first, waits there for as long as a dead member's
            # transaction is open, and refuses to seek meanwhile. Nothing is fetched before `read_from`, as they are paused.
            consumer.incremental_assign([TopicPartition(p.topic, p.partition, 0) for p in partitions])
            consumer.pause(partitions)
            listener.assigned([p.partition for p in partitions])

        def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            listener.revoked([p.partition for p in partitions])
            consumer.incremental_unassign(partitions)

        def on_lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            listener.lost([p.partition for p in partitions])
            consumer.incremental_unassign(partitions)

        self.consumer.subscribe([self._topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def read_from(self, partition: int, offset: int) -> None:
        self._reached[partition] = -1
        position = TopicPartition(self._topic, partition, offset)
        self.consumer.pause([position])
        self.consumer.seek(position)
        self.consumer.resume([position])

    def pause(self, partition: int) -> None:
        self.consumer.pause([TopicPartition(self._topic, partition)])

    def resume(self, partition: int) -> None:
        self.consumer.resume([TopicPartition(self._topic, partition)])

    def commit(self, offsets: Sequence[Offset]) -> None:
        positions = [TopicPartition(o.topic, o.partition, o.offset, metadata=o.metadata) for o in offsets]
        try:
            answers = self.consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            raise CommitRefused(str(error.args[0])) from error
        for answer in answers:
            if answer.error is not None:
                raise CommitRefused(f"{answer.topic} [{answer.partition}]: {answer.error}")

    def committed(self, partitions: Sequence[int], timeout_s: float) -> dict[int, GroupPosition]:
        try:
            # Not through our own consumer: its calls take turns, and one thread that polls all the time leaves no gap for another. A
            # worker asks from a helper thread, and would wait for seconds.
            answers = settled(self._kafka, self._group, [TopicPartition(self._topic, p) for p in partitions], timeout_s)
        except KafkaException as error:
            raise CommitRefused(str(error.args[0])) from error
        for answer in answers:
            if answer.error is not None:
                raise CommitRefused(f"{answer.topic} [{answer.partition}]: {answer.error}")
        return {a.partition: GroupPosition(a.offset if a.offset >= 0 else None, a.metadata or "") for a in answers}

    def close(self) -> None:
        # Leaving a group has been seen to hang, on an overloaded machine. Whoever stops must come to an end: the group finds out by the
        # session timeout that we are gone.
        helper = Helper("duewheel-closing")
        closed = helper.start(self.consumer.close)
        helper.stop()
        try:
            closed.result(CLOSE_TIMEOUT_S)
        except TimeoutError:
            log.warning("reader.close_abandoned", topic=self._topic, group=self._group, timeout_s=CLOSE_TIMEOUT_S)
