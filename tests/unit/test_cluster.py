"""What the cluster's answers mean. Real answers of a real cluster are in tests/integration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import BrokerUnavailable, DuewheelError, TopicMissing


class Admin:
    """Answers with one topic's metadata."""

    def __init__(self, error: KafkaError | None, partitions: int) -> None:
        self._topic = SimpleNamespace(error=error, partitions=dict.fromkeys(range(partitions)))

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: self._topic})


@pytest.fixture
def cluster() -> KafkaCluster:
    return KafkaCluster(KafkaConfig("127.0.0.1:1"))


def test_a_topic_that_is_there_has_its_partitions(cluster: KafkaCluster) -> None:
    cluster._admin = Admin(None, 4)  # type: ignore[assignment]
    assert cluster.partition_count("t") == 4


@pytest.mark.parametrize(
    "code, fault, said",
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing, "topic t does not exist at 127.0.0.1:1; .* duewheel topics apply"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerUnavailable, "127.0.0.1:1 .*topic t: .*authorization failed"),
        (KafkaError.LEADER_NOT_AVAILABLE, BrokerUnavailable, "topic t: .*Leader not available"),
        (KafkaError.UNKNOWN, BrokerUnavailable, "topic t: "),
    ],
)
def test_only_an_unknown_topic_is_missing(cluster: KafkaCluster, code: int, fault: type[DuewheelError], said: str) -> None:
    cluster._admin = Admin(KafkaError(code), 0)  # type: ignore[assignment]
    with pytest.raises(fault, match=said) as caught:
        cluster.partition_count("t")
    assert type(caught.value) is fault
