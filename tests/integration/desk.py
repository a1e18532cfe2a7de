"""What tests of the timer processor work with: producers that may write anything, readers that trust nobody, processors turned by hand.

    desk.schedule("job-1", now_ms())
    processor = desk.processor("a")                        in this process, with a state folder called "a"
    desk.drive(processor, until=lambda: desk.dispatches())
    desk.answer(desk.dispatches()[0])
    desk.leave(processor)
    desk.read(desk.topology.outcomes)                      all that was committed, to the very end

Topics are read by consumers of this module's own, not by the product's readers.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from rocksdict import AccessType, Options, Rdict

from duewheel import wiring
from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.system import SystemClock
from duewheel.core.model import DeadLetter, DeadRun, Dispatch, Outcome, Result, Schedule
from duewheel.core.topology import Topology, partition_of
from duewheel.core.wheel import due_of, job_of, timer_key
from duewheel.engine.partition import Stage
from duewheel.engine.processor import Processor
from duewheel.ports import Clock

PARTITIONS: Final = 4
TIMEOUT_S: Final = 30.0
DAY_MS: Final = 86_400_000

Headers = list[tuple[str, str | bytes | None]]


def now_ms() -> int:
    """The machine's clock, rounded down."""
    return time.time_ns() // 1_000_000


class HandClock(SystemClock):
    """The machine's clock, whose wall time can be set wrong; the steady time cannot."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Raw(NamedTuple):
    """A record of the intake topic as some client writes it; a partition of -1 is where murmur2 puts the key."""

    key: bytes | None
    value: bytes | None
    partition: int = -1
    headers: Headers | None = None


def schedule(job_id: str, due_ms: int, **fields: Any) -> Schedule:
    """A Schedule; `fields` are its own or its work's."""
    work: dict[str, Any] = {"task": "t", "content_type": "application/json", "payload": b"1", "headers": {}, "policy": None}
    record: dict[str, Any] = {"job_id": job_id, "due_ms": due_ms, "created_ms": now_ms(), "on_conflict": "IGNORE", "retention_ms": DAY_MS}
    record |= {"queue": "default", "limits": None, "recurrence": None, "delivery": None, "work": work}
    for name, value in fields.items():
        (work if name in work else record)[name] = value
    return cast(Schedule, record)


def raw_schedule(job_id: str, due_ms: int, partition: int = -1, kafka_headers: Headers | None = None, **fields: Any) -> Raw:
    """A Schedule, encoded."""
    return Raw(job_id.encode(), codec.encode_schedule(schedule(job_id, due_ms, **fields)), partition, kafka_headers)


def raw_cancel(job_id: str, partition: int = -1) -> Raw:
    """A Cancel, encoded."""
    return Raw(job_id.encode(), codec.encode_cancel({"job_id": job_id, "created_ms": now_ms(), "reach": "DEFAULT"}), partition)


def raw_outcome(d: Dispatch, result: str = Result.SUCCEEDED, **fields: Any) -> Raw:
    """What a worker says of a dispatch, encoded, for the partition where its owner reads; `fields` are the outcome's own."""
    outcome: dict[str, Any] = {
        "token": d["token"],
        "job_id": d["job_id"],
        "slot_ms": d["slot_ms"],
        "attempt": d["attempt"],
        "result": result,
        "started_ms": d["dispatched_ms"],
        "finished_ms": d["dispatched_ms"],
        "worker": "w",
        "error": None,
        "retry_after_ms": 0,
        "lease_ms": 0,
        "output": None,
    }
    outcome |= fields
    return Raw(d["job_id"].encode(), codec.encode_outcome(cast(Outcome, outcome)), d["timer_partition"])


def home(job_id: str) -> int:
    """The timer partition of a job."""
    return partition_of(job_id.encode(), PARTITIONS)


