"""Topics as declared in `topics/topics.toml`, compared with a cluster's and brought in line.

    declared = declare(...)                 what the file says, for this installation's names, queues and sizes
    actual   = TopicAdmin(...).actual()     what the cluster has
    changes  = plan(declared, actual)       pure: Create, Alter, Refusal, Notice
    TopicAdmin(...).apply(changes)          makes what is missing, alters settings that differ; refuses what must not be done

Applying twice changes nothing the second time. A partition count is never changed: a job belongs to partition murmur2(id) % count, so
with another count the known jobs would be looked for where they are not. That is refused before anything else is touched.

A new dispatch topic gets its worker group's first commit here, "offset 0, nothing claimed", because a worker must treat dispatches
that carry no claim as possibly started. The rare topic that a group already waits for is left to its workers.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from duewheel import resources
from duewheel.adapters.kafka import positions
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.claims import Claim, encode
from duewheel.core.errors import BadConfiguration, BrokerUnavailable, EnvironmentFailure
from duewheel.core.topology import PARTITIONS_DEFAULT, Topology

TIMEOUT_S: Final = 30.0
_CALL_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05
_INSYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Declared:
    """A topic as it should be. `queue` is set where it is a queue's dispatch topic."""

    topic: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Actual:
    """A topic as it is. `config` holds every setting in force, defaults included."""

    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Create:
    """The topic is missing."""

    declared: Declared

    def __str__(self) -> str:
        wanted = self.declared
        return f"{wanted.topic}: create with {_count(wanted.partitions, 'partition')}, {_count(wanted.replication, 'replica')}"


@dataclass(frozen=True, slots=True)
class Alter:
    """A setting has drifted."""

    topic: str
    setting: str
    actual: str | None
    declared: str

    def __str__(self) -> str:
        return f"{self.topic}: set {self.setting} to {self.declared}, from {self.actual}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The partition count differs, which nothing may change."""

    topic: str
    actual: int
    declared: int

    def __str__(self) -> str:
        return f"{self.topic} has {_count(self.actual, 'partition')}, and {self.declared} are declared"


@dataclass(frozen=True, slots=True)
class Notice:
    """The number of replicas differs. Moving data is the operator's decision, so this is said and not done."""

    topic: str
    actual: int
    declared: int

    def __str__(self) -> str:
        return (
            f"{self.topic} has {_count(self.actual, 'replica')}, and {self.declared} are declared; not changed here, as it moves data: use "
            "kafka-reassign-partitions, then apply again"
        )


Change = Create | Alter | Refusal | Notice


def refuse(changes: Iterable[Change]) -> None:
    """Nothing, unless one of `changes` must not be made.

    Raises:
        BadConfiguration: names each partition count that differs, why it stays, and what to do.
    """
    refusals = [change for change in changes if isinstance(change, Refusal)]
    if refusals:
        raise BadConfiguration(
            f"{'; '.join(map(str, refusals))}. A partition count is never changed: a job belongs to partition murmur2(job id) % count, and "
            "would be looked for where it is not. Nothing was applied. Declare what there is (--partitions for timer partitions, --queue "
            "NAME:N for a queue), or begin a new installation under another --prefix"
        )


def declare(topology: Topology, queues: Mapping[str, int], partitions: int, replication: int | None, brokers: int) -> list[Declared]:
    """The topics of one installation, as `topics/topics.toml` declares them.

    Args:
        topology: its names.
        queues: partitions of each queue's dispatch topic.
        partitions: number of timer partitions.
        replication: replicas of each topic; None is what the file says, at most one a broker.
        brokers: how many the cluster has.

    Raises:
        BadConfiguration: more replicas than brokers.
    """
    if replication is not None and not 1 <= replication <= brokers:
        raise BadConfiguration(f"replication is {replication}; this cluster has {_count(brokers, 'broker')}: 1 to {brokers} can be had")
    file = tomllib.loads((resources.folder("topics") / "topics.toml").read_text())
    every = file.pop("every")
    replicas = replication or min(every["replication"], brokers)
    topics = []
    for section, wanted in file.items():
        config = {name: _text(value) for name, value in {**every["config"], **wanted["config"]}.items()}
        config[_INSYNC] = _insync(config[_INSYNC], replicas)
        if section == "dispatch":
            topics += [Declared(topology.dispatch(queue), count, replicas, config, queue) for queue, count in queues.items()]
        else:
            count = partitions if wanted["partitions"] == "timer" else int(wanted["partitions"])
            topics.append(Declared(f"{topology.prefix}.{section}", count, replicas, config))
    return topics


