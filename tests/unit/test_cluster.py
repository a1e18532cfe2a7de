"""What the cluster's answers mean. Real answers of a real cluster are in tests/integration."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

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


class OffsetsAdmin:
    """Answers every question for an offset, as librdkafka does while the leader of one partition is away: with success."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self._offsets = offsets

    def list_offsets(self, wanted: Mapping[TopicPartition, object], **settings: object) -> dict[TopicPartition, Future[Any]]:
        answers: dict[TopicPartition, Future[Any]] = {}
        for at in wanted:
            answers[at] = Future()
            answers[at].set_result(SimpleNamespace(offset=self._offsets[at.partition]))
        return answers

    def list_topics(self, topic: str, timeout: float) -> None: ...

    def poll(self, timeout: float) -> None: ...


def test_where_logs_end_is_told_by_partition(cluster: KafkaCluster) -> None:
    cluster._admin = OffsetsAdmin({0: 7, 1: 0})  # type: ignore[assignment]
    assert cluster.watermarks("t", [0, 1]) == {0: (7, 7), 1: (0, 0)}


@pytest.mark.parametrize("ask", [KafkaCluster.watermarks, KafkaCluster.visible])
def test_no_offset_is_no_answer(cluster: KafkaCluster, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duewheel.adapters.kafka.cluster._TIMEOUT_S", 0.1)
    cluster._admin = OffsetsAdmin({0: 7, 1: OFFSET_INVALID})  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable, match=r"no leader of t \[1\] answers"):
        ask(cluster, "t", [0, 1])


class FailingAdmin(OffsetsAdmin):
    """Answers with an error, until somebody asks for the topic's metadata."""

    def __init__(self, offsets: Mapping[int, int], code: int) -> None:
        super().__init__(offsets)
        self._code = code
        self.was_asked_for_metadata = False

    def list_offsets(self, wanted: Mapping[TopicPartition, object], **settings: object) -> dict[TopicPartition, Future[Any]]:
        answers = super().list_offsets(wanted, **settings)
        if not self.was_asked_for_metadata:
            for at in answers:
                answers[at] = Future()
                answers[at].set_exception(KafkaException(KafkaError(self._code)))
        return answers

    def list_topics(self, topic: str, timeout: float) -> None:
        self.was_asked_for_metadata = True


def test_where_logs_end_is_asked_of_who_leads_now(cluster: KafkaCluster) -> None:
    cluster._admin = FailingAdmin({0: 7}, KafkaError.FENCED_LEADER_EPOCH)  # type: ignore[assignment]
    assert cluster.watermarks("t", [0]) == {0: (7, 7)}


def test_an_error_that_will_stay_is_told_at_once(cluster: KafkaCluster) -> None:
    admin = FailingAdmin({0: 7}, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    cluster._admin = admin  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable, match="authorization failed"):
        cluster.watermarks("t", [0])
    assert not admin.was_asked_for_metadata, "asked once more"
