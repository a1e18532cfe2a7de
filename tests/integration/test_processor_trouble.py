"""A topic that refuses, a topic that is gone, a disk that stalls: on a real broker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from structlog.testing import capture_logs

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.adapters.kafka.topics import ensure
from duewheel.adapters.rocks.store import RocksStore
from duewheel.core.model import Phase, Result
from duewheel.engine import restore as restore_module
from tests.integration.desk import DAY_MS, TIMEOUT_S, Desk, HandClock, home, is_active, job_ids, now_ms, raw_schedule

NOISE = random.Random(8).randbytes(100_000)  # nothing that compression could make small


@contextmanager
def records_bytes_max(desk: Desk, topic: str, count: int) -> Iterator[None]:
    """Lets a topic refuse what is larger."""
    admin = AdminClient(desk.kafka.common())

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("max.message.bytes", str(count), incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(10)

    asked = ConfigResource(ResourceType.TOPIC, topic)
    deadline = time.monotonic() + 30
    alter(AlterConfigOpType.SET)
    while admin.describe_configs([asked])[asked].result(10)["max.message.bytes"].value != str(count):
        assert time.monotonic() < deadline, "the controller knows it before the broker, but not for so long"
    yield
    alter(AlterConfigOpType.DELETE)


def test_K8_of_a_batch_with_one_failed_record_nothing_is_seen_and_it_repeats(desk: Desk) -> None:
    """Small jobs and a large one are due at once, in one batch. The broker refuses the large dispatch, and it alone."""
    dispatches = desk.topology.dispatch("default")
    small, large = job_ids(40, partition=home("large"), prefix="small"), "large"
    yesterday = HandClock()
    yesterday.ahead_ms = -DAY_MS
    first = desk.active(clock=yesterday)
    records = [raw_schedule(job_id, now_ms() - 1_000) for job_id in small]
    records.insert(20, raw_schedule(large, now_ms() - 1_000, payload=NOISE))
    desk.publish(records)
    desk.drive(first, until=lambda: sum((m.key() or b"")[:1] == b"d" for m in desk.seen(desk.topology.state)) >= len(records))
    desk.leave(first)
    with records_bytes_max(desk, dispatches, 50_000), capture_logs() as logs:
        second = desk.processor()
        desk.drive(second, until=lambda: sum(line["event"] == "processor.batch_aborted" for line in logs) >= 1)
        assert [line for line in logs if "large" in str(line.get("error", "")).lower()], logs
        assert (desk.read(dispatches), desk.phases()) == ([], {}), "half a batch"
    desk.drive(second, until=lambda: len(desk.dispatches()) >= len(records), timeout_s=75)  # its queue may rest for up to a minute
    desk.drive_for(second, seconds=0.2)
    assert desk.dispatched() == sorted([*small, large])
    desk.answer(desk.dispatches())
    desk.drive(second, until=lambda: set(desk.phases().values()) == {Phase.SUCCEEDED})
    desk.leave(second)
    desk.check_stores("a")


def test_K10_a_queue_that_refuses_records_stops_no_other_and_its_jobs_run_when_it_takes_them_again(desk: Desk) -> None:
    """One of its jobs was sent, others come due, and a new one lies in front of everything else. Others are dispatched all the time."""
    make_queue(desk, "refusing")
    processor = desk.active()
    refused = job_ids(20, prefix="refused")
    others: list[str] = []

    def others_go_on() -> bool:
        if len(desk.dispatches()) >= len(others):
            new = job_ids(8, prefix=f"other{len(others)}")
            others.extend(new)
            desk.publish(raw_schedule(job_id, now_ms()) for job_id in new)
        return is_parked(desk, [*refused, "new"])

    with records_bytes_max(desk, desk.topology.dispatch("refusing"), 50_000), capture_logs() as logs:
        desk.publish(raw_schedule(job_id, now_ms() + 1_000, queue="refusing", payload=NOISE) for job_id in refused)
        desk.drive(processor, until=lambda: sum((m.key() or b"")[:1] == b"d" for m in desk.seen(desk.topology.state)) >= len(refused))
        desk.schedule("new", now_ms(), queue="refusing", payload=NOISE)
        desk.drive(processor, until=others_go_on)
        assert {line["queue"] for line in logs if line["event"] == "processor.queue_doubted"} == {"refusing"}
        assert desk.all_dispatches("refusing") == []
        healthy_ms = now_ms()
        desk.drive(processor, until=lambda: others_go_on() and now_ms() > healthy_ms + 1_000)
    desk.drive(processor, until=lambda: len(desk.dispatches("refusing")) > len(refused), timeout_s=75)  # it may rest for up to a minute
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= len(others))
    late_ms = [d["dispatched_ms"] - d["slot_ms"] for d in desk.all_dispatches()]
    desk.answer(desk.dispatches() + desk.dispatches("refusing"))
    desk.drive(processor, until=lambda: set(desk.phases().values()) == {Phase.SUCCEEDED})
    desk.leave(processor)
    assert sorted(d["job_id"] for d in desk.all_dispatches("refusing")) == sorted([*refused, "new"])
    assert desk.dispatched() == sorted(others)
    assert desk.dead_letters() == []
    assert max(late_ms) < 45_000, "until it was found"
    desk.check_stores("a")


def delete_queue(desk: Desk, queue: str) -> None:
    admin, topic = AdminClient(desk.kafka.common()), desk.topology.dispatch(queue)
    admin.delete_topics([topic], operation_timeout=10)[topic].result(10)
    desk.forget(topic)
    desk._dispatches.pop(queue, None)


def make_queue(desk: Desk, queue: str) -> None:
    """Makes the topic again, as soon as the broker has done away with the one before."""
    deadline = time.monotonic() + TIMEOUT_S
    while desk.topology.dispatch(queue) not in AdminClient(desk.kafka.common()).list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        ensure(desk.kafka, desk.topology, {"default": 4, queue: 2})


def test_K10_a_queue_that_is_deleted_stops_no_other_and_its_jobs_run_when_it_is_back(desk: Desk) -> None:
    make_queue(desk, "gone")
    processor = desk.active()
    waiting = job_ids(20, prefix="waiting")
    due_ms = now_ms() + 7_000
    desk.publish(raw_schedule(job_id, due_ms, queue="gone") for job_id in waiting)
    desk.drive(processor, until=lambda: sum((m.key() or b"")[:1] == b"d" for m in desk.seen(desk.topology.state)) >= len(waiting))
    assert desk.all_dispatches("gone") == []
    delete_queue(desk, "gone")
    others: list[str] = []

    def others_go_on() -> bool:
        if len(desk.dispatches()) == len(others):
            others.append(f"other-{len(others)}")
            desk.schedule(others[-1], now_ms())
        return is_parked(desk, waiting)

    desk.drive(processor, until=others_go_on)
    desk.drive(processor, until=lambda: len(desk.dispatches()) == len(others))
    assert now_ms() > due_ms
    assert max(d["dispatched_ms"] - d["slot_ms"] for d in desk.all_dispatches()) < 2_000
    make_queue(desk, "gone")
    desk.drive(processor, until=lambda: len(desk.dispatches("gone")) >= len(waiting))
    desk.answer(desk.dispatches() + desk.dispatches("gone"))
    desk.drive(processor, until=lambda: set(desk.phases().values()) == {Phase.SUCCEEDED})
    desk.leave(processor)
    assert sorted(d["job_id"] for d in desk.all_dispatches("gone")) == sorted(waiting)
    assert desk.dispatched() == sorted(others)
    assert desk.dead_letters() == []
    desk.check_stores("a")


def is_parked(desk: Desk, job_ids: list[str]) -> bool:
    phases = desk.phases()
    return all(phases.get(job_id) == Phase.WAITING for job_id in job_ids)


def test_K10_a_queue_that_is_deleted_in_the_middle_of_its_work_costs_one_transaction(desk: Desk) -> None:
    """A transaction is on its way to the queue as its topic goes: it hangs until its time is over, here two seconds, and then others go on.
    What was given back and what comes due wait; what was on its way to workers, and is gone with the topic, is dispatched again days later.
    """
    make_queue(desk, "gone")
    processor = desk.active()
    processor._output._call_timeout_s = 2.0  # type: ignore[attr-defined]
    sent, later = job_ids(8, prefix="sent"), job_ids(20, prefix="later")
    desk.publish(raw_schedule(job_id, now_ms(), queue="gone") for job_id in sent)
    desk.publish(raw_schedule(job_id, now_ms() + 1_000, queue="gone") for job_id in later)
    desk.drive(processor, until=lambda: len(desk.dispatches("gone")) >= len(sent))
    before = desk.all_dispatches("gone")
    delete_queue(desk, "gone")
    desk.answer(before, Result.INTERRUPTED)
    desk.schedule("other", now_ms())
    desk.drive(processor, until=lambda: is_parked(desk, sent + later))
    desk.drive(processor, until=desk.dispatches)
    make_queue(desk, "gone")
    desk.drive(processor, until=lambda: len(desk.dispatches("gone")) >= len(sent + later))
    desk.answer(desk.dispatches() + desk.dispatches("gone"))
    desk.drive(processor, until=lambda: set(desk.phases().values()) == {Phase.SUCCEEDED})
    desk.leave(processor)
    assert sorted(d["job_id"] for d in desk.all_dispatches("gone")) == sorted(sent + later)
    assert desk.dispatched() == ["other"]
    desk.check_stores("a")


IMPATIENT_MS = 6_000
IMPATIENT = {"session.timeout.ms": str(IMPATIENT_MS), "max.poll.interval.ms": str(IMPATIENT_MS)}


def with_changelog(desk: Desk, job_ids: list[str], due_ms: int) -> None:
    """Lets the changelog hold definitions of jobs, and nobody be there."""
    first = desk.active("first")
    desk.publish(raw_schedule(job_id, due_ms) for job_id in job_ids)
    desk.drive(first, until=lambda: sum((m.key() or b"")[:1] == b"d" for m in desk.seen(desk.topology.state)) >= len(job_ids))
    desk.leave(first)


def test_K6_a_restore_stalled_by_its_disk_goes_on_polling(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write to disk takes long, and all of them take twice as long as a group waits for a poll. The changelog is handed out in small
    pieces, as that of millions of jobs would be.
    """
    ids, due_ms = job_ids(400), now_ms() + DAY_MS
    with_changelog(desk, ids, due_ms)
    write, stalled_ms = RocksStore.write, 0

    def stalling(self: RocksStore, records: Any, *rest: Any) -> None:
        nonlocal stalled_ms
        if len(records) > 1:  # a piece of the changelog
            time.sleep(0.5)
            stalled_ms += 500
        write(self, records, *rest)

    monkeypatch.setattr(RocksStore, "write", stalling)
    monkeypatch.setattr(restore_module, "_REPLAY_RECORDS_MAX", 20)
    with capture_logs() as logs:
        second = desk.processor("second", kafka=KafkaConfig(desk.kafka.bootstrap_servers, IMPATIENT))
        desk.drive(second, until=lambda: is_active(second), timeout_s=60)
    assert stalled_ms > 1.5 * IMPATIENT_MS
    assert [line["event"] for line in logs if line["event"] in ("processor.assigned", "processor.lost", "processor.revoked")] == [
        "processor.assigned"
    ]
    desk.leave(second)
    desk.check_stores("second")


def test_K6_one_write_that_outlasts_the_groups_patience_costs_the_partitions_and_no_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single call into the disk cannot be left in the middle. Its owner is taken for dead, notices, and goes on from where it was."""
    ids = job_ids(200)
    with_changelog(desk, ids, now_ms() + 12_000)
    write, stalls = RocksStore.write, [IMPATIENT_MS + 3_000]

    def stalling(self: RocksStore, records: Any, *rest: Any) -> None:
        if len(records) > 1 and stalls:
            time.sleep(stalls.pop() / 1000)
        write(self, records, *rest)

    monkeypatch.setattr(RocksStore, "write", stalling)
    with capture_logs() as logs:
        second = desk.processor("second", kafka=KafkaConfig(desk.kafka.bootstrap_servers, IMPATIENT))
        desk.drive(second, until=lambda: len(desk.dispatches()) >= len(ids), timeout_s=60)
    assert "processor.lost" in [line["event"] for line in logs]
    desk.leave(second)
    assert desk.dispatched() == sorted(ids)
    desk.check_stores("second")
