"""Asking for a group's committed offsets from outside, in the moments when it is hardest."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from duewheel.adapters.kafka.positions import committed
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.devbroker import DevCluster
from tests.conftest import FOLDER, Installation

SOURCE = Path(__file__).parent.parent.parent / "pipeline"


def test_a_new_cluster_answers_though_it_has_no_coordinator_yet() -> None:
    """About every third new cluster says NOT_COORDINATOR first, which is what used to end the process."""
    with DevCluster(FOLDER) as cluster:
        kafka = KafkaConfig(cluster.bootstrap_servers)
        [answer] = committed(kafka, "unknown", [TopicPartition("no-such-topic", 0)], 20)
        assert (answer.offset < 0, answer.error) == (True, None)


def test_nothing_asks_in_the_way_that_ends_the_process() -> None:
    callers = [path.name for path in SOURCE.rglob("*.py") if ".list_consumer_group_offsets(" in path.read_text()]
    assert callers == []


def test_offset_and_metadata_come_back(installation: Installation) -> None:
    kafka, topic, group = installation.kafka, installation.topology.intake, uuid.uuid4().hex
    consumer = Consumer(kafka.reader(**{"group.id": group}))
    consumer.commit(offsets=[TopicPartition(topic, 1, 7, metadata="mine")], asynchronous=False)
    consumer.close()
    none, some = committed(kafka, group, [TopicPartition(topic, 0), TopicPartition(topic, 1)], 10)
    assert none.offset < 0
    assert (some.offset, some.metadata) == (7, "mine")


def test_an_open_transaction_keeps_nobody_waiting(installation: Installation) -> None:
    kafka, topic, group = installation.kafka, installation.topology.intake, uuid.uuid4().hex
    consumer = Consumer(kafka.reader(**{"group.id": group}))
    consumer.commit(offsets=[TopicPartition(topic, 0, 5, metadata="before")], asynchronous=False)
    producer = Producer(kafka.transactional(group))
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 9, metadata="pending")], consumer.consumer_group_metadata(), 20)
    with pytest.raises(KafkaException):  # a reader of committed records waits, and that is right for it
        consumer.committed([TopicPartition(topic, 0)], timeout=1)

    start = time.monotonic()
    [answer] = committed(kafka, group, [TopicPartition(topic, 0)], 10)
    assert (answer.offset, answer.metadata) == (5, "before")
    assert time.monotonic() - start < 5
    producer.commit_transaction(20)
    [answer] = committed(kafka, group, [TopicPartition(topic, 0)], 10)
    assert (answer.offset, answer.metadata) == (9, "pending")
    consumer.close()


def test_nobody_there_is_an_error_in_time() -> None:
    start = time.monotonic()
    with pytest.raises(KafkaException):
        committed(KafkaConfig("127.0.0.1:1", {"log_level": 0}), "g", [TopicPartition("t", 0)], 1)
    assert time.monotonic() - start < 5
