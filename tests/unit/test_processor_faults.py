"""What the processor does when its surroundings fail: one partition's trouble stays its own, and no acknowledged job is skipped.

The processor is the real one, its surroundings are those of `tests/engine_world.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from duewheel.adapters.avro import codec
from duewheel.core.errors import Reason, TopicMissing
from duewheel.core.limits import BATCH_BYTES_MAX, OUTPUT_BYTES_MAX
from duewheel.core.model import DeadLetter, Limits, OnConflict, Result
from duewheel.core.ownership import owned_by, owner_of
from duewheel.core.topology import partition_of
from duewheel.engine.partition import Stage
from duewheel.ports import CommitRefused, GroupPosition, Offset
from tests.engine_world import TOPOLOGY, Instance, Memory, World, answer, command, dispatched, dispatches, job_of, schedule


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("topic", [TOPOLOGY.intake, TOPOLOGY.state, TOPOLOGY.outcomes, TOPOLOGY.dead_letter, TOPOLOGY.control])
def test_a_missing_topic_is_noticed_at_the_start(world: World, topic: str) -> None:
    del world.topics[topic]
    with pytest.raises(TopicMissing, match=topic):
        Instance(world, 0)


def test_a_partition_that_cannot_be_claimed_stops_no_other(world: World) -> None:
    instance = Instance(world, 0)
    schedule(world, job_of(0), world.now_ms + 500)
    world.group[TOPOLOGY.intake, 1] = GroupPosition(0, owned_by("dead"))
    world.unfenceable.add("dead")
    instance.assign(1, turns=200)
    assert dispatched(world) == [job_of(0).encode()]
    assert instance.processor.stages == {0: Stage.ACTIVE, 1: Stage.CLAIMING}
    world.unfenceable.clear()
    instance.turn(1_000)
    assert set(instance.processor.stages.values()) == {Stage.ACTIVE}


def test_K10_a_queue_that_is_gone_stops_no_other_and_loses_nothing(world: World) -> None:
    world.topics[TOPOLOGY.dispatch("gone")] = 2
    first = Instance(world, 0, 1)
    schedule(world, job_of(0), world.now_ms + 2_000, queue="gone")
    schedule(world, job_of(1), world.now_ms + 2_000)
    first.turn(3)
    first.processor.close()
    del world.topics[TOPOLOGY.dispatch("gone")]
    second = Instance(world, 0, 1)
    second.turn(200)
    assert (dispatched(world), dispatched(world, "gone")) == ([job_of(1).encode()], [])
    world.topics[TOPOLOGY.dispatch("gone")] = 2
    second.turn(500)
    assert dispatched(world, "gone") == [job_of(0).encode()]


def test_K10_a_queue_that_goes_while_nothing_is_sent_to_it_is_noticed(world: World) -> None:
    world.topics[TOPOLOGY.dispatch("gone")] = 2
    instance = Instance(world, 0)
    schedule(world, job_of(0), world.now_ms + 8_000, queue="gone")
    instance.turn(3)
    del world.topics[TOPOLOGY.dispatch("gone")]
    instance.turn(500)
    assert dispatched(world, "gone") == []
    world.topics[TOPOLOGY.dispatch("gone")] = 2
    instance.turn(500)
    assert dispatched(world, "gone") == [job_of(0).encode()]


def test_K10_a_queue_that_refuses_stops_no_other_and_loses_nothing(world: World) -> None:
    """It has jobs that come due, a new one in front of others on the same partition, and one given back; leases go on being watched."""
    world.topics[TOPOLOGY.dispatch("refusing")] = 2
    instance = Instance(world, 0, 1)
    for queue in ("refusing", "default"):
        for n in range(20):
            schedule(world, f"{queue}-{n}", world.now_ms + 1_000 + 10 * n, queue=queue)
    schedule(world, "given-back", world.now_ms, queue="refusing")
    schedule(world, "silent", world.now_ms)
    instance.turn(5)
    (back,) = dispatches(world, "refusing")
    (silent,) = dispatches(world)
    world.refusing.add(TOPOLOGY.dispatch("refusing"))
    answer(world, back, Result.LOST)
    answer(world, silent, Result.STARTED, lease_ms=20_000)
    schedule(world, "refusing-new", world.now_ms, queue="refusing")
    schedule(world, "default-new", world.now_ms)
    began_ms = world.now_ms
    instance.turn(100)
    assert b"default-new" in dispatched(world)
    assert len(dispatched(world)) == 20 + 2
    assert max(d["dispatched_ms"] - d["slot_ms"] for d in dispatches(world)) < 1_000
    for n in range(2_500):  # fifty seconds, in which it is tried again and again
        if n % 100 == 0:
            schedule(world, f"more-{n}", world.now_ms)
        instance.turn(1)
    assert max(d["dispatched_ms"] - d["slot_ms"] for d in dispatches(world) if d["attempt"] == 1) < 1_000
    assert [d["attempt"] for d in dispatches(world) if d["job_id"] == "silent"] == [1, 2]
    assert world.now_ms > began_ms + 50_000
    world.refusing.clear()
    instance.turn(4_000)
    assert dispatched(world, "refusing") == sorted([*(f"refusing-{n}".encode() for n in range(20)), b"refusing-new", *[b"given-back"] * 2])
    assert refusals(world) == []


@pytest.mark.parametrize("hanging", [1, 6])
def test_where_offsets_cannot_be_sent_no_queue_is_to_blame(world: World, hanging: int) -> None:
    """A coordinator that is gone fails whatever is in the transaction. Doubted queues would wait on, long after it is back."""
    instance = Instance(world, 0, 1)
    for n in range(20):
        schedule(world, f"job-{n}", world.now_ms + 1_000)
    instance.turn(5)
    world.hanging = hanging
    while world.hanging:
        instance.turn(1)
    instance.turn(25)
    assert world.aborted == hanging
    assert len(dispatched(world)) == 20


def test_the_partitions_that_a_queue_has_grown_by_are_used(world: World) -> None:
    world.topics[TOPOLOGY.dispatch("grows")] = 1
    instance = Instance(world, 0, 1)
    schedule(world, "first", world.now_ms, queue="grows")
    instance.turn(3)
    world.topics[TOPOLOGY.dispatch("grows")] = 2
    instance.turn(500)
    for n in range(40):
        schedule(world, f"job-{n}", world.now_ms, queue="grows")
    instance.turn(3)
    assert len(world.log(TOPOLOGY.dispatch("grows"), 1)) > 0
    assert len(dispatched(world, "grows")) == 41


class SlowDisk(Memory):
    """Takes its time for every piece of the changelog."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def write(self, records: Any, *rest: Any) -> None:
        if len(records) > 1:
            self._world.now_ms += 700
        super().write(records, *rest)


