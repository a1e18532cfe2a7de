"""Where logs begin and end, asked so that a question without an answer is not taken for one, and goes to who leads now.

While a partition has no leader that answers, librdkafka's `list_offsets` succeeds and gives -1001 for it, its mark for "no offset" (one
answer in thirty while brokers are killed, with 2.16). Taken for a log's end it says that the log is empty: an owner would restore nothing
and go on, a worker would believe its topic to be new, and start again what was started.

Nor does it look for the new leader by itself. It goes by what the client heard last, waits for a broker that is dead, and answers
FENCED_LEADER_EPOCH for as long as nobody asks for the topic's metadata (measured: until the test ended, 20 s after the election). So each
try is short, and after one that failed the metadata is asked for: an end is known within half a second of the election.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_TRY_S: Final = 0.5
_TRY_MAX_S: Final = 1.0
_PAUSE_S: Final = 0.05
# The leader has changed, or is about to.
_MOVING: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }
)


def offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
) -> dict[tuple[str, int], int]:
    """The offset of each partition. Of a time after the last record it is -1.

    Raises:
        KafkaException: the leader of one of them did not answer.
        TimeoutError: nobody did.
    """
    deadline, try_s = time.monotonic() + timeout_s, _TRY_S
    while True:
        left_s = deadline - time.monotonic()
        try:
            return _ask(admin, wanted, isolation, min(try_s, max(left_s, _PAUSE_S)))
        except (KafkaException, TimeoutError) as error:
            if left_s <= try_s or (isinstance(error, KafkaException) and error.args[0].code() not in _MOVING):
                raise
        time.sleep(_PAUSE_S)
        for topic in {at.topic for at in wanted}:
            with contextlib.suppress(KafkaException):
                admin.list_topics(topic, timeout=try_s)
        try_s = min(2 * try_s, _TRY_MAX_S)


def _ask(
    admin: AdminClient, wanted: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
) -> dict[tuple[str, int], int]:
    futures: Mapping[TopicPartition, Any] = admin.list_offsets(dict(wanted), isolation_level=isolation, request_timeout=timeout_s)
    found: dict[tuple[str, int], int] = {}
    for at, future in futures.items():
        offset = future.result(timeout_s + 1).offset
        if offset == OFFSET_INVALID:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"no leader of {at.topic} [{at.partition}] answers"))
        found[at.topic, at.partition] = offset
    return found
