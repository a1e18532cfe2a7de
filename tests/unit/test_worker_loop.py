"""The worker's loop over fakes, for what a real broker does too seldom: transactions in doubt, refusals, partitions that go meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.core.claims import Claim, encode
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.limits import HEARTBEAT_MS, LAST_LIFE_SNOOZE_MS, LEASE_MARGIN_MS, LEASE_MS, WORKER_RUNS_MAX
from duewheel.core.model import Outcome, Terms
from duewheel.core.topology import Topology
from duewheel.ports import CommitRefused, GroupPosition, Offset, RebalanceListener, TransactionUnknown
from duewheel.worker.app import App
from duewheel.worker.crew import Desk as CrewDesk
from duewheel.worker.doorstep import LastLives
from duewheel.worker.loop import REVOKE_GRACE_MS, Worker
from duewheel.worker.runs import Run
from duewheel.worker.stops import Stops
from duewheel.worker.takeover import Returns
from duewheel.worker.window import GROWTH, RECENT_MS

NEW = GroupPosition(0, encode(Claim("", 0), 0))
TURN_MS = 30
SESSION_TIMEOUT_MS = 6_000


class Clock:
    """Time that the test sets."""

    now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return self.now_ms


class Dispatched:
    """A record of the dispatch topic."""

    def __init__(self, partition: int, offset: int, task: str = "t", terms: Terms | None = None) -> None:
        self._partition = partition
        self._offset = offset
        self._job_id = f"{partition}-{offset}"
        self._value = codec.encode_dispatch(
            {
                "token": offset + 1,
                "job_id": self._job_id,
                "generation": 1,
                "slot_ms": 0,
                "attempt": 1,
                "timer_partition": 0,
                "dispatched_ms": 0,
                "terms": terms,
                "work": {"task": task, "content_type": "application/json", "payload": b"1", "headers": {}, "policy": None},
            }
        )

    def topic(self) -> str:
        return "dispatch"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return self._job_id.encode()

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


class Group:
    """A reader, and the group's positions."""

    def __init__(self) -> None:
        self.queue: list[Dispatched] = []
        self.positions: dict[int, GroupPosition] = {}
        self.rebalances: list[Callable[[], None]] = []
        self.refusals = 0
        self.land_refused = False  # whether commits that are refused are taken all the same, as where only the answer is lost
        self.pending = False  # whether a transaction wants to commit offsets and has not ended
        self.committed_first: list[int] = []
        self.log: list[str] = []

    def join(self, listener: RebalanceListener) -> None: ...
    def read_from(self, partition: int, offset: int) -> None: ...
    def pause(self, partition: int) -> None: ...
    def resume(self, partition: int) -> None: ...
    def close(self) -> None: ...

    def reached(self, partition: int) -> int:
        return -1

    def poll(self, timeout_s: float, count_max: int) -> list[Any]:
        while self.rebalances:
            self.rebalances.pop(0)()
        records, self.queue = self.queue[:count_max], self.queue[count_max:]
        return records

    def commit(self, offsets: Sequence[Offset]) -> None:
        if self.refusals:
            self.refusals -= 1
            self.log.append("refused")
            if self.land_refused:
                self.land(offsets)
            raise CommitRefused("not a member")
        self.log.append("committed")
        self.committed_first = self.committed_first or [o.partition for o in offsets]
        self.land(offsets)

    def land(self, offsets: Sequence[Offset]) -> None:
        self.positions.update((o.partition, GroupPosition(o.offset, o.metadata)) for o in offsets)

    def committed(self, partitions: Sequence[int], timeout_s: float) -> dict[int, GroupPosition]:
        if self.pending:
            raise CommitRefused("offsets are pending")
        return self.as_they_stand(partitions)

    def as_they_stand(self, partitions: Sequence[int]) -> dict[int, GroupPosition]:
        return {p: self.positions.get(p, NEW) for p in partitions}