def test_K6_a_slow_disk_does_not_keep_a_processor_from_polling(world: World) -> None:
    """However many partitions are restored at once: a turn waits for one write, and goes on with the next partition in the next turn."""
    first = Instance(world, 0, 1)
    for n in range(40):
        schedule(world, f"job-{n}", world.now_ms + 60_000)
    first.turn(3)
    first.processor.close()
    second = Instance(world, open_store=lambda number: SlowDisk(world))
    second.assign(0, 1, turns=0)
    turns_ms = []
    while set(second.processor.stages.values()) != {Stage.ACTIVE}:
        began_ms = world.now_ms
        second.turn(1)
        turns_ms.append(world.now_ms - began_ms)
    assert sum(took_ms > 700 for took_ms in turns_ms) == 2, "each partition was slow"
    assert max(turns_ms) < 800
    second.turn(3_100)
    assert len(dispatched(world)) == 40


def test_a_partition_that_goes_while_others_are_restored_leaves_nothing_behind(world: World) -> None:
    """It had been read already, and its turn had not come. Nobody waits for it, and when it comes back it has all its jobs."""
    first = Instance(world, 0, 1)
    for n in range(40):
        schedule(world, f"job-{n}", world.now_ms + 60_000)
    first.turn(3)
    first.processor.close()
    second = Instance(world, open_store=lambda number: SlowDisk(world))
    second.assign(0, 1, turns=0)
    while set(second.processor.stages.values()) != {Stage.CATCHING_UP, Stage.REPLAYING}:
        second.turn(1)
    (left,) = (number for number, stage in second.processor.stages.items() if stage == Stage.REPLAYING)
    second.intake.events.append(lambda: second.processor.revoked([0, 1]))
    second.assign(1 - left)
    assert second.processor.stages == {1 - left: Stage.ACTIVE}
    second.assign(left)
    assert second.processor.stages == {0: Stage.ACTIVE, 1: Stage.ACTIVE}
    second.turn(3_100)
    assert len(dispatched(world)) == 40


