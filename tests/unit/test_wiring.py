"""What is assembled is taken apart again where it cannot be completed."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from duewheel import wiring
from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.rocks.folder import StateFolder
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.topology import Topology


def _threads() -> int:
    """How many threads this process has, librdkafka's among them."""
    gc.collect()
    return len(list(Path("/proc/self/task").iterdir()))


def _unavailable(cluster: KafkaCluster, topic: str) -> int:
    raise BrokerUnavailable(topic)


def test_a_processor_that_cannot_be_made_leaves_no_thread_and_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaCluster, "identity", lambda cluster, topic: "id")
    monkeypatch.setattr(KafkaCluster, "partition_count", _unavailable)
    topology, before = Topology("t"), _threads()
    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            wiring.timer_processor(KafkaConfig("127.0.0.1:1"), topology, tmp_path, broker_timeout_s=1)
    deadline = time.monotonic() + 10
    while _threads() > before:
        assert time.monotonic() < deadline, "threads are left behind"
        time.sleep(0.05)
    StateFolder(tmp_path / topology.prefix).close()
