"""The cluster goes away under a processor, for a while or for good. With a broker of its own, which is stopped and started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.core.errors import BrokerUnavailable, Reason
from duewheel.core.topology import Topology
from duewheel.devbroker import DevCluster
from duewheel.devbroker.cluster import Broker
from tests.conftest import FOLDER
from tests.integration.desk import PARTITIONS, Desk, is_active, job_ids, now_ms, raw_schedule


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """One that makes topics by itself, as many clusters do."""
    with DevCluster(FOLDER, settings={"auto.create.topics.enable": "true"}) as cluster:
        yield cluster


@pytest.fixture
def broker_of_ones_own(cluster: DevCluster) -> Iterator[Broker]:
    """Started again, where a test left it stopped."""
    [broker] = cluster.brokers
    yield broker
    broker.start()
    broker.await_ready()


@pytest.fixture
def lone(cluster: DevCluster, broker_of_ones_own: Broker, tmp_path: Path) -> Iterator[Desk]:
    kafka = KafkaConfig(cluster.bootstrap_servers, {"log_level": 0})
    topology = Topology(f"t{uuid.uuid4().hex[:12]}")
    ensure(kafka, topology, {"default": PARTITIONS}, PARTITIONS)
    desk = Desk(kafka, topology, tmp_path)
    yield desk
    desk.close()


def test_a_broker_that_comes_back_finds_the_processor_going_on(lone: Desk, broker_of_ones_own: Broker) -> None:
    processor = lone.active()
    away_ids, before = job_ids(40, prefix="due-while-away"), job_ids(200, prefix="before")
    lone.publish(raw_schedule(job_id, now_ms() + 2_000) for job_id in away_ids)
    lone.publish(raw_schedule(job_id, now_ms()) for job_id in before)
    lone.drive(processor, until=lambda: len(lone.dispatches()) >= 200)
    # Between two transactions: a lone broker that is killed while it writes the markers of one forgets those of partitions that have no
    # leader when it comes back (Kafka 4.3.1), and their readers wait for ever.
    lone.drive_for(processor, seconds=0.3)
    broker_of_ones_own.kill()
    killed = time.monotonic()
    later = threading.Timer(3.0, broker_of_ones_own.start)
    later.start()
    lone.drive_for(processor, seconds=4)
    later.join()
    broker_of_ones_own.await_ready()
    lone.drive(processor, until=lambda: is_active(processor), timeout_s=60)
    assert time.monotonic() - killed < 40
    lone.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40, prefix="after"))
    lone.drive(processor, until=lambda: is_active(processor) and len(lone.dispatches()) >= 280, timeout_s=60)
    lone.leave(processor)
    assert lone.dispatched() == sorted(away_ids + before + job_ids(40, prefix="after"))
    lone.check_stores("a")


def test_a_broker_that_stays_away_ends_the_processor_with_its_address(lone: Desk, broker_of_ones_own: Broker) -> None:
    processor = lone.processor(broker_timeout_s=3)
    lone.drive(processor, until=lambda: is_active(processor))
    address = lone.kafka.bootstrap_servers
    command = [
        sys.executable,
        "-m",
        "duewheel.cli.main",
        "processor",
        "-b",
        address,
        "--prefix",
        lone.topology.prefix,
        "--broker-timeout",
        "4",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEWHEEL_")}
    running = subprocess.Popen(
        [*command, "--state-dir", str(lone.folder / "b")], stderr=subprocess.PIPE, text=True, env=environment, stdout=subprocess.DEVNULL
    )
    lone.drive(processor, until=lambda: 0 < len(processor.stages) < PARTITIONS)
    broker_of_ones_own.kill()
    killed = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=rf"the Kafka cluster at {address} did not answer.*gave up after 3 s"):
        lone.drive_for(processor, seconds=40)
    _, said = running.communicate(timeout=40)
    never = subprocess.run([*command, "--state-dir", str(lone.folder / "c")], capture_output=True, text=True, check=False, env=environment)
    for code, last_line in ((running.returncode, said.splitlines()[-1]), (never.returncode, never.stderr.splitlines()[-1])):
        assert code == 3
        assert last_line.startswith(f"duewheel: the Kafka cluster at {address} did not answer")
    assert time.monotonic() - killed < 60


def test_an_unknown_queue_makes_no_topic_where_the_cluster_would_make_one(lone: Desk) -> None:
    processor = lone.active()
    lone.schedule("lost", now_ms(), queue="nowhere")
    lone.drive(processor, until=lambda: lone.seen(lone.topology.dead_letter))
    lone.schedule("lost-again", now_ms(), queue="nowhere")
    lone.drive(processor, until=lambda: len(lone.seen(lone.topology.dead_letter)) >= 2)
    lone.leave(processor)
    assert {letter["reason"] for letter in lone.dead_letters()} == {Reason.UNKNOWN_QUEUE}
    admin = AdminClient(lone.kafka.common())
    assert lone.topology.dispatch("nowhere") not in admin.list_topics(timeout=10).topics
