"""The timer processor's loop.

One thread, one transaction for all partitions of the process, any number of processes. Each turn:

    poll outcomes, then intake (rebalances are served in there), and read the commands
    settle the last transaction; only now apply it to local stores and wheels
    one Step a partition: inputs in log order, then due timers
    one transaction: changelog, dispatches, dead letters, and both input offsets of every partition in it; its commit goes on while the
    next turn polls and reads

The offsets are sent even where nothing was consumed. They are what makes the group's coordinator look at us: an owner that lost its
partition without noticing is refused there, and a batch of timers alone would otherwise pass. No lock exists anywhere.

What goes wrong ends in one of three ways. A transaction that left nothing is forgotten and its inputs are read again. One whose outcome
is unknown sends every partition back to CLAIMING, where the cluster is asked what is true. A store that fails is dropped and rebuilt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import structlog

from duewheel.core.errors import (
    BadConfiguration,
    BrokerUnavailable,
    RegistryUnavailable,
    RejectedJob,
    StoreDamaged,
    UndecodableRecord,
)
from duewheel.core.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, BATCH_TIMERS_MAX, MINUTE_MS, RECORD_BYTES_MAX
from duewheel.core.model import DeadRunClosed, Delivery
from duewheel.core.ownership import RELEASED, owned_by
from duewheel.core.refusals import Headers, Refusal, refuse
from duewheel.core.step import LANE, Admission, Counts, Delivering, Reason, Step
from duewheel.core.timekeeper import Timekeeper
from duewheel.core.topology import Topology, keyed_partition
from duewheel.engine.dealing import Dealer
from duewheel.engine.doubts import Doubts
from duewheel.engine.intake import Command, CommandReader, Kind, not_allowed, unknown_queue
from duewheel.engine.partition import Partition, Stage
from duewheel.engine.restore import Restore
from duewheel.ports import (
    Clock,
    Cluster,
    Codec,
    CommitRefused,
    GroupReader,
    Offset,
    PartitionReader,
    PendingCommit,
    Record,
    Store,
    Transaction,
    TransactionAborted,
    TransactionalOutput,
    TransactionUnknown,
)

log = structlog.get_logger(__name__)

# How long a turn waits for a command when nothing is due. Commands end the wait at once; outcomes, which come through another consumer,
# do not, so a processor that has seen some lately looks more often.
_WAIT_BUSY_S: Final = 0.002
_WAIT_IDLE_S: Final = 0.010
_BUSY_MS: Final = 1_000
_WAIT_PENDING_S: Final = 0.001  # a commit takes 3 ms; what it frees should not wait for more

# Transactions begin at least this far apart, as long as they carry fewer inputs and timers than a crowd.
_LINGER_MS: Final = 5
_CROWD: Final = 500

_REGISTRY_PAUSE_MS: Final = 2_000
_MARK_EVERY_MS: Final = 5_000
_REPORT_EVERY_MS: Final = 10_000
_ASK_WATERMARKS_EVERY_MS: Final = 100
_STALLED_MS: Final = 2_000  # a turn is bounded to a tenth of it, but for a broker that does not answer
_UNKNOWN_QUEUE_MS: Final = 1_000  # how long a queue is believed to be missing
_LEAP_LOG_EVERY_MS: Final = MINUTE_MS
_JOBS_NAMED_MAX: Final = 10
_LESS: Final = 4
# What a turn should take: a command is obeyed by the turn after the one that it comes in, and known to be when that one's is committed.
_TURN_MS: Final = 100
_TIMERS_LEAST: Final = 200


@dataclass(slots=True)
class _Batch:
    """One partition's share of a turn: its step, and where its inputs will have been read to."""

    partition: Partition
    step: Step
    intake_offset: int
    outcomes_offset: int
    forwarded: list[tuple[Record, int, Headers]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    changes: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    intake_left: bool = False
    outcomes_left: bool = False

    def is_empty(self) -> bool:
        """Whether nothing was read, fired or tidied up."""
        step, partition = self.step, self.partition
        read = self.intake_offset > partition.intake_offset or self.outcomes_offset > partition.outcomes_offset
        return not (step.states or step.fired or read)


class Processor:
    """One instance of the timer processor. Drive it with `turn` until it should end, then `close` it.

    Args:
        topology: names of topics and groups.
        clock, codec, cluster, intake, outcomes, changelog, output: the world, as in `ports`. `output` commits for `intake`'s group.
        open_store: opens the local store of a partition.
        close_stores: lets others open them.
        partition_of: the timer partition of a key, given the number of partitions.
        may_deliver_to: whether records may be delivered to a topic of this name; to none where it is not given.
        sleep: waits for so many seconds.
        broker_timeout_ms: how long the cluster may be away before `turn` gives up.
    """

    def __init__(
        self,
        *,
        topology: Topology,
        clock: Clock,
        codec: Codec,
        cluster: Cluster,
        intake: GroupReader,
        outcomes: PartitionReader,
        changelog: PartitionReader,
        output: TransactionalOutput,
        open_store: Callable[[int], Store],
        close_stores: Callable[[], None],
        partition_of: Callable[[bytes, int], int],
        sleep: Callable[[float], None],
        broker_timeout_ms: int,
        may_deliver_to: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        self._topology = topology
        self._clock = clock
        self._codec = codec
        self._cluster = cluster
        self._intake = intake
        self._outcomes = outcomes
        self._changelog = changelog
        self._output = output
        self._restoring = Restore(topology, clock, cluster, intake, outcomes, changelog, output)
        self._open_store = open_store
        self._close_stores = close_stores
        self._timekeeper = Timekeeper(clock.wall_ms(), clock.steady_ms())
        self._partitions: dict[int, Partition] = {}
        self._queues: dict[str, int] = {}
        self._doubts = Doubts()
        self._dealer = Dealer(crc32(output.name.encode()))
        self._sending: set[str] = set()
        self._taking: dict[str, int] = {}  # partitions of queues, as this turn's steps were told of them
        self._queues_asked_ms: int | None = None
        self._records_max = BATCH_RECORDS_MAX
        self._timers_max = BATCH_TIMERS_MAX // 2
        self._is_behind = False  # more timers were due than one turn fires
        self._intake_paused_until_ms: int | None = None
        count = _same_partition_count(cluster, topology)
        for topic in (topology.dead_letter, topology.control):
            cluster.partition_count(topic)  # missing, it would fail a transaction at the first refusal or cancel, again and again
        self._commands = CommandReader(codec, partition_of, count)
        self._pending: tuple[PendingCommit, Sequence[_Batch]] | None = None
        self._failure: TransactionAborted | TransactionUnknown | StoreDamaged | None = None
        self._counts = Counts()
        self._left_out: dict[str, None] = {}
        self._sleep = sleep
        self._broker_timeout_ms = broker_timeout_ms
        self._is_allowed = may_deliver_to
        # By the steady clock: what comes round every few seconds must not wait for a wall clock that stepped back.
        self._contact_ms = clock.steady_ms()
        self._turned_ms = clock.steady_ms()
        self._asked_watermarks_ms = -_ASK_WATERMARKS_EVERY_MS
        self._is_crowded = False
        self._turns = 0
        self._begun_ms = self._busy_until_ms = self._marked_ms = self._reported_ms = self._leap_logged_ms = 0

    def start(self) -> None:
        """Joins the group."""
        self._intake.join(self)

    def turn(self) -> bool:
        """One turn of the loop, bounded in time. True when it moved something.

        Raises:
            BrokerUnavailable: nobody answered for `broker_timeout_ms`.
            StoreDamaged: a local store can neither be used nor be made anew.
        """
        self._linger()
        self._notice_stall()
        handed_out = self._handed_out()
        # What is due comes before what has ended, where there is more than a turn can do of both.
        outcomes = self._outcomes.poll(0, min(self._records_max, self._timers_max // _LESS) if self._is_behind else self._records_max)
        records = self._intake.poll(0 if outcomes else self._wait_s(), self._records_max)
        commands = self._read(records)
        now_ms = self._now_ms()
        try:
            self._settle()
            self._resume_intake()
            self._note_handed_out(handed_out, now_ms)
            self._restore(now_ms)
            self._keep_house(now_ms)
            moved = self._run(outcomes, commands, now_ms)
        except TransactionAborted as error:
            log.warning("processor.batch_aborted", error=str(error))
            steady_ms, why = self._clock.steady_ms(), str(error)
            if error.is_by_offsets or not self._doubts.failed(self._sending, steady_ms, why, is_by_value=error.is_by_value):
                self._listen_anew(now_ms)  # else it was a try of a queue
            self._doubt_batch()
            self._read_again()
        except TransactionUnknown as error:
            log.warning("processor.batch_unknown", error=str(error))
            self._listen_anew(now_ms)
            self._doubt_batch()
            self._claim_again(self._partitions.values())
        except StoreDamaged as error:
            log.error("processor.store_damaged", error=str(error))
            self._rebuild_damaged()
        except (BrokerUnavailable, CommitRefused) as error:
            log.warning("processor.cluster_unavailable", error=str(error))
            self._listen_anew(now_ms)
            self._read_again()
            self._check_contact(error)
        else:
            return moved
        return False

    def _check_contact(self, error: Exception) -> None:
        if self._clock.steady_ms() - self._contact_ms > self._broker_timeout_ms:
            raise BrokerUnavailable(f"{error}; gave up after {self._broker_timeout_ms / 1000:.0f} s") from error

    def _doubt_batch(self) -> None:
        """After a failed transaction: what was in it, or where it went, may be the reason. So take less, and ask again what queues there
        are; each success takes twice as much again.
        """
        self._records_max = max(1, self._records_max // 2)
        self._queues, self._queues_asked_ms = {}, None

    @property
    def stages(self) -> dict[int, Stage]:
        """The stage of each partition that is owned."""
        return {number: partition.stage for number, partition in self._partitions.items()}

    def close(self) -> None:
        """Lets go of everything in good order."""
        self.revoked(list(self._partitions))
        self._intake.close()
        self._outcomes.close()
        self._changelog.close()
        self._output.close()
        self._close_stores()

    # --- rebalances, called from within intake.poll ---

    def assigned(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            self._partitions[number] = Partition(number, self._open_store(number), self._codec)
        log.info("processor.assigned", partitions=sorted(partitions))

    def revoked(self, partitions: Sequence[int]) -> None:
        leaving = [self._partitions[number] for number in partitions if number in self._partitions]
        if not leaving:
            return  # on closing, the group says once more what `close` has done already
        self._settle_early()
        claimed = [partition for partition in leaving if partition.stage >= Stage.REPLAYING]
        try:
            if claimed and self._failure is None:
                self._mark(claimed, RELEASED, self._now_ms())
        except (CommitRefused, BrokerUnavailable, StoreDamaged) as error:
            log.warning("processor.release_failed", error=str(error))  # the successor will fence us by name
        self._let_go(leaving)
        log.info("processor.revoked", partitions=sorted(partitions))

    def lost(self, partitions: Sequence[int]) -> None:
        self._settle_early()
        self._let_go([self._partitions[number] for number in partitions if number in self._partitions])
        if not self._partitions:
            self._output.take_new_name()  # else whoever has them now would fence us in the middle of our next claim, and we them
        log.warning("processor.lost", partitions=sorted(partitions))

    def _let_go(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            del self._partitions[partition.number]
            self._restoring.release(partition)
            self._outcomes.release(partition.number)
            partition.close()

    def _settle_early(self) -> None:
        """Settles within a callback; how it failed is told to the turn."""
        try:
            self._settle()
        except (TransactionAborted, TransactionUnknown, StoreDamaged) as error:
            self._failure = error

    # --- one batch ---

    def _linger(self) -> None:
        """Lets a little time pass between transactions, unless more is waiting than one of them holds.

        A transaction costs the brokers the same whether it carries one job or a hundred: three a millisecond apart would make every job
        wait for a busy broker.
        """
        left_ms = _LINGER_MS - (self._clock.steady_ms() - self._begun_ms)
        if left_ms > 0 and not self._is_crowded:
            self._sleep(left_ms / 1000)

    def _read(self, records: Sequence[Record]) -> list[Command]:
        """The commands in `records`. None where a schema registry is needed and away: intake waits for it, all else goes on."""
        try:
            return self._commands.read(records)
        except RegistryUnavailable as error:
            log.warning("processor.registry_unavailable", error=str(error))
            for number in self._partitions:
                self._intake.pause(number)
            self._intake_paused_until_ms = self._clock.steady_ms() + _REGISTRY_PAUSE_MS
            return []

    def _resume_intake(self) -> None:
        """Reads commands again, some time after the schema registry was away. Nothing is under way: the last transaction was settled."""
        if self._intake_paused_until_ms is None or self._clock.steady_ms() < self._intake_paused_until_ms:
            return
        self._intake_paused_until_ms = None
        for number, partition in self._partitions.items():
            if partition.stage >= Stage.CATCHING_UP:
                self._intake.read_from(number, partition.intake_offset)

    def _settle(self) -> None:
        """Waits for the last transaction, and takes over what it committed."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._pending is None:
            return
        (commit, batches), self._pending = self._pending, None
        commit.settle()
        self._doubts.committed(self._sending)
        self._records_max = min(BATCH_RECORDS_MAX, 2 * self._records_max)
        for batch in batches:
            self._counts.add(batch.step.counts)
            if batch.step.left_out and len(self._left_out) < _JOBS_NAMED_MAX:
                self._left_out |= dict.fromkeys(batch.step.left_out)
            for death in batch.step.deaths:
                if death.reason is Reason.REFUSED:
                    self._doubts.lanes.buried(death.known.queue, death.job_id, death.known.generation)
            batch.partition.advance(batch.step, batch.intake_offset, batch.outcomes_offset)
        damage = None
        for batch in batches:
            try:
                batch.partition.save(batch.step, batch.changes)
            except StoreDamaged as error:  # the other stores need their share all the same
                damage = error
        if damage is not None:
            raise damage

    def _run(self, outcomes: Sequence[Record], commands: Sequence[Command], now_ms: int) -> bool:
        batches: dict[int, _Batch] = {}
        began_ms = self._clock.steady_ms()
        self._doubts.begin()
        self._taking = {}
        self._take_outcomes(outcomes, batches, now_ms)
        self._take_commands(commands, batches, now_ms)
        self._fire(batches, now_ms)
        if batches:
            self._is_crowded = len(outcomes) + len(commands) + sum(len(b.step.fired) for b in batches.values()) >= _CROWD
            self._begun_ms = self._clock.steady_ms()
            self._commit(list(batches.values()), now_ms)
            self._put_back(batches.values())
            self._keep_pace(sum(len(batch.step.fired) for batch in batches.values()), self._clock.steady_ms() - began_ms)
        return bool(batches)

    def _keep_pace(self, fired: int, took_ms: int) -> None:
        """Fires so many timers in a turn that a command which comes meanwhile need not wait for long, however fast the machine is."""
        if fired >= self._timers_max // 2:
            self._timers_max = min(max(fired * _TURN_MS // max(1, took_ms), _TIMERS_LEAST), BATCH_TIMERS_MAX)

    @property
    def _share_bytes(self) -> int:
        """What one partition may put into a transaction, beyond which it takes no more inputs: a share, and room for the largest job."""
        return max(RECORD_BYTES_MAX, BATCH_BYTES_MAX // max(1, len(self._partitions)))

    def _put_back(self, batches: Iterable[_Batch]) -> None:
        """Reads inputs once more that were too large for this transaction."""
        for batch in batches:
            if batch.outcomes_left:
                self._outcomes.assign(batch.partition.number, batch.outcomes_offset)
            if batch.intake_left:
                self._intake.read_from(batch.partition.number, batch.intake_offset)

    def _batch(self, number: int, batches: dict[int, _Batch], now_ms: int) -> _Batch | None:
        """The batch of a partition that may be worked on; None for one that is not ours, or not yet."""
        partition = self._partitions.get(number)
        if partition is None or partition.stage < Stage.CATCHING_UP:
            return None
        batch = _Batch(
            partition, partition.step(now_ms, self._takes, self._may_deliver), partition.intake_offset, partition.outcomes_offset
        )
        batches[number] = batch
        return batch

    def _take_outcomes(self, records: Sequence[Record], batches: dict[int, _Batch], now_ms: int) -> None:
        if records:
            self._busy_until_ms = self._clock.steady_ms() + _BUSY_MS
        decode, share_bytes = self._codec.decode_outcome, self._share_bytes
        for record in records:
            number = record.partition()
            batch = batches.get(number) or self._batch(number, batches, now_ms)
            offset = record.offset()
            if batch is None or offset < batch.outcomes_offset:
                continue
            if batch.step.size_bytes >= share_bytes:
                batch.outcomes_left = True
                continue
            batch.outcomes_offset = offset + 1
            try:
                batch.step.outcome(decode(record.value()))
            except UndecodableRecord as error:
                batch.refused.append(refuse(record, error))

    def _take_commands(self, commands: Sequence[Command], batches: dict[int, _Batch], now_ms: int) -> None:
        share_bytes, queues = self._share_bytes, self._queues
        for kind, number, offset, record, what, work, value in commands:
            batch = batches.get(number) or self._batch(number, batches, now_ms)
            if batch is None or offset < batch.intake_offset:
                continue
            if batch.step.size_bytes >= share_bytes:
                batch.intake_left = True
                continue
            batch.intake_offset = offset + 1
            if kind is Kind.SCHEDULE:
                queue, delivery = what["queue"], what["delivery"]
                fault = None if delivery is None and queue in queues else self._fault(queue, delivery)
                if fault is None:
                    try:
                        batch.step.schedule(what, work, value, offset)
                    except RejectedJob as error:
                        batch.refused.append(refuse(record, error))
                else:
                    batch.refused.append(refuse(record, fault))
            elif kind is Kind.FORWARD:
                batch.forwarded.append((record, *what))
            elif kind is Kind.REFUSE:
                batch.refused.append(what)
            else:
                try:
                    _obey(batch.step, kind, offset, what)
                except RejectedJob as error:
                    batch.refused.append(refuse(record, error))

    def _fault(self, queue: str, delivery: Delivery | None) -> RejectedJob | None:
        """Why nothing may go where a job is to go; None where it may. A topic to deliver to that is missing may be made by then."""
        if delivery is not None:
            return None if self._is_allowed(delivery["topic"]) else not_allowed(delivery["topic"])
        return None if self._queue_partitions(queue) else unknown_queue(queue)

    def _fire(self, batches: dict[int, _Batch], now_ms: int) -> None:
        active = [partition for partition in self._partitions.values() if partition.stage == Stage.ACTIVE]
        share = max(1, self._timers_max // max(1, len(active)))  # a partition with millions due must not starve the others
        self._is_behind = False
        for partition in active:
            due = partition.due(now_ms, share)
            self._is_behind = self._is_behind or len(due) == share
            batch = batches.get(partition.number)
            if batch is None and (due or partition.swept):
                batch = self._batch(partition.number, batches, now_ms)
            if batch is not None:
                partition.tidy(batch.step)
                batch.step.fire(due, self._share_bytes)
                if batch.is_empty():
                    del batches[partition.number]  # what was swept may stay; a transaction just to say so would be one a second
        for batch in batches.values():
            if batch.partition.stage < Stage.ACTIVE:
                batch.step.fire([])

    def _commit(self, batches: Sequence[_Batch], now_ms: int) -> None:
        mine = owned_by(self._output.name)
        offsets = []
        self._sending = {queue for batch in batches for queue in batch.step.queues}
        for batch in batches:
            number = batch.partition.number
            batch.changes = batch.partition.changes(batch.step, batch.intake_offset, batch.outcomes_offset)
            offsets.append(Offset(self._topology.intake, number, batch.intake_offset, mine))
            offsets.append(Offset(self._topology.outcomes, number, batch.outcomes_offset, mine))
        self._dealer.next_transaction()
        with self._output.begin() as transaction:
            for batch in batches:
                self._publish(transaction, batch, now_ms)
            self._pending = transaction.commit_later({self._topology.processor_group: offsets}), batches

    def _publish(self, transaction: Transaction, batch: _Batch, now_ms: int) -> None:
        produce, topology, number = transaction.produce, self._topology, batch.partition.number
        state = topology.state
        for key, value in batch.changes:
            produce(state, value, key, number)
        splice, deal = self._codec.splice_dispatch, self._dealer.deal
        topics = {d.queue: (topology.dispatch(d.queue), self._taking[d.queue]) for d in batch.step.dispatches}
        for queue, token, job_id, generation, slot_ms, attempt, terms, work in batch.step.dispatches:
            topic, partitions = topics[queue]
            value = splice(token, job_id, generation, slot_ms, attempt, number, now_ms, terms, work)
            produce(topic, value, job_id.encode(), deal(queue, partitions))
        if batch.step.deliveries:
            self._deliver(transaction, batch.step.deliveries)
        for record, partition, headers in batch.forwarded:
            produce(topology.intake, record.value(), record.key(), partition, headers=headers)
        for refusal in batch.refused:
            letter = refusal.letter(now_ms)
            produce(topology.dead_letter, self._codec.encode_dead_letter(letter), letter["key"])
        if batch.step.stops or batch.step.deaths or batch.step.closings:
            self._publish_endings(transaction, batch.step, number, now_ms)

    def _deliver(self, transaction: Transaction, deliveries: Iterable[Delivering]) -> None:
        """Puts records on the topics of others, on the partitions that Kafka's own clients would choose."""
        for delivery, token, job_id, slot_ms, payload, headers in deliveries:
            own = {"duewheel-job-id": job_id, "duewheel-slot-ms": str(slot_ms), "duewheel-token": str(token)}
            topic, key, value = delivery["topic"], delivery["key"], None if delivery["tombstone"] else payload
            partitions = self._taking[LANE + topic]
            partition = self._dealer.deal(LANE + topic, partitions) if key is None else keyed_partition(key, partitions)
            named = [(name, text.encode()) for name, text in (headers | own).items()]
            transaction.produce(topic, value, key, partition, headers=named)

    def _publish_endings(self, transaction: Transaction, step: Step, number: int, now_ms: int) -> None:
        produce, topology, codec = transaction.produce, self._topology, self._codec
        for stop in step.stops:
            produce(topology.control, codec.encode_stop(stop), stop["job_id"].encode())
        for job_id, reason, state, known in step.deaths:
            definition = codec.splice_definition(known.generation, known.offset, known.command)
            dead_run = codec.splice_dead_run(job_id, state["token"], number, now_ms, reason, state, definition)
            produce(topology.dead_letter, dead_run, job_id.encode())
        for job_id, token, how in step.closings:
            closed: DeadRunClosed = {"job_id": job_id, "token": token, "closed_ms": now_ms, "how": how}
            produce(topology.dead_letter, codec.encode_dead_run_closed(closed), job_id.encode())

    # --- restore ---

    def _restore(self, now_ms: int) -> None:
        claiming = [p for p in self._partitions.values() if p.stage == Stage.CLAIMING]
        if claiming:
            try:
                self._restoring.claim(claiming, now_ms)
            except (BrokerUnavailable, CommitRefused) as error:
                self._check_contact(error)  # whatever keeps us from these partitions must not keep us from the others
        # Only now: those that were just claimed are being read already, and what is read for others than these is dropped.
        replaying = [p for p in self._partitions.values() if p.stage == Stage.REPLAYING]
        if replaying:
            self._restoring.replay(replaying, now_ms)

    def _handed_out(self) -> list[tuple[Partition, int, int]]:
        """How far the readers have handed out the inputs of partitions that wait for it: all of it is committed once the last transaction
        is settled. A log may end in a transaction's marker, where no record is; committed offsets alone would never reach its end.
        """
        waiting = [p for p in self._partitions.values() if p.stage == Stage.CATCHING_UP or p.awaits_outcomes]
        return [(p, self._intake.reached(p.number), self._outcomes.reached(p.number)) for p in waiting]

    def _note_handed_out(self, handed_out: Sequence[tuple[Partition, int, int]], now_ms: int) -> None:
        for partition, intake_reached, outcomes_reached in handed_out:
            number = partition.number
            if self._partitions.get(number) is not partition:
                continue
            if partition.stage == Stage.ACTIVE:
                partition.listened(outcomes_reached)
            elif partition.stage == Stage.CATCHING_UP and partition.has_caught_up(intake_reached, outcomes_reached):
                partition.stage = Stage.ACTIVE
                partition.listen_anew(now_ms)
                log.info("processor.active", partition=number, token=partition.token)

    # --- leases ---

    def _notice_stall(self) -> None:
        """After a pause of this process, those it waits for may have paused as well: they share a machine, or a broker."""
        steady_ms = self._clock.steady_ms()
        stalled, self._turned_ms = steady_ms - self._turned_ms > _STALLED_MS, steady_ms
        if stalled:
            self._listen_anew(self._now_ms())

    def _listen_anew(self, now_ms: int) -> None:
        for partition in self._partitions.values():
            partition.listen_anew(now_ms)

    def _ask_watermarks(self, active: Sequence[Partition], now_ms: int, steady_ms: int) -> None:
        """Asks where outcomes end, for partitions with leases that are over. `now_ms` was taken before."""
        asking = [partition for partition in active if partition.wants_watermark]
        if not asking or steady_ms - self._asked_watermarks_ms < _ASK_WATERMARKS_EVERY_MS:
            return
        self._asked_watermarks_ms = steady_ms
        ends = self._cluster.watermarks(self._topology.outcomes, [partition.number for partition in asking])
        for partition in asking:
            partition.listen_until(ends[partition.number][1], now_ms)

    # --- starting over ---

    def _read_again(self) -> None:
        """Puts both inputs back to what is committed, after a transaction that left nothing."""
        for number, partition in self._partitions.items():
            if partition.stage >= Stage.CATCHING_UP:
                self._outcomes.assign(number, partition.outcomes_offset)
                self._intake.read_from(number, partition.intake_offset)

    def _claim_again(self, partitions: Iterable[Partition]) -> None:
        """Believes nothing any more; asks the cluster again what is true."""
        for partition in partitions:
            self._restoring.release(partition)
            self._outcomes.release(partition.number)
            self._intake.pause(partition.number)
            partition.stage = Stage.CLAIMING

    def _rebuild_damaged(self) -> None:
        damaged = [partition for partition in self._partitions.values() if partition.damaged]
        for partition in damaged:
            partition.rebuild()
        self._claim_again(damaged)
        self._read_again()

    # --- time and housekeeping ---

    def _now_ms(self) -> int:
        keeper = self._timekeeper
        now_ms = keeper.now_ms(self._clock.wall_ms(), self._clock.steady_ms())
        if keeper.stepped_back_ms:
            log.warning("clock.stepped_back", by_ms=keeper.stepped_back_ms)
        if keeper.leap_ms and (steady_ms := self._clock.steady_ms()) - self._leap_logged_ms >= _LEAP_LOG_EVERY_MS:
            self._leap_logged_ms = steady_ms
            log.error("clock.leapt_ahead", by_ms=keeper.leap_ms)
        return now_ms

    def _wait_s(self) -> float:
        """How long this turn may wait for a command."""
        now_ms = self._now_ms()
        if self._pending is not None:
            return _WAIT_PENDING_S
        wait_s = _WAIT_BUSY_S if self._clock.steady_ms() < self._busy_until_ms else _WAIT_IDLE_S
        for partition in self._partitions.values():
            if partition.stage == Stage.REPLAYING:
                return 0.0  # reading the changelog waits by itself
            if partition.stage == Stage.ACTIVE:
                due_ms = partition.next_due_ms()
                if due_ms is not None:
                    wait_s = min(wait_s, max(0, due_ms - now_ms) / 1000)
        return wait_s

    def _keep_house(self, now_ms: int) -> None:
        active = [partition for partition in self._partitions.values() if partition.stage == Stage.ACTIVE]
        for partition in active:
            partition.extend_horizon(now_ms)
        steady_ms = self._clock.steady_ms()
        if active:
            self._turns += 1
            active[self._turns % len(active)].sweep(now_ms, steady_ms)
            self._ask_watermarks(active, now_ms, steady_ms)
        if steady_ms - self._marked_ms >= _MARK_EVERY_MS:
            self._marked_ms = steady_ms
            if active:
                self._mark(active, owned_by(self._output.name), now_ms)
            self._ask_queues(steady_ms)
            self._contact_ms = steady_ms
        if steady_ms - self._reported_ms >= _REPORT_EVERY_MS:
            self._reported_ms = steady_ms
            counts, self._counts = self._counts, Counts()
            if counts != Counts():
                log.info("processor.report", **dataclasses.asdict(counts))
            if self._left_out:
                jobs, self._left_out = list(self._left_out)[:_JOBS_NAMED_MAX], {}
                log.warning("processor.slots_left_out", missed=counts.slots_missed, overlapped=counts.slots_overlapped, jobs=jobs)

    def _mark(self, partitions: Sequence[Partition], metadata: str, now_ms: int) -> None:
        """Lets the stores know how far they have come, and writes `metadata` beside the committed offsets. No transaction of ours is open.

        All that the changelog's ends count is in the stores, unless we were stalled and replaced without knowing, and the ends count what
        our successor wrote. So the group is asked in between: it takes a commit from an owner only.
        """
        level = [partition for partition in partitions if partition.stage >= Stage.CATCHING_UP]
        ends = self._cluster.watermarks(self._topology.state, [p.number for p in level]) if level else {}
        offsets = [Offset(self._topology.intake, p.number, p.intake_offset, metadata) for p in partitions]
        offsets += [Offset(self._topology.outcomes, p.number, p.outcomes_offset, metadata) for p in level]
        self._intake.commit(offsets)
        for partition in level:
            partition.mark(ends[partition.number][1], now_ms)

    def _takes(self, queue: str) -> bool:
        """Whether dispatches for the queue may be sent now. What a step was told holds for its turn: another's question, about a queue that
        is not known, may find meanwhile that this one is gone.
        """
        count = self._queue_partitions(queue)
        if count == 0 or not self._doubts.admits(queue, self._clock.steady_ms()):
            return False
        self._taking[queue] = count
        return True

    def _may_deliver(self, lane: str, job_id: str, generation: int) -> Admission:
        """As `_takes`, for a record to deliver."""
        count, steady_ms = self._queue_partitions(lane), self._clock.steady_ms()
        if count == 0:
            return self._doubts.lanes.away(lane, steady_ms)
        admission = self._doubts.admits_record(lane, job_id, generation, steady_ms)
        if not admission.wait_ms:
            self._taking[lane] = count
        return admission

    def _queue_partitions(self, queue: str) -> int:
        """How many partitions the queue's dispatch topic has; 0 where there is none.

        Raises:
            BrokerUnavailable: nobody answered.
        """
        count = self._queues.get(queue)
        if count is not None:
            return count
        # All at once and once a second at most, so that a thousand commands for queues that do not exist cost one question.
        steady_ms = self._clock.steady_ms()
        if self._queues_asked_ms is None or steady_ms - self._queues_asked_ms >= _UNKNOWN_QUEUE_MS:
            self._ask_queues(steady_ms)
        return self._queues.get(queue, 0)

    def _ask_queues(self, steady_ms: int) -> None:
        """Asks which queues there are. Now and then even where all are known: one may have grown, or gone, and a transaction for a topic
        that is gone hangs until its time is over, and everything else with it.
        """
        prefix = self._topology.dispatch("")
        counts = self._cluster.partition_counts()
        self._queues = {topic.removeprefix(prefix): count for topic, count in counts.items() if topic.startswith(prefix)}
        self._queues |= {LANE + topic: count for topic, count in counts.items() if self._is_allowed(topic)}
        self._queues_asked_ms = steady_ms


def _same_partition_count(cluster: Cluster, topology: Topology) -> int:
    """How many timer partitions there are.

    Raises:
        BadConfiguration: intake, state and outcomes disagree.
    """
    counts = {topic: cluster.partition_count(topic) for topic in (topology.intake, topology.state, topology.outcomes)}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise BadConfiguration(f"{found}; the three must have equally many partitions. Make them with: duewheel topics apply")
    return counts[topology.intake]


def _obey(step: Step, kind: Kind, offset: int, what: Any) -> None:
    """A command other than a Schedule."""
    match kind:
        case Kind.CANCEL:
            step.cancel(what)
        case Kind.REDRIVE:
            step.redrive(what)
        case Kind.DROP:
            step.drop(what)
        case Kind.CHANGE:
            step.change(what, offset)
