"""Reads what the state topic tells of one job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.partitioner import partition_of
from duewheel.adapters.kafka.scan import Scan
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.past import Past, Written
from duewheel.core.topology import Topology


def read_past(kafka: KafkaConfig, topology: Topology, past: Past, patience_s: float, on_progress: Callable[[int, int], None]) -> int:
    """Folds the records of a job's partition into `past`, up to where the topic ends now.

    Args:
        patience_s: for how long the cluster may be away before that is an error.
        on_progress: told how many records were passed, of how many.

    Returns:
        The partition.

    Raises:
        TopicMissing: there is no state topic.
        BrokerUnavailable: it could not be read.
    """
    partition = partition_of(past.job_id.encode(), KafkaCluster(kafka).partition_count(topology.state))
    with closing(Scan(kafka, topology.state, patience_s, {partition: 0})) as scan:
        for records in scan.to_end():
            for record in records:
                past.take(record.key() or b"", Written(record.offset(), record.timestamp()[1], record.value()))
            on_progress(scan.done, scan.count)
    return partition
