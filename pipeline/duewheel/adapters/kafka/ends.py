"""Where logs begin and end, asked so that a question without an answer is not taken for one.

While a partition has no leader that answers, librdkafka's `list_offsets` succeeds and gives -1001 for it, its mark for "no offset" (one
answer in thirty while brokers are killed, with 2.16). Taken for a log's end it says that the log is empty: an owner would restore nothing
and go on, a worker would believe its topic to be new, and start again what was started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec


def offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
) -> dict[tuple[str, int], int]:
    """The offset of each partition. Of a time after the last record it is -1.

    Raises:
        KafkaException: the leader of one of them did not answer.
        TimeoutError: nobody did.
    """
    futures: Mapping[TopicPartition, Any] = admin.list_offsets(dict(wanted), isolation_level=isolation, request_timeout=timeout_s)
    found: dict[tuple[str, int], int] = {}
    for at, future in futures.items():
        offset = future.result(timeout_s + 1).offset
        if offset == OFFSET_INVALID:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"no leader of {at.topic} [{at.partition}] answers"))
        found[at.topic, at.partition] = offset
    return found