def test_a_log_that_was_made_anew_is_read_from_its_beginning(world: World) -> None:
    first = Instance(world, 0, 1)
    for n in range(40):
        schedule(world, f"old-{n}", world.now_ms)
    first.turn(10)
    first.processor.close()
    for partition in (0, 1):
        world.log(TOPOLOGY.intake, partition).clear()
        world.group.pop((TOPOLOGY.intake, partition))
    second = Instance(world, 0, 1)
    schedule(world, "new-job", world.now_ms)
    second.turn(10)
    assert dispatched(world).count(b"new-job") == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_group_that_was_set_forward_by_hand_skips_nothing(world: World, known: bool) -> None:
    first = Instance(world, 0, 1)
    if known:
        schedule(world, "first-job", world.now_ms)
        first.turn(10)
    first.processor.close()
    schedule(world, "new-job", world.now_ms)
    for partition in (0, 1):
        world.group[TOPOLOGY.intake, partition] = GroupPosition(len(world.log(TOPOLOGY.intake, partition)), "")
    Instance(world, 0, 1).turn(10)
    assert dispatched(world).count(b"new-job") == 1


def test_a_transaction_is_bounded_in_bytes_whatever_comes_together(world: World) -> None:
    instance = Instance(world, 0, 1)
    jobs = {f"large-{n}" for n in range(60)}
    for job_id in jobs:
        schedule(world, job_id, world.now_ms, payload=bytes(900_000))
    instance.turn(60)
    assert {key.decode() for key in dispatched(world)} == jobs
    for d in dispatches(world):  # all of them are given back at once, in records that are small
        answer(world, d, Result.LOST)
    instance.turn(60)
    assert len(dispatched(world)) == 2 * len(jobs), "each exactly once more"
    # A job counts as its command, is written as definition and dispatch, and the last one may go beyond the limit.
    assert max(world.transaction_bytes) < 3 * BATCH_BYTES_MAX


def test_what_workers_report_counts_for_the_bytes_of_a_transaction(world: World) -> None:
    instance = Instance(world, 0, 1)
    for n in range(2_500):
        schedule(world, f"job-{n}", world.now_ms)
    instance.turn(10)
    for d in dispatches(world):
        answer(world, d, output=bytes(OUTPUT_BYTES_MAX))
    world.transaction_bytes.clear()
    instance.turn(10)
    assert sum(world.transaction_bytes) > 2_500 * OUTPUT_BYTES_MAX > BATCH_BYTES_MAX
    assert max(world.transaction_bytes) < 1.1 * BATCH_BYTES_MAX


def refusals(world: World) -> list[DeadLetter]:
    letters = [codec.decode_dead_letter_topic(value) for _, value in world.log(TOPOLOGY.dead_letter, 0)]
    return [cast(DeadLetter, record) for kind, record in letters if kind == "letter"]


