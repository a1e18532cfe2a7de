"""Assembles the parts: which adapter stands behind which port. The one module that knows both sides.

Adapters are imported where they are used: a program that only schedules jobs must not load RocksDB.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.client import Client
from duewheel.core.topology import PREFIX_DEFAULT, Topology

if TYPE_CHECKING:
    from duewheel.client.propagation import Propagate
    from duewheel.engine.processor import Processor
    from duewheel.ports import Clock, Codec
    from duewheel.worker.app import App
    from duewheel.worker.executors.shares import Shares
    from duewheel.worker.loop import Worker
    from duewheel.worker.station import Station

CLIENT_TIMEOUT_S: Final = 30.0


def connect(
    bootstrap_servers: str,
    *,
    prefix: str = PREFIX_DEFAULT,
    options: Mapping[str, Any] | None = None,
    timeout_s: float = CLIENT_TIMEOUT_S,
    propagate: Propagate | None = None,
) -> Client:
    """A client of one installation of Duewheel. It connects at its first call, and is closed by `close` or at the end of a `with`.

    Args:
        bootstrap_servers: the Kafka cluster, as host:port, comma separated.
        prefix: what the names of the installation's topics begin with.
        options: librdkafka settings, such as {"security.protocol": "SSL"}; they win over Duewheel's own.
        timeout_s: how long a call may wait for its acknowledgement.
        propagate: gives headers that are added to each job's own, such as `duewheel.tracing.inject`, which gives the trace it belongs to.

    Raises:
        BadConfiguration: a setting has a wrong value.
    """
    return producing_client(KafkaConfig(bootstrap_servers, options or {}), Topology(prefix), timeout_s, propagate)


def producing_client(kafka: KafkaConfig, topology: Topology, timeout_s: float, propagate: Propagate | None = None) -> Client:
    """A client over Kafka, Avro and the machine's clock."""
    from duewheel.adapters.avro import codec
    from duewheel.adapters.kafka.intake import KafkaIntake
    from duewheel.adapters.kafka.states import KafkaStates
    from duewheel.adapters.system import SystemClock, new_job_id
    from duewheel.client.results import Results

    log, clock = KafkaIntake(kafka, topology.intake, timeout_s), SystemClock()
    encoders = (codec.encode_schedule, codec.encode_cancel, codec.encode_redrive, codec.encode_drop, codec.encode_change)
    results = Results(lambda: KafkaStates(kafka, topology.state), codec, clock)
    return Client(log, clock, *encoders, new_job_id, results, propagate)


def record_codec(schema_registry: str | None, clock: Clock) -> Codec:
    """Reads and writes records; with the address of a schema registry it reads Confluent's format too.

    Raises:
        BadConfiguration: the address is none.
    """
    from duewheel.adapters.avro import codec
    from duewheel.adapters.avro.registry import Registry
    from duewheel.adapters.avro.strict import Reader

    if schema_registry is None:
        return codec
    return codec.Codec(Reader(registry=Registry(schema_registry, clock)))


