"""Where logs end, asked of a cluster while one of its brokers is dead."""

from __future__ import annotations

import time
import uuid

import pytest

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.topology import Topology
from duewheel.devbroker import DevCluster

PARTITIONS = 6
# A dead broker's partitions have other leaders after 4 s; the machine may be busy.
ASKED_S = 30.0
ENOUGH = 5


def test_an_end_is_an_offset_or_the_cluster_is_unavailable_until_there_is_another_leader(
    cluster3: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = Topology(f"t{uuid.uuid4().hex[:12]}")
    kafka = KafkaConfig(cluster3.bootstrap_servers)
    ensure(kafka, topology, {"default": PARTITIONS}, PARTITIONS)
    cluster3.await_in_sync()
    cluster, partitions = KafkaCluster(kafka), range(PARTITIONS)
    empty = dict.fromkeys(partitions, (0, 0))
    assert cluster.watermarks(topology.state, partitions) == empty

    monkeypatch.setattr("duewheel.adapters.kafka.cluster._TIMEOUT_S", 1.0)
    broker = cluster3.brokers[0]
    broker.kill()
    answers: list[dict[int, tuple[int, int]]] = []
    refusals, killed = 0, time.monotonic()
    try:
        while time.monotonic() - killed < ASKED_S and len(answers) < ENOUGH:
            try:
                answers.append(cluster.watermarks(topology.state, partitions))
            except BrokerUnavailable:
                refusals += 1
    finally:
        broker.start()
        broker.await_ready()
        cluster3.await_in_sync()
    assert refusals, "a third of the partitions had no leader, and nobody was told"
    assert answers == [empty] * ENOUGH, "the broker was still dead, and others led its partitions"
