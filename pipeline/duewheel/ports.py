"""What the outside world must satisfy.

The engine and the worker know these protocols and nothing of Kafka, RocksDB or Avro. `adapters` implements them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from duewheel.core.errors import EnvironmentFailure
from duewheel.core.model import DeadLetter, DeadRunClosed, Delivery, Dispatch, Limits, Outcome, Progress, Schedule, State, Stop, Terms
from duewheel.core.step import Defined


class Clock(Protocol):
    """Two readings of time. Only adapters read a real clock."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC; may step in either direction."""

    def steady_ms(self) -> int:
        """Milliseconds since some fixed point, counting suspension; never steps back."""


class Record(Protocol):
    """A consumed record. `confluent_kafka.Message` is one as it is."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class Offset(NamedTuple):
    """A group's position in a partition: the next offset to read, and what else the group wants to remember there."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""


class TransactionAborted(Exception):
    """The transaction left nothing visible. The same batch may be tried again from the last committed positions.

    Attributes:
        is_by_value: the brokers refused a record for what it is, its size or its form; tried again, it will be refused again.
        is_by_offsets: the group's offsets could not be sent; no record is to blame.
    """

    def __init__(self, message: str, *, is_by_value: bool = False, is_by_offsets: bool = False) -> None:
        super().__init__(message)
        self.is_by_value = is_by_value
        self.is_by_offsets = is_by_offsets


class TransactionUnknown(Exception):
    """Nobody knows whether the transaction was committed, or its producer was fenced.

    The producer was thrown away. What is committed must be read again, after `TransactionalOutput.recover` has answered true,
    before anything else is done.
    """


class Transaction(Protocol):
    """One open transaction, to be used as a context manager and finished with `commit`.

    Leaving the block by an exception, or without `commit`, aborts it; a failure of the output inside the block becomes
    `TransactionAborted`.
    """

    produce: Callable[..., None]
    """`produce(topic, value, key, partition)`, positional; `headers=` may follow."""

    def __enter__(self) -> Transaction: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def commit(self, offsets: Mapping[str, Sequence[Offset]]) -> None:
        """Commits the records and these offsets, both or neither. Bounded in time by our own clock.

        Args:
            offsets: by consumer group, for the groups that the output was made with. Membership is proved with the group
                metadata that was taken when the transaction began.

        Raises:
            TransactionAborted: nothing of it is visible; the group may have moved on.
            TransactionUnknown: see there.
        """

    def commit_later(self, offsets: Mapping[str, Sequence[Offset]]) -> PendingCommit:
        """Starts to commit, and lets the caller do something else meanwhile. Settle it before the next transaction begins."""


class PendingCommit(Protocol):
    """A commit under way."""

    def settle(self) -> None:
        """Waits for its end, as `Transaction.commit` does.

        Raises:
            TransactionAborted: nothing of it is visible.
            TransactionUnknown: see there.
        """


class TransactionalOutput(Protocol):
    """A pair of transactional producers taken in turn, so that a transaction need not wait for the markers of the last."""

    @property
    def name(self) -> str:
        """What its transactional ids begin with: the name by which a successor fences it."""

    def begin(self) -> Transaction:
        """Opens a transaction and takes the group metadata. Call it on the polling thread, after checking ownership.

        Raises:
            TransactionAborted: no producer can be had just now; try again later.
            TransactionUnknown: the producer was fenced.
        """

    def recover(self) -> bool:
        """Replaces producers that were thrown away, which ends whatever they left open. True when none is missing.

        Bounded to a few seconds a call; keep polling and call again while it answers false.
        """

    def take_new_name(self) -> None:
        """Lets go of both producers and goes on under a name that nobody had; `recover` makes new ones.

        For a member that has lost everything it held: its successors fence the old name, and must not hit what it does next. What a
        producer that was thrown away before may have left open under the old name, `recover` ends.
        """

    def close(self) -> None: ...


class GroupPosition(NamedTuple):
    """What a consumer group has committed for a partition. `offset` is None where it has committed nothing."""

    offset: int | None
    metadata: str


class PartitionReader(Protocol):
    """Reads chosen partitions of one topic, only what was committed, without a group."""

    def assign(self, partition: int, offset: int) -> None:
        """Reads `partition` from `offset` on, whether it was being read or not."""

    def release(self, partition: int) -> None:
        """Reads `partition` no longer."""

    def poll(self, timeout_s: float, count_max: int) -> list[Record]:
        """The next records, at most `count_max`, waiting for the first at most `timeout_s`."""

    def reached(self, partition: int) -> int:
        """Everything visible below this offset has been handed out, markers and aborted records passed over."""

    def close(self) -> None: ...