def timer_processor(
    kafka: KafkaConfig,
    topology: Topology,
    state_dir: Path,
    broker_timeout_s: float,
    clock: Clock | None = None,
    schema_registry: str | None = None,
    deliver_to: Sequence[str] = (),
) -> Processor:
    """A timer processor over Kafka, RocksDB, Avro and a clock.

    Args:
        kafka: where the cluster is.
        topology: which installation on it.
        state_dir: where local stores lie; one process at a time can hold it.
        broker_timeout_s: how long the cluster may be away before the processor gives up.
        clock: what time it is; the machine's clock where none is given.
        schema_registry: address of the registry of producers that use Confluent's serializers.
        deliver_to: patterns of the topics that records may be delivered to (`core.allowed`).

    Raises:
        BadConfiguration: a setting has a wrong value.
        StateFolderInUse: another process holds the folder.
        TopicMissing: the installation's topics were not made.
        BrokerUnavailable: nobody answered.
    """
    from duewheel.adapters.kafka.cluster import KafkaCluster
    from duewheel.adapters.kafka.partitioner import partition_of
    from duewheel.adapters.kafka.readers import KafkaGroupReader, KafkaReader
    from duewheel.adapters.kafka.transactions import KafkaTransactions
    from duewheel.adapters.rocks.folder import StateFolder
    from duewheel.adapters.rocks.store import Memory, RocksStore
    from duewheel.adapters.system import SystemClock
    from duewheel.core.allowed import Allowed
    from duewheel.engine.processor import Processor

    allowed = Allowed(deliver_to, topology.prefix)
    clock = clock or SystemClock()
    codec = record_codec(schema_registry, clock)
    cluster = KafkaCluster(kafka)
    identity = cluster.identity(topology.state)
    name = f"{topology.prefix}.processor.{uuid.uuid4().hex}"
    # The caller may try again for as long as the cluster is away, and must find neither its own lock nor more and more threads.
    with ExitStack() as made:
        folder = StateFolder(state_dir / topology.prefix)
        made.callback(folder.close)
        memory = Memory()
        intake = KafkaGroupReader(kafka, topology.intake, topology.processor_group)
        made.callback(intake.close)
        outcomes, changelog = KafkaReader(kafka, topology.outcomes), KafkaReader(kafka, topology.state)
        made.callback(outcomes.close)
        made.callback(changelog.close)
        output = KafkaTransactions(kafka, name, {topology.processor_group: intake.consumer})
        made.callback(output.close)
        processor = Processor(
            topology=topology,
            clock=clock,
            codec=codec,
            cluster=cluster,
            intake=intake,
            outcomes=outcomes,
            changelog=changelog,
            output=output,
            open_store=lambda number: RocksStore(folder.partition(number), f"{identity}/{number}", memory),
            close_stores=folder.close,
            partition_of=partition_of,
            sleep=time.sleep,
            broker_timeout_ms=round(broker_timeout_s * 1000),
            may_deliver_to=allowed,
        )
        made.pop_all()
    return processor


def worker(
    kafka: KafkaConfig,
    topology: Topology,
    app: App,
    app_path: str | None,
    shares: Shares,
    concurrency: int,
    name: str,
    broker_timeout_s: float,
) -> Station:
    """A worker over Kafka, Avro and the machine's clock.

    Args:
        app: what it can run.
        app_path: the same as MODULE:APP, for the child processes of tasks that want one.
        shares: the queues whose dispatches it runs.
        concurrency: how many handlers may run at a time.
        name: as it stands in outcomes.
        broker_timeout_s: how long the cluster may be away before the worker gives up.

    Raises:
        TopicMissing: the installation's topics, or a queue's, were not made.
        BrokerUnavailable: nobody answered.
    """
    from concurrent.futures import ThreadPoolExecutor

    from duewheel.adapters.avro import codec
    from duewheel.adapters.kafka.cluster import KafkaCluster
    from duewheel.adapters.kafka.readers import KafkaGroupReader, KafkaReader
    from duewheel.adapters.kafka.transactions import KafkaTransactions
    from duewheel.adapters.system import SystemClock
    from duewheel.worker.crew import Crew
    from duewheel.worker.doorstep import LastLives
    from duewheel.worker.loop import Worker
    from duewheel.worker.station import Station
    from duewheel.worker.stops import Stops
    from duewheel.worker.takeover import Returns

    clock = SystemClock()
    cluster = KafkaCluster(kafka)
    # What is missing is found before anything is made: the caller may try again, for as long as the cluster is away.
    for queue in shares.queues:
        cluster.partition_count(topology.dispatch(queue))
    outcome_partitions = cluster.partition_count(topology.outcomes)
    control_ends = cluster.watermarks(topology.control, range(cluster.partition_count(topology.control)))
    stops = Stops(KafkaReader(kafka, topology.control), control_ends, codec, clock)
    crew, lives = Crew(concurrency, clock, app_path, shares), LastLives()

    def loop(queue: str) -> Worker:
        dispatches, group = topology.dispatch(queue), topology.worker_group(queue)
        reader = KafkaGroupReader(kafka, dispatches, group)
        owner = f"{topology.prefix}.worker.{uuid.uuid4().hex}"
        return Worker(
            app=app,
            queue=queue,
            name=name,
            concurrency=concurrency,
            topology=topology,
            clock=clock,
            codec=codec,
            cluster=cluster,
            reader=reader,
            output=KafkaTransactions(kafka, owner, {group: reader.consumer}),
            returns=Returns(lambda: KafkaReader(kafka, dispatches)),
            desk=crew.desk(queue),
            stops=stops,
            lives=lives,
            aside=ThreadPoolExecutor(4, f"duewheel-aside-{queue}").submit,
            outcome_partitions=outcome_partitions,
            session_timeout_ms=kafka.session_timeout_ms,
            broker_timeout_ms=round(broker_timeout_s * 1000),
        )

    return Station([loop(queue) for queue in shares.queues], stops)
