"""What the outside world must satisfy.

The engine and the worker know these protocols and nothing of Kafka, RocksDB or Avro. `adapters` implements them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol


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
    """The transaction left nothing visible. The same batch may be tried again from the last committed positions."""


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

    def close(self) -> None: ...


class GroupPosition(NamedTuple):
    """What a consumer group has committed for a partition. `offset` is None where it has committed nothing."""

    offset: int | None
    metadata: str


class Store(Protocol):
    """The local cache of one timer partition: timers in time order, jobs by id, and how far it has come."""

    def get(self, key: bytes) -> bytes | None: ...

