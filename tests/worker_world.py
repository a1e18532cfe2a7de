"""The worker's loop among fakes, for what a real broker does too seldom or takes too long for.

desk = Desk(concurrency=2, heartbeat=30)    a worker, one task "t" with these settings, and everything around them
desk.assign(0)                              partition 0 is taken over
desk.dispatch(0, 0, 4)                      jobs "0-0" to "0-3" come, with tokens 1 to 4
desk.turn()                                 turns the loop, TURN_MS each time
desk.crew.start(1); desk.crew.finish(1)     handlers begin and end when the test says so
desk.said()                                 what was reported: [("0-0", "SUCCEEDED")]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from duewheel.adapters.avro import codec
from duewheel.core.claims import Claim, encode
from duewheel.core.errors import BrokerUnavailable
from duewheel.core.model import Outcome, Terms
from duewheel.core.topology import Topology
from duewheel.ports import CommitRefused, GroupPosition, Offset, RebalanceListener, TransactionAborted, TransactionUnknown
from duewheel.worker.app import App
from duewheel.worker.crew import Desk as CrewDesk
from duewheel.worker.doorstep import LastLives
from duewheel.worker.loop import Worker
from duewheel.worker.runs import Run
from duewheel.worker.stops import Stops
from duewheel.worker.takeover import Returns

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

    def __init__(self, partition: int, offset: int, task: str = "t", terms: Terms | None = None, attempt: int = 1) -> None:
        self._partition = partition
        self._offset = offset
        self._job_id = f"{partition}-{offset}"
        self._value = codec.encode_dispatch(
            {
                "token": offset + 1,
                "job_id": self._job_id,
                "generation": 1,
                "slot_ms": 0,
                "attempt": attempt,
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


class Unreadable(Dispatched):
    """A record that is no dispatch."""

    def value(self) -> bytes:
        return b"?"


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
        self.renamings = 0
        self.group = group
        self.endings: list[str] = []
        self.outcomes: list[bytes] = []
        self.aside: Aside | None = None  # to be kept from answering when the next transaction ends in doubt

    def begin(self) -> Transaction:
        return Transaction(self)

    def recover(self) -> bool:
        return True

    def take_new_name(self) -> None:
        self.renamings += 1

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
        if ending == "aborted":
            raise TransactionAborted(ending)
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
            if not self.admits(run):
                continue
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

    def dispatch(self, partition: int, offset: int, count: int, task: str = "t", terms: Terms | None = None, attempt: int = 1) -> None:
        self.group.queue += [Dispatched(partition, offset + n, task, terms, attempt) for n in range(count)]

    def stop(self, job_id: str, token: int) -> None:
        self.control.queue.append(Stopped(codec.encode_stop({"job_id": job_id, "token": token, "queue": "q"})))

    def outcomes(self) -> list[Outcome]:
        return [codec.decode_outcome(value) for value in self.output.outcomes]

    def said(self) -> list[tuple[str, str]]:
        return [(outcome["job_id"], outcome["result"]) for outcome in self.outcomes()]