@pytest.mark.parametrize("encode", [codec.encode_redrive, codec.encode_drop])
@pytest.mark.parametrize("token", [0, -1])
def test_a_redrive_or_drop_that_can_concern_no_dead_run_is_refused(world: World, encode: Callable[[Any], bytes], token: int) -> None:
    instance = Instance(world, 0, 1)
    command(world, "job", encode({"job_id": "job", "token": token, "created_ms": world.now_ms}))
    instance.turn(3)
    (letter,) = refusals(world)
    assert (letter["reason"], letter["key"]) == (Reason.BAD_TOKEN, b"job")


def test_a_schedule_that_asks_for_it_is_a_dead_letter_where_its_id_is_known(world: World) -> None:
    instance = Instance(world, 0, 1)
    schedule(world, "job", world.now_ms, on_conflict=OnConflict.REJECT)
    schedule(world, "job", world.now_ms, payload=b"2", on_conflict=OnConflict.REJECT)
    instance.turn(3)
    (letter,) = refusals(world)
    assert (letter["reason"], letter["key"]) == (Reason.CONFLICT, b"job")
    assert [d["work"]["payload"] for d in dispatches(world)] == [b"1"]


def test_a_redrive_after_its_time_to_start_is_a_dead_letter_and_holds_up_nothing(world: World) -> None:
    instance = Instance(world, 0)
    job_id = job_of(0)
    limits: Limits = {"expires_ms": world.now_ms + 1_000, "total_timeout_ms": 0, "crashes_max": 0}
    schedule(world, job_id, world.now_ms, limits=limits)
    instance.turn(3)
    (d,) = dispatches(world)
    answer(world, d, Result.FAILED)
    instance.turn(100)
    command(world, job_id, codec.encode_redrive({"job_id": job_id, "token": d["token"], "created_ms": world.now_ms}))
    instance.turn(3)
    (letter,) = refusals(world)
    assert (letter["reason"], letter["key"]) == (Reason.EXPIRED, job_id.encode())
    assert "its expires_ms" in letter["message"]
    assert len(dispatches(world)) == 1
    schedule(world, next(f"more-{n}" for n in range(99) if partition_of(f"more-{n}".encode(), 2) == 0), world.now_ms)
    instance.turn(3)
    assert len(dispatches(world)) == 2


def test_who_lost_everything_goes_on_under_a_name_that_its_successors_do_not_fence(world: World) -> None:
    """Members that come back together deal the partitions anew, and under their old names would fence one another's claims in a circle."""
    instance = Instance(world, 0, 1)
    instance.intake.events.append(lambda: instance.processor.lost([0, 1]))
    instance.turn(1)
    instance.assign(0)
    owner_of_1, owner_of_0 = (owner_of(world.group[TOPOLOGY.intake, number].metadata) for number in (1, 0))
    assert world.fenced == [owner_of_1], "what it left open itself, under the name that a successor of the other will fence"
    assert owner_of_0 not in (None, owner_of_1)
    assert instance.processor.stages == {0: Stage.ACTIVE}


def test_who_lost_a_part_keeps_its_name(world: World) -> None:
    instance = Instance(world, 0, 1)
    instance.intake.events.append(lambda: instance.processor.lost([0]))
    instance.turn(1)
    instance.assign(0)
    assert len({owner_of(world.group[TOPOLOGY.intake, number].metadata) for number in (0, 1)}) == 1


