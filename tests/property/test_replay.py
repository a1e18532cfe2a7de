"""What a processor restores from the changelog is what it had: the same records, and a timer for every job that needs one.

Random histories are lived by a real `Partition` over a dict. Its changelog is then folded by others: from the beginning, in batches cut
anywhere, and over a store that was left behind at any moment with a mark that is older still.

Some jobs are records to deliver, to a topic that takes them, is away, or refuses them: each is put there once, by the state that says so.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from duewheel.adapters.avro import codec
from duewheel.core.errors import RejectedJob
from duewheel.core.limits import DAY_MS, MINUTE_MS
from duewheel.core.model import Delivery, Limits, OnConflict, Outcome, Phase, Result, Schedule
from duewheel.core.step import ADMITTED, Admission, Defined, Step, timer_ms
from duewheel.core.wheel import due_of, job_of, timer_key
from duewheel.engine.partition import DEFINITION, STATE, Inputs, Partition, Stage
from tests.engine_world import Consumed, Memory

START_MS = 1_900_000_000_000
JOBS = ("a", "a", "a", "b")

Event = tuple[Any, ...]


class Life:
    """One partition from its beginning, and the changelog that it writes."""

    def __init__(self) -> None:
        self.log: list[Consumed] = []
        self.now_ms = START_MS
        self.store = Memory()
        self.partition = restored(self.store, [], [], self.now_ms)
        self.snapshot, self.mark = copy.deepcopy(self.store), 0
        self.has_queue = True
        self.topic = ADMITTED
        self.delivered: list[tuple[str, int]] = []
        self.commands = 0

    def live(self, event: Event) -> None:
        kind, *what = event
        if kind == "wait":
            self.now_ms += what[0]
        elif kind == "queue":
            self.has_queue = what[0]
        elif kind == "topic":
            self.topic = what[0]
        elif kind == "mark":
            self.mark = len(self.log)
            self.partition.mark(self.mark, self.now_ms)
        elif kind == "snapshot":
            self.snapshot = copy.deepcopy(self.store)
        elif kind == "heard":
            self.partition.listen_until(0, self.now_ms)
            self.partition.listened(0)
        else:
            self.step(kind, what)
            return
        self.step("", [])

    def step(self, kind: str, what: list[Any]) -> None:
        partition = self.partition
        partition.extend_horizon(self.now_ms)
        step = partition.step(self.now_ms, lambda queue: self.has_queue, lambda *record: self.topic)
        if kind:
            self.take(step, kind, *what)
        step.fire(partition.due(self.now_ms, 100))
        changes = partition.changes(step, 0, 0)
        self.log += [Consumed("state", 0, len(self.log) + n, key, value) for n, (key, value) in enumerate(changes)]
        partition.advance(step, 0, 0)
        partition.save(step, changes)
        assert all(record.slot_ms <= self.now_ms for record in step.deliveries), "early"
        self.delivered += [(record.job_id, record.token) for record in step.deliveries]

    def take(self, step: Step, kind: str, job_id: str, *what: Any) -> None:
        state = self.partition.state(job_id)
        token = 0 if state is None else state["token"]
        self.commands += 1
        if kind == "schedule":
            record = schedule(job_id, self.now_ms + what[0], self.commands, *what[1:])
            command = codec.encode_schedule(record)
            with suppress(RejectedJob):  # its id may be known, and it may ask to be refused then
                step.schedule(record, codec.decode_command(command)[2], command)
        elif kind == "cancel":
            step.cancel({"job_id": job_id, "created_ms": 0, "reach": "DEFAULT"})
        elif kind == "redrive":
            with suppress(RejectedJob):  # its time to start may be over; then it becomes a dead letter
                step.redrive({"job_id": job_id, "token": token, "created_ms": 0})
        elif kind == "drop":
            step.drop({"job_id": job_id, "token": token, "created_ms": 0})
        elif kind == "forget":
            step.forget(job_id)
        elif kind == "overdue":
            step.overdue(job_id, token)
        else:
            step.outcome(outcome(job_id, token, *what))


def schedule(
    job_id: str, due_ms: int, created_ms: int, on_conflict: str, limits: Limits | None, delivery: Delivery | None = None
) -> Schedule:
    return {
        "job_id": job_id,
        "due_ms": due_ms,
        "created_ms": created_ms,
        "on_conflict": on_conflict,
        "retention_ms": 0,
        "queue": "default",
        "limits": limits,
        "recurrence": None,
        "delivery": delivery,
        "work": {"task": "t", "content_type": "application/json", "payload": b"", "headers": {}, "policy": None},
    }


def outcome(job_id: str, token: int, result: str, span_ms: int) -> Outcome:
    record: dict[str, Any] = {"token": token, "job_id": job_id, "slot_ms": 0, "attempt": 1, "result": result, "started_ms": START_MS}
    record |= {"finished_ms": START_MS, "worker": "w", "error": None, "output": None, "retry_after_ms": span_ms, "lease_ms": span_ms}
    return cast(Outcome, record)


def restored(store: Memory, log: list[Consumed], cuts: list[int], now_ms: int) -> Partition:
    """A partition whose store was brought level with the changelog, in batches that end at the cuts."""
    partition = Partition(0, store, codec)
    position = partition.begin_replay(0, len(log), None, now_ms)
    partition.begin_inputs(Inputs(0, 0), Inputs(0, 0))
    ends = sorted({min(max(cut, position), len(log)) for cut in cuts} | {len(log)})
    for end in ends:
        complete = partition.replay(cast(Any, log[position:end]), end, now_ms)
        position = end
    assert complete
    partition.end_replay()
    partition.stage = Stage.ACTIVE
    partition.listen_anew(now_ms)
    return partition


def needed(store: Memory) -> set[bytes]:
    """The timers of all jobs in a store, by what its records say."""
    timers = set()
    for key, value in store.jobs.items():
        if key[:1] == DEFINITION:
            state = store.jobs.get(STATE + key[1:])
            moment_ms = timer_ms(codec.peek_definition(value), None if state is None else codec.decode_state(state))
            if moment_ms:
                timers.add(timer_key(moment_ms, key[1:].decode()))
    return timers


jobs = st.sampled_from(JOBS)
spans = st.sampled_from([1, 40, 700, 2 * MINUTE_MS])
limits = st.one_of(
    st.none(),
    st.builds(
        lambda expires, total, crashes: {"expires_ms": expires and START_MS + expires, "total_timeout_ms": total, "crashes_max": crashes},
        st.sampled_from([0, 100, MINUTE_MS]),
        st.sampled_from([0, 300]),
        st.sampled_from([0, 1]),
    ),
)
DELIVERY: Delivery = {"topic": "orders", "key": None, "tombstone": False}
deliveries = st.sampled_from([None, None, DELIVERY])
schedules = st.tuples(st.just("schedule"), jobs, st.sampled_from([-50, 0, 1, 40, 700]), st.sampled_from(OnConflict), limits, deliveries)
often = [Result.RETRY, Result.STARTED, Result.LOST]
outcomes = st.tuples(st.just("outcome"), jobs, st.sampled_from([*Result, *often, *often, *often]), spans)
waits = st.tuples(st.just("wait"), st.sampled_from([0, 1, 39, 41, 250, 1_000, 3 * MINUTE_MS, 15 * DAY_MS]))
others = st.one_of(
    st.tuples(st.sampled_from(["cancel", "redrive", "drop", "forget", "overdue"]), jobs),
    st.tuples(st.just("queue"), st.booleans()),
    st.tuples(st.just("topic"), st.sampled_from([ADMITTED, Admission(1), Admission(MINUTE_MS), Admission(refused="no")])),
    st.sampled_from([("mark",), ("snapshot",), ("heard",)]),
)
events = st.one_of(schedules, outcomes, outcomes, waits, waits, others)
histories = st.builds(lambda first, rest: [first, *rest], schedules, st.lists(events, min_size=3, max_size=30))


@settings(max_examples=300, deadline=None)
@given(histories, st.lists(st.integers(0, 60), max_size=5))
def test_what_is_restored_is_what_was(history: list[Event], cuts: list[int]) -> None:
    life = Life()
    for event in history:
        life.live(event)
        check_timers(life)

    anew = Memory()
    restored(anew, life.log, cuts, life.now_ms)
    assert anew.jobs == life.store.jobs
    assert anew.timer_keys == needed(life.store)

    # A store that stayed behind; what its mark says is older than what it holds.
    left = life.snapshot
    restored(left, life.log, cuts, life.now_ms)
    assert left.jobs == life.store.jobs
    check_timers_of(left.timer_keys, needed(life.store), life.now_ms)


@settings(max_examples=300, deadline=None)
@given(histories)
def test_each_record_is_delivered_once_and_by_the_state_that_says_so(history: list[Event]) -> None:
    life = Life()
    for event in history:
        life.live(event)
    ended, generations = [], dict[str, Defined]()
    for record in life.log:
        key, value = record.key() or b"", record.value()
        if key[:1] == DEFINITION and value is not None:
            generations[key[1:].decode()] = codec.peek_definition(value)
        elif key[:1] == STATE and value is not None:
            state, known = codec.decode_state(value), generations[key[1:].decode()]
            is_its_own = known.delivery is not None and known.generation == state["generation"]
            if is_its_own and state["phase"] == Phase.SUCCEEDED:
                ended.append((key[1:].decode(), state["token"]))
    assert sorted(life.delivered) == sorted(set(ended))


def test_a_lease_that_was_put_off_when_the_store_stayed_behind_is_looked_at_again() -> None:
    again = ("schedule", "a", -50, OnConflict.IGNORE, None)
    test_what_is_restored_is_what_was.hypothesis.inner_test(  # type: ignore[attr-defined]
        [again, ("outcome", "a", Result.STARTED, 1), again, ("wait", 1_000), ("mark",), again, ("snapshot",)], []
    )


def check_timers(life: Life) -> None:
    """Every job that needs a timer has one, or had its moment and was put off until outcomes are read."""
    to_come = {timer for timer in life.store.timer_keys if due_of(timer) > life.now_ms}
    check_timers_of(to_come | set(life.partition.due(2**60, 1_000)), needed(life.store), life.now_ms)


def check_timers_of(timers: set[bytes], wanted: set[bytes], now_ms: int) -> None:
    put_off = {job_of(timer) for timer in timers}
    for timer in wanted - timers:
        assert due_of(timer) <= now_ms
        assert job_of(timer) in put_off, "no timer, and nothing else ever looks at it"


@settings(max_examples=150, deadline=None)
@given(histories, st.lists(st.integers(0, 60), max_size=3))
def test_after_a_restore_no_job_waits_for_ever(history: list[Event], cuts: list[int]) -> None:
    life = Life()
    for event in history:
        life.live(event)
    life.store = Memory()
    life.partition = restored(life.store, life.log, cuts, life.now_ms)
    life.has_queue, life.topic = True, ADMITTED
    for _ in range(6):  # a lease that is over, and the next; nobody answers, so there are no retries
        life.now_ms += 10 * MINUTE_MS
        for _ in range(3):
            life.live(("heard",))
    for key, value in life.store.jobs.items():
        if key[:1] == STATE:
            state = codec.decode_state(value)
            known: Defined | None = life.partition.defined(key[1:].decode())
            assert known is not None
            assert state["phase"] not in (Phase.WAITING, Phase.RUNNING), "its moment has passed"
            assert state["generation"] == known.generation
        elif key[:1] == DEFINITION:
            assert STATE + key[1:] in life.store.jobs, "it was due, and was not dispatched"
