"""An installation in memory: topics, and machines on which processors and workers run, crash, and are started again.

The processes are the real ones, assembled as `duewheel.wiring` does it, over the adapters in memory. A machine outlives its processes: a
processor that is started again finds the disk as the one before left it, and a new name, by which others may fence it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Final
from unittest.mock import patch

from duewheel.adapters.avro import codec
from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.cluster import MemoryCluster
from duewheel.adapters.memory.groups import NOBODY
from duewheel.adapters.memory.logs import Log
from duewheel.adapters.memory.readers import MemoryGroupReader, MemoryReader
from duewheel.adapters.memory.store import Disk, MemoryStore
from duewheel.adapters.memory.transactions import MemoryTransactions
from duewheel.adapters.memory.world import Fault, Process, World
from duewheel.core.claims import Claim, encode
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.step import Step
from duewheel.core.topology import Topology, partition_of
from duewheel.engine.partition import DEFINITION, STATE, Partition
from duewheel.engine.processor import Processor
from duewheel.ports import Offset
from duewheel.proof.history import Committed, Event, OffsetsReset, Rebalanced, TransactionFailed
from duewheel.worker.app import App
from duewheel.worker.doorstep import LastLives
from duewheel.worker.loop import Worker
from duewheel.worker.runs import Run
from duewheel.worker.stops import Stops
from duewheel.worker.takeover import Returns
from tests.simulation.desk import VirtualDesk
from tests.simulation.kernel import Kernel

TOPOLOGY: Final = Topology("sim")
QUEUE: Final = "default"
# Topics of others, to which records are delivered; the last is made when some of these wait for it already.
OUT: Final = ("out-1", "out-2", "out-late")
OUT_PARTITIONS: Final = 2
OUT_BYTES_MAX: Final = 200
SESSION_TIMEOUT_MS: Final = 6_000
BROKER_TIMEOUT_MS: Final = 60_000
GRACE_MS: Final = 5_000
FOREVER_MS: Final = 2**62


class Site:
    """What all machines share.

    Attributes:
        history: what was seen, in order.
        failures: errors that no process may end with.
        deleted: logs of topics that were deleted, each with the name that the history has for it.
        queueless: from when to when a queue had no topic, in milliseconds; of one that has none now, until for ever.
        left_out: states of recurring jobs, by identity, with which slots were left out, and how many; also those that were never committed.
        slots_missed, slots_overlapped: how many slots steps left out, also those that were never committed.
    """

    def __init__(self, world: World, kernel: Kernel, random: Random, timer_partitions: int, queues: dict[str, int]) -> None:
        self.world = world
        self.kernel = kernel
        self.random = random
        self.broker = Broker(world)
        self.history: list[Event] = []
        self.failures: list[str] = []
        self.names = 0
        self.deleted: list[tuple[str, Log]] = []
        self.queueless: list[tuple[int, int]] = []
        self.left_out: dict[int, tuple[bytes, int]] = {}
        self.slots_missed = self.slots_overlapped = 0
        self._formed_us: dict[str, int] = {}
        self._lives = Counter[str]()
        self._fold: dict[bytes, tuple[int, bytes | None]] = {}
        self._folded = Counter[int]()
        self._forgotten = Counter[bytes]()
        self._by_hand = False
        world.observer = self
        for topic in (TOPOLOGY.intake, TOPOLOGY.state, TOPOLOGY.outcomes):
            self.broker.create(topic, timer_partitions)
        self.broker.create(TOPOLOGY.dead_letter, 1)
        self.broker.create(TOPOLOGY.control, 1)
        for queue, partitions in queues.items():
            self.make_queue(queue, partitions)

    def make_topic(self, topic: str) -> None:
        """Makes a topic that records are delivered to, and that takes no large ones."""
        self.broker.create(topic, OUT_PARTITIONS)
        self.broker.record_bytes_max[topic] = OUT_BYTES_MAX

    def make_queue(self, queue: str, partitions: int) -> None:
        """Makes a queue's topic, as `duewheel topics apply` does."""
        topic = TOPOLOGY.dispatch(queue)
        self._lives[topic] += 1
        self.broker.create(topic, partitions)
        new = [Offset(topic, p, 0, encode(Claim("", 0), 0)) for p in range(partitions)]
        with suppress(Fault):  # a group with members takes commits from them alone
            self.broker.group(TOPOLOGY.worker_group(queue)).commit(NOBODY, new)
        if self.queueless:
            self.queueless[-1] = self.queueless[-1][0], self.world.now_ms

    def delete_queue(self, queue: str) -> None:
        """Deletes it, with all that nobody has run."""
        topic = TOPOLOGY.dispatch(queue)
        self.deleted += [(self.log_name(topic), log) for log in self.broker.topic(topic)]
        self.broker.delete(topic)
        self.queueless.append((self.world.now_ms, FOREVER_MS))

    @property
    def is_queueless(self) -> bool:
        """Whether a queue has no topic now."""
        return bool(self.queueless) and self.queueless[-1][1] == FOREVER_MS

    def log_name(self, topic: str) -> str:
        """What the history calls a topic: of one that was deleted and made again, each is another."""
        lives = self._lives[topic]
        return topic if lives < 2 else f"{topic}~{lives}"

    def reset_offsets(self, group: str, topics: Sequence[str]) -> None:
        """Sets a group back to where logs begin, without a word beside it, as people and their tools do. It must have no members."""
        offsets = [Offset(topic, log.partition, log.start, "") for topic in topics for log in self.broker.topic(topic)]
        self._by_hand = True
        try:
            self.broker.group(group).commit(NOBODY, offsets)
        finally:
            self._by_hand = False

    # --- what the changelog says ---

    def fold(self) -> dict[bytes, bytes | None]:
        """Definitions and states of all jobs, those that were forgotten as None."""
        self._read_on()
        return {key: value for key, (_, value) in self._fold.items()}

    def times_forgotten(self, job_id: str) -> int:
        """How often a job was forgotten."""
        self._read_on()
        return self._forgotten[job_id.encode()]

    def _read_on(self) -> None:
        fold = self._fold
        for log in self.broker.topic(TOPOLOGY.state):
            for record in log.kept[self._folded[log.partition] :]:  # in the order of markers, which may differ from that of offsets
                key = record.key() or b""
                if key[:1] in (DEFINITION, STATE) and record.offset() > fold.get(key, (-1, None))[0]:
                    fold[key] = record.offset(), record.value()
                self._forgotten[key[1:]] += key[:1] == STATE and record.value() is None
            self._folded[log.partition] = len(log.kept)

    # --- the history ---

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens to how many slots steps leave out. No record says so; it is told beside the very bytes of the state that goes with it."""
        changes = Partition.changes

        def listen(partition: Partition, step: Step, *offsets: int) -> list[tuple[bytes, bytes | None]]:
            records = changes(partition, step, *offsets)
            self.slots_missed += step.counts.slots_missed
            self.slots_overlapped += step.counts.slots_overlapped
            for key, value in records if step.left_out else ():
                count = step.left_out.get(key[1:].decode(), 0) if key[:1] == STATE else 0
                if count and value is not None:
                    self.left_out[id(value)] = value, count
            return records

        with patch.object(Partition, "changes", listen):
            yield

    def tell(self, event: Event) -> None:
        self.history.append(event)

    # --- world.Observer ---

    def offset_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        kind = OffsetsReset if self._by_hand else Committed
        self.tell(kind(self.world.now_ms, group, self.log_name(topic), partition, offset))

    def generation_formed(self, group: str, generation: int) -> None:
        self._formed_us[group] = self.world.now_us
        self.tell(Rebalanced(self.world.now_ms, group, generation))
        self.kernel.note(group, "forms generation", generation)

    def transaction_aborted(self, transactional_id: str, opened_us: int, how: str) -> None:
        group = TOPOLOGY.processor_group if ".processor." in transactional_id else TOPOLOGY.worker_group(QUEUE)
        caught = self._formed_us.get(group, -1) >= opened_us
        self.tell(TransactionFailed(self.world.now_ms, transactional_id, how, caught))
        self.kernel.note(transactional_id[-8:], f"is {how}")

    def new_name(self, kind: str) -> str:
        """A name for a process, as random as a UUID, and the same in every run of a seed."""
        self.names += 1
        return f"{TOPOLOGY.prefix}.{kind}.{self.random.getrandbits(112):028x}{self.names:04x}"


class Machine:
    """Where one process runs at a time, and is started again after it ended.

    Attributes:
        process: the one that runs now, or ran last.
        wanted: whether it is to be started again.
        draining: whether it was asked to end in good order.
    """

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name
        self.skew_us = 0
        self.wanted = False
        self.draining = False
        self.starts = 0
        self.process = Process(site.world, name)
        self.process.alive = False

    def start(self) -> None:
        """Starts a process, unless one runs."""
        if self.process.alive:
            return
        self.wanted, self.draining = True, False
        self.starts += 1
        process = self.process = Process(self.site.world, f"{self.name}.{self.starts}")
        process.skew_us = self.skew_us
        self.site.kernel.note(process.name, "starts")
        self.site.kernel.start(process, lambda: self._run(process))

    def crash(self) -> None:
        """Ends its process at once; it is not started again by itself."""
        self.wanted = False
        self.site.kernel.crash(self.process)

    def drain(self) -> None:
        """Asks for an end in good order."""
        self.wanted, self.draining = False, True
        self.process.wake()

    def _run(self, process: Process) -> None:
        why = ""
        try:
            self.run(process)
        except EnvironmentFailure as error:
            why = str(error)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.site.failures.append("".join(traceback.format_exception(error)))
        finally:
            if process.alive:
                self.site.kernel.note(process.name, "ends", why)
                process.alive = False
                self.site.world.later(0, lambda: self.site.kernel.reap(process))

    def run(self, process: Process) -> None:
        """What the process does, until it should end."""
        raise NotImplementedError


class ProcessorMachine(Machine):
    """Runs a timer processor.

    Attributes:
        disk: its stores.
        processor: of the process that runs now.
    """

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(site, name)
        self.disk = Disk()
        self.processor: Processor | None = None

    def run(self, process: Process) -> None:
        broker, kernel = self.site.broker, self.site.kernel
        group = TOPOLOGY.processor_group
        intake = MemoryGroupReader(process, broker, TOPOLOGY.intake, group)
        name = self.site.new_name("processor")
        kernel.note(process.name, "is called", name[-6:])
        processor = self.processor = Processor(
            topology=TOPOLOGY,
            clock=process,
            codec=codec,
            cluster=MemoryCluster(process, broker),
            intake=intake,
            outcomes=MemoryReader(process, broker, TOPOLOGY.outcomes),
            changelog=MemoryReader(process, broker, TOPOLOGY.state),
            output=MemoryTransactions(process, broker, name, {group: intake}),
            open_store=lambda number: MemoryStore(process, self.disk, number, f"sim/{number}"),
            close_stores=lambda: None,
            partition_of=partition_of,
            sleep=process.sleep,
            broker_timeout_ms=BROKER_TIMEOUT_MS,
            may_deliver_to=OUT.__contains__,
        )
        processor.start()
        while not self.draining:
            processor.turn()
        processor.close()


class WorkerMachine(Machine):
    """Runs a worker of one queue.

    Args:
        app: makes its app, given the process.
        started: told of each run right before its handler is called.
    """

    def __init__(
        self, site: Site, name: str, queue: str, concurrency: int, app: Callable[[Process], App], started: Callable[[Process, Run], None]
    ) -> None:
        super().__init__(site, name)
        self._queue = queue
        self._concurrency = concurrency
        self._app = app
        self._started = started

    def run(self, process: Process) -> None:
        broker, site = self.site.broker, self.site
        dispatches, group = TOPOLOGY.dispatch(self._queue), TOPOLOGY.worker_group(self._queue)
        cluster = MemoryCluster(process, broker)
        outcome_partitions = cluster.partition_count(TOPOLOGY.outcomes)
        ends = cluster.watermarks(TOPOLOGY.control, range(cluster.partition_count(TOPOLOGY.control)))
        stops = Stops(MemoryReader(process, broker, TOPOLOGY.control), ends, codec, process)
        reader = MemoryGroupReader(process, broker, dispatches, group)
        name = site.new_name("worker")
        site.kernel.note(process.name, "is called", name[-6:])
        worker = Worker(
            app=self._app(process),
            queue=self._queue,
            name=process.name,
            concurrency=self._concurrency,
            topology=TOPOLOGY,
            clock=process,
            codec=codec,
            cluster=cluster,
            reader=reader,
            output=MemoryTransactions(process, broker, name, {group: reader}),
            returns=Returns(lambda: MemoryReader(process, broker, dispatches)),
            desk=VirtualDesk(process, site.random, self._concurrency, self._queue, lambda run: self._started(process, run)),
            stops=stops,
            lives=LastLives(),
            aside=process.aside,
            outcome_partitions=outcome_partitions,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            broker_timeout_ms=BROKER_TIMEOUT_MS,
        )
        worker.start()
        while not worker.stopped:
            if self.draining:
                worker.drain(GRACE_MS)
            worker.turn()
        worker.close()
