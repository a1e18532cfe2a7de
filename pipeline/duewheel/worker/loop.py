"""The worker's loop: poll, claim, run, record, commit.

A dispatch is started at most once, ever: it is claimed first, by an offset commit that only the partition's owner can make (`core.claims`).
What a worker finished is recorded in one transaction: the outcomes, for the jobs' owners, and the offset with what is still unfinished.
So no offset ever passes an unfinished run, and no finished run is ever returned. One turn of the loop:

    poll ──► claim up to the window ──► plain commit (1.5 ms) ──► start what was claimed ──► every 25 ms: completions, one transaction

Where there is more work than time, one transaction takes completions and new claims together.

A failed commit starts nothing. A transaction that left nothing is repeated; of one whose end nobody knows, the committed position tells.
Outcomes of a partition that was lost meanwhile are recorded all the same, without its offset: the token in them decides, not we.

The loop runs on one thread, that polls; handlers run elsewhere (`crew`), so that polling never waits for one. Time is a port, blocking
questions are asked aside, and everything that is queued anywhere has a limit in `core.limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import structlog

from duewheel.core.errors import BrokenInvariant, BrokerUnavailable, EnvironmentFailure, Reason, UndecodableRecord
from duewheel.core.limits import WORKER_BUFFER_RECORDS_MAX, WORKER_BYTES_MAX, WORKER_RUNS_MAX
from duewheel.core.model import Dispatch, Result
from duewheel.core.topology import Topology
from duewheel.ports import (
    Clock,
    Cluster,
    CommitRefused,
    GroupPosition,
    GroupReader,
    Offset,
    Record,
    TransactionAborted,
    TransactionalOutput,
    TransactionUnknown,
    WorkerCodec,
)
from duewheel.worker.app import App
from duewheel.worker.crew import Desk
from duewheel.worker.doorstep import Doorstep, LastLives
from duewheel.worker.holding import NOWHERE, Holding, Standing
from duewheel.worker.reports import Batch, Reports
from duewheel.worker.runs import Run
from duewheel.worker.stops import Stops
from duewheel.worker.takeover import Aside, Returns, Takeover
from duewheel.worker.verdicts import Verdict
from duewheel.worker.watch import Watch
from duewheel.worker.window import Window

log = structlog.get_logger(__name__)

# How long poll() may wait for the first record. While something runs, its completion must be noticed soon; the wait grows while nothing
# happens, so that a slow handler costs 200 turns a second at most. When idle, only signals and probes need the thread.
_BUSY_POLL_S: Final = 0.001
_BUSY_POLL_MAX_S: Final = 0.005
_IDLE_POLL_S: Final = 0.1


# A job waits for its claim, but nobody for a completion: so claims are committed at once, and completions wait for company. A transaction
# costs the brokers ten times what a plain commit does.
_RECORD_EVERY_MS: Final = 25
_RECORD_RUNS: Final = 256

# After a refused commit: the next polls will tell whether the partitions are still ours.
_BACKOFF_MS: Final = 20
_BACKOFF_MAX_MS: Final = 1_000
_PROBE_MS: Final = 5_000  # the cluster is asked for a sign of life after so long without one
REVOKE_GRACE_MS: Final = 3_000  # handlers of a partition that is being revoked may finish; the whole group waits for it
_LAST_MOMENT_MS: Final = 100  # between the end of a handler and its run at the desk
_LAST_WORD_MS: Final = 10_000  # for recording what was cut short, when stopping

_INTERRUPTED: Final = Result.INTERRUPTED.value
_LOST: Final = Verdict(Result.LOST.value)


class _Doubt(NamedTuple):
    """A transaction of which nobody knows whether it was committed.

    `telling` are those of its positions that nothing before it can have committed: where one stands now, the transaction put it there.
    """

    batch: Batch
    starts: list[Run]
    telling: dict[Holding, Offset]
    found: Future[dict[int, GroupPosition]]


class Worker:
    """A member of a queue's fleet. Call `start`, then `turn` again and again, `drain` to stop, and `close` once `stopped`.

    Args:
        name: as it stands in outcomes.
        reader: a member of the queue's group, whose offsets `output` commits.
        desk: where its handlers run.
        stops, lives: the process's, shared with the loops of its other queues.
        outcome_partitions: how many partitions the outcomes topic has.
        session_timeout_ms: after how long without a heartbeat the group gives this member up.
        broker_timeout_ms: how long the cluster may be away before `turn` raises.
    """

    def __init__(
        self,
        *,
        app: App,
        queue: str,
        name: str,
        concurrency: int,
        topology: Topology,
        clock: Clock,
        codec: WorkerCodec,
        cluster: Cluster,
        reader: GroupReader,
        output: TransactionalOutput,
        returns: Returns,
        desk: Desk,
        stops: Stops,
        lives: LastLives,
        aside: Aside,
        outcome_partitions: int,
        session_timeout_ms: int,
        broker_timeout_ms: int,
    ) -> None:
        self._tasks = app.tasks
        self.queue = queue
        self._doorstep = Doorstep(name, app.tasks, stops, lives, clock)
        self._topic = topology.dispatch(queue)
        self._group = topology.worker_group(queue)
        self._outcomes_topic = topology.outcomes
        self._outcome_partitions = outcome_partitions
        self._clock = clock
        self._codec = codec
        self._cluster = cluster
        self._reader = reader
        self._output = output
        self._returns = returns
        self._desk = desk
        desk.unwanted = self._doorstep.unwanted
        self._stops = stops
        self._lives = lives
        self._watch = Watch(desk, stops, clock, self)
        self._aside = aside
        self._session_timeout_ms = session_timeout_ms
        self._broker_timeout_ms = broker_timeout_ms
        self._window = Window(concurrency, WORKER_RUNS_MAX)
        self._holdings: dict[int, Holding] = {}
        self._takeovers: list[Takeover] = []
        self._reports = Reports(name, topology, codec, clock)
        self._starts: list[Run] = []  # claimed, and to be started once that is committed
        self._doubt: _Doubt | None = None
        self._in_flight = 0  # runs claimed and not reported
        self._bytes = 0  # of records polled and runs in flight
        self._turns = 0
        self._quiet_turns = 0
        self._polled_ms = self._contact_ms = clock.steady_ms()
        self._again_ms = self._recorded_ms = 0
        self._backoff_ms = _BACKOFF_MS
        self._has_lost_all = False
        self._unproven = False  # whether this process was away for so long that its membership must be proved first
        self._probe: Future[int] | None = None
        self._drain_until_ms: int | None = None
        self._last_word_until_ms: int | None = None
        self._interrupted = 0
        self.stopped = False

    # --- driving ---

    def start(self) -> None:
        """Joins the group, with producers that are ready, so that the first outcome need not wait for them."""
        self._output.recover()
        self._reader.join(self)

    def turn(self) -> None:
        """One turn of the loop. Blocks for a commit at most, or for a tenth of a second when idle.

        Raises:
            EnvironmentFailure: the cluster was away for longer than `broker_timeout_ms`.
        """
        self._poll()
        if self._returns.poll():
            self._contact_ms = self._polled_ms
        self._stop_what_waits()
        self._watch.look()
        if self._drain_until_ms is None:
            self._takeovers = [takeover for takeover in self._takeovers if takeover.advance()]
        crowded = self._is_crowded()
        if crowded:
            self._collect()
        self._claim()
        self._record()
        if not crowded and self._is_time_to_record():
            self._collect()
            self._record()
        self._desk.nudge()
        self._probe_cluster()
        if self._drain_until_ms is not None:
            self._go_on_draining(self._drain_until_ms)

    def drain(self, grace_ms: int) -> None:
        """Stops claiming; `turn` goes on until what runs has finished, at most for `grace_ms`, and then sets `stopped`."""
        if self._drain_until_ms is not None:
            return
        self._drain_until_ms = self._clock.steady_ms() + grace_ms
        self._withdraw(lambda run: True)
        for holding in self._holdings.values():
            self._forget_records(holding)
            if holding.standing is Standing.OPEN and not holding.paused:
                holding.paused = True
                self._reader.pause(holding.partition)
        log.info("worker.draining", running=self._in_flight, grace_ms=grace_ms)

    def shut(self) -> None:
        """Lets nothing more start, where `turn` has raised and others of the process go on: nobody would record how it ended."""
        self._desk.gate_ms = 0
        self._desk.withdraw(lambda run: True)

    def close(self) -> None:
        """Leaves the group and lets go of everything. What still runs is left behind."""
        self._desk.close()
        self._reader.close()
        self._returns.close()
        self._output.close()

    # --- rebalances: called on the polling thread, from within poll ---

    def assigned(self, partitions: Sequence[int]) -> None:
        if self._has_lost_all and self._doubt is None:  # what is in doubt is found out under its own name
            self._output.take_new_name()  # else whoever has now what we had fences us in the middle of our next claims, and we them
        self._has_lost_all = False
        holdings = [Holding(self._topic, partition, self._output.name) for partition in partitions]
        self._holdings.update((holding.partition, holding) for holding in holdings)
        if holdings:
            takeover = Takeover(holdings, self._group, self._reader, self._cluster, self._returns, self._aside, self._clock, self)
            self._takeovers.append(takeover)
            log.info("worker.assigned", partitions=sorted(partitions))

    def revoked(self, partitions: Sequence[int]) -> None:
        """Gives handlers a moment to finish, records what they did, takes back claims of what never started, and lets go. What runs even
        then goes on without its partition."""
        leaving = [self._holdings[p] for p in partitions if p in self._holdings]
        if not leaving:
            return  # on closing, the group says once more what was done already
        going = set(leaving)
        self._withdraw(lambda run: run.holding in going)
        deadline_ms = self._clock.steady_ms() + REVOKE_GRACE_MS
        self._await_ends(leaving, deadline_ms)
        still_running = self._hand_over(leaving)
        self._await_ends(leaving, self._clock.steady_ms() + _LAST_MOMENT_MS)
        self._release(leaving, deadline_ms + REVOKE_GRACE_MS)
        self._let_go(leaving)
        log.info("worker.revoked", partitions=sorted(partitions), still_running=still_running)

    def lost(self, partitions: Sequence[int]) -> None:
        leaving = [self._holdings[p] for p in partitions if p in self._holdings]
        self._let_go(leaving)
        going = set(leaving)
        self._withdraw(lambda run: run.holding in going)
        self._has_lost_all = not self._holdings
        log.warning("worker.lost", partitions=sorted(partitions))

    # --- what a takeover needs ---

    def give_back(self, holding: Holding, record: Record) -> None:
        dispatch = self._decoded(holding, record)
        if dispatch is not None:
            self._reports.unrun(dispatch, record.key(), _LOST)

    def delayed(self, error: Exception) -> None:
        log.warning("worker.takeover_delayed", error=str(error))

    # --- what the watch needs ---

    def say(self, run: Run, result: str, lease_ms: int) -> None:
        self._reports.word(run, result, lease_ms)

    def give_up(self, run: Run, error: Exception) -> bool:
        if not self._desk.abandon(run):
            return False
        run.fail(error)
        run.finished_ms = self._clock.wall_ms()
        self._finish((run,))
        self._reports.end((run,))
        return True

    # --- poll ---

    def _poll(self) -> None:
        records = self._reader.poll(self._poll_timeout_s(), self._poll_count())
        now_ms = self._clock.steady_ms()
        if now_ms - self._polled_ms > self._session_timeout_ms and self._holdings:
            log.warning("worker.stalled", for_ms=now_ms - self._polled_ms)
            self._unproven = True
            for holding in self._holdings.values():
                holding.changed = holding.changed or holding.known
        self._polled_ms = now_ms
        self._desk.gate_ms = 0 if self._unproven else now_ms + self._session_timeout_ms
        if records:
            self._contact_ms = now_ms
            self._quiet_turns = 0
            self._keep(records)
        self._throttle()

    def _keep(self, records: Sequence[Record]) -> None:
        holdings, open_ = self._holdings, Standing.OPEN
        for record in records:
            holding = holdings.get(record.partition())
            # Records of a partition that a rebalance took, within this very poll, come too late.
            if holding is not None and holding.standing is open_ and self._drain_until_ms is None:
                self._bytes += len(record.value() or b"")
                holding.records.append(record)

    def _poll_timeout_s(self) -> float:
        if self._claimable() and any(h.records for h in self._holdings.values()):
            return 0.0
        if self._desk.finished_count:
            return 0.0 if self._is_time_to_record() else _BUSY_POLL_S
        if self._in_flight or self._reports or self._takeovers or self._doubt or self._starts or self._drain_until_ms is not None:
            self._quiet_turns += 1
            return _BUSY_POLL_S if self._quiet_turns < 20 else _BUSY_POLL_MAX_S
        return _IDLE_POLL_S

    def _poll_count(self) -> int:
        # Beyond the limit one at a time, since a poll must be made; soon the partition is paused.
        fullest = max((len(holding.records) for holding in self._holdings.values()), default=0)
        return max(1, WORKER_BUFFER_RECORDS_MAX - fullest) if self._bytes < WORKER_BYTES_MAX else 1

    def _throttle(self) -> None:
        for holding in self._holdings.values():
            count = len(holding.records)
            if holding.paused:
                if count < WORKER_BUFFER_RECORDS_MAX // 2 and self._bytes < WORKER_BYTES_MAX and self._drain_until_ms is None:
                    holding.paused = False
                    self._reader.resume(holding.partition)
            elif holding.standing is Standing.OPEN and (
                count > 2 * WORKER_BUFFER_RECORDS_MAX or (count and self._bytes > 2 * WORKER_BYTES_MAX)
            ):
                holding.paused = True
                self._reader.pause(holding.partition)

    # --- completions ---

    def _is_crowded(self) -> bool:
        """Whether throughput is what counts now: completions have piled up, or claims wait for them to make room."""
        return self._desk.finished_count >= _RECORD_RUNS or self._occupied() >= self._window.size(self._polled_ms)

    def _is_time_to_record(self) -> bool:
        waited = self._clock.steady_ms() - self._recorded_ms >= _RECORD_EVERY_MS
        return waited or self._is_crowded() or bool(self._reports) or self._drain_until_ms is not None

    def _collect(self) -> None:
        while runs := self._desk.take(min(self._reports.room, _RECORD_RUNS)):
            # What was turned away at the last moment never started, and took no time.
            spent_ms = sum(run.finished_ms - run.started_ms for run in runs if run.started_ms)
            self._window.observe(len(runs), spent_ms, self._polled_ms)
            self._finish(runs)
            self._reports.end(runs)
            self._quiet_turns = 0

    def _finish(self, runs: Sequence[Run]) -> None:
        self._dismiss(runs)
        for run in runs:
            holding = run.holding
            if holding.standing is not Standing.GONE:
                holding.finish(run.offset)

    def _dismiss(self, runs: Sequence[Run]) -> None:
        self._in_flight -= len(runs)
        for run in runs:
            self._bytes -= run.record_bytes
            if run.dispatch["terms"] is not None:
                self._lives.leave(run.dispatch)

    # --- claims ---

    def _claimable(self) -> bool:
        return (
            self._drain_until_ms is None
            and self._doubt is None
            and not self._unproven
            and self._room() > 0
            and (self._bytes < WORKER_BYTES_MAX or not self._in_flight)
        )

    def _claim(self) -> None:
        holdings = [holding for holding in self._holdings.values() if holding.records and holding.standing is Standing.OPEN]
        if not holdings or not self._claimable():
            return
        self._turns += 1
        first = self._turns % len(holdings)  # each partition gets its turn to be the first
        for index, holding in enumerate(holdings[first:] + holdings[:first]):
            share = -(-self._room() // (len(holdings) - index))
            if share > 0:
                self._claim_of(holding, share)

    def _occupied(self) -> int:
        """What fills the window. Runs that wait for their task's own limit do not, or one task that is slow would starve all others."""
        return self._in_flight - self._desk.held_back_count

    def _room(self) -> int:
        return min(self._window.size(self._polled_ms) - self._occupied(), WORKER_RUNS_MAX - self._in_flight)

    def _claim_of(self, holding: Holding, count_max: int) -> None:
        records = holding.records
        count = min(count_max, len(records))
        count = min(count, holding.ledger.room(records[count - 1].offset()))
        if count == 0:
            return  # the claim's metadata is full; it gets shorter as runs finish
        batch = [records.popleft() for _ in range(count)]
        holding.claim([record.offset() for record in batch])
        tasks, stops = self._tasks, self._stops
        for record in batch:
            dispatch = self._decoded(holding, record)
            size = len(record.value() or b"")
            if dispatch is None:
                self._bytes -= size
                holding.finish(record.offset())
                continue
            task = tasks.get(dispatch["work"]["task"])
            if task is None:
                self._turn_away(holding, record, dispatch, self._doorstep.unknown(dispatch))
                continue
            if dispatch["terms"] is not None or stops.count:
                verdict = self._doorstep.known(dispatch)
                if verdict is not None:
                    self._turn_away(holding, record, dispatch, verdict)
                    continue
            self._in_flight += 1
            self._starts.append(Run(holding, record.offset(), record.key(), dispatch, task, size))

    def _turn_away(self, holding: Holding, record: Record, dispatch: Dispatch, verdict: Verdict) -> None:
        """Reports what was claimed just now, and finishes it in the transaction that claims it."""
        self._bytes -= len(record.value() or b"")
        holding.finish(record.offset())
        self._reports.unrun(dispatch, record.key(), verdict)

    def _decoded(self, holding: Holding, record: Record) -> Dispatch | None:
        """The record's dispatch; None where it cannot be one, which is reported as a dead letter."""
        try:
            dispatch = self._codec.decode_dispatch(record.value())
            if 0 <= dispatch["timer_partition"] < self._outcome_partitions:
                return dispatch
            raise UndecodableRecord(
                Reason.UNEXPECTED_RECORD,
                f"timer partition {dispatch['timer_partition']} does not exist: {self._outcomes_topic} has {self._outcome_partitions}",
            )
        except UndecodableRecord as error:
            self._reports.letter(holding, record, error)
            log.warning("worker.dispatch_undecodable", partition=record.partition(), offset=record.offset(), error=str(error))
            return None

    # --- record and commit ---

    def _record(self) -> None:
        """Commits what changed; on success, starts what was claimed by it."""
        if self._doubt is not None:
            self._settle_doubt(self._doubt)
        if self._doubt is not None or self._clock.steady_ms() < self._again_ms:
            return
        changed = {holding: holding.position() for holding in self._holdings.values() if holding.changed}
        if self._reports:
            self._transact(changed)
        elif changed:
            self._commit(changed)

    def _commit(self, changed: dict[Holding, Offset]) -> None:
        _note_sent(changed)  # also one that is refused may have been taken, if only the answer was lost
        began_ms = self._clock.steady_ms()
        try:
            self._reader.commit(list(changed.values()))
        except CommitRefused as error:
            self._back_off(error)
        else:
            self._committed(changed, began_ms)

    def _transact(self, changed: dict[Holding, Offset]) -> None:
        began_ms = self._clock.steady_ms()
        try:
            with self._output.begin() as transaction:
                produce = transaction.produce
                for report in self._reports.waiting():
                    produce(*report)
                transaction.commit({self._group: list(changed.values())} if changed else {})
        except TransactionAborted as error:
            self._back_off(error)
        except TransactionUnknown as error:
            log.warning("worker.transaction_in_doubt", error=str(error), outcomes=len(self._reports))
            telling = {holding: offset for holding, offset in changed.items() if _position(offset) != holding.sent}
            self._doubt = _Doubt(self._reports.take(), self._starts, telling, self._find_out(telling))
            self._starts = []
            _note_sent(changed)
            self._wait_a_while()
        else:
            self._reports.take()
            _note_sent(changed)
            self._recorded_ms = self._clock.steady_ms()
            self._committed(changed, began_ms)

    def _committed(self, changed: dict[Holding, Offset], began_ms: int) -> None:
        for holding in changed:
            holding.changed = False
        if changed or not self._holdings:
            self._unproven = False
            self._desk.gate_ms = self._polled_ms + self._session_timeout_ms
        self._contact_ms = self._clock.steady_ms()
        self._window.observe_commit(self._contact_ms - began_ms)
        self._backoff_ms = _BACKOFF_MS
        starts, self._starts = self._starts, []
        self._submit(starts)

    def _submit(self, starts: Sequence[Run]) -> None:
        """Starts what was claimed, now that the claim is committed."""
        if any(not run.holding.held for run in starts):
            raise BrokenInvariant(f"{len(starts)} dispatches cannot be started: a partition of theirs is gone and they were not withdrawn")
        if starts:
            self._desk.submit(starts)

    def _wait_a_while(self) -> None:
        self._again_ms = self._clock.steady_ms() + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, _BACKOFF_MAX_MS)

    def _back_off(self, error: Exception) -> None:
        self._wait_a_while()
        log.warning("worker.commit_refused", error=str(error), outcomes=len(self._reports), claims=len(self._starts))

    def _find_out(self, telling: dict[Holding, Offset]) -> Future[dict[int, GroupPosition]]:
        partitions = [holding.partition for holding in telling if holding.held]

        def find_out() -> dict[int, GroupPosition]:
            # New producers first: with the old ones' ids, so that whatever they left open is decided.
            if not self._output.recover():
                raise CommitRefused("no transactional producer could be initialised")
            return self._reader.committed(partitions, 5.0) if partitions else {}

        return self._aside(find_out)

    def _settle_doubt(self, doubt: _Doubt) -> None:
        if not doubt.found.done():
            return
        try:
            found = doubt.found.result()
        except (CommitRefused, EnvironmentFailure) as error:
            self._back_off(error)
            self._doubt = doubt._replace(found=self._find_out(doubt.telling))
            return
        self._doubt = None
        # Without a partition that tells and is still ours, outcomes are sent again: the owners accept each token once.
        tried = {holding: offset for holding, offset in doubt.telling.items() if holding.held}
        committed = bool(tried) and all(found.get(holding.partition) == _position(offset) for holding, offset in tried.items())
        for holding, offset in tried.items():
            holding.sent = found.get(holding.partition)
            holding.changed = not committed or holding.position() != offset
        if committed:
            self._submit(doubt.starts)
        else:
            self._reports.put_back(doubt.batch)
            self._starts = doubt.starts + self._starts
        log.info("worker.doubt_settled", outcomes=len(doubt.batch.reports), again=bool(self._reports))

    # --- letting go ---

    def _pick_out(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        """Takes back what was claimed and never started."""
        picked, self._starts = _parted(self._starts, unwanted)
        picked += self._desk.withdraw(unwanted)
        if self._doubt is not None:
            # Started only when the doubt is settled; whether the claim was committed or not, it can be taken back.
            of_doubt, starts = _parted(self._doubt.starts, unwanted)
            self._doubt = self._doubt._replace(starts=starts)
            picked += of_doubt
        return picked

    def _stop_what_waits(self) -> None:
        """What was cancelled, or is too late, and has not started never does. What runs is asked to stop by the watch."""
        self._stops.poll()
        if not self._doorstep.is_time():
            return
        verdicts: dict[Run, Verdict] = {}

        def is_over(run: Run) -> bool:
            verdict = self._doorstep.waiting(run.dispatch)
            if verdict is not None:
                verdicts[run] = verdict
            return verdict is not None

        for run in self._pick_out(is_over):
            self._finish((run,))
            self._reports.unrun(run.dispatch, run.key, verdicts[run])

    def _withdraw(self, unwanted: Callable[[Run], bool]) -> None:
        """Takes back claims of what never started. What cannot be taken back, because later ones were started, is interrupted."""
        by_holding: dict[Holding, list[Run]] = {}
        for run in self._pick_out(unwanted):
            by_holding.setdefault(run.holding, []).append(run)
        for holding, withdrawn in by_holding.items():
            kept = set(holding.unclaim([run.offset for run in withdrawn])) if holding.held else set()
            for run in withdrawn:
                if run.offset in kept:
                    self._interrupt(run)
                else:
                    self._dismiss((run,))

    def _interrupt(self, run: Run) -> None:
        self._finish((run,))
        self._reports.interrupt(run, _INTERRUPTED)

    def _await_ends(self, leaving: Sequence[Holding], deadline_ms: int) -> None:
        """Waits until nothing of these partitions runs, and records what ends meanwhile."""
        while self._clock.steady_ms() < deadline_ms:
            if not self._doubt and all(h.standing is not Standing.OPEN or not h.ledger.unfinished for h in leaving):
                break
            self._desk.wait(_BUSY_POLL_MAX_S)
            self._watch.look()
            self._collect()
            self._record()  # may settle a doubt, and frees room for further completions

    def _hand_over(self, leaving: Sequence[Holding]) -> int:
        """Lets runs go on without their partition; returns how many.

        A claim means: whoever takes the partition over returns what was not finished. So the claim ends here, as if they were, and the
        lease takes its place, in one transaction: from then on their owners wait for a heartbeat or an outcome, which need no partition.
        """
        going, handed_over = set(leaving), 0
        for run in self._desk.running():
            if run.holding in going:
                self._watch.say_started(run)
                run.holding.finish(run.offset)
                run.holding = NOWHERE
                handed_over += 1
        return handed_over

    def _release(self, leaving: Sequence[Holding], deadline_ms: int) -> None:
        """Commits the last positions, in nobody's name."""
        for holding in leaving:
            if holding.known:
                holding.release()
        while self._doubt or self._reports or any(holding.changed for holding in leaving):
            self._record()
            if self._clock.steady_ms() >= deadline_ms:
                return  # the successor will fence us by name
            if self._doubt or self._clock.steady_ms() < self._again_ms:
                self._desk.wait(_BUSY_POLL_MAX_S)

    def _let_go(self, leaving: Sequence[Holding]) -> None:
        for holding in leaving:
            holding.standing = Standing.GONE
            holding.changed = False
            self._forget_records(holding)
            self._returns.stop(holding.partition)
            del self._holdings[holding.partition]
        self._reports.leave_letters()

    def _forget_records(self, holding: Holding) -> None:
        self._bytes -= sum(len(record.value() or b"") for record in holding.records)
        holding.records.clear()

    def _go_on_draining(self, until_ms: int) -> None:
        now_ms = self._clock.steady_ms()
        if now_ms >= until_ms:
            for run in self._desk.running():
                if self._desk.abandon(run):
                    self._interrupted += 1
                    self._interrupt(run)
            until_ms += _LAST_WORD_MS
        if self._in_flight and now_ms < until_ms:
            return
        if self._last_word_until_ms is None:
            self._last_word_until_ms = now_ms + _LAST_WORD_MS
            for holding in self._holdings.values():
                if holding.known:
                    holding.release()
        if (self._doubt or self._reports or any(h.changed for h in self._holdings.values())) and now_ms < self._last_word_until_ms:
            return  # polling goes on meanwhile: in a rebalance, only it makes commits possible again
        self._let_go(list(self._holdings.values()))
        log.info("worker.drained", interrupted=self._interrupted, unrecorded=len(self._reports))
        self.stopped = True

    # --- is anybody there? ---

    def _probe_cluster(self) -> None:
        if self._probe is not None and self._probe.done():
            probe, self._probe = self._probe, None
            try:
                probe.result()
                self._contact_ms = self._clock.steady_ms()
            except EnvironmentFailure as error:
                log.warning("worker.cluster_unavailable", error=str(error))
                if self._clock.steady_ms() - self._contact_ms > self._broker_timeout_ms:
                    raise BrokerUnavailable(f"{error}; gave up after {self._broker_timeout_ms / 1000:.0f} s") from error
        if self._probe is None and self._clock.steady_ms() - self._contact_ms > _PROBE_MS:
            self._probe = self._aside(lambda: self._cluster.partition_count(self._topic))


def _parted(runs: Sequence[Run], unwanted: Callable[[Run], bool]) -> tuple[list[Run], list[Run]]:
    """Those that are unwanted, and the others. Each is asked about once, since the answer may change at any moment."""
    parts: tuple[list[Run], list[Run]] = [], []
    for run in runs:
        parts[not unwanted(run)].append(run)
    return parts


def _position(offset: Offset) -> GroupPosition:
    return GroupPosition(offset.offset, offset.metadata)


def _note_sent(offsets: Mapping[Holding, Offset]) -> None:
    for holding, offset in offsets.items():
        holding.sent = _position(offset)
