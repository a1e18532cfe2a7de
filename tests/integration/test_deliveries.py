"""Records that are delivered to a topic by processors of which one is killed, as consumers see them who read only what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import duewheel
from duewheel import Delivery, JobUnknown
from duewheel.core.topology import keyed_partition
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Fleet
from tests.conftest import Installation
from tests.integration.desk import now_ms

RECORDS: Final = 2_000
PARTITIONS: Final = 3
READY_S: Final = 30.0
END_S: Final = 30.0
# They come due while the processor is killed: so many in each millisecond, from a moment after the last one was accepted.
A_MILLISECOND: Final = 2


class Witness:
    """Reads a topic from its beginning, only what is committed, with a client of its own."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": "witness", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self.seen: list[Any] = []

    def look(self) -> int:
        """How many records were seen so far."""
        self.seen += self._consumer.consume(5_000, 0.1)
        return len(self.seen)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def topic(installation: Installation) -> Iterator[str]:
    name = f"out.{installation.topology.prefix}"
    admin = AdminClient({"bootstrap.servers": installation.kafka.bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        made.result(10)
    yield name
    for gone in admin.delete_topics([name]).values():
        gone.result(10)


def test_each_record_is_there_once_and_none_early_although_a_processor_is_killed(
    installation: Installation, topic: str, tmp_path: Path
) -> None:
    servers, prefix = installation.kafka.bootstrap_servers, installation.topology.prefix
    witness = Witness(servers, topic)
    with RunFolder.take(tmp_path, "run") as run, Fleet(installation.kafka, installation.topology, run) as fleet:
        victim = fleet.start_processor("a", "--deliver-to", "out.*")
        fleet.await_that(lambda: victim.logged("processor.active"), READY_S, "a processor is active")
        with duewheel.connect(servers, prefix=prefix) as client:
            with pytest.raises(JobUnknown, match="was refused"):
                client.deliver("elsewhere", b"v").wait(END_S)
            first_ms = now_ms() + 1_500
            due_ms = {n: first_ms + n // A_MILLISECOND for n in range(RECORDS)}
            client.schedule_many(
                Delivery(topic, b"%d" % n, key=b"k-%d" % n, headers={"n": f"{n}"}, at=due_ms[n], job_id=f"d-{n}") for n in range(RECORDS)
            )
            tombstone = client.deliver(topic, None, key="k", job_id="tombstone")
        fleet.await_that(lambda: witness.look() > RECORDS // 4, END_S, "some were delivered")
        victim.kill()
        assert witness.look() < RECORDS
        fleet.start_processor("b", "--deliver-to", "out.*")
        fleet.await_that(lambda: witness.look() > RECORDS, END_S, "all were delivered")
        fleet.stop()
        witness.look()
    witness.close()
    found = {headers["duewheel-job-id"]: record for record in witness.seen for headers in [dict(record.headers())]}
    assert len(witness.seen) == len(found) == RECORDS + 1
    assert (found[b"tombstone"].key(), found[b"tombstone"].value(), tombstone.job_id) == (b"k", None, "tombstone")
    for n in range(RECORDS):
        record = found[b"d-%d" % n]
        headers = dict(record.headers())
        assert (record.key(), record.value(), headers["n"]) == (b"k-%d" % n, b"%d" % n, b"%d" % n)
        assert headers["duewheel-slot-ms"] == b"%d" % due_ms[n]
        assert record.partition() == keyed_partition(record.key(), PARTITIONS)
        assert record.timestamp()[1] >= due_ms[n]
