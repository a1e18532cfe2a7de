"""Reads what `core.audit` judges: the logs of an installation, one timer partition at a time, and its local stores.

The order makes it right while everything is at work. What is read first of two logs may lack what the other one has already; so of each
pair the one that must not lack anything comes second:

    the store, as it is              what it has, the state topic has too
    dead letters                     what died by now, the state topic says so
    state, up to the next end of a transaction beyond where it ended now: the cut
    dead letters, once more          what the state topic has buried, they have
    intake and outcomes              up to where the cut says that they were taken in
    dispatches                       what the state topic has dispatched, they have; what came later is known by its token

Where a log ends is asked without regard to open transactions, and they are waited for: a commit is acknowledged before all its markers
are written. Dead letters and dispatches are not split by timer partition. They are read once, and rows of them are spooled to files.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from duewheel.adapters.audit.burials import Burials
from duewheel.adapters.audit.dispatches import Dispatches
from duewheel.adapters.kafka.cluster import KafkaCluster
from duewheel.adapters.kafka.partitioner import partition_of
from duewheel.adapters.kafka.scan import Scan
from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.rocks.snapshot import Snapshot
from duewheel.core.audit import Audit
from duewheel.core.differences import Difference, Fact, Kind, Unjudged
from duewheel.core.errors import BadConfiguration, Reason, StoreDamaged, UndecodableRecord
from duewheel.core.judgement import judge
from duewheel.core.run_ids import home
from duewheel.core.store_audit import DEFINITION, PROGRESS, STATE, StoreAudit
from duewheel.core.topology import Topology
from duewheel.ports import Clock, Record

_POLL_S: Final = 0.1
_CONFLUENT: Final = b"\0"


@dataclass(slots=True)
class StoreReport:
    """What became of one local store.

    Attributes:
        folder: where it lies.
        mark: the changelog below this offset is certainly in it.
        compared: how many of its records were compared.
        beyond: how many keys the changelog has touched since the mark: the store may hold any of their values since then.
        outdated: why it was not compared, which is no difference; None where it was.
    """

    folder: str
    mark: int | None = None
    compared: int = 0
    beyond: int = 0
    outdated: str | None = None


@dataclass(slots=True)
class Report:
    """What was done for one timer partition.

    Attributes:
        jobs: how many jobs its logs know.
        phases: how many of these are in each phase; those that never left WAITING have no state, and are WAITING here.
        cut: the state topic was read up to this offset.
        records: how many records were read, by log; of dispatches and dead letters, those of this partition.
        unjudged: how often something could not be judged, by reason.
        since_ms: from when on each log is complete; 0 for one that was never cut.
        stores: those that the state folders hold of it.
        differences: how many there were.
    """

    partition: int
    jobs: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    cut: int = 0
    records: dict[str, int] = field(default_factory=dict)
    unjudged: dict[str, int] = field(default_factory=dict)
    since_ms: dict[str, int] = field(default_factory=dict)
    stores: list[StoreReport] = field(default_factory=list)
    differences: int = 0


class Verifier:
    """One verification.

    Args:
        kafka: where the cluster is.
        topology: the installation.
        codec: reads records (`adapters.avro.codec`, or an instance with a schema registry).
        clock: what time it is.
        patience_s: for how long the cluster may be away, or a transaction open, before that is an error.
        state_dirs: state folders of processors, as given to them.
        store_age_ms_max: a store that was away for longer is made anew by whoever takes it over, so it is not compared.
        has_registry: whether `codec` has a schema registry.
        on_progress: told what is being read, how many of its records were passed, and of how many.

    Raises:
        TopicMissing: the installation's topics were not made.
        BrokerUnavailable: nobody answered.
        BadConfiguration: a state folder is none of this installation.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topology: Topology,
        *,
        codec: Any,
        clock: Clock,
        patience_s: float,
        state_dirs: Sequence[Path],
        store_age_ms_max: int,
        has_registry: bool,
        on_progress: Callable[[str, int, int], None] = lambda text, done, count: None,
    ) -> None:
        self._kafka = kafka
        self._topology = topology
        self._codec = codec
        self._clock = clock
        self._patience_s = patience_s
        self._folders = [_own_folder(folder, topology) for folder in state_dirs]
        self._store_age_ms_max = store_age_ms_max
        self._has_registry = has_registry
        self._on_progress = on_progress
        self._cluster = KafkaCluster(kafka)
        self.partitions = self._cluster.partition_count(topology.state)
        self._identity = self._cluster.identity(topology.state) if state_dirs else ""
        self._dispatches = Dispatches(kafka, topology, codec, clock, patience_s, on_progress)
        self._burials = Burials(Scan(kafka, topology.dead_letter, patience_s), codec, clock, self.partitions, on_progress)

    def close(self) -> None:
        self._burials.close()
        self._dispatches.close()

    def verify(self, partition: int, passes: int = 1) -> Iterator[Difference | Report]:
        """Differences of one timer partition as they are found, and at last the report.

        Args:
            passes: read it so many times, a part of its jobs at a time, for as much less memory.

        Raises:
            BrokerUnavailable: it could not be read.
            RegistryUnavailable: it was needed and did not answer.
        """
        folders = [folder / str(partition) for folder in self._folders if Snapshot.exists(folder / str(partition))]
        report = Report(partition, stores=[StoreReport(str(folder)) for folder in folders])
        for number in range(passes):
            for difference in self._verify_part(_Part(Audit(partition), passes, number, report)):
                report.differences += 1
                yield difference
        yield report

    def _verify_part(self, part: _Part) -> Iterator[Difference]:
        partition = part.audit.partition
        snapshots: list[tuple[StoreReport, Snapshot]] = []
        try:
            for store in part.report.stores:
                try:
                    snapshots.append((store, Snapshot(Path(store.folder))))
                except StoreDamaged as error:
                    yield Difference(Kind.STORE_UNREADABLE, partition, None, {"error": str(error)})
            comparisons: list[tuple[StoreReport, Snapshot, StoreAudit]] = []
            yield from self._read_logs(part, snapshots, comparisons)
            yield from part.audit.drained()
            yield from judge(part.audit, self._clock.wall_ms())
            for store, snapshot, comparison in comparisons:
                self._on_progress(f"partition {partition}: store", 0, 0)
                yield from comparison.compare(snapshot, part.is_mine)
                store.compared, store.beyond = store.compared + comparison.compared, store.beyond + comparison.beyond
        finally:
            for _, snapshot in snapshots:
                snapshot.close()
        part.sum_up()

    def _read_logs(
        self,
        part: _Part,
        snapshots: Sequence[tuple[StoreReport, Snapshot]],
        comparisons: list[tuple[StoreReport, Snapshot, StoreAudit]],
    ) -> Iterator[Difference]:
        """Folds all logs, and begins a comparison with each store that can be compared."""
        audit, partition = part.audit, part.audit.partition
        self._burials.catch_up()
        burials_before_cut = self._burials.count(partition)
        with closing(Scan(self._kafka, self._topology.state, self._patience_s, {partition: 0})) as scan:
            for store, snapshot in snapshots:
                differences = self._judge_store(store, snapshot, partition, scan.starts[partition], scan.written()[partition])
                yield from differences
                if not differences and store.outdated is None and store.mark is not None:
                    comparison = StoreAudit(audit, store.mark, self._codec.peek_definition, self._codec.decode_state)
                    comparisons.append((store, snapshot, comparison))
            self._read_state(part, scan, [comparison for _, _, comparison in comparisons])
        self._burials.catch_up()
        part.kept("dead letters", self._burials.count(partition), self._burials.since_ms)
        refused = self._take_burials(part, burials_before_cut)
        yield from self._read_input(part, self._topology.intake, audit.intake_offset, refused, self._take_command)
        yield from self._read_input(part, self._topology.outcomes, audit.outcomes_offset, refused, self._take_outcome)
        self._dispatches.catch_up()
        for queue, since_ms in self._dispatches.since_ms.items():
            part.kept(f"dispatch {queue}", None, since_ms)
        part.report.records["dispatches"] = self._dispatches.count(partition)
        yield from self._take_dispatches(part)

    # --- the state topic ---

    def _judge_store(self, store: StoreReport, snapshot: Snapshot, partition: int, low: int, end: int) -> list[Difference]:
        """Whether a store can be compared with a changelog from `low` to `end`: what differs that forbids it. What forbids it and is no
        difference goes into the report.
        """
        mark = snapshot.mark
        if mark is None:
            store.outdated = "it is empty: whoever takes the partition over fills it from the changelog"
            return []
        store.mark, age_ms = mark.changelog_offset, self._clock.wall_ms() - mark.saved_ms
        identity = f"{self._identity}/{partition}"
        if not snapshot.is_known_format or snapshot.identity != identity:
            facts: dict[str, Fact] = {"store": store.folder, "found": snapshot.identity, "expected": identity}
            return [Difference(Kind.STORE_OF_ANOTHER, partition, None, facts)]
        if store.mark > end:
            return [Difference(Kind.STORE_AHEAD, partition, None, {"store": store.folder, "mark": store.mark, "end": end})]
        if store.mark < low or age_ms > self._store_age_ms_max:
            store.outdated = (
                f"it ends at offset {store.mark} of the changelog, written {age_ms:,} ms ago; the changelog begins at {low} and remembers "
                f"deletions for {self._store_age_ms_max:,} ms, so whoever takes the partition over makes it anew"
            )
        return []

    def _read_state(self, part: _Part, scan: Scan, stores: Sequence[StoreAudit]) -> None:
        """Reads to where the topic ends now, and on to the end of the transaction that lies there."""
        partition, text = part.audit.partition, f"partition {part.audit.partition}: state"
        end = scan.written()[partition]
        for records in scan.up_to({partition: end}):
            self._take_state(part, records, stores)
            self._on_progress(text, scan.done, scan.count)
        # A batch may have come a little further, into the middle of a transaction. The rest of it is committed, so it is there.
        while not part.is_at_transaction_end and scan.reached(partition) < scan.written()[partition]:
            self._take_state(part, scan.poll(_POLL_S), stores)
        part.report.cut = scan.reached(partition)
        part.kept("state", part.read, part.since_ms(scan.starts[partition]))

    def _take_state(self, part: _Part, records: Sequence[Record], stores: Sequence[StoreAudit]) -> None:
        for record in records:
            key = record.key() or b""
            part.note(record.timestamp()[1])
            part.is_at_transaction_end = key == PROGRESS
            if key[:1] in (DEFINITION, STATE):
                if not part.is_mine(key[1:]):
                    continue
                home = partition_of(key[1:], self.partitions)
                if home != part.audit.partition:
                    part.audit.find(Kind.MISPLACED, key[1:].decode(errors="backslashreplace"), home=home, offset=record.offset())
                    continue
            for store in stores:
                store.take(record.offset(), key, record.value())
            try:
                self._take_state_record(part.audit, key, record)
            except (UndecodableRecord, UnicodeDecodeError) as error:
                reason = error.reason if isinstance(error, UndecodableRecord) else Reason.BAD_JOB_ID
                job_id = key[1:].decode(errors="backslashreplace") or None
                part.audit.find(Kind.UNREADABLE, job_id, topic=self._topology.state, offset=record.offset(), reason=reason)

    def _take_state_record(self, audit: Audit, key: bytes, record: Record) -> None:
        written_ms, value = record.timestamp()[1], record.value()
        if key == PROGRESS:
            audit.progress(record.offset(), written_ms, self._codec.decode_progress(value))
        elif key[:1] in (DEFINITION, STATE):
            self._take_job_record(audit, key[:1], key[1:].decode(), written_ms, value)

    def _take_job_record(self, audit: Audit, kind: bytes, job_id: str, written_ms: int, value: bytes | None) -> None:
        digest = 0 if value is None else hash(value)
        if kind == STATE:
            audit.state(job_id, written_ms, None if value is None else self._codec.decode_state(value), digest)
        elif value is None:
            audit.definition(job_id, written_ms, None, 0, digest)
        else:
            known = self._codec.peek_definition(value)
            created_ms = self._codec.decode_command(known.command)[1]["created_ms"]
            audit.definition(job_id, written_ms, known, created_ms, digest)

    # --- intake and outcomes ---

    def _read_input(
        self, part: _Part, topic: str, position: int, refused: Collection[tuple[str, int]], take: Callable[[_Part, Record], None]
    ) -> Iterator[Difference]:
        """Reads one input up to where it was taken in. What cannot be read of it must have been refused."""
        audit, partition = part.audit, part.audit.partition
        name = "intake" if topic == self._topology.intake else "outcomes"
        part.start()
        with closing(Scan(self._kafka, topic, self._patience_s, {partition: 0})) as scan:
            low, end = scan.starts[partition], scan.written()[partition]
            if position > end:
                audit.find(Kind.LOG_SHORTER, None, topic=topic, position=position, end=end)
            for records in scan.up_to({partition: min(position, end)}):
                for record in records:
                    if record.offset() >= position:
                        break
                    part.note(record.timestamp()[1])
                    if (topic, record.offset()) in refused:
                        continue
                    try:
                        take(part, record)
                    except UndecodableRecord as error:
                        self._unanswered(part, topic, record, error)
                self._on_progress(f"partition {partition}: {name}", scan.done, scan.count)
                yield from audit.drained()
        part.kept(name, part.read, part.since_ms(low))

    def _unanswered(self, part: _Part, topic: str, record: Record, error: UndecodableRecord) -> None:
        value = record.value()
        if not part.is_mine(record.key() or b""):
            return
        if value is not None and value.startswith(_CONFLUENT) and not self._has_registry:
            self._unread(part, topic, record.key())
        elif self._burials.since_ms > record.timestamp()[1]:
            part.audit.pass_over(Unjudged.DEAD_LETTERS)
        else:
            key = record.key()
            job_id = None if key is None else key.decode(errors="backslashreplace")
            part.audit.find(Kind.UNANSWERED, job_id, topic=topic, offset=record.offset(), reason=error.reason)

    def _unread(self, part: _Part, topic: str, key: bytes | None) -> None:
        """Passes over what is in the format of a registry that was not named. The key of a command that was obeyed is the job id."""
        if topic != self._topology.intake or key is None:
            part.audit.pass_over(Unjudged.REGISTRY)
        elif partition_of(key, self.partitions) == part.audit.partition:  # else it went on to its own, and is looked at there
            part.audit.unread(key.decode(errors="backslashreplace"), Unjudged.REGISTRY)

    def _take_command(self, part: _Part, record: Record) -> None:
        value, key = record.value(), record.key()
        name, command, _ = self._codec.decode_command(value)
        job = command["job_id"].encode()
        if key is None or key != job:
            raise UndecodableRecord(Reason.KEY_MISMATCH, "the key is not the job id")
        if not part.is_mine(job):
            return
        if partition_of(key, self.partitions) != part.audit.partition:
            return  # it went on to its own partition, and is looked at there
        written_ms = record.timestamp()[1]
        if name == "schedule":
            assert value is not None
            part.audit.schedule(record.offset(), written_ms, command, hash(self._codec.current_command(value)))
        elif name == "cancel":
            part.audit.cancel(written_ms, command)
        elif name == "drop":
            part.audit.drop(command["job_id"])
        elif name == "change":
            part.audit.change(record.offset(), command)

    def _take_outcome(self, part: _Part, record: Record) -> None:
        outcome = self._codec.decode_outcome(record.value())
        if part.is_mine(outcome["job_id"].encode()):
            part.audit.outcome(record.offset(), record.timestamp()[1], outcome)

    def _take_burials(self, part: _Part, before_cut: int) -> set[tuple[str, int]]:
        """Takes in dead runs and their closings. Gives the places of the records that were refused."""
        audit, refused = part.audit, set()
        for number, burial in enumerate(self._burials.of(audit.partition)):
            if burial.kind == "letter":
                refused.add((burial.name, burial.at))
            elif not part.is_mine(burial.name.encode()):
                continue
            elif burial.kind == "dead_run":
                audit.died(burial.name, burial.at, burial.died_ms, before_cut=number < before_cut)
            else:
                audit.closed(burial.name, burial.at, before_cut=number < before_cut)
        return refused

    def _take_dispatches(self, part: _Part) -> Iterator[Difference]:
        audit = part.audit
        for row in self._dispatches.of(audit.partition):
            if part.is_mine(row.job_id.encode()):
                audit.dispatch(row)
                if audit.found:
                    yield from audit.drained()


