"""An installation to break: three brokers, processors, workers and producers as processes, and lanes that can be cut.

with Site.build(folder, workload) as site:
    site.start()
    site.processor(1).kill()                  # and `site.look_after()` starts it again, as whoever supervises it would
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.core.claims import decode
from duewheel.core.errors import BadConfiguration, DuewheelError, EnvironmentFailure
from duewheel.core.ownership import owner_of
from duewheel.core.topology import QUEUE_DEFAULT, Topology
from duewheel.devbroker import Broker, DevCluster
from duewheel.devbroker.runfolder import RunFolder
from duewheel.devbroker.supervised import Supervised
from duewheel.fleet import Child, Fleet
from duewheel.proof.history import Event
from tests.chaos.jobs import Workload
from tests.chaos.lanes import Lane, Lanes, listeners
from tests.chaos.tasks import FOLDER_VARIABLE, Sink

ROOT: Final = Path(__file__).parent.parent.parent
TOPOLOGY: Final = Topology("chaos")
NODES: Final = (1, 2, 3)
EACH: Final = 3  # processors, and workers
PRODUCERS: Final = 2
PARTITIONS: Final = 4
CONCURRENCY: Final = 24
READY_S: Final = 60.0
SETTLE_S: Final = 30.0
_ASK_S: Final = 3.0
_TRANSACTIONS: Final = "__transaction_state"
TRANSACTION_PARTITIONS: Final = 6  # of Kafka's own log of transactions: infra/broker/server.properties
_SMALL_DISK_BYTES: Final = 256 * 1_048_576
_BALLAST: Final = "ballast"
# After a kill whoever supervises a process takes some time to start it again.
RESTART_MS: Final = (500, 4_000)

# How a process may end by itself: well, because the surroundings failed it for too long, or by a handler that kills it as it was told.
_DONE, _SURROUNDINGS, _KILLED = 0, 3, 137


@dataclass
class Machine:
    """Where one process runs at a time.

    Attributes:
        role: "processor", "worker" or "producer".
        lane: over which it reaches the brokers; None where it goes directly.
        busy: the fault that it is subject to just now; nothing where there is none.
        restart_at: when to start it again, by the steady clock; None where it runs, or should not.
        wanted: whether it is to be started again.
        finished: it has done its work, and ended.
    """

    name: str
    role: str
    child: Supervised
    lane: Lane | None = None
    busy: str = ""
    restart_at: float | None = None
    wanted: bool = True
    finished: bool = False


class Site:
    """All of it. Made by `build`.

    Attributes:
        history: what this process saw and did.
        unexpected: processes that ended and should not have, in words.
        small_disk: the processor whose disk can be filled; nothing where none is.
    """

    def __init__(self, cluster: DevCluster, lanes: Lanes, run: RunFolder, workload: Workload, random: Random) -> None:
        self.cluster = cluster
        self.lanes = lanes
        self.run = run
        self.workload = workload
        self.random = random
        self.kafka = KafkaConfig(cluster.bootstrap_servers)
        self.questions = KafkaCluster(self.kafka)
        self.notes = run.path / "notes"
        self.sink = Sink(self.notes)
        self.history: list[Event] = []
        self.unexpected: list[str] = []
        self.complaint = ""
        self.restarts = 0
        self.small_disk = ""
        self.machines: dict[str, Machine] = {}
        self._admin = AdminClient({**self.kafka.common(), "socket.timeout.ms": 5_000})
        self._fleets: list[Fleet] = []
        self._fleet = self._new_fleet(self.kafka)

    @classmethod
    @contextlib.contextmanager
    def build(cls, folder: Path, run: RunFolder, workload: Workload, random: Random, lanes: int) -> Iterator[Site]:
        """Brokers with their lanes; nothing of Duewheel runs yet.

        Args:
            folder: of the jars.
            run: takes logs, stores and notes.
        """
        with contextlib.ExitStack() as stack:
            ways = stack.enter_context(Lanes(lanes, NODES))
            # The whole changelog is evidence, so nothing is compacted away.
            settings = {**listeners(ways.lanes), "log.cleaner.enable": "false", "num.network.threads": "2"}
            cluster = stack.enter_context(DevCluster(folder, brokers=len(NODES), settings=settings))
            site = cls(cluster, ways, run, workload, random)
            stack.callback(site.close)
            yield site

    # --- starting ---

    def start(self, *, small_disk: bool) -> None:
        """Topics, sink, processors and workers; until all have their share.

        Args:
            small_disk: gives one processor a disk that can be filled.

        Raises:
            BadConfiguration: this user cannot make one.
        """
        if small_disk:
            self._mount("processor-1")
        self.notes.mkdir()
        self.sink.prepare()
        ensure(self.kafka, TOPOLOGY, {QUEUE_DEFAULT: PARTITIONS}, partitions=PARTITIONS)
        lanes = list(self.lanes.lanes)
        for number in range(1, EACH + 1):
            for role in ("processor", "worker"):
                self.add(role, f"{role}-{number}", lanes.pop() if number == EACH and lanes else None)
        self._await(self._all_serve, READY_S, "every process serves its share of the partitions")

    def start_producers(self, start_ms: int) -> None:
        """The producers, which begin at this time."""
        spare = [lane for lane in self.lanes.lanes if all(machine.lane is not lane for machine in self.machines.values())]
        for number in range(PRODUCERS):
            lane = spare.pop() if spare and number == PRODUCERS - 1 else None
            name, workload = f"producer-{number}", self.workload
            options = {
                "bootstrap-servers": self._servers(lane),
                "prefix": TOPOLOGY.prefix,
                "folder": self.notes,
                "number": number,
                "producers": PRODUCERS,
                "start-ms": start_ms,
                "seed": workload.seed,
                "jobs": workload.jobs,
                "span-ms": workload.span_ms,
            }
            command = [sys.executable, "-m", "tests.chaos.producer", *(f"--{option}={value}" for option, value in options.items())]
            child = Supervised(command, self.run.path / f"{name}.log", self.run.lock, {**os.environ, **_environment(self.notes)})
            child.start()
            self.machines[name] = Machine(name, "producer", child, lane)

    def add(self, role: str, name: str, lane: Lane | None = None) -> Machine:
        """Starts a processor or a worker."""
        fleet = self._fleet if lane is None else self._new_fleet(KafkaConfig(self._servers(lane)))
        child: Child
        if role == "processor":
            child = fleet.start_processor(name)
        else:
            child = fleet.start_worker(name, "tests.chaos.tasks:app", concurrency=CONCURRENCY, environment=_environment(self.notes))
        machine = self.machines[name] = Machine(name, role, child, lane)
        return machine

    def _new_fleet(self, kafka: KafkaConfig) -> Fleet:
        self._fleets.append(Fleet(kafka, TOPOLOGY, self.run))
        return self._fleets[-1]

    def _servers(self, lane: Lane | None) -> str:
        return self.kafka.bootstrap_servers if lane is None else lane.bootstrap_servers(NODES)

    # --- looking after ---

    def of(self, role: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.role == role]

    def restart_later(self, machine: Machine) -> None:
        machine.restart_at = time.monotonic() + self.random.randrange(*RESTART_MS) / 1_000

    def look_after(self, on_crash: Callable[[Machine], None]) -> None:
        """Starts again what has ended, as whoever supervises processes would.

        Args:
            on_crash: told of a process that ended by itself.
        """
        for machine in self.machines.values():
            if machine.finished or not machine.wanted or machine.child.running:
                continue
            if machine.restart_at is None:
                self._ended(machine, on_crash)
            elif time.monotonic() >= machine.restart_at:
                machine.restart_at = None
                machine.child.start()
                self.restarts += 1

    def _ended(self, machine: Machine, on_crash: Callable[[Machine], None]) -> None:
        code = machine.child.exit_code
        if machine.role == "producer" and code == _DONE:
            machine.finished = True
            return
        if code not in (_SURROUNDINGS, _KILLED) or (code == _KILLED and machine.role != "worker"):
            self.unexpected.append(f"{machine.name} ended by itself with exit code {code}; its log ends:\n{machine.child.log_tail(12)}")
        on_crash(machine)
        self.restart_later(machine)

    def all_run(self) -> bool:
        return all(machine.finished or machine.child.running for machine in self.machines.values() if machine.wanted)

    def producers_finished(self) -> bool:
        return all(machine.finished for machine in self.of("producer"))

    def shares(self, role: str) -> Mapping[str, frozenset[int]]:
        """Which partitions each processor, or worker, holds; empty where that is not settled or cannot be asked just now."""
        group = TOPOLOGY.processor_group if role == "processor" else TOPOLOGY.worker_group(QUEUE_DEFAULT)
        try:
            return self.questions.members(group)
        except DuewheelError as error:
            self.complaint = str(error)
            return {}

    def settled_shares(self, role: str) -> Mapping[str, frozenset[int]]:
        """The same, waiting until somebody holds each partition.

        Raises:
            EnvironmentFailure: nobody could say so for too long.
        """
        deadline = time.monotonic() + SETTLE_S
        shares = self.shares(role)
        while sum(map(len, shares.values())) < PARTITIONS:
            if time.monotonic() > deadline:
                why = self.complaint or "the group is not settled"
                raise EnvironmentFailure(f"for {SETTLE_S:g} s nobody could say which {role} holds which partition: {why}; {shares}")
            self.questions = KafkaCluster(self.kafka)  # a client may go on asking a coordinator that is none any more
            time.sleep(0.5)
            shares = self.shares(role)
        return shares

    def _all_serve(self) -> bool:
        return all(
            set(self.shares(role)) == {m.name for m in self.of(role)} and all(self.shares(role).values())
            for role in ("processor", "worker")
        )

    def _await(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            for fleet in self._fleets:
                fleet.check()
            if time.monotonic() > deadline:
                tails = "\n".join(fleet.log_tails() for fleet in self._fleets)
                raise EnvironmentFailure(f"after {timeout_s:g} s it is still not so that {what}.\n{tails}")
            time.sleep(0.1)

    # --- the brokers ---

    def in_sync(self) -> bool:
        """Whether every broker runs and every partition has all its replicas in sync."""
        if not all(broker.running for broker in self.cluster.brokers):
            return False
        try:
            found = self._admin.list_topics(timeout=_ASK_S)
        except KafkaException:
            return False
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        return len(found.brokers) == len(NODES) and all(len(p.isrs) == len(p.replicas) and p.leader >= 0 for p in partitions)

    def broker_by_duty(self, duty: int) -> tuple[Broker, str]:
        """A broker to break, and what it is: the coordinator of processors, of their transactions, of workers, of their transactions, or
        anyone. Where nobody can tell just now, anyone."""
        worker_group = TOPOLOGY.worker_group(QUEUE_DEFAULT)
        names = ("coordinator of processors", "coordinator of their transactions", "coordinator of workers", "coordinator of theirs")
        found: int | None = None
        with contextlib.suppress(KafkaException, DuewheelError, TimeoutError):
            kind = duty % (len(names) + 1)
            if kind == 0 or kind == 2:
                found = self._group_coordinator(TOPOLOGY.processor_group if kind == 0 else worker_group)
            elif kind == 1:
                found = self._transaction_coordinator(TOPOLOGY.processor_group, TOPOLOGY.intake)
            elif kind == 3:
                found = self._transaction_coordinator(worker_group, TOPOLOGY.dispatch(QUEUE_DEFAULT))
        if found is None:
            return self.random.choice(self.cluster.brokers), "any"
        return next(broker for broker in self.cluster.brokers if broker.node_id == found), names[kind]

    def _group_coordinator(self, group: str) -> int:
        future = self._admin.describe_consumer_groups([group], request_timeout=_ASK_S)[group]
        described: Any = future.result(_ASK_S + 1)
        return int(described.coordinator.id)

    def _transaction_coordinator(self, group: str, topic: str) -> int | None:
        """Who coordinates the transactions of the process that holds partition 0: the leader of that part of Kafka's own log into which
        its transactional id falls, by the hash of Java's strings."""
        position = self.questions.owners(group, topic, [0])[0]
        claim = decode(position.metadata, position.offset or 0)
        name = owner_of(position.metadata) if claim is None else claim.owner
        if not name:
            return None
        partition = abs(java_hash(f"{name}-0")) % TRANSACTION_PARTITIONS
        return int(self._admin.list_topics(_TRANSACTIONS, timeout=_ASK_S).topics[_TRANSACTIONS].partitions[partition].leader)

    # --- disks ---

    def stores(self, machine: Machine) -> Path:
        """Where a processor keeps its stores: a folder for each installation, and in it one for each timer partition."""
        return self.run.path / f"{machine.name}.state"

    def fill_disk(self) -> None:
        """Leaves no byte where `small_disk` keeps its stores."""
        with (self.run.path / f"{self.small_disk}.state" / _BALLAST).open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(_SMALL_DISK_BYTES // 64))
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0")

    def free_disk(self) -> None:
        (self.run.path / f"{self.small_disk}.state" / _BALLAST).unlink(missing_ok=True)

    def _mount(self, machine: str) -> None:
        folder = self.run.path / f"{machine}.state"
        folder.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK_BYTES}", "none", str(folder)], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            raise BadConfiguration(
                f"a disk can be filled only where a small one can be made, and `mount -t tmpfs` says: {mounted.stderr.strip()}; "
                "run this as root, or without --full-disks"
            )
        self.small_disk = machine

    def _unmount(self) -> None:
        if self.small_disk:
            subprocess.run(["umount", "-l", str(self.run.path / f"{self.small_disk}.state")], capture_output=True, check=False)

    # --- the end ---

    def stop(self) -> None:
        """Ends all processes in good order."""
        for machine in self.machines.values():
            machine.wanted = False
        for fleet in self._fleets:
            for child in fleet.children:
                child.request_stop()
        for fleet in self._fleets:
            fleet.stop(15)

    def close(self) -> None:
        for broker in self.cluster.brokers:
            shutil.copy(broker.log, self.run.path / f"broker-{broker.node_id}.log")
        for machine in self.machines.values():
            machine.child.close()
        for fleet in self._fleets:
            fleet.close()
        self._unmount()


def java_hash(text: str) -> int:
    """`String.hashCode` of an ASCII text."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def _environment(notes: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])), FOLDER_VARIABLE: str(notes)}
