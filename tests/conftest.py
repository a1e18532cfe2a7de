"""Fixtures that many tests share. Nothing starts before a test asks for it.

`broker` is a real Kafka for the whole run; DUEWHEEL_TEST_BOOTSTRAP_SERVERS names one that runs already. `installation` is what most
tests want: topics of their own on it, under a prefix that nobody else uses. `cluster3` is for tests that break brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # a unit test need not wait for the Kafka client to load
    from duewheel.adapters.kafka.settings import KafkaConfig
    from duewheel.devbroker import DevCluster

FOLDER = Path(__file__).parent.parent / ".duewheel"


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaConfig]:
    """One broker, shared by the whole run: topics of others exist on it."""
    from duewheel.adapters.kafka.settings import KafkaConfig

    running = os.environ.get("DUEWHEEL_TEST_BOOTSTRAP_SERVERS")
    if running:
        yield KafkaConfig(running)
        return
    from duewheel.devbroker import DevCluster

    with DevCluster(FOLDER) as cluster:
        yield KafkaConfig(cluster.bootstrap_servers)


@pytest.fixture(scope="session")
def cluster3() -> Iterator[DevCluster]:
    """Three brokers, replication 3. A test that breaks one mends it: `start` and `await_ready`, or `resume`."""
    from duewheel.devbroker import DevCluster

    with DevCluster(FOLDER, brokers=3) as cluster:
        yield cluster
