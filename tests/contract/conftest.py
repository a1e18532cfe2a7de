"""Each contract test runs twice: in memory, and against the real thing.

The real cluster is the one broker that all tests share; with DUEWHEEL_CONTRACT_BROKERS=3 it is three, with replication 3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.contract.grounds import Grounds, InMemory, OnKafka


@pytest.fixture(params=["memory", "kafka"])
def grounds(request: pytest.FixtureRequest) -> Iterator[Grounds]:
    """Adapters of one kind, on topics of their own."""
    made: Grounds
    if request.param == "memory":
        made = InMemory()
    elif os.environ.get("DUEWHEEL_CONTRACT_BROKERS") == "3":
        from duewheel.adapters.kafka.settings import KafkaConfig

        made = OnKafka(KafkaConfig(request.getfixturevalue("cluster3").bootstrap_servers), replication=3)
    else:
        made = OnKafka(request.getfixturevalue("broker"), replication=1)
    yield made
    made.close()