class _Part:
    """One reading of a partition, of all of its jobs or of a part of them."""

    def __init__(self, audit: Audit, passes: int, number: int, report: Report) -> None:
        self.audit = audit
        self.report = report
        self.is_at_transaction_end = True
        self.read = 0
        self._passes = passes
        self._number = number
        self._first_ms: int | None = None

    def is_mine(self, job: bytes) -> bool:
        return self._passes == 1 or zlib.crc32(home(job)) % self._passes == self._number  # a run with its recurring job

    def start(self) -> None:
        """Another log begins."""
        self.read, self._first_ms = 0, None

    def note(self, written_ms: int) -> None:
        """A record of this time was read."""
        self.read += 1
        if self._first_ms is None:
            self._first_ms = written_ms

    def since_ms(self, low: int) -> int:
        """From when on the log that was read just now, and begins at offset `low`, is complete."""
        return 0 if low == 0 else self._first_ms if self._first_ms is not None else _NEVER_MS

    def kept(self, log: str, records: int | None, since_ms: int) -> None:
        """What was read of a log, and from when on it is complete."""
        self.audit.since_ms[log] = self.report.since_ms[log] = since_ms
        if records is not None:
            self.report.records[log] = records

    def sum_up(self) -> None:
        """Adds this part to the report."""
        report, audit = self.report, self.audit
        for why, count in audit.unjudged.items():
            report.unjudged[why] = report.unjudged.get(why, 0) + count
        for job in audit.jobs.values():
            report.jobs += 1
            if job.generation:
                phase = job.phase if job.phase is not None and job.is_governed else "WAITING"
                report.phases[phase] = report.phases.get(phase, 0) + 1


# Nothing is left of a log that was not empty once.
_NEVER_MS: Final = 2**62


def _own_folder(state_dir: Path, topology: Topology) -> Path:
    folder = state_dir / topology.prefix
    if not folder.is_dir():
        raise BadConfiguration(
            f"--state-dir {state_dir} has no stores of {topology.prefix}: there is no folder {folder}; "
            "name the state directory that a processor of this installation was given"
        )
    return folder