def test_what_is_claimed_while_another_is_being_replayed_misses_nothing_of_its_changelog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one waits for a record of its changelog that cannot be read yet, as of a transaction that is open."""
    world = World()
    instance = Instance(world, 0, 1)
    schedule(world, job_of(0), world.now_ms)
    schedule(world, job_of(1), world.now_ms)
    instance.turn(20)
    instance.intake.events.append(lambda: instance.processor.lost([0, 1]))
    instance.turn(1)
    log = world.log(TOPOLOGY.state, 0)
    monkeypatch.setattr(
        world, "watermarks", lambda topic, partitions: {p: (0, len(world.log(topic, p)) + (world.log(topic, p) is log)) for p in partitions}
    )
    instance.assign(0, turns=3)
    instance.assign(1, turns=3)
    assert instance.processor.stages[0] == Stage.REPLAYING
    log.append(log[-1])
    instance.turn(10)
    assert set(instance.processor.stages.values()) == {Stage.ACTIVE}
    assert dispatched(world) == sorted([job_of(0).encode(), job_of(1).encode()]), "known to have been dispatched already"


class Pending:
    """A group whose coordinator went while a transaction of a dead owner was being committed: what is asked without waiting is old.

    Attributes:
        commits: what the new owner committed to intake, in order.
        settles_at: from which question on, of those that wait, there is an answer.
    """

    def __init__(self, instance: Instance, world: World, old: int, new: int, settles_at: int) -> None:
        self.commits: list[int] = []
        self._asked, self._settles_at, self._new = 0, settles_at, new
        self._commit = instance.intake.commit
        world.group[TOPOLOGY.intake, 0] = GroupPosition(old, owned_by("x.processor." + "0" * 32))
        instance.intake.committed = self.committed  # type: ignore[method-assign]
        instance.intake.commit = self.commit  # type: ignore[method-assign]

    def committed(self, partitions: Sequence[int], timeout_s: float) -> dict[int, GroupPosition]:
        self._asked += 1
        if self._asked < self._settles_at:
            raise CommitRefused("pending")
        return dict.fromkeys(partitions, GroupPosition(self._new, owned_by("x.processor." + "0" * 32)))

    def commit(self, offsets: Sequence[Offset]) -> None:
        self.commits += [offset.offset for offset in offsets]
        self._commit(offsets)


@pytest.mark.parametrize("settles_at", [1, 2])
def test_K4_proving_membership_does_not_undo_what_a_transaction_is_about_to_commit(world: World, settles_at: int) -> None:
    for n in range(5):
        schedule(world, job_of(0), world.now_ms + 10_000 + n)
    instance = Instance(world)
    pending = Pending(instance, world, old=2, new=4, settles_at=settles_at)
    instance.assign(0)
    assert instance.processor.stages == {0: Stage.ACTIVE}
    assert pending.commits
    assert min(pending.commits) == 4


def test_a_group_that_was_set_back_by_hand_shows_soon_again_how_far_its_inputs_were_read(world: World) -> None:
    """Also where nothing comes any more, whose transaction would say so."""
    first = Instance(world, 0)
    schedule(world, job_of(0), world.now_ms)
    first.turn(5)
    answer(world, dispatches(world)[0])
    first.turn(5)
    first.processor.close()
    read = {topic: world.group[topic, 0].offset for topic in (TOPOLOGY.intake, TOPOLOGY.outcomes)}
    assert read == {TOPOLOGY.intake: 1, TOPOLOGY.outcomes: 1}
    for topic in read:
        world.group[topic, 0] = GroupPosition(0, "")
    second = Instance(world, 0)
    second.turn(300)
    assert {topic: world.group[topic, 0].offset for topic in read} == read
    assert dispatched(world) == [job_of(0).encode()]


def test_a_queue_found_gone_in_the_middle_of_a_turn_does_not_end_the_process(world: World) -> None:
    """One step has dispatched to it, and then another asks about a queue that is not known, which tells of all."""
    going, gone = TOPOLOGY.dispatch("going"), TOPOLOGY.dispatch("gone")
    world.topics |= {going: 2, gone: 2}
    instance = Instance(world, 0, 1)
    due_ms = world.now_ms + 8_000
    schedule(world, job_of(0), due_ms, queue="going")
    schedule(world, job_of(1), due_ms, queue="gone")
    instance.turn(50)
    del world.topics[gone]
    while world.now_ms < due_ms - 1_000:
        instance.turn(1)
    del world.topics[going]
    world.refusing.add(going)
    instance.turn(200)
    assert dispatched(world, "going") == []
    world.refusing.clear()
    world.topics |= {going: 2, gone: 2}
    instance.turn(1_000)
    assert (dispatched(world, "going"), dispatched(world, "gone")) == ([job_of(0).encode()], [job_of(1).encode()])
