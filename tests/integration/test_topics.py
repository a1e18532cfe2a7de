"""`duewheel topics` on a real cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import Alter, Create, Refusal, TopicAdmin, ensure
from duewheel.core.claims import Claim, decode
from duewheel.core.errors import BadConfiguration, BrokerUnavailable
from duewheel.core.limits import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.topology import Topology


@pytest.fixture
def topology(broker: KafkaConfig) -> Iterator[Topology]:
    topology = Topology(f"t{uuid.uuid4().hex[:12]}")
    yield topology
    admin = AdminClient(broker.common())
    own = [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{topology.prefix}.")]
    for removed in admin.delete_topics(own, operation_timeout=0, request_timeout=10).values():
        removed.result(15)


def committed(kafka: KafkaConfig, group: str, topic: str, partitions: int) -> list[TopicPartition]:
    consumer = Consumer({**kafka.reader(), "group.id": group})
    found = consumer.committed([TopicPartition(topic, partition) for partition in range(partitions)], timeout=10)
    consumer.close()
    return list(found)


def set_config(kafka: KafkaConfig, topic: str, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(kafka.common())
    admin.incremental_alter_configs([resource])[resource].result(10)
    deadline = time.monotonic() + 30
    asked = ConfigResource(ResourceType.TOPIC, topic)
    while admin.describe_configs([asked])[asked].result(10)[setting].value != value:  # the controller knows it before the broker
        assert time.monotonic() < deadline, f"{topic}: {setting} does not become {value}"


def test_applying_twice_changes_nothing_the_second_time(broker: KafkaConfig, topology: Topology) -> None:
    first = ensure(broker, topology, {"default": 2}, partitions=3)
    assert [type(change) for change in first] == [Create] * 6
    assert ensure(broker, topology, {"default": 2}, partitions=3) == []
    actual, _brokers = TopicAdmin(broker, topology).actual()
    counts = {name: found.partitions for name, found in actual.items()}
    assert counts == {
        topology.intake: 3,
        topology.state: 3,
        topology.outcomes: 3,
        topology.dispatch("default"): 2,
        topology.dead_letter: 1,
        topology.control: 1,
    }


def test_what_exists_is_the_default_and_existing_queues_are_compared(broker: KafkaConfig, topology: Topology) -> None:
    ensure(broker, topology, {"default": 2}, partitions=3)
    set_config(broker, topology.dispatch("default"), "retention.ms", "60000")
    changes = TopicAdmin(broker, topology).plan({"mail": None})
    assert [(type(change), str(change).split(":")[0]) for change in changes] == [
        (Create, topology.dispatch("mail")),
        (Alter, topology.dispatch("default")),
    ]
    assert isinstance(changes[0], Create)
    assert changes[0].declared.partitions == 3


def test_drift_is_shown_and_mended(broker: KafkaConfig, topology: Topology) -> None:
    ensure(broker, topology, {"default": 2}, partitions=3)
    set_config(broker, topology.state, "cleanup.policy", "delete")
    set_config(broker, topology.intake, "max.message.bytes", "1000")
    drift = [
        Alter(topology.intake, "max.message.bytes", "1000", str(RECORD_BYTES_MAX)),
        Alter(topology.state, "cleanup.policy", "delete", "compact"),
    ]
    assert ensure(broker, topology, {"default": 2}, partitions=3) == drift
    deadline = time.monotonic() + 30
    while (left := TopicAdmin(broker, topology).plan({"default": 2}, partitions=3)) != []:  # the controller knows it before the broker
        assert time.monotonic() < deadline, left


def test_another_partition_count_is_refused_and_nothing_else_is_touched(broker: KafkaConfig, topology: Topology) -> None:
    ensure(broker, topology, {"default": 2}, partitions=3)
    set_config(broker, topology.intake, "retention.ms", "60000")
    admin = TopicAdmin(broker, topology)
    changes = admin.plan({"default": 2, "mail": 2}, partitions=4)
    assert [change for change in changes if isinstance(change, Refusal)] == [
        Refusal(topology.intake, 3, 4),
        Refusal(topology.state, 3, 4),
        Refusal(topology.outcomes, 3, 4),
    ]
    with pytest.raises(BadConfiguration, match=f"{topology.intake} has 3 partitions, and 4 are declared"):
        admin.apply(changes)
    actual, _brokers = admin.actual()
    assert actual[topology.intake].config["retention.ms"] == "60000"
    assert topology.dispatch("mail") not in actual


def test_a_new_dispatch_topic_is_marked_as_claimed_by_nobody(broker: KafkaConfig, topology: Topology) -> None:
    ensure(broker, topology, {"default": 2}, partitions=3)
    positions = committed(broker, topology.worker_group("default"), topology.dispatch("default"), 2)
    assert [(p.offset, decode(p.metadata, p.offset)) for p in positions] == [(0, Claim("", 0))] * 2


def test_a_group_that_has_an_offset_keeps_it(broker: KafkaConfig, topology: Topology) -> None:
    topic, group = topology.dispatch("default"), topology.worker_group("default")
    late = TopicAdmin(broker, topology)
    changes = late.plan({"default": 2}, partitions=3)
    ensure(broker, topology, {"default": 2}, partitions=3)
    consumer = Consumer(broker.member(group))
    consumer.commit(offsets=[TopicPartition(topic, 1, 7, "theirs")], asynchronous=False)
    consumer.close()
    late.apply(changes)
    assert [(p.offset, p.metadata) for p in committed(broker, group, topic, 2)][1] == (7, "theirs")


def test_a_group_at_work_is_left_to_itself(broker: KafkaConfig, topology: Topology) -> None:
    topic, group = topology.dispatch("default"), topology.worker_group("default")
    late = TopicAdmin(broker, topology)
    changes = late.plan({"default": 2}, partitions=3)
    admin = AdminClient(broker.common())
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(10)
    consumer = Consumer(broker.member(group))
    consumer.subscribe([topic])
    deadline = time.monotonic() + 20
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    late.apply(changes)
    assert {p.offset for p in committed(broker, group, topic, 2)} == {OFFSET_INVALID}
    consumer.close()


def test_two_at_once_make_the_same(broker: KafkaConfig, topology: Topology) -> None:
    one, other = TopicAdmin(broker, topology), TopicAdmin(broker, topology)
    changes = one.plan({"default": 2}, partitions=3)
    other.apply(other.plan({"default": 2}, partitions=3))
    one.apply(changes)
    assert one.plan({"default": 2}, partitions=3) == []


def test_the_largest_records_fit(broker: KafkaConfig, topology: Topology) -> None:
    ensure(broker, topology, {"default": 2}, partitions=3)
    overhead_bytes = 8_192  # of the record and its batch; the limits leave room for it
    producer = Producer({**broker.common(), "message.max.bytes": 2 * DEAD_LETTER_BYTES_MAX, "compression.type": "none"})
    failures: list[object] = []
    for topic, limit in ((topology.intake, RECORD_BYTES_MAX), (topology.dead_letter, DEAD_LETTER_BYTES_MAX)):
        producer.produce(topic, bytes(limit - overhead_bytes), on_delivery=lambda error, _record: failures.append(error))
    assert producer.flush(20) == 0
    assert failures == [None, None]


def test_retention_counts_from_arrival_whatever_the_producers_clock_says(broker: KafkaConfig, topology: Topology) -> None:
    ensure(broker, topology, {"default": 2}, partitions=3)
    written: list[object] = []
    producer = Producer(broker.common())
    for timestamp_ms in (1, 7_000_000_000_000):
        producer.produce(topology.intake, b"x", timestamp=timestamp_ms, on_delivery=lambda error, _record: written.append(error))
        assert producer.flush(20) == 0
    assert written == [None, None]


def test_a_cluster_that_is_away_is_named() -> None:
    admin = TopicAdmin(KafkaConfig("127.0.0.1:1", {"log_level": 0}), Topology("away"), timeout_s=0.5)
    with pytest.raises(BrokerUnavailable, match=r"no Kafka broker answered at 127\.0\.0\.1:1 within 0\.5 s"):
        admin.plan({"default": 2})
