"""Timer partitions change hands, restart, and are restored: nothing is lost, early, or dispatched twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from structlog.testing import capture_logs

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.model import OnConflict, Phase, Result
from duewheel.engine import restore as restore_module
from duewheel.engine.partition import Stage
from duewheel.engine.processor import Processor
from tests.integration.desk import (
    DAY_MS,
    PARTITIONS,
    TIMEOUT_S,
    Desk,
    HandClock,
    Raw,
    home,
    is_active,
    job_ids,
    now_ms,
    raw_cancel,
    raw_outcome,
    raw_schedule,
)

ALL = [(partition, Stage.ACTIVE) for partition in range(PARTITIONS)]


class Stream:
    """Jobs that never stop coming: each call publishes one for now and one for a little later, on the next partition."""

    def __init__(self, desk: Desk) -> None:
        self.ids: list[str] = []
        self._desk = desk

    def flow(self, until: Callable[[], Any]) -> Callable[[], Any]:
        """The condition, publishing each time it is asked."""

        def flowing() -> Any:
            n = len(self.ids)
            self.ids += [f"stream-{n}", f"stream-{n + 1}"]
            self._desk.publish([raw_schedule(self.ids[-2], now_ms()), raw_schedule(self.ids[-1], now_ms() + 150)])
            return until()

        return flowing


def shared(*processors: Processor) -> bool:
    """Whether all partitions are active, each with one of the processors, and none has them all while others have none."""
    held = [(number, stage) for processor in processors for number, stage in processor.stages.items()]
    return sorted(held) == ALL and all(processor.stages for processor in processors)


def replayed(logs: list[Any]) -> int:
    """How many changelog records were read in all restores."""
    return sum(line["records"] for line in logs if line["event"] == "processor.replayed")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_move_under_a_stream_and_every_job_is_dispatched_once(desk: Desk, protocol: str) -> None:
    kafka = KafkaConfig(desk.kafka.bootstrap_servers, {"group.protocol": protocol})
    stream = Stream(desk)
    first = desk.processor("a", kafka=kafka)
    desk.drive(first, until=stream.flow(lambda: is_active(first)))
    second = desk.processor("b", kafka=kafka)
    desk.drive(first, second, until=stream.flow(lambda: shared(first, second)))
    desk.leave(first)
    desk.drive(second, until=stream.flow(lambda: is_active(second)))
    last, name = second, "b"
    if protocol == "classic":  # the other one takes five seconds to move anything
        last, name = desk.processor("a", kafka=kafka), "a"  # with what the first one left
        desk.drive(second, last, until=stream.flow(lambda: shared(second, last)))
        desk.leave(second)
        desk.drive(last, until=stream.flow(lambda: is_active(last)))
    desk.drive(last, until=lambda: len(desk.dispatches()) >= len(stream.ids))
    desk.leave(last)
    assert desk.dispatched() == sorted(stream.ids)
    desk.check_stores(name)


def test_K1_a_partition_becomes_active_under_constant_inflow(desk: Desk) -> None:
    """Each log ends in a transaction's marker, as real ones do, and something comes in at every turn."""
    first = desk.active()
    ids = job_ids(3, partition=0) + job_ids(3, partition=1)
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in ids)
    desk.drive(first, until=lambda: len(desk.dispatches()) >= 6)
    desk.leave(first)
    desk.transaction((raw_outcome(d) for d in desk.dispatches()), desk.topology.outcomes).commit_transaction(TIMEOUT_S)
    desk.transaction(raw_schedule(job_id, now_ms() + 500) for job_id in job_ids(4, prefix="waits")).commit_transaction(TIMEOUT_S)
    second = desk.processor("b")
    count = 0

    def flowing() -> bool:
        nonlocal count
        count += 1
        desk.schedule(job_ids(count, partition=3, prefix="flow")[-1], now_ms() + DAY_MS)
        return is_active(second) and len(desk.dispatches()) >= 10

    desk.drive(second, until=flowing, timeout_s=15)
    desk.leave(second)
    assert desk.dispatched() == sorted(ids + job_ids(4, prefix="waits"))
    assert {desk.phases()[job_id] for job_id in ids} == {Phase.SUCCEEDED}


