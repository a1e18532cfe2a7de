"""Fixtures that many tests share. Nothing starts before a test asks for it.

`broker` is a real Kafka for the whole run; DUEWHEEL_TEST_BOOTSTRAP_SERVERS names one that runs already. `installation` is what most
tests want: topics of their own on it, under a prefix that nobody else uses. `cluster3` is for tests that break brokers. `postgres` is a
real PostgreSQL.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:  # a unit test need not wait for the Kafka client to load
    from duewheel.adapters.kafka.settings import KafkaConfig
    from duewheel.core.topology import Topology
    from duewheel.devbroker import DevCluster
    from tests.postgres import Postgres

# How fast inputs are made, and how long one takes, says more of what else the machine does than of the test.
settings.register_profile("duewheel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("duewheel")

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server, shared by the whole run: `postgres.database()` is one's own."""
    from tests.postgres import Postgres

    with Postgres() as server:
        yield server


def pytest_sessionstart() -> None:
    """A shell starts what runs in the background with Ctrl-C ignored, and children inherit that. Those of the tests shall hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of three brokers run in one process, so that no other needs three of its own; and in any case before those that are short."""
    for item in items:
        if "cluster3" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("cluster3"))


class Installation(NamedTuple):
    """An installation of Duewheel of one's own: 4 timer partitions, queue "default" with 4."""

    kafka: KafkaConfig
    topology: Topology


@pytest.fixture
def installation(broker: KafkaConfig) -> Iterator[Installation]:
    """Topics under a prefix that nobody else uses, on the shared broker; removed afterwards."""
    from confluent_kafka.admin import AdminClient

    from duewheel.adapters.kafka.topics import ensure
    from duewheel.core.topology import Topology

    topology = Topology(f"t{uuid.uuid4().hex[:12]}")
    ensure(broker, topology, {"default": 4}, partitions=4)
    yield Installation(broker, topology)
    admin = AdminClient(broker.common())
    own = [name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{topology.prefix}.")]
    for removed in admin.delete_topics(own, operation_timeout=0, request_timeout=10).values():
        removed.result(15)
