"""What lies on the intake topic."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.ports import Receipt


def stored(kafka: KafkaConfig, topic: str, receipts: Sequence[Receipt]) -> list[tuple[bytes, bytes]]:
    """The (key, value) at each receipt, in their order."""
    wanted = set(receipts)
    found: dict[Receipt, tuple[bytes, bytes]] = {}
    consumer = Consumer(kafka.reader())
    consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted({receipt.partition for receipt in receipts})])
    deadline = time.monotonic() + 20
    while len(found) < len(wanted) and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.2):
            assert not message.error(), message.error()
            partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
            assert partition is not None
            assert offset is not None
            if (receipt := Receipt(partition, offset)) in wanted:
                found[receipt] = (bytes(key or b""), bytes(value or b""))
    consumer.close()
    return [found[receipt] for receipt in receipts]


def size(kafka: KafkaConfig, topic: str, partitions: int) -> int:
    """How many records the topic holds."""
    consumer = Consumer(kafka.reader())
    total = 0
    for partition in range(partitions):
        low, high = _watermarks(consumer, TopicPartition(topic, partition))
        total += high - low
    consumer.close()
    return total


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    deadline = time.monotonic() + 20
    while True:
        try:
            return consumer.get_watermark_offsets(partition, 5)
        except KafkaException:  # a topic that was made a moment ago has no leader yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
