"""The dead-letter topic as people ask about it: its records go into the fold of `core.dead_runs`, one by one.

Three kinds of records lie there: runs that died, what became of them, and records that were refused. Of the last only the latest
REFUSED_HELD_MAX are held, as entries of `core.history`, which is what `duewheel tail` shows of them too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from duewheel.adapters.avro import codec
from duewheel.adapters.kafka.scan import Scan
from duewheel.core import history
from duewheel.core.dead_runs import DeadRuns, DeadRunSummary, summary
from duewheel.core.errors import EnvironmentFailure, UndecodableRecord
from duewheel.core.history import Entry, Source
from duewheel.core.model import DeadRun
from duewheel.ports import Record

# An entry with its message is at most 3 KB and usually 700 bytes.
REFUSED_HELD_MAX: Final = 20_000

_POLL_S: Final = 0.1


class DeadLetters:
    """One reading of the topic.

    Args:
        scan: reads it.
        runs: the fold that dead runs and their closings go to.
        jobs: look at what lies under these keys only, without decoding the rest; empty for all.
        wants_refused: says of a refused record whether to hold it.

    Attributes:
        runs: as given; another may take its place between two readings.
        refused: the refused records that were wanted, the latest last.
        refused_count: how many refused records there were, wanted or not.
        unreadable_count: how many records could not be read.
    """

    def __init__(
        self,
        scan: Scan,
        runs: DeadRuns,
        jobs: Collection[str] = (),
        wants_refused: Callable[[Entry], bool] = lambda _entry: False,
    ) -> None:
        self._scan = scan
        self._wants_refused = wants_refused
        self.runs = runs
        self.refused: deque[Entry] = deque(maxlen=REFUSED_HELD_MAX)
        self.refused_count = 0
        self.unreadable_count = 0
        self.only(jobs)

    def only(self, jobs: Collection[str]) -> None:
        """From now on, look at what lies under these keys only; empty for all."""
        self._keys = frozenset(job.encode() for job in jobs)

    def read(self, on_progress: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Reads what was not read before, up to where the topic ends now.

        Args:
            on_progress: told how many records were passed, of how many, after each batch.

        Raises:
            BrokerUnavailable: it could not be read.
        """
        for records in self._scan.to_end():
            self._take(records)
            on_progress(self._scan.done, self._scan.count)

    def follow(self) -> None:
        """Reads what comes next, waiting for it a moment."""
        self._take(self._scan.poll(_POLL_S))

    def whole(self, run: DeadRunSummary) -> DeadRun:
        """All that was written of a dead run. Call it last: nothing can be read afterwards.

        Raises:
            EnvironmentFailure: the record is no more.
            BrokerUnavailable: it could not be read.
        """
        record = self._scan.at(run.partition, run.offset)
        if record is None:
            raise EnvironmentFailure(
                f"the record of dead run {run.job_id} (token {run.token}) was deleted from the dead-letter topic while it was looked for"
            )
        return codec.decode_dead_run(record.value())

    def _take(self, records: list[Record]) -> None:
        keys = self._keys
        for record in records:
            if keys and record.key() not in keys:
                continue
            try:
                self._decoded(record)
            except UndecodableRecord:
                self.unreadable_count += 1

    def _decoded(self, record: Record) -> None:
        decoded = codec.decode_dead_letter_topic(record.value())
        if decoded[0] == "dead_run":
            self.runs.died(summary(record.partition(), record.offset(), decoded[1]))
        elif decoded[0] == "closed":
            self.runs.closed(decoded[1])
        else:
            self.refused_count += 1
            key = record.key()
            source = Source(topic=record.topic(), partition=record.partition(), offset=record.offset(), written_ms=record.timestamp()[1])
            job_id = key.decode(errors="backslashreplace") if key is not None else None
            entry = history.dead_letter_entry(source, job_id, decoded[1])
            if self._wants_refused(entry):
                self.refused.append(entry)
