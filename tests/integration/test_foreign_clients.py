"""Jobs of clients that are not ours lie where they should, or where everybody knows that they may lie."""

from __future__ import annotations

import random
import zlib

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.partitioner import partition_of
from duewheel.client.commands import Job, schedule_command
from tests.conftest import Installation
from tests.foreign import KeyValue, publish_with_java, publish_with_librdkafka
from tests.intake import stored


def records(count: int) -> list[KeyValue]:
    pick = random.Random(11)
    commands = []
    for n in range(count):
        job_id = f"{pick.choice(['job', 'jöb', '任务', 'x' * pick.randrange(1, 80)])}-{n}"
        command = schedule_command(Job("t", n, job_id=job_id), 1_900_000_000_000, str)
        commands.append((job_id.encode(), codec.encode_schedule(command)))
    return commands


def test_the_java_producer_puts_every_key_where_its_owner_looks(installation: Installation) -> None:
    sent = records(500)
    receipts = publish_with_java(installation.kafka, installation.topology.intake, sent)
    assert [receipt.partition for receipt in receipts] == [partition_of(key, 4) for key, _ in sent]
    assert stored(installation.kafka, installation.topology.intake, receipts) == sent


def test_librdkafka_with_murmur2_does_too(installation: Installation) -> None:
    sent = records(500)
    receipts = publish_with_librdkafka(installation.kafka, installation.topology.intake, sent, "murmur2_random")
    assert [receipt.partition for receipt in receipts] == [partition_of(key, 4) for key, _ in sent]
    assert stored(installation.kafka, installation.topology.intake, receipts) == sent


def test_librdkafka_by_default_hashes_otherwise(installation: Installation) -> None:
    """What the processor's forwarding is for. If this ever fails, kcat and its kind have learnt murmur2."""
    sent = records(500)
    receipts = publish_with_librdkafka(installation.kafka, installation.topology.intake, sent)
    assert [receipt.partition for receipt in receipts] == [zlib.crc32(key) % 4 for key, _ in sent]
    astray = sum(receipt.partition != partition_of(key, 4) for receipt, (key, _) in zip(receipts, sent, strict=True))
    assert 300 < astray < 450
    assert stored(installation.kafka, installation.topology.intake, receipts) == sent