def job_ids(count: int, partition: int | None = None, prefix: str = "job") -> list[str]:
    """Different job ids, all of one timer partition where one is given."""
    found: list[str] = []
    n = 0
    while len(found) < count:
        job_id = f"{prefix}-{n}"
        if partition is None or home(job_id) == partition:
            found.append(job_id)
        n += 1
    return found


class TopicLog:
    """What was committed to one topic, as far as it was read."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        settings = {
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,  # whatever else is asked waits behind a fetch
        }
        self._consumer = Consumer({**settings, **kafka.common()})
        self._topic = topic
        found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        self._reached = dict.fromkeys(found.partitions, -1)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in found.partitions])
        self.messages: list[Message] = []

    def pump(self, wait_s: float = 0.0) -> None:
        """Takes in what has arrived."""
        messages: Sequence[Message] = self._consumer.consume(5_000, wait_s)
        for message in messages:
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None
            assert offset is not None
            if error is None:
                self.messages.append(message)
                self._reached[partition] = max(self._reached[partition], offset + 1)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self._reached[partition] = max(self._reached[partition], offset)

    def to_end(self) -> None:
        """Takes in everything up to where the log ends now. No transaction may be open."""
        deadline = time.monotonic() + TIMEOUT_S
        for partition in self._reached:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=TIMEOUT_S)
            while self._reached[partition] < end:
                assert time.monotonic() < deadline, f"{self._topic} [{partition}]: read up to {self._reached[partition]} of {end}"
                self.pump(0.02)

    def close(self) -> None:
        self._consumer.close()


class Desk:
    """One installation, as producers, workers and operators see it.

    Args:
        kafka: where it is.
        topology: its names.
        folder: takes state folders.
    """

    def __init__(self, kafka: KafkaConfig, topology: Topology, folder: Path) -> None:
        self.kafka = kafka
        self.topology = topology
        self.folder = folder
        # Not through kafka.producer(): what it sets, an unknown client does not set. Only a flush sends, so that what is published
        # together to one partition arrives in one batch, and is read in one turn.
        settings = {"partitioner": "murmur2_random", "message.max.bytes": 20_000_000, "linger.ms": 10_000, "compression.type": "lz4"}
        self.producer = Producer({**settings, **kafka.common()})
        self._logs: dict[str, TopicLog] = {}
        self._dispatches: dict[str, list[Dispatch]] = {}
        self._processors: list[Processor] = []

    # --- producers ---

    def publish(self, records: Iterable[Raw], topic: str | None = None) -> None:
        """Writes records to a topic, intake by default, as any client could; returns when all are acknowledged."""
        target = self.topology.intake if topic is None else topic
        failures: list[KafkaError] = []
        for key, value, partition, headers in records:
            self.producer.produce(
                target, value, key, partition, headers=headers, on_delivery=lambda error, _: failures.append(error) if error else None
            )
            self.producer.poll(0)
        assert self.producer.flush(TIMEOUT_S) == 0
        assert not failures, failures[0]

    def transaction(self, records: Iterable[Raw], topic: str | None = None) -> Producer:
        """Writes records in a transaction that is left open: whoever holds the producer may commit or abort it."""
        producer = Producer({**self.kafka.common(), "transactional.id": f"{self.topology.prefix}-{uuid.uuid4().hex}"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for key, value, partition, headers in records:
            producer.produce(self.topology.intake if topic is None else topic, value, key, partition, headers=headers)
        assert producer.flush(TIMEOUT_S) == 0
        return producer

    def schedule(self, job_id: str, due_ms: int, **fields: Any) -> None:
        self.publish([raw_schedule(job_id, due_ms, **fields)])

    def cancel(self, job_id: str) -> None:
        self.publish([raw_cancel(job_id)])

    # --- workers ---

    def answer(self, dispatches: Iterable[Dispatch], result: str = Result.SUCCEEDED, **fields: Any) -> None:
        """Writes an outcome of each dispatch."""
        self.publish([raw_outcome(d, result, **fields) for d in dispatches], self.topology.outcomes)

    # --- reading ---

    def seen(self, topic: str) -> list[Message]:
        """What was read of a topic so far; each call takes in a little more."""
        log = self._logs.get(topic) or self._logs.setdefault(topic, TopicLog(self.kafka, topic))
        log.pump()
        return log.messages

    def read(self, topic: str) -> list[Message]:
        """All that was committed to a topic, to its very end."""
        self.seen(topic)
        self._logs[topic].to_end()
        return self._logs[topic].messages

    def forget(self, topic: str) -> None:
        """Reads a topic anew, as it is now."""
        self._logs.pop(topic).close()

    def dispatches(self, queue: str = "default") -> list[Dispatch]:
        """What was seen on a dispatch topic so far."""
        return self._decoded(queue, self.seen(self.topology.dispatch(queue)))

    def all_dispatches(self, queue: str = "default") -> list[Dispatch]:
        """All dispatches there are, after checking what must hold of any set of them."""
        dispatches = self._decoded(queue, self.read(self.topology.dispatch(queue)))
        check_dispatches(dispatches)
        return dispatches

    def _decoded(self, queue: str, messages: Sequence[Message]) -> list[Dispatch]:
        decoded = self._dispatches.setdefault(queue, [])
        decoded += [codec.decode_dispatch(message.value()) for message in messages[len(decoded) :]]
        return decoded

    def dispatched(self) -> list[str]:
        """Job ids of all dispatches there are, sorted; one that was dispatched twice is there twice."""
        return sorted(d["job_id"] for d in self.all_dispatches())

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, by where the record came from."""
        letters = [record for kind, record in self._dead() if kind == "letter"]
        return sorted(cast("list[DeadLetter]", letters), key=lambda letter: (letter["topic"], letter["partition"], letter["offset"]))

    def dead_runs(self) -> list[DeadRun]:
        """All runs that died, in the order of the topic's partitions; those that were closed since are among them."""
        return [cast(DeadRun, record) for kind, record in self._dead() if kind == "dead_run"]

    def _dead(self) -> list[tuple[str, Any]]:
        return [codec.decode_dead_letter_topic(message.value()) for message in self.read(self.topology.dead_letter)]

    def fold(self) -> dict[int, dict[bytes, bytes]]:
        """What the changelog says, by timer partition: the newest value of each key."""
        folded: dict[int, dict[bytes, bytes]] = {n: {} for n in range(PARTITIONS)}
        for message in self.read(self.topology.state):
            key, value, partition = message.key(), message.value(), message.partition()
            assert isinstance(key, bytes)
            assert partition is not None
            if value is None:
                folded[partition].pop(key, None)
            else:
                folded[partition][key] = bytes(value)
        return folded

    def phases(self) -> dict[str, str]:
        """The phase of each job that has left WAITING, by job id."""
        return {
            key[1:].decode(): codec.decode_state(value)["phase"]
            for partition in self.fold().values()
            for key, value in partition.items()
            if key[:1] == b"s"
        }

    def store_path(self, name: str, partition: int) -> Path:
        """Where a processor's local store lies."""
        return self.folder / name / self.topology.prefix / str(partition)

    def check_stores(self, name: str) -> None:
        """The stores of a processor that held all partitions, and has ended, are the fold of the changelog.

        Each job that waits has its timer; others are over, or of an older generation: a restore may leave those, and they do nothing.
        """
        fold, end_ms = self.fold(), now_ms()
        for partition in range(PARTITIONS):
            records, timers = stored(self.store_path(name, partition))
            assert records == fold[partition]
            waiting = {timer_key(due_ms, job_id) for job_id, due_ms in waiting_jobs(records).items()}
            assert timers >= waiting, f"no timer: {sorted(map(job_of, waiting - timers))}"
            idle = [job_of(timer) for timer in timers - waiting if due_of(timer) > end_ms]
            assert all(codec.decode_definition(records[b"d" + job_id.encode()])["generation"] > 1 for job_id in idle), idle

    # --- processors in this process ---

    def processor(
        self,
        name: str = "a",
        clock: Clock | None = None,
        broker_timeout_s: float = TIMEOUT_S,
        kafka: KafkaConfig | None = None,
        deliver_to: Sequence[str] = (),
    ) -> Processor:
        """A processor that has asked to join its group."""
        processor = wiring.timer_processor(
            kafka or self.kafka, self.topology, self.folder / name, broker_timeout_s, clock, deliver_to=deliver_to
        )
        self._processors.append(processor)
        processor.start()
        return processor

    def active(self, name: str = "a", clock: Clock | None = None, deliver_to: Sequence[str] = ()) -> Processor:
        """A processor that is alone and fires all partitions."""
        processor = self.processor(name, clock, deliver_to=deliver_to)
        self.drive(processor, until=lambda: is_active(processor))
        return processor

    def drive(self, *processors: Processor, until: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
        """Turns the processors, one after the other, until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not until():
            for processor in processors:
                processor.turn()
            assert time.monotonic() < deadline, f"not so after {timeout_s} s; stages: {[processor.stages for processor in processors]}"

    def drive_for(self, *processors: Processor, seconds: float) -> None:
        """Turns the processors for a while, to see that nothing happens; the turns are settled afterwards."""
        end = time.monotonic() + seconds
        self.drive(*processors, until=lambda: time.monotonic() > end)

    def leave(self, *processors: Processor) -> None:
        """Lets processors go in good order."""
        for processor in processors:
            self._processors.remove(processor)
            processor.close()

    def close(self) -> None:
        self.leave(*self._processors[:])
        for log in self._logs.values():
            log.close()
        del self.producer


def stored(path: Path) -> tuple[dict[bytes, bytes], set[bytes]]:
    """The records and the timers in a store that nobody has open."""
    families = {family: Options(raw_mode=True) for family in ("jobs", "timers", "meta")}
    store = Rdict(str(path), Options(raw_mode=True), column_families=families, access_type=AccessType.read_only())
    jobs, timers = store.get_column_family("jobs"), store.get_column_family("timers")
    try:
        return {_bytes(key): value for key, value in jobs.items()}, {_bytes(key) for key, _ in timers.items()}
    finally:
        for each in (jobs, timers, store):
            each.close()


def _bytes(key: object) -> bytes:
    assert isinstance(key, bytes)
    return key


def waiting_jobs(records: Mapping[bytes, bytes]) -> dict[str, int]:
    """The jobs that wait, by what the changelog says of one partition, and when they are due."""
    waiting = {}
    for key, value in records.items():
        if key[:1] == b"d":
            definition, state = codec.decode_definition(value), records.get(b"s" + key[1:])
            if state is None or codec.decode_state(state)["generation"] < definition["generation"]:
                waiting[key[1:].decode()] = definition["schedule"]["due_ms"]
    return waiting


def is_active(processor: Processor) -> bool:
    """Whether a processor has all partitions and fires them."""
    return list(processor.stages.values()) == [Stage.ACTIVE] * PARTITIONS


def check_dispatches(dispatches: Sequence[Dispatch]) -> None:
    """What the promise says of dispatches: never early; tokens unique in a timer partition; an attempt of a slot is handed out once."""
    for d in dispatches:
        assert d["dispatched_ms"] >= d["slot_ms"], f"early: {d}"
    tokens = Counter((d["timer_partition"], d["token"]) for d in dispatches)
    assert max(tokens.values(), default=1) == 1, f"tokens used twice: {[token for token, count in tokens.items() if count > 1][:5]}"
    attempts = Counter((d["job_id"], d["generation"], d["attempt"]) for d in dispatches)
    assert max(attempts.values(), default=1) == 1, f"dispatched twice: {[attempt for attempt, count in attempts.items() if count > 1][:5]}"


@contextmanager
def turning(desk: Desk, processor: Processor) -> Iterator[None]:
    """Turns a processor for as long as the block lasts."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: desk.drive(processor, until=over.is_set, timeout_s=2 * TIMEOUT_S))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
