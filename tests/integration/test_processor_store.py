"""Local stores that rot: noticed, made anew from the changelog, and nobody has to do anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict
from structlog.testing import capture_logs

from duewheel.adapters.kafka.settings import KafkaConfig
from duewheel.core.errors import StateFolderInUse, StoreDamaged
from duewheel.core.model import OnConflict, Phase
from duewheel.engine.partition import Partition
from duewheel.engine.processor import Processor
from tests.integration.desk import DAY_MS, Desk, is_active, job_ids, now_ms, raw_cancel, raw_schedule

HOUR_MS = 3_600_000


def flip(path: Path, every: int) -> None:
    """Turns over a bit now and then, where the records are: behind them lie the filter and the index, at which RocksDB looks on opening."""
    data = bytearray(path.read_bytes())
    assert len(data) > 3_000, "nothing to damage"
    for at in range(200, len(data) // 2, every):
        data[at] ^= 0x10
    path.write_bytes(bytes(data))


def tables(folder: Path, family: str) -> list[Path]:
    """The files that hold a family's records."""
    families = {name: Options(raw_mode=True) for name in ("jobs", "timers", "meta")}
    store = Rdict(str(folder), Options(raw_mode=True), column_families=families, access_type=AccessType.read_only())
    begin = {"jobs": b"dps", "timers": b"\0"}[family]
    found = [folder / file["name"].lstrip("/") for file in store.live_files() if file["end_key"][0] in begin]
    store.close()
    return found


def damage(folder: Path, how: str) -> None:
    if how.startswith("bits flipped in"):
        found = tables(folder, how.split()[-1])
        assert found, "no table to damage"
        for table in found:
            flip(table, every=2_000)
    elif how == "tables gone":
        for table in folder.glob("*.sst"):
            table.unlink()
    elif how == "manifest of zeros":
        for manifest in folder.glob("MANIFEST-*"):
            manifest.write_bytes(bytes(manifest.stat().st_size))


# Each partition's store is damaged in another way.
HOW = ["bits flipped in jobs", "bits flipped in timers", "tables gone", "manifest of zeros"]


def test_damaged_stores_are_rebuilt_by_themselves(desk: Desk) -> None:
    """Some jobs wait for hours, some for a moment; some are finished, so that the sweep looks at them; then each is touched by its id."""
    first = desk.active()
    far, soon, done = job_ids(3_000, prefix="far"), job_ids(300, prefix="soon"), job_ids(300, prefix="done")
    desk.publish(raw_schedule(job_id, now_ms() + HOUR_MS, payload=job_id.encode() * 20) for job_id in far)
    desk.publish(raw_schedule(job_id, now_ms()) for job_id in done)
    desk.drive(first, until=lambda: len(desk.dispatches()) >= 300)
    desk.answer(desk.dispatches())
    desk.publish(raw_schedule(job_id, now_ms() + 6_000) for job_id in soon)
    desk.drive(first, until=lambda: sum((m.key() or b"")[:1] == b"d" for m in desk.seen(desk.topology.state)) >= 3_600)
    desk.drive(first, until=lambda: list(desk.phases().values()).count(Phase.SUCCEEDED) == 300)
    desk.leave(first)
    desk.leave(desk.active())  # on opening what was in the log is written to tables
    for partition, how in enumerate(HOW):
        damage(desk.store_path("a", partition), how)
    with capture_logs() as logs:
        again = desk.processor()
        desk.publish(raw_cancel(job_id) for job_id in far[:1_000])
        desk.publish(raw_schedule(job_id, now_ms() + DAY_MS, on_conflict=OnConflict.REPLACE) for job_id in far[1_000:2_000])
        desk.drive(again, until=lambda: len(desk.dispatches()) >= 600 and is_active(again))
        desk.drive(again, until=lambda: list(desk.phases().values()).count(Phase.CANCELLED) == 1_000)
    desk.leave(again)
    assert desk.dispatched() == sorted(soon + done)
    desk.check_stores("a")
    damaged = [line["error"] for line in logs if line["event"] == "processor.store_damaged"]
    assert any(f"/{HOW.index('bits flipped in jobs')} cannot be read" in error for error in damaged)
    assert any(f"/{HOW.index('bits flipped in timers')} cannot be read" in error for error in damaged)


def test_a_store_that_fails_after_a_commit_is_rebuilt_and_the_others_get_their_share(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails for one partition, once, at the very moment when all of them have something to write."""
    processor = desk.active()
    failing, save = {2}, Partition.save

    def fails_once(self: Partition, *arguments: Any) -> None:
        if self.number in failing and len(arguments[1]) > 1:
            failing.remove(self.number)
            self._store.damaged = True
            raise StoreDamaged("no space left on device")
        save(self, *arguments)

    monkeypatch.setattr(Partition, "save", fails_once)
    ids = job_ids(200)
    desk.publish(raw_schedule(job_id, now_ms() + 2_000) for job_id in ids)
    desk.drive(processor, until=lambda: not failing)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 200)
    desk.leave(processor)
    assert desk.dispatched() == sorted(ids)
    desk.check_stores("a")


def test_K4_a_stalled_owner_does_not_mark_what_its_successor_wrote(desk: Desk) -> None:
    """It is stalled in the middle of its housekeeping and replaced; another writes to the changelog; it wakes up. The mark that it was
    about to make must not count what it never saw.
    """
    impatient = KafkaConfig(desk.kafka.bootstrap_servers, {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"})
    first = desk.processor("a", kafka=impatient)
    desk.publish(raw_schedule(job_id, now_ms() + DAY_MS) for job_id in job_ids(40, prefix="first"))
    desk.drive(first, until=lambda: is_active(first) and sum((m.key() or b"")[:1] == b"d" for m in desk.seen(desk.topology.state)) >= 40)
    successors: list[Processor] = []
    watermarks = first._cluster.watermarks

    def stalled(topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        if topic == desk.topology.state and not successors:
            successors.append(desk.processor("b"))
            desk.drive(*successors, until=lambda: is_active(successors[0]))
            desk.publish(raw_schedule(job_id, now_ms()) for job_id in job_ids(40, prefix="second"))
            desk.drive(*successors, until=lambda: len(desk.dispatches()) >= 40)
        return watermarks(topic, partitions)

    first._cluster.watermarks = stalled  # type: ignore[method-assign]
    desk.drive(first, until=lambda: successors and not is_active(first))
    desk.leave(*successors)
    desk.drive(first, until=lambda: is_active(first))
    desk.leave(first)
    desk.check_stores("a")
    assert desk.dispatched() == sorted(job_ids(40, prefix="second"))


def test_a_second_processor_on_the_same_folder_is_refused_with_the_holders_pid(desk: Desk) -> None:
    processor = desk.active()
    with pytest.raises(StateFolderInUse, match=rf"held by process {os.getpid()};.*--state-dir"):
        desk.processor()
    desk.leave(processor)
    desk.leave(desk.active())