class Found(NamedTuple):
    """A place in a log.

    Attributes:
        offset: where to begin to read.
        since_ms: all that was written since then lies at this offset or beyond; 0 where the log begins there.
        end: where the log ends now.
    """

    offset: int
    since_ms: int
    end: int


class StateLog(PartitionReader, Protocol):
    """The state topic, as those read it who wait for jobs.

    Raises (all calls but close):
        BrokerUnavailable: nobody answered; the reader is to be replaced by another.
        TopicMissing: it does not exist.
    """

    def partition_of(self, key: bytes) -> int:
        """Where the job with this id lives."""

    def find(self, partition: int, since_ms: int) -> Found:
        """Where the records begin that were written at this time or later. Never without the latest ones, whenever these were written."""


class RebalanceListener(Protocol):
    """Is told of partitions gained and lost, on the polling thread, from within `GroupReader.poll`."""

    def assigned(self, partitions: Sequence[int]) -> None:
        """These are ours now; nothing of them is read until `GroupReader.read_from`."""

    def revoked(self, partitions: Sequence[int]) -> None:
        """These will be another's when this returns; committing for them is still possible."""

    def lost(self, partitions: Sequence[int]) -> None:
        """These are another's already; nothing can be committed for them."""


class GroupReader(Protocol):
    """Reads one topic as a member of a consumer group."""

    def join(self, listener: RebalanceListener) -> None: ...

    def read_from(self, partition: int, offset: int) -> None:
        """Starts, or starts again, to read an assigned partition."""

    def pause(self, partition: int) -> None:
        """Stops reading an assigned partition until `resume`, or `read_from`."""

    def resume(self, partition: int) -> None:
        """Goes on where `pause` interrupted."""

    def poll(self, timeout_s: float, count_max: int) -> list[Record]: ...

    def reached(self, partition: int) -> int:
        """As `PartitionReader.reached`."""

    def commit(self, offsets: Sequence[Offset]) -> None:
        """Commits at once, outside transactions.

        Raises:
            CommitRefused: the coordinator refuses or cannot be reached.
        """

    def committed(self, partitions: Sequence[int], timeout_s: float) -> dict[int, GroupPosition]:
        """What the group has committed, after pending transactional offsets were settled.

        Raises:
            CommitRefused: it did not answer in time, or offsets stay pending.
        """

    def close(self) -> None: ...


class CommitRefused(Exception):
    """The group's coordinator refused, or did not answer in time."""


