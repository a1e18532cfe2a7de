"""The dead letters by timer partition, for whoever needs one partition after the other: what was refused, what died, what became of it.

All of them lie on one topic. It is read once, and rows of it are spooled; what is added is read whenever `catch_up` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from duewheel.adapters.audit.spool import Spool
from duewheel.adapters.kafka.partitioner import partition_of
from duewheel.adapters.kafka.scan import Scan
from duewheel.core.errors import UndecodableRecord
from duewheel.ports import Clock, Record


class Burial(NamedTuple):
    """What is kept of a record.

    Attributes:
        kind: "letter", "dead_run" or "closed".
        name: the topic of what was refused; the job that died.
        at: its offset; the token.
        died_ms: of a dead run.
    """

    kind: str
    name: str
    at: int
    died_ms: int


class Burials:
    """The dead-letter topic of an installation.

    Args:
        scan: reads it; closed along with this.
        codec: reads its records.
        partitions: how many timer partitions there are.
        on_progress: told what is read, how many records were passed, and of how many.

    Attributes:
        since_ms: from when on it is complete; 0 where it was never cut.
    """

    def __init__(self, scan: Scan, codec: Any, clock: Clock, partitions: int, on_progress: Callable[[str, int, int], None]) -> None:
        self._scan = scan
        self._codec = codec
        self._partitions = partitions
        self._on_progress = on_progress
        self._spool = Spool()
        self._is_cut = any(scan.starts.values())
        self.since_ms = clock.wall_ms() if self._is_cut else 0

    def catch_up(self) -> None:
        """Reads what was not read before, up to where the topic ends now.

        Raises:
            BrokerUnavailable: it could not be read.
        """
        scan = self._scan
        for records in scan.up_to(scan.written()):
            rows: dict[int, list[Burial]] = {}
            for record in records:
                if self._is_cut:
                    self.since_ms = min(self.since_ms, record.timestamp()[1])
                self._keep(record, rows)
            for partition, found in rows.items():
                self._spool.add(partition, found)
            self._on_progress("dead letters", scan.done, scan.count)

    def count(self, partition: int) -> int:
        """How many records of a timer partition were read."""
        return self._spool.count(partition)

    def of(self, partition: int) -> Iterator[Burial]:
        """The records of a timer partition, in the order in which they came."""
        return (Burial(*row) for row in self._spool.rows(partition))

    def close(self) -> None:
        self._scan.close()
        self._spool.close()

    def _keep(self, record: Record, rows: dict[int, list[Burial]]) -> None:
        try:
            kind, what = self._codec.decode_dead_letter_topic(record.value())
        except UndecodableRecord:
            return  # whatever it was for is found to lack it
        if kind == "letter":
            rows.setdefault(what["partition"], []).append(Burial(kind, what["topic"], what["offset"], 0))
        elif kind == "dead_run":
            rows.setdefault(what["timer_partition"], []).append(Burial(kind, what["job_id"], what["token"], what["died_ms"]))
        else:
            home = partition_of(what["job_id"].encode(), self._partitions)
            rows.setdefault(home, []).append(Burial(kind, what["job_id"], what["token"], 0))
