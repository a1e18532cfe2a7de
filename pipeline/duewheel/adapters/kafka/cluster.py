"""Questions to the cluster: what exists, where logs begin and end, who owns what."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from duewheel.adapters.kafka.ends import offsets
from duewheel.adapters.kafka.positions import committed
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.transactions import fence_producer
from duewheel.core.errors import BrokerUnavailable, TopicMissing
from duewheel.core.topology import making
from duewheel.ports import GroupPosition

_TIMEOUT_S: Final = 5.0
_TRY_S: Final = 1.0
_PAUSE_S: Final = 0.05
_NO_ANSWER: Final = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)


class KafkaCluster:
    """`ports.Cluster` on Kafka."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._complaint = ""
        # Asking for a topic must not make it, as it would on many clusters.
        settings: dict[str, Any] = {"allow.auto.create.topics": False, **kafka.common(), "error_cb": self._note}
        self._admin = AdminClient(settings)

    def partition_count(self, topic: str) -> int:
        try:
            found = self._metadata(topic).topics[topic]
        except KafkaException as error:
            raise self._unavailable(error) from error
        if found.error is None:
            return len(found.partitions)
        where = self._kafka.bootstrap_servers
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {topic} does not exist at {where}; make it with: {making(topic)}")
        # No leader yet, not allowed to look, …: it may well exist.
        raise BrokerUnavailable(f"the Kafka cluster at {where} cannot tell of topic {topic}: {found.error.str()}")

    def partition_counts(self) -> dict[str, int]:
        try:
            topics = self._metadata().topics
        except KafkaException as error:
            raise self._unavailable(error) from error
        return {name: len(found.partitions) for name, found in topics.items() if found.partitions}

    def identity(self, topic: str) -> str:
        """Names this very topic: two topics of one name, the first deleted, differ.

        Raises:
            TopicMissing: it does not exist.
            BrokerUnavailable: nobody answered.
        """
        self.partition_count(topic)
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)[topic]
        return f"{self._answer(described).topic_id}"

    def watermarks(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        # Counting what is uncommitted: a transaction that is still open may yet be committed below the end.
        return self._ends(topic, partitions, IsolationLevel.READ_UNCOMMITTED)

    def visible(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return self._ends(topic, partitions, IsolationLevel.READ_COMMITTED)

    def owners(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, GroupPosition]:
        try:
            answers = committed(self._kafka, group, [TopicPartition(topic, p) for p in partitions], _TIMEOUT_S)
        except KafkaException as error:
            raise self._unavailable(error) from error
        found = {}
        for answer in answers:
            if answer.error is not None:
                raise self._unavailable(answer.error)
            found[answer.partition] = GroupPosition(answer.offset if answer.offset >= 0 else None, answer.metadata or "")
        return found

    def members(self, group: str) -> dict[str, frozenset[int]]:
        """The partitions that each member of a group holds, by the member's client.id; empty while the group changes hands.

        For groups that read one topic, whose members have each a client.id of their own.

        Raises:
            BrokerUnavailable: nobody answered.
        """
        future = self._admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group]
        try:
            described = future.result(_TIMEOUT_S + 1)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise self._unavailable(error) from error
        if described.state is not ConsumerGroupState.STABLE:
            return {}
        return {member.client_id: frozenset(p.partition for p in member.assignment.topic_partitions) for member in described.members}

    def fence(self, name: str) -> None:
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda index: fence_producer(self._kafka, name, index), (0, 1)))
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _metadata(self, *topic: str) -> Any:
        """In short tries: librdkafka chooses a broker for each, and waits in vain for one that has just died."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return self._admin.list_topics(*topic, timeout=_TRY_S)
            except KafkaException as error:
                if error.args[0].code() not in _NO_ANSWER or time.monotonic() + _TRY_S > deadline:
                    raise
                time.sleep(_PAUSE_S)  # some of them fail at once

    def _ends(self, topic: str, partitions: Sequence[int], isolation: IsolationLevel) -> dict[int, tuple[int, int]]:
        first = self._offsets(topic, partitions, OffsetSpec.earliest(), isolation)
        end = self._offsets(topic, partitions, OffsetSpec.latest(), isolation)
        return {p: (first[p], end[p]) for p in partitions}

    def _offsets(self, topic: str, partitions: Sequence[int], spec: OffsetSpec, isolation: IsolationLevel) -> dict[int, int]:
        try:
            found = offsets(self._admin, {TopicPartition(topic, p): spec for p in partitions}, isolation, _TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        return {partition: offset for (_, partition), offset in found.items()}

    def _answer(self, future: Any) -> Any:
        try:
            return future.result(_TIMEOUT_S + 1)
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: object) -> BrokerUnavailable:
        self._admin.poll(0)  # serves error callbacks
        why = self._complaint or str(error)
        return BrokerUnavailable(f"the Kafka cluster at {self._kafka.bootstrap_servers} did not answer: {why}")

    def _note(self, error: KafkaError) -> None:
        """The client's own reason ("connection refused") says more than that a request timed out."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._complaint = error.str()
