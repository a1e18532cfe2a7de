"""Clients that know nothing of Duewheel, as other teams use them: each publishes records and says where they landed.

publish_with_librdkafka(kafka, topic, [(b"job-7", value)])                          CRC32, as kcat does by default
publish_with_librdkafka(kafka, topic, [(b"job-7", value)], partitioner="murmur2_random")
publish_with_java(kafka, topic, [(b"job-7", value)])                                Kafka's own, murmur2
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.devbroker import Distribution
from duewheel.ports import Receipt

KeyValue = tuple[bytes, bytes]

FOLDER: Final = Path(__file__).parent.parent / ".duewheel"
TIMEOUT_S: Final = 60.0


def publish_with_librdkafka(
    kafka: KafkaConfig, topic: str, records: Sequence[KeyValue], partitioner: str = "consistent_random"
) -> list[Receipt]:
    """Publishes with librdkafka's own settings, but for the partitioner."""
    receipts: dict[int, Receipt] = {}

    def report(place: int, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        receipts[place] = Receipt(partition, offset)

    producer = Producer({**kafka.common(), "partitioner": partitioner})
    for place, (key, value) in enumerate(records):
        producer.produce(topic, value, key, on_delivery=functools.partial(report, place))
    assert producer.flush(TIMEOUT_S) == 0
    return [receipts[place] for place in range(len(records))]


def publish_with_java(kafka: KafkaConfig, topic: str, records: Sequence[KeyValue]) -> list[Receipt]:
    """Publishes with Kafka's Java producer and its default settings, in a process of its own: a JVM cannot be unloaded."""
    distribution = Distribution.find(FOLDER)
    home = distribution.java.resolve().parent.parent
    libjvm = next(path for path in sorted((home / "lib" / "server").iterdir()) if path.name.startswith("libjvm."))
    ran = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("java_producer.py")),
            str(distribution.libs),
            str(libjvm),
            kafka.bootstrap_servers,
            topic,
        ],
        input="".join(f"{key.hex()} {value.hex()}\n" for key, value in records),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [Receipt(*map(int, line.split())) for line in ran.stdout.splitlines()]
