"""How an owner comes to know what its partitions hold: the stages before it takes in anything.

    claim     fence who died holding them, learn what is committed, write our name beside it, find where the changelog ends
    replay    bring the local stores up to there, piece by piece

Both are done in passing, a little each turn of the loop, which goes on polling: a group throws out who stays away for too long, and what
was restored by then would be for nothing. A disk may be slow, and there may be many partitions; so a turn writes to one store after the
other only until its time is over, and leaves the rest of what was read to the next. A single write is the least that must fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from duewheel.core.errors import BrokerUnavailable
from duewheel.core.ownership import owned_by, owner_of
from duewheel.core.topology import Topology
from duewheel.engine.partition import Inputs, Partition, Stage
from duewheel.ports import (
    Clock,
    Cluster,
    CommitRefused,
    GroupPosition,
    GroupReader,
    Offset,
    PartitionReader,
    Record,
    TransactionalOutput,
)

log = structlog.get_logger(__name__)

_REPLAY_RECORDS_MAX: Final = 5_000
_REPLAY_WAIT_S: Final = 0.02
_REPLAY_TURN_MS: Final = 500
_REPLAY_BLOCKED_MS: Final = 30_000  # a transaction of a processor has ended by then, whatever became of it
_COMMITTED_TIMEOUT_S: Final = 3.0
_SETTLED_TIMEOUT_S: Final = 1.0
_CLAIM_BACKOFF_MS: Final = 200
_CLAIM_BACKOFF_MAX_MS: Final = 10_000


class Restore:
    """Brings partitions from CLAIMING through REPLAYING to CATCHING_UP.

    Args:
        topology: names of topics and groups.
        clock, cluster, intake, outcomes, changelog, output: those of the processor.
    """

    def __init__(
        self,
        topology: Topology,
        clock: Clock,
        cluster: Cluster,
        intake: GroupReader,
        outcomes: PartitionReader,
        changelog: PartitionReader,
        output: TransactionalOutput,
    ) -> None:
        self._topology = topology
        self._clock = clock
        self._cluster = cluster
        self._intake = intake
        self._outcomes = outcomes
        self._changelog = changelog
        self._output = output
        self._claim_again_ms = self._claim_backoff_ms = self._replayed_ms = 0
        self._unplayed: dict[int, list[Record]] = {}

    def claim(self, partitions: Sequence[Partition], now_ms: int) -> None:
        """Claims partitions, unless that failed a moment ago.

        Raises:
            BrokerUnavailable, CommitRefused: it cannot be done now, and will be tried again after a pause.
        """
        if self._clock.steady_ms() < self._claim_again_ms or not self._output.recover():
            return
        try:
            self._claim(partitions, now_ms)
        except (BrokerUnavailable, CommitRefused) as error:
            log.warning("processor.claim_failed", partitions=[p.number for p in partitions], error=str(error))
            self._claim_backoff_ms = min(_CLAIM_BACKOFF_MAX_MS, 2 * self._claim_backoff_ms or _CLAIM_BACKOFF_MS)
            self._claim_again_ms = self._clock.steady_ms() + self._claim_backoff_ms
            raise
        self._claim_backoff_ms = 0

    def _claim(self, partitions: Sequence[Partition], now_ms: int) -> None:
        """The order matters: fence, then what is committed, then where the changelog ends."""
        topology, numbers = self._topology, [p.number for p in partitions]
        found = self._cluster.owners(topology.processor_group, topology.intake, numbers)
        # Up to where the inputs can be read now: a transaction that somebody else left open there must not hold up our timers, here as
        # little as later on.
        intake = self._cluster.visible(topology.intake, numbers)
        self._fence(found, intake)
        committed = self._intake.committed(numbers, _COMMITTED_TIMEOUT_S)
        changelog = self._cluster.watermarks(topology.state, numbers)
        outcomes = self._cluster.visible(topology.outcomes, numbers)
        mine = owned_by(self._output.name)
        starts = {n: intake[n][0] if (offset := committed[n].offset) is None else offset for n in numbers}
        self._intake.commit([Offset(topology.intake, n, starts[n], mine) for n in numbers])
        for partition in partitions:
            n = partition.number
            self._changelog.assign(n, partition.begin_replay(*changelog[n], committed[n].offset, now_ms))
            partition.begin_inputs(Inputs(*intake[n]), Inputs(*outcomes[n]))
            partition.intake_offset = starts[n]  # what a release says, should it come before the changelog was replayed
            partition.stage = Stage.REPLAYING
        self._replayed_ms = self._clock.steady_ms()

    def _fence(self, found: dict[int, GroupPosition], intake: dict[int, tuple[int, int]]) -> None:
        """Ends what those left open who are named as owners and did not release."""
        owners = {owner_of(position.metadata) for position in found.values()}
        dead = sorted(name for name in owners if name is not None and name != self._output.name)
        if dead:
            self._prove_membership(intake)
        for name in dead:
            log.info("processor.fencing", name=name)
            self._cluster.fence(name)

    def _prove_membership(self, intake: dict[int, tuple[int, int]]) -> None:
        """Lets the group confirm that we are the owner: a process that was stalled and does not know yet that it was replaced must not
        fence its successor. Committing what is committed changes nothing.

        Not over a pending position: that of a transaction which is decided, and whose markers are still under way, would be lost, and the
        store that took it in be rebuilt for nothing. Then fencing must do without proof; at the worst it costs a live successor one
        transaction, and it recovers.

        Raises:
            CommitRefused: we are none any more.
        """
        try:
            settled = self._intake.committed(list(intake), _SETTLED_TIMEOUT_S)
        except CommitRefused:
            return
        topic = self._topology.intake
        self._intake.commit([Offset(topic, n, intake[n][0] if at is None else at, metadata) for n, (at, metadata) in settled.items()])

    def replay(self, partitions: Sequence[Partition], now_ms: int) -> None:
        """Reads on in the changelog, and takes what was read into the stores."""
        if not self._unplayed:
            self._read(partitions)
        began_ms = self._clock.steady_ms()
        for partition in partitions:
            number = partition.number
            records = self._unplayed.pop(number, None)
            if records is None:
                continue  # claimed since; its records come with the next piece
            if partition.replay(records, self._changelog.reached(number), now_ms):
                self._end(partition)
            if self._clock.steady_ms() - began_ms >= _REPLAY_TURN_MS:
                break

    def _read(self, partitions: Sequence[Partition]) -> None:
        self._unplayed = {partition.number: [] for partition in partitions}
        records = self._changelog.poll(_REPLAY_WAIT_S, _REPLAY_RECORDS_MAX)
        for record in records:
            piece = self._unplayed.get(record.partition())
            if piece is not None:  # else it was released, and this had been fetched before
                piece.append(record)
        steady_ms = self._clock.steady_ms()
        if records:
            self._replayed_ms = steady_ms
        elif steady_ms - self._replayed_ms > _REPLAY_BLOCKED_MS:
            self._replayed_ms = steady_ms
            log.error("processor.replay_blocked", partitions=sorted(self._unplayed))

    def _end(self, partition: Partition) -> None:
        number = partition.number
        self._changelog.release(number)
        partition.end_replay()
        self._outcomes.assign(number, partition.outcomes_offset)
        self._intake.read_from(number, partition.intake_offset)
        partition.stage = Stage.CATCHING_UP
        log.info("processor.replayed", partition=number, records=partition.replayed)

    def release(self, partition: Partition) -> None:
        """Reads no more of a partition's changelog, and forgets what was read and not taken in."""
        self._changelog.release(partition.number)
        self._unplayed.pop(partition.number, None)
