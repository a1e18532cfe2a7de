"""The intake topic from the producer's side, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from duewheel.adapters.memory.broker import RECORD_BYTES_MAX, Broker
from duewheel.adapters.memory.world import Fault, Process
from duewheel.core.errors import BrokerUnavailable, CallerError, EnvironmentFailure, TopicMissing
from duewheel.core.topology import making, partition_of
from duewheel.ports import Receipt


class MemoryIntake:
    """`ports.IntakeLog` in memory."""

    def __init__(self, process: Process, broker: Broker, topic: str) -> None:
        self._process = process
        self._broker = broker
        self._topic = topic
        self._closed = False

    def append(self, key: bytes, value: bytes) -> Receipt:
        if self._closed:
            raise CallerError("this client is closed; make another")
        try:
            self._process.reach("intake.append")
            receipt = self._stored(key, value)
            self._process.answer("intake.append")
        except Fault as fault:
            message = f"job {key.decode(errors='replace')} was not acknowledged ({fault}). Whether it is stored is unknown"
            raise BrokerUnavailable(message) from fault
        return receipt

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        count = 0
        for tag, key, value in records:
            try:
                self.append(key, value)
            except EnvironmentFailure as error:
                failed(tag, error)
                break
            count += 1
        progressed(count)

    def close(self) -> None:
        self._closed = True

    def _stored(self, key: bytes, value: bytes) -> Receipt:
        logs = self._broker.topics.get(self._topic)
        if logs is None:
            raise TopicMissing(f"topic {self._topic} does not exist; make it with: {making(self._topic)}")
        if len(key) + len(value) > RECORD_BYTES_MAX:
            raise EnvironmentFailure(f"job {key.decode(errors='replace')} was refused (MSG_SIZE_TOO_LARGE) and is not stored")
        partition = partition_of(key, len(logs))
        return Receipt(partition, logs[partition].append(key, value, None, self._process.world.now_ms))
