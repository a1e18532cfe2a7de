"""Where a bench runs: a broker of its own or a named cluster, topics under a new prefix, and child processes.

    with open_site(None, {}, Path(".duewheel")) as site:
        topology = site.install(partitions=4)
        processor = site.fleet(topology).start_processor("processor")

At the end the children are gone, and so is the broker; on a named cluster the topics and groups of the run are deleted.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.readers import KafkaReader
from duewheel.adapters.kafka.settings import SESSION_TIMEOUT_MS, KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.core.errors import BrokerUnavailable, EnvironmentFailure
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.devbroker import Broker, DevCluster
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Child, Fleet
from duewheel.ports import Record

READY_TIMEOUT_S: Final = 60.0
_ADMIN_TIMEOUT_S: Final = 15.0
_READ_RECORDS: Final = 10_000
_READ_WAIT_S: Final = 0.2
_READ_STALLED_S: Final = 30.0
_POLL_S: Final = 0.02
# The group of a process that was killed is not empty until the broker has given it up.
_GROUPS_TIMEOUT_S: Final = SESSION_TIMEOUT_MS / 1_000 + 5


class Site:
    """A place for one run. Made by `open_site`.

    Attributes:
        kafka: where the cluster is.
        run: takes logs and stores.
        broker_pid: process id of the broker, where it is ours.
        kafka_version: of the broker, where it is ours.
    """

    def __init__(self, kafka: KafkaConfig, run: RunFolder, broker: Broker | None) -> None:
        # A broker that is away is an error of ours, once, and not librdkafka's twenty lines a second.
        self.kafka = KafkaConfig(kafka.bootstrap_servers, {"log_level": 0, **kafka.options})
        self.run = run
        self.broker_pid = None if broker is None else broker.pid
        self.kafka_version = "of the named cluster" if broker is None else _version(broker)
        self.cluster = KafkaCluster(self.kafka)
        self._children_kafka = kafka
        self._admin = AdminClient(self.kafka.common())
        self._prefix = f"bench-{uuid.uuid4().hex[:8]}"
        self._installations = 0
        self._fleets: list[Fleet] = []

    def install(self, partitions: int) -> Topology:
        """A new installation under a prefix that nobody uses. Its one queue has as many partitions as there are timer partitions."""
        self._installations += 1
        topology = Topology(f"{self._prefix}.{self._installations}")
        ensure(self.kafka, topology, {QUEUE_DEFAULT: partitions}, partitions)
        return topology

    def fleet(self, topology: Topology) -> Fleet:
        """Starts processes for an installation; they are gone when the site is."""
        fleet = Fleet(self._children_kafka, topology, self.run)
        self._fleets.append(fleet)
        return fleet

    def close(self) -> None:
        """Ends the processes that still run."""
        for fleet in self._fleets:
            fleet.close()

    def remove(self, topology: Topology) -> None:
        """Deletes an installation's topics, so that the next round finds as much disk and page cache as this one did."""
        self._delete_topics(f"{topology.prefix}.")

    def tidy(self) -> None:
        """Deletes what is left of the run on the cluster."""
        self._delete_topics(f"{self._prefix}.")
        deadline = time.monotonic() + _GROUPS_TIMEOUT_S
        while (left := self._groups()) and time.monotonic() < deadline:
            for future in self._admin.delete_consumer_groups(left, request_timeout=_ADMIN_TIMEOUT_S).values():
                try:
                    future.result(_ADMIN_TIMEOUT_S)
                except KafkaException:  # a member was killed, and its group does not know yet
                    time.sleep(0.5)

    def tidied(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Deletes what is left, at the end of a block; where that failed, the reason why is the more interesting one.

        Raises:
            EnvironmentFailure: something is left.
        """
        if isinstance(error, BrokerUnavailable):
            return
        try:
            self.tidy()
        except KafkaException as failure:
            if error is None:
                message = f"topics and groups {self._prefix}.… may be left at {self.kafka.bootstrap_servers}: {failure.args[0].str()}"
                raise EnvironmentFailure(message) from failure

    def _groups(self) -> list[str]:
        listing: Any = self._admin.list_consumer_groups(request_timeout=_ADMIN_TIMEOUT_S).result(_ADMIN_TIMEOUT_S)
        return [group.group_id for group in listing.valid if group.group_id.startswith(f"{self._prefix}.")]

    def _delete_topics(self, prefix: str) -> None:
        names = [name for name in self._admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics if name.startswith(prefix)]
        futures = self._admin.delete_topics(names, request_timeout=_ADMIN_TIMEOUT_S) if names else {}
        for future in futures.values():
            try:
                future.result(_ADMIN_TIMEOUT_S)
            except KafkaException as error:
                # What was deleted a moment ago may still be listed.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    # --- what the cluster holds ---

    def records(self, topic: str) -> Iterator[Record]:
        """All committed records of a topic, up to where it ends now.

        Raises:
            EnvironmentFailure: no record came for half a minute, short of the end.
        """
        numbers = range(self.cluster.partition_count(topic))
        marks = self.cluster.watermarks(topic, numbers)
        reader = KafkaReader(self.kafka, topic)
        try:
            for number in numbers:
                reader.assign(number, marks[number][0])
            deadline = time.monotonic() + _READ_STALLED_S
            while any(reader.reached(number) < marks[number][1] for number in numbers):
                found = reader.poll(_READ_WAIT_S, _READ_RECORDS)
                if found:
                    deadline = time.monotonic() + _READ_STALLED_S
                elif time.monotonic() > deadline:
                    raise EnvironmentFailure(f"{topic} cannot be read to its end: nothing came for {_READ_STALLED_S:g} s")
                yield from found
        finally:
            reader.close()

    def end(self, topic: str) -> int:
        """How many offsets a topic has used, over all its partitions; commit markers count."""
        numbers = range(self.cluster.partition_count(topic))
        return sum(high for _, high in self.cluster.watermarks(topic, numbers).values())

    def intake_left(self, topology: Topology) -> int:
        """How many records of the intake topic its processors have not committed yet."""
        numbers = range(self.cluster.partition_count(topology.intake))
        ends = self.cluster.watermarks(topology.intake, numbers)
        committed = self.cluster.owners(topology.processor_group, topology.intake, numbers)
        return sum(ends[n][1] - (committed[n].offset or 0) for n in numbers)


@contextmanager
def open_site(bootstrap_servers: str | None, options: Mapping[str, Any], folder: Path) -> Iterator[Site]:
    """A site on the named cluster, or on a development broker that lives as long as the site.

    Args:
        bootstrap_servers: the cluster; None starts a broker.
        options: librdkafka settings for every client.
        folder: where jars, the broker's data, logs and stores go.
    """
    with ExitStack() as stack:
        broker = None
        if bootstrap_servers is None:
            cluster = stack.enter_context(DevCluster(folder))
            bootstrap_servers, broker = cluster.bootstrap_servers, cluster.brokers[0]
        run = stack.enter_context(RunFolder.take(folder, "bench"))
        site = Site(KafkaConfig(bootstrap_servers, options), run, broker)
        if broker is None:
            stack.push(site.tidied)
        stack.callback(site.close)
        yield site


def await_active(fleet: Fleet, processor: Child, partitions: int, timeout_s: float = READY_TIMEOUT_S) -> list[dict[str, Any]]:
    """Waits until this start of a processor fires for all partitions; the log lines that say so."""
    what = f"{processor.name} is active for {partitions} partitions"
    return fleet.await_that(lambda: having(processor, "processor.active", partitions), timeout_s, what)


def having(child: Child, event: str, count: int) -> list[dict[str, Any]]:
    """The lines of a child's log that tell of `event` since its last start, if they are `count` at least; else none."""
    lines = [line for line in child.logged(event) if line["pid"] == child.pid]
    return lines if len(lines) >= count else []


def _version(broker: Broker) -> str:
    found = re.search(r"Kafka version: (\S+)", broker.log.read_text(errors="replace"))
    return found[1] if found else "unknown"
