"""Reads all witnesses of one installation into `Evidence`: its topics, committed records only, without a group; and the handlers' files."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final, Self

from duewheel.adapters.history import Historian
from duewheel.adapters.kafka.follower import Follower
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import EnvironmentFailure
from duewheel.core.topology import Topology
from duewheel.demo.evidence import Evidence
from duewheel.demo.executions import ExecutionReader
from duewheel.ports import Clock

_RECORDS_MAX: Final = 2_000  # in one go: about 20 ms of decoding, so that the screen stays alive
_PATIENCE_S: Final = 5.0


class Witnesses:
    """Listens from the beginning of every topic and file.

    Args:
        executions: the folder of the handlers' files.

    Attributes:
        evidence: what they have said so far.
    """

    def __init__(self, kafka: KafkaConfig, topology: Topology, executions: Path) -> None:
        self.evidence = Evidence()
        self._historian = Historian(topology)
        self._follower = Follower(kafka, self._historian.reads, 0, _PATIENCE_S)
        self._executions = ExecutionReader(executions)

    def listen(self, timeout_s: float) -> None:
        """Takes down what was said since the last call, waiting for a first record at most `timeout_s`."""
        for record in self._follower.poll(timeout_s, _RECORDS_MAX):
            entry = self._historian.entry(record)
            if entry is not None:
                self.evidence.entry(entry)
        for execution in self._executions.read():
            self.evidence.execution(execution)

    def listen_to_the_end(self, clock: Clock, timeout_s: float) -> None:
        """Takes down everything there is, when nothing is being added any more.

        Raises:
            EnvironmentFailure: it took longer than `timeout_s`.
        """
        deadline_ms = clock.steady_ms() + round(timeout_s * 1_000)
        unread = set(self._follower.partitions)
        while unread := unread.difference(self._follower.ended()):
            if clock.steady_ms() > deadline_ms:
                raise EnvironmentFailure(
                    f"reading the topics to their ends took longer than {timeout_s:g} s; {len(unread)} partitions are left"
                )
            self.listen(0.1)

    def close(self) -> None:
        self._follower.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