def test_K1_a_transaction_that_somebody_left_open_does_not_hold_up_takeover(desk: Desk) -> None:
    """What it holds is not there yet, for anybody; when it is committed, it is taken in."""
    desk.publish(raw_schedule(job_id, now_ms() + 1_000) for job_id in job_ids(8))
    intake = desk.transaction(raw_schedule(job_id, now_ms()) for job_id in job_ids(8, prefix="open"))
    outcomes = desk.transaction([raw_cancel("x")._replace(partition=n) for n in range(PARTITIONS)], desk.topology.outcomes)
    processor = desk.processor()
    desk.drive(processor, until=lambda: is_active(processor) and len(desk.dispatches()) >= 8, timeout_s=10)
    intake.commit_transaction(TIMEOUT_S)
    outcomes.abort_transaction(TIMEOUT_S)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 16)
    desk.leave(processor)
    assert desk.dispatched() == sorted(job_ids(8) + job_ids(8, prefix="open"))


def test_a_transaction_that_hangs_in_the_changelog_is_said_and_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds may be the truth, so nothing can be done without it."""
    monkeypatch.setattr(restore_module, "_REPLAY_BLOCKED_MS", 300)
    hanging = desk.transaction([Raw(b"dx", b"never to be read", 1)], desk.topology.state)
    processor = desk.processor()
    with capture_logs() as logs:
        desk.drive(processor, until=lambda: any(line["event"] == "processor.replay_blocked" for line in logs))
    assert [line["partitions"] for line in logs if line["event"] == "processor.replay_blocked"] == [[1]]
    assert processor.stages[1] == Stage.REPLAYING
    hanging.abort_transaction(TIMEOUT_S)
    desk.drive(processor, until=lambda: is_active(processor))
    desk.leave(processor)


def test_K2_a_store_that_ends_before_the_log_begins_is_rebuilt_from_its_beginning(desk: Desk) -> None:
    first = desk.active("a")
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in job_ids(10, partition=2, prefix="old"))
    desk.drive(first, until=lambda: len(desk.seen(desk.topology.state)) > 10)
    desk.leave(first)
    second = desk.active("b")
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in job_ids(10, partition=2, prefix="gone"))
    desk.drive(second, until=lambda: sum((m.key() or b"").startswith(b"dgone") for m in desk.seen(desk.topology.state)) >= 10)
    kept = job_ids(10, partition=2, prefix="kept")
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in kept)
    desk.drive(second, until=lambda: sum((m.key() or b"").startswith(b"dkept") for m in desk.seen(desk.topology.state)) >= 10)
    desk.leave(second)
    begin = min(m.offset() or 0 for m in desk.read(desk.topology.state) if (m.key() or b"").startswith(b"dkept"))
    delete_before(desk, TopicPartition(desk.topology.state, 2, begin))
    with capture_logs() as logs:
        again = desk.active("a")
    desk.leave(again)
    assert [(line["partition"], line["log_level"]) for line in logs if line["event"] == "processor.store_outdated"] == [(2, "warning")]
    desk.forget(desk.topology.state)  # what is gone, our reader should not know either
    desk.check_stores("a")
    assert {key for key in desk.fold()[2] if key[:1] == b"d"} == {b"d" + job_id.encode() for job_id in kept}


def delete_before(desk: Desk, position: TopicPartition) -> None:
    """Deletes what lies before an offset of the changelog, for which it must not be compacted only."""
    admin = AdminClient(desk.kafka.common())
    also_delete = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, position.topic, incremental_configs=[also_delete])
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        [deleted] = admin.delete_records([position]).values()
        try:
            assert deleted.result(TIMEOUT_S).low_watermark == position.offset
            return
        except KafkaException as error:  # the broker has not heard of the new policy yet
            if error.args[0].code() != KafkaError.POLICY_VIOLATION or time.monotonic() > deadline:
                raise


def test_K5_generations_change_and_the_assignment_does_not(desk: Desk) -> None:
    """Another member comes and goes that wants nothing of intake."""
    stream = Stream(desk)
    processor = desk.active()
    settings = {"group.id": desk.topology.processor_group, "partition.assignment.strategy": "cooperative-sticky"}
    with capture_logs() as logs:
        for _ in range(3):
            visitor = Consumer({**settings, "heartbeat.interval.ms": 500, **desk.kafka.common()})
            visitor.subscribe([desk.topology.dead_letter])

            def joined(visitor: Consumer = visitor) -> bool:
                visitor.poll(0)
                return bool(visitor.assignment())

            desk.drive(processor, until=stream.flow(joined))
            visitor.close()
        desk.drive(processor, until=lambda: len(desk.dispatches()) >= len(stream.ids))
    assert is_active(processor)
    desk.leave(processor)
    assert desk.dispatched() == sorted(stream.ids)
    events = {line["event"] for line in logs}
    assert not events & {"processor.lost", "processor.revoked", "processor.batch_unknown", "processor.queue_doubted"}
    aborted = [line for line in logs if line["event"] == "processor.batch_aborted"]
    assert not [line for line in aborted if "OUT_OF_ORDER" in line["error"]], "one that fails takes no other along"
    assert len(aborted) <= 6, "each coming and going costs one transaction at most"


def test_a_restart_reads_only_what_came_after_the_mark(desk: Desk) -> None:
    first = desk.active()
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in job_ids(3_000))
    desk.drive(first, until=lambda: sum(m.key() != b"p" for m in desk.seen(desk.topology.state)) >= 3_000)
    desk.leave(first)
    with capture_logs() as logs:
        again = desk.active()
    desk.leave(again)
    assert replayed(logs) <= PARTITIONS
    desk.check_stores("a")


def test_a_store_that_was_deleted_is_built_anew(desk: Desk) -> None:
    first = desk.active()
    desk.publish(raw_schedule(job_id, now_ms() + 3_000) for job_id in job_ids(500))
    desk.drive(first, until=lambda: sum(m.key() != b"p" for m in desk.seen(desk.topology.state)) >= 500)
    desk.leave(first)
    shutil.rmtree(desk.folder / "a")
    with capture_logs() as logs:
        again = desk.active()
    assert replayed(logs) >= 500
    desk.drive(again, until=lambda: len(desk.dispatches()) >= 500)
    desk.leave(again)
    assert desk.dispatched() == sorted(job_ids(500))
    desk.check_stores("a")


@pytest.mark.parametrize("how", ["to the beginning", "deleted"])
def test_offsets_that_were_reset_by_hand_repeat_nothing(desk: Desk, how: str) -> None:
    first = desk.active()
    ids = job_ids(40)
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in ids)
    desk.drive(first, until=lambda: len(desk.dispatches()) >= 40)
    desk.answer(desk.dispatches())
    desk.drive(first, until=lambda: list(desk.phases().values()).count(Phase.SUCCEEDED) == 40)
    desk.leave(first)
    reset(desk, how)
    again = desk.active("b" if how == "deleted" else "a")
    desk.schedule("new", now_ms())
    desk.drive(again, until=lambda: len(desk.dispatches()) >= 41)
    desk.drive_for(again, seconds=0.3)
    desk.leave(again)
    assert desk.dispatched() == sorted([*ids, "new"])


def reset(desk: Desk, how: str) -> None:
    admin = AdminClient(desk.kafka.common())
    group, topic = desk.topology.processor_group, desk.topology.intake
    if how == "to the beginning":
        offsets = [TopicPartition(t, n, 0) for t in (topic, desk.topology.outcomes) for n in range(PARTITIONS)]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])[group].result(TIMEOUT_S)
    else:
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


def test_W15_a_finished_job_is_forgotten_and_its_id_runs_again(desk: Desk) -> None:
    processor = desk.active()
    desk.schedule("job", now_ms(), retention_ms=700)
    desk.schedule("kept", now_ms())
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    desk.answer(desk.dispatches())
    desk.schedule("job", now_ms() + 1)  # still known: a duplicate
    desk.drive(processor, until=lambda: tombstones(desk) == {b"djob", b"sjob"})
    desk.schedule("job", now_ms())
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 3)
    desk.leave(processor)
    assert [(d["job_id"], d["generation"]) for d in desk.dispatches()].count(("job", 1)) == 2


def tombstones(desk: Desk) -> set[bytes]:
    return {m.key() or b"" for m in desk.seen(desk.topology.state) if m.value() is None}


def test_finished_jobs_cost_no_transactions_while_they_are_kept(desk: Desk) -> None:
    processor = desk.active()
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(8))
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 8)
    desk.answer(desk.dispatches())
    desk.drive(processor, until=lambda: list(desk.phases().values()).count(Phase.SUCCEEDED) == 8)
    before = len(desk.read(desk.topology.state))
    desk.drive_for(processor, seconds=2.5)
    assert len(desk.read(desk.topology.state)) == before
    desk.leave(processor)


def test_a_dispatch_without_an_answer_for_days_goes_out_again(desk: Desk) -> None:
    first = desk.active()
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in ("silent", "answered"))
    desk.drive(first, until=lambda: len(desk.dispatches()) >= 2)
    desk.answer(d for d in desk.dispatches() if d["job_id"] == "answered")
    desk.drive(first, until=lambda: desk.phases().get("answered") == Phase.SUCCEEDED)
    desk.leave(first)
    clock = HandClock()
    clock.ahead_ms = 6 * DAY_MS
    again = desk.active(clock=clock)
    desk.drive(again, until=lambda: len(desk.dispatches()) >= 3)
    desk.drive_for(again, seconds=0.3)
    desk.leave(again)
    desk.read(desk.topology.dispatch("default"))
    first_two, (third,) = desk.dispatches()[:2], desk.dispatches()[2:]
    assert (third["job_id"], third["attempt"]) == ("silent", 1), "nobody may ever have seen the first, so it is no attempt"
    assert third["token"] > max(d["token"] for d in first_two if d["job_id"] == "silent")


def test_a_lost_attempt_goes_out_again_across_a_restart(desk: Desk) -> None:
    first = desk.active()
    desk.schedule("job", now_ms())
    desk.drive(first, until=desk.dispatches)
    desk.leave(first)
    desk.answer(desk.dispatches(), Result.LOST)
    again = desk.active("b")
    desk.drive(again, until=lambda: len(desk.dispatches()) >= 2)
    desk.leave(again)
    assert [(d["attempt"], d["token"]) for d in desk.all_dispatches()] == [(1, 1), (2, 2)]


def test_an_old_generation_that_ends_late_leaves_the_new_one_its_timer(desk: Desk) -> None:
    """Redefined for the same moment, in the past, while nobody ran; the answer to the old run is the last record that a restore sees."""
    first = desk.active("a")
    due_ms = now_ms()
    desk.schedule("job", due_ms)
    desk.drive(first, until=desk.dispatches)
    desk.leave(first)
    desk.publish([raw_schedule("job", due_ms, created_ms=due_ms - 1, payload=b"new", on_conflict=OnConflict.REPLACE)])
    desk.answer(desk.dispatches())
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in job_ids(30_000, partition=home("job"), prefix="other"))
    second = desk.processor("b")
    desk.drive(second, until=lambda: desk.phases().get("job") == Phase.SUCCEEDED)
    assert second.stages[home("job")] < Stage.ACTIVE, "nothing was left to catch up with"
    desk.leave(second)
    third = desk.active("c")
    desk.drive(third, until=lambda: len(desk.dispatches()) >= 2)
    desk.leave(third)
    assert [(d["generation"], d["work"]["payload"]) for d in desk.all_dispatches()] == [(1, b"1"), (2, b"new")]
