"""Where logs end, asked of a cluster while one of its brokers dies."""

from __future__ import annotations

import time
import uuid

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.topology import Topology
from duewheel.devbroker import DevCluster

PARTITIONS = 6
# A dead broker's partitions have other leaders after 4 s.
ASKED_S = 6.0
PAUSE_S = 0.02


def test_an_end_is_an_offset_or_the_cluster_is_unavailable(cluster3: DevCluster) -> None:
    topology = Topology(f"t{uuid.uuid4().hex[:12]}")
    kafka = KafkaConfig(cluster3.bootstrap_servers)
    ensure(kafka, topology, {"default": PARTITIONS}, PARTITIONS)
    cluster3.await_in_sync()
    cluster, partitions = KafkaCluster(kafka), range(PARTITIONS)
    empty = dict.fromkeys(partitions, (0, 0))
    assert cluster.watermarks(topology.state, partitions) == empty

    broker = cluster3.brokers[0]
    broker.kill()
    answers, refusals, deadline = [], 0, time.monotonic() + ASKED_S
    try:
        while time.monotonic() < deadline:
            try:
                answers.append(cluster.watermarks(topology.state, partitions))
            except BrokerUnavailable:
                refusals += 1
            time.sleep(PAUSE_S)
    finally:
        broker.start()
        broker.await_ready()
        cluster3.await_in_sync()
    assert refusals, "a third of the partitions had no leader, and nobody was told"
    assert [answer for answer in answers if answer != empty] == []