class Cluster:
    def __init__(self, group: Group) -> None:
        self._group = group
        self.end = 1_000
        self.away = False

    def owners(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, GroupPosition]:
        return self._group.as_they_stand(partitions)

    def watermarks(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, self.end))

    def visible(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return self.watermarks(topic, partitions)

    def partition_count(self, topic: str) -> int:
        if self.away:
            raise BrokerUnavailable("nobody answers")
        return 4

    def partition_counts(self) -> dict[str, int]:
        return {}

    def fence(self, name: str) -> None:
        self._group.log.append(f"fenced {name}")


class Output:
    """Transactions that end as `endings` says, one after the other, and then well."""

    name = "me"

    def __init__(self, group: Group) -> None:
        self.group = group
        self.endings: list[str] = []
        self.outcomes: list[bytes] = []
        self.aside: Aside | None = None  # to be kept from answering when the next transaction ends in doubt

    def begin(self) -> Transaction:
        return Transaction(self)

    def recover(self) -> bool:
        return True

    def close(self) -> None: ...


class Transaction:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._outcomes: list[bytes] = []
        self.produce: Callable[..., None] = self._produce

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def _produce(self, topic: str, value: bytes, key: bytes | None, partition: int) -> None:
        self._outcomes.append(value)

    def commit(self, offsets: Mapping[str, Sequence[Offset]]) -> None:
        ending = self._output.endings.pop(0) if self._output.endings else ""
        if ending != "unknown, aborted":
            self._output.outcomes += self._outcomes
            for each in offsets.values():
                self._output.group.land(each)
        if ending:
            if self._output.aside is not None:
                self._output.aside.holding = True
            raise TransactionUnknown(ending)

    def commit_later(self, offsets: Mapping[str, Sequence[Offset]]) -> Any:
        raise NotImplementedError


class HandCrew(CrewDesk):
    """Runs nothing by itself: the test says what is finished."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("q", clock)
        self.time = clock
        self.waiting: list[Run] = []
        self.started: list[Run] = []
        self.held_back = 0

    def submit(self, runs: Sequence[Run]) -> None:
        self.waiting += runs

    def wait(self, timeout_s: float) -> None:
        self.time.now_ms += 5

    def withdraw(self, unwanted: Callable[[Run], bool]) -> list[Run]:
        withdrawn = [run for run in self.waiting if unwanted(run)]
        self.waiting = [run for run in self.waiting if not unwanted(run)]
        return withdrawn

    @property
    def held_back_count(self) -> int:
        return self.held_back

    def running(self) -> list[Run]:
        return list(self.started)

    def cancel(self, run: Run) -> None:
        run.cancelled = True

    def abandon(self, run: Run) -> bool:
        if run not in self.started:
            return False
        self.started.remove(run)
        run.abandoned = True
        return True

    def start(self, count: int) -> None:
        for _ in range(count):
            run = self.waiting.pop(0)
            run.desk = self
            run.started_ms = run.started_steady_ms = self.time.now_ms
            self.started.append(run)

    def finish(self, count: int) -> None:
        self.start(count - len(self.started))
        for _ in range(count):
            run = self.started.pop(0)
            run.finished_ms = self.time.now_ms
            self.finished(run)


class Aside:
    """Answers at once, or when told."""

    def __init__(self) -> None:
        self.holding = False
        self._held: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def answer() -> None:
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

        if self.holding:
            self._held.append(answer)
        else:
            answer()
        return future

    def answer(self) -> None:
        self.holding = False
        for answer in self._held:
            answer()
        self._held = []


class Log:
    """The dispatch topic read back: as many records as one asks for."""

    def __init__(self) -> None:
        self._offset = 0
        self.read = 0
        self.silent = False

    def assign(self, partition: int, offset: int) -> None:
        self._offset = offset

    def release(self, partition: int) -> None: ...
    def close(self) -> None: ...

    def poll(self, timeout_s: float, count_max: int) -> list[Any]:
        if self.silent:
            return []
        records = [Dispatched(0, self._offset + n) for n in range(count_max)]
        self._offset += count_max
        self.read += count_max
        return records

    def reached(self, partition: int) -> int:
        return self._offset


class Control:
    """The control topic."""

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def assign(self, partition: int, offset: int) -> None: ...
    def release(self, partition: int) -> None: ...
    def close(self) -> None: ...

    def poll(self, timeout_s: float, count_max: int) -> list[Any]:
        records, self.queue = self.queue, []
        return records

    def reached(self, partition: int) -> int:
        return -1


class Stopped:
    """A record of the control topic."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value


class Desk:
    """A worker and everything around it."""

    def __init__(self, concurrency: int, **task: Any) -> None:
        app = App()
        app.task(name="t", **task)(lambda: None)
        self.clock = Clock()
        self.group = Group()
        self.cluster = Cluster(self.group)
        self.output = Output(self.group)
        self.crew = HandCrew(self.clock)
        self.aside = Aside()
        self.log = Log()
        self.control = Control()
        self.lives = LastLives()
        self.worker = Worker(
            app=app,
            queue="q",
            name="w",
            concurrency=concurrency,
            topology=Topology("x"),
            clock=self.clock,
            codec=codec,
            cluster=self.cluster,
            reader=self.group,
            output=self.output,
            returns=Returns(lambda: self.log),
            desk=self.crew,
            stops=Stops(self.control, {0: (0, 0)}, codec, self.clock),
            lives=self.lives,
            aside=self.aside,
            outcome_partitions=4,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            broker_timeout_ms=60_000,
        )
        self.worker.start()

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.worker.turn()
            self.clock.now_ms += TURN_MS

    def assign(self, *partitions: int) -> None:
        self.group.rebalances.append(lambda: self.worker.assigned(partitions))
        self.turn(5)

    def dispatch(self, partition: int, offset: int, count: int, task: str = "t", terms: Terms | None = None) -> None:
        self.group.queue += [Dispatched(partition, offset + n, task, terms) for n in range(count)]

    def stop(self, job_id: str, token: int) -> None:
        self.control.queue.append(Stopped(codec.encode_stop({"job_id": job_id, "token": token, "queue": "q"})))

    def outcomes(self) -> list[Outcome]:
        return [codec.decode_outcome(value) for value in self.output.outcomes]

    def said(self) -> list[tuple[str, str]]:
        return [(outcome["job_id"], outcome["result"]) for outcome in self.outcomes()]


def in_doubt_with_claims(ending: str) -> Desk:
    """Partition 0: two runs are finished, two more are claimed; of the transaction that says both, nobody knows the end."""
    desk = Desk(concurrency=2)
    desk.assign(0)
    desk.dispatch(0, 0, 4)
    desk.turn(2)
    desk.crew.finish(2)
    desk.output.endings, desk.aside.holding = [ending], True
    desk.turn()
    assert not desk.crew.waiting
    return desk


def works(desk: Desk, partition: int) -> bool:
    desk.assign(partition)
    desk.dispatch(partition, 50, 4)
    desk.turn(5)
    return bool(desk.crew.waiting)


ENDINGS = pytest.mark.parametrize("ending", ["unknown, aborted", "unknown, committed"])


@ENDINGS
def test_a_partition_lost_in_doubt_does_not_leave_its_claims_in_flight(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn()
    desk.aside.answer()
    desk.turn(5)
    assert not desk.crew.waiting
    assert works(desk, partition=1)


@ENDINGS
def test_a_partition_revoked_in_doubt_hands_back_its_claims_when_the_doubt_is_settled(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.aside.answer()
    desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
    desk.turn()
    assert desk.group.positions[0] == GroupPosition(2, encode(Claim("", 2), 2))
    assert len(desk.output.outcomes) == 2
    assert works(desk, partition=1)


@ENDINGS
def test_a_partition_revoked_in_a_doubt_that_outlasts_the_grace_does_not_leave_its_claims_in_flight(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
    desk.turn()
    desk.aside.answer()
    desk.turn(5)
    assert not desk.crew.waiting
    assert works(desk, partition=1)


@ENDINGS
def test_what_is_claimed_in_doubt_is_handed_back_when_draining(ending: str) -> None:
    desk = in_doubt_with_claims(ending)
    desk.worker.drain(1_000)
    desk.aside.answer()
    desk.turn(5)
    assert desk.worker.stopped
    assert not desk.crew.waiting
    assert desk.group.positions[0] == GroupPosition(2, encode(Claim("", 2), 2))
    assert len(desk.output.outcomes) == 2


def suspend(desk: Desk) -> None:
    """Longer than a session, after which all positions are to be committed again."""
    desk.clock.now_ms += SESSION_TIMEOUT_MS + 500


@ENDINGS
def test_a_position_that_did_not_change_does_not_vouch_for_a_transaction(ending: str) -> None:
    desk = Desk(concurrency=1)
    desk.assign(0, 1)
    desk.dispatch(0, 0, 1)
    desk.turn(2)
    suspend(desk)
    desk.crew.finish(1)
    desk.output.endings = [ending]
    desk.turn(6)
    assert len(desk.output.outcomes) == 1


def test_an_outcome_of_a_lost_partition_is_not_vouched_for_by_an_idle_one() -> None:
    desk = Desk(concurrency=1)
    desk.assign(0, 1)
    desk.dispatch(0, 0, 1)
    desk.turn(2)
    desk.crew.start(1)
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    suspend(desk)
    desk.group.refusals = 1  # the answer that the positions are committed is lost
    desk.group.land_refused = True
    desk.turn(1)
    desk.crew.finish(1)
    desk.output.endings = ["unknown, aborted"]
    desk.turn(6)
    assert len(desk.output.outcomes) == 1


def test_what_is_read_back_while_nothing_can_be_committed_is_bounded() -> None:
    desk = Desk(concurrency=2)
    desk.group.positions[0] = GroupPosition(0, "")
    desk.cluster.end = 1_000_000
    desk.output.endings, desk.output.aside = ["unknown, aborted"], desk.aside
    desk.assign(0)
    desk.turn(400)
    assert desk.log.read <= 1_000
    desk.aside.answer()
    desk.turn(20)
    assert desk.log.read > 1_000, "it goes on when it can"
    assert len(desk.output.outcomes) > 1_000


def test_a_read_back_that_brings_nothing_is_no_sign_of_life() -> None:
    desk = Desk(concurrency=2)
    desk.group.positions[0] = GroupPosition(0, "")
    desk.log.silent = True
    desk.assign(0)
    desk.cluster.away = True
    with pytest.raises(BrokerUnavailable, match="gave up after 60 s"):
        desk.turn(60_000 // TURN_MS * 2)


def test_W3_after_fast_handlers_slow_ones_are_not_hoarded() -> None:
    desk = Desk(concurrency=2)
    desk.assign(0, 1)
    finished: list[tuple[int, int]] = []
    for number in range(30):
        desk.dispatch(0, number * 10, 10)
        for _ in range(10):
            desk.turn()
            finished.append((desk.clock.now_ms, len(desk.crew.waiting)))
            desk.crew.finish(len(desk.crew.waiting))
    assert not desk.crew.waiting
    for partition in (0, 1):
        desk.dispatch(partition, 1_000, 2_000)
    recently = sum(count for at_ms, count in finished if at_ms >= desk.clock.now_ms - RECENT_MS)
    desk.turn(10)
    assert 2 <= len(desk.crew.waiting) <= GROWTH * recently <= 100


def left_by(owner: str, offset: int = 5) -> GroupPosition:
    return GroupPosition(offset, encode(Claim(owner, offset), offset))


def test_who_cannot_commit_fences_nobody() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions[0] = left_by("successor")
    desk.group.refusals = 1_000
    desk.assign(0)
    desk.turn(300)
    assert set(desk.group.log) == {"refused"}
    assert desk.group.positions[0] == left_by("successor")
    desk.group.rebalances.append(lambda: desk.worker.lost([0]))
    desk.turn(300)
    assert "fenced successor" not in desk.group.log, "it was told at last"


def test_a_predecessor_is_fenced_after_the_group_confirmed_that_we_are_a_member() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions.update({0: left_by("dead"), 1: left_by("")})
    desk.group.refusals = 1
    desk.assign(0, 1)
    desk.turn(20)
    assert desk.group.log[:3] == ["refused", "committed", "fenced dead"]
    assert desk.group.committed_first == [1], "a partition that nobody has to be fenced for"


def test_a_position_that_a_transaction_is_about_to_change_is_not_committed_over() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions[0] = left_by("dead")
    desk.group.pending = True
    desk.assign(0)
    desk.turn(20)
    assert desk.group.log == ["fenced dead"]
    desk.group.pending = False
    desk.turn(200)
    assert desk.group.log == ["fenced dead", "committed"]


def test_a_predecessor_is_not_waited_for_when_the_witness_is_revoked_meanwhile() -> None:
    desk = Desk(concurrency=1)
    desk.group.positions.update({0: left_by(""), 1: left_by("dead")})
    desk.group.refusals = 1
    desk.assign(0, 1)
    desk.group.rebalances.append(lambda: desk.worker.revoked([0]))
    desk.turn()
    desk.group.positions[0] = left_by("another", 9)
    desk.turn(20)
    assert desk.group.log[:2] == ["refused", "fenced dead"]
    assert desk.group.positions[0] == left_by("another", 9)