def plan(declared: Iterable[Declared], actual: Mapping[str, Actual]) -> list[Change]:
    """What is to be done, topic by topic; empty when all is as declared."""
    changes: list[Change] = []
    for wanted in declared:
        found = actual.get(wanted.topic)
        if found is None:
            changes.append(Create(wanted))
            continue
        if found.partitions != wanted.partitions:
            changes.append(Refusal(wanted.topic, found.partitions, wanted.partitions))
        if found.replication != wanted.replication:
            changes.append(Notice(wanted.topic, found.replication, wanted.replication))
        # By the replicas that there are: more in sync than exist would stop every write.
        config = {**wanted.config, _INSYNC: _insync(wanted.config[_INSYNC], found.replication)}
        for setting, value in config.items():
            if not _same(found.config.get(setting), value):
                changes.append(Alter(wanted.topic, setting, found.config.get(setting), value))
    return changes


def _insync(declared: str, replicas: int) -> str:
    """One replica may be away, where there is more than one."""
    return str(max(1, min(int(declared), replicas - 1)))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(actual: str | None, declared: str) -> bool:
    if actual is None or actual == declared:
        return actual == declared
    try:
        return float(actual) == float(declared)
    except ValueError:
        return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class TopicAdmin:
    """Reads and makes the topics of one installation.

    Args:
        kafka: where the cluster is.
        topology: names of the installation.
        timeout_s: how long the cluster may take to answer, and new topics to be ready.
    """

    def __init__(self, kafka: KafkaConfig, topology: Topology, timeout_s: float = TIMEOUT_S) -> None:
        self._kafka = kafka
        self._topology = topology
        self._timeout_s = timeout_s
        # Every failure surfaces as an exception; the client's own log would repeat "connection refused" twenty times a second.
        self._admin = AdminClient({**kafka.common(), "log_level": kafka.options.get("log_level", 0)})

    def plan(self, queues: Mapping[str, int | None], partitions: int | None = None, replication: int | None = None) -> list[Change]:
        """Compares the cluster with the declarations. Queues that exist are compared too, named or not.

        Args:
            queues: queues that should exist, with the partitions of their topics; None is what the topic has, or will have as many
                as there are timer partitions.
            partitions: number of timer partitions; None is what the installation has, or 16.
            replication: see `declare`.

        Raises:
            BadConfiguration: more replicas than brokers.
            BrokerUnavailable: nobody answered.
        """
        actual, brokers = self.actual()
        if partitions is None:
            intake = actual.get(self._topology.intake)
            partitions = intake.partitions if intake else PARTITIONS_DEFAULT
        counts: dict[str, int] = {}
        for queue in [*queues, *self._queues(actual)]:
            found = actual.get(self._topology.dispatch(queue))
            counts[queue] = queues.get(queue) or (found.partitions if found else partitions)
        return plan(declare(self._topology, counts, partitions, replication, brokers), actual)

    def actual(self) -> tuple[dict[str, Actual], int]:
        """The installation's topics that exist, and the number of brokers.

        Raises:
            BrokerUnavailable: nobody answered.
        """
        metadata = self._metadata()
        prefix = f"{self._topology.prefix}."
        found = {name: topic for name, topic in metadata.topics.items() if name.startswith(prefix) and topic.error is None}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]
        futures = self._admin.describe_configs(resources, request_timeout=_CALL_TIMEOUT_S) if resources else {}
        configs = {resource.name: self._answer(future) for resource, future in futures.items()}
        actual = {
            name: Actual(
                partitions=len(topic.partitions),
                replication=max(len(partition.replicas) for partition in topic.partitions.values()),
                config={setting: entry.value for setting, entry in configs[name].items()},
            )
            for name, topic in found.items()
        }
        return actual, len(metadata.brokers)

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes the changes, and waits until new topics have leaders.

        Raises:
            BadConfiguration: one of them is a refusal; nothing was changed.
            BrokerUnavailable, EnvironmentFailure: the cluster did not answer, or would not; apply again.
        """
        refuse(changes)
        created = [change.declared for change in changes if isinstance(change, Create)]
        if created:
            self._create(created)
        self._alter([change for change in changes if isinstance(change, Alter)])
        for wanted in created:
            if wanted.queue is not None:
                self._mark_unclaimed(wanted.topic, wanted.queue, wanted.partitions)

    def _create(self, topics: Sequence[Declared]) -> None:
        new = [NewTopic(t.topic, t.partitions, t.replication, config=dict(t.config)) for t in topics]
        for future in self._admin.create_topics(new, operation_timeout=_CALL_TIMEOUT_S, request_timeout=_CALL_TIMEOUT_S).values():
            try:
                self._answer(future)
            except EnvironmentFailure as error:
                if not _is_code(error, KafkaError.TOPIC_ALREADY_EXISTS):  # made by another apply at the same time
                    raise
        deadline = time.monotonic() + self._timeout_s
        while missing := [t.topic for t in topics if not self._has_leaders(t)]:
            if time.monotonic() > deadline:
                raise EnvironmentFailure(
                    f"{', '.join(missing)}: made, but still without leaders after {self._timeout_s:g} s; see the brokers"
                )
            time.sleep(_POLL_S)

    def _has_leaders(self, wanted: Declared) -> bool:
        topic = self._metadata().topics.get(wanted.topic)
        return topic is not None and len(topic.partitions) > 0 and all(p.leader >= 0 for p in topic.partitions.values())

    def _alter(self, changes: Sequence[Alter]) -> None:
        settings: dict[str, list[ConfigEntry]] = {}
        for change in changes:
            entry = ConfigEntry(change.setting, change.declared, incremental_operation=AlterConfigOpType.SET)
            settings.setdefault(change.topic, []).append(entry)
        if settings:
            wanted = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic, entries in settings.items()]
            for future in self._admin.incremental_alter_configs(wanted, request_timeout=_CALL_TIMEOUT_S).values():
                self._answer(future)

    def _mark_unclaimed(self, topic: str, queue: str, partitions: int) -> None:
        group = self._topology.worker_group(queue)
        metadata = encode(Claim("", 0), 0)
        everything = [TopicPartition(topic, partition) for partition in range(partitions)]
        try:
            known = positions.committed(self._kafka, group, everything, self._timeout_s)
            unknown = [TopicPartition(topic, p.partition, 0, metadata) for p in known if p.offset < 0]
            if unknown:
                positions.commit(self._kafka, group, unknown, self._timeout_s)
        except KafkaException as error:
            # A group with members takes commits from them alone: its workers see to it themselves.
            if error.args[0].code() != KafkaError.UNKNOWN_MEMBER_ID:
                reason = error.args[0].str()
                raise EnvironmentFailure(f"group {group} could not be told that nothing of {topic} is claimed: {reason}") from error

    def _queues(self, actual: Mapping[str, Actual]) -> list[str]:
        prefix = self._topology.dispatch("")
        return [name.removeprefix(prefix) for name in actual if name.startswith(prefix)]

    def _metadata(self) -> Any:
        try:
            return self._admin.list_topics(timeout=self._timeout_s)
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _answer(self, future: Any) -> Any:
        try:
            return future.result(self._timeout_s)
        except TimeoutError as error:
            raise self._unavailable(error) from error
        except KafkaException as error:
            failure = error.args[0]
            if failure.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise self._unavailable(error) from error
            raise EnvironmentFailure(f"the Kafka cluster at {self._kafka.bootstrap_servers} refused: {failure.str()}") from error

    def _unavailable(self, error: object) -> BrokerUnavailable:
        why = f" ({error.args[0].str()})" if isinstance(error, KafkaException) else ""
        return BrokerUnavailable(
            f"no Kafka broker answered at {self._kafka.bootstrap_servers} within {self._timeout_s:g} s{why}; is it running, and is "
            "--bootstrap-servers (DUEWHEEL_BOOTSTRAP_SERVERS) right?"
        )


def ensure(kafka: KafkaConfig, topology: Topology, queues: Mapping[str, int | None], partitions: int | None = None) -> list[Change]:
    """Plans and applies in one go; what was changed.

    Raises:
        BadConfiguration: a partition count differs.
        BrokerUnavailable, EnvironmentFailure: the cluster did not answer, or would not.
    """
    admin = TopicAdmin(kafka, topology)
    changes = admin.plan(queues, partitions)
    admin.apply(changes)
    return changes


def _is_code(error: EnvironmentFailure, code: int) -> bool:
    return isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].code() == code
