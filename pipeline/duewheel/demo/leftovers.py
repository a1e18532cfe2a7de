"""Takes an installation off a cluster that lives on: its topics and its groups."""

from __future__ import annotations

import contextlib
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.topology import Topology

_TIMEOUT_S: Final = 5.0


def remove_installation(kafka: KafkaConfig, topology: Topology, queue: str) -> None:
    """Deletes everything whose name begins with the installation's prefix.

    What is gone already, or refused, is passed over, and so is a cluster that does not answer: whoever tidies up after a failure must not
    hide it behind another.
    """
    admin = AdminClient({**kafka.common(), "log_level": 0})
    try:
        topics = [name for name in admin.list_topics(timeout=_TIMEOUT_S).topics if name.startswith(f"{topology.prefix}.")]
    except KafkaException:
        return
    groups = [topology.processor_group, topology.worker_group(queue)]
    futures = [
        *admin.delete_consumer_groups(groups, request_timeout=_TIMEOUT_S).values(),
        *(admin.delete_topics(topics, operation_timeout=0, request_timeout=_TIMEOUT_S).values() if topics else ()),
    ]
    for future in futures:
        with contextlib.suppress(KafkaException, TimeoutError):
            future.result(_TIMEOUT_S + 1)