class Cluster(Protocol):
    """What can be asked of the cluster outside reading and writing. Every call is bounded to a few seconds."""

    def partition_count(self, topic: str) -> int:
        """How many partitions `topic` has.

        Raises:
            TopicMissing: it does not exist.
            BrokerUnavailable: nobody answered, or what came was another error.
        """

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic of the cluster has.

        Raises:
            BrokerUnavailable: nobody answered.
        """

    def watermarks(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """First offset and next offset of each partition, counting what is not committed yet.

        Raises:
            BrokerUnavailable: nobody answered.
        """

    def visible(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """First offset of each partition, and where a reader ends now that sees only what is committed: at the first open transaction.

        Raises:
            BrokerUnavailable: nobody answered.
        """

    def owners(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, GroupPosition]:
        """Committed offsets as they stand, without waiting for pending transactions.

        Raises:
            BrokerUnavailable: nobody answered.
        """

    def fence(self, name: str) -> None:
        """Ends whatever the owner called `name` left open.

        Raises:
            BrokerUnavailable: it could not be done in time; call again.
        """


class Codec(Protocol):
    """Bytes to records and back, strictly. `adapters.avro.codec` is one, as a module."""

    def decode_command(self, value: bytes | None) -> tuple[str, Any, bytes]:
        """("schedule", Schedule, its work encoded), or ("cancel", Cancel, nothing), ("redrive", Redrive, nothing), ("drop", Drop, nothing),
        ("change", Change, nothing).

        Nothing may be written into a record: the dicts of limits and policies in it are shared with other records.

        Raises:
            UndecodableRecord: this and every other decoder.
        """

    def current_command(self, value: bytes) -> bytes:
        """A Schedule that `decode_command` took, encoded by the current schema; what is taken by `splice_definition`."""

    def decode_outcome(self, value: bytes | None) -> Outcome: ...
    def decode_state(self, value: bytes | None) -> State: ...
    def decode_progress(self, value: bytes | None) -> Progress: ...
    def encode_state(self, record: State) -> bytes: ...
    def encode_progress(self, record: Progress) -> bytes: ...
    def encode_stop(self, record: Stop) -> bytes: ...
    def encode_dead_letter(self, record: DeadLetter) -> bytes: ...
    def encode_dead_run_closed(self, record: DeadRunClosed) -> bytes: ...

    def splice_definition(self, generation: int, offset: int, command: bytes) -> bytes:
        """The encoded Definition around an encoded Schedule."""

    def revise_schedule(self, command: bytes, revise: Callable[[Schedule], Schedule]) -> tuple[Schedule, bytes, bytes]:
        """An encoded Schedule, revised: as a record, its work encoded, and all of it encoded."""

    def splice_schedule(
        self,
        job_id: str,
        due_ms: int,
        created_ms: int,
        retention_ms: int,
        queue: str,
        limits: Limits | None,
        delivery: Delivery | None,
        work: bytes,
    ) -> bytes:
        """The encoded Schedule of a job that runs once, around encoded work."""

    def splice_dispatch(
        self,
        token: int,
        job_id: str,
        generation: int,
        slot_ms: int,
        attempt: int,
        timer_partition: int,
        dispatched_ms: int,
        terms: Terms | None,
        work: bytes,
    ) -> bytes:
        """The encoded Dispatch around encoded work."""

    def splice_dead_run(
        self, job_id: str, token: int, timer_partition: int, died_ms: int, reason: str, state: State, definition: bytes
    ) -> bytes:
        """The encoded DeadRun around an encoded Definition."""

    def peek_definition(self, value: bytes) -> Defined:
        """What the rules need of an encoded Definition, without looking into its work."""

    def decode_content(self, work: bytes) -> tuple[bytes, dict[str, str]]:
        """Payload and headers of encoded work."""


class WorkerCodec(Protocol):
    """As `Codec`: what workers need."""

    def decode_dispatch(self, value: bytes | None) -> Dispatch:
        """Raises UndecodableRecord. Nothing may be written into the policy: it is shared with other dispatches."""

    def decode_stop(self, value: bytes | None) -> Stop:
        """Raises UndecodableRecord."""

    def encode_outcome(self, record: Outcome) -> bytes: ...
    def encode_dead_letter(self, record: DeadLetter) -> bytes: ...


class Mark(NamedTuple):
    """How far a store has come."""

    changelog_offset: int
    """Every changelog record below this offset is in the store. Some beyond may be too."""
    saved_ms: int
    """When this was written."""


class Store(Protocol):
    """The local cache of one timer partition: the changelog's records by key, and the timers in order of time."""

    mark: Mark | None
    """None in a store that is new, or was cleared."""
    damaged: bool
    """Whether a call has raised `StoreDamaged` since it was opened or cleared."""

    def get(self, key: bytes) -> bytes | None: ...

    def write(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timers_unset: Sequence[bytes],
        timers_set: Collection[bytes],
        timers_done: bytes,
        mark: Mark,
    ) -> None:
        """Writes all of it or nothing.

        Args:
            records: keys and values of the changelog, None to delete.
            timers_unset: timers to take out, before others are put in.
            timers_set: timers to put in.
            timers_done: every timer with a smaller key has fired and goes; empty for none.
            mark: how far the store has come with this.

        Raises:
            StoreDamaged: it cannot be written.
        """

    def timers(self, start: bytes, end: bytes, count_max: int) -> list[bytes]:
        """Timers with keys from `start` up to but without `end`, in order.

        Raises:
            StoreDamaged: it cannot be read to the end.
        """

    def records(self, start: bytes, end: bytes, count_max: int) -> list[tuple[bytes, bytes]]:
        """Records with keys from `start` up to but without `end`, in order.

        Raises:
            StoreDamaged: it cannot be read to the end.
        """

    def clear(self) -> None:
        """Empties it, whatever state it is in."""

    def close(self) -> None: ...


class Receipt(NamedTuple):
    """Where an acknowledged record lies."""

    partition: int
    offset: int


class IntakeLog(Protocol):
    """The intake topic, as producers see it: what is acknowledged is stored on every replica in sync.

    Each call says before it returns what became of every record. It is bounded in time: a record that nobody acknowledges in time
    has failed. Safe to use from several threads.

    Raises (all calls):
        BrokerUnavailable: no acknowledgement in time; the record may be stored all the same.
        TopicMissing: there is no intake topic.
        EnvironmentFailure: the broker refused the record; it is not stored.
        CallerError: the log is closed.
    """

    def append(self, key: bytes, value: bytes) -> Receipt:
        """Stores one record."""

    def append_many(
        self,
        records: Iterable[tuple[Any, bytes, bytes]],
        failed: Callable[[Any, EnvironmentFailure], None],
        progressed: Callable[[int], None],
    ) -> None:
        """Stores (tag, key, value) records, as many under way at once as fit in a bounded buffer.

        After the first failure nothing more is taken from `records`; what is under way is waited for, as it is where `records` raises.

        Args:
            failed: called on this thread with the tag of each record that failed, and why.
            progressed: called on this thread now and then, and at last, with how many were acknowledged.
        """

    def close(self) -> None:
        """Waits, bounded, for what other threads have under way. Closing twice is fine."""
