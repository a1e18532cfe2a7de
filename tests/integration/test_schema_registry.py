"""Commands of Confluent's serializers, through a processor that asks a schema registry; and what goes on while it is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duewheel import wiring
from duewheel.adapters.avro import codec
from duewheel.adapters.avro.registry import AWAY_MS
from duewheel.adapters.avro.schemas import CURRENT
from duewheel.core.errors import Reason
from duewheel.core.model import Schedule
from duewheel.engine.processor import Processor
from tests.integration.desk import Desk, HandClock, Raw, is_active, now_ms
from tests.registry import FakeRegistry, framed


class SteadyClock(HandClock):
    """A clock whose steady time can be moved on."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_ms = 0

    def steady_ms(self) -> int:
        return super().steady_ms() + self.passed_ms


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    registry = FakeRegistry()
    yield registry
    registry.stop()


@pytest.fixture
def clock() -> SteadyClock:
    return SteadyClock()


@pytest.fixture
def processor(desk: Desk, registry: FakeRegistry, clock: SteadyClock) -> Iterator[Processor]:
    processor = wiring.timer_processor(desk.kafka, desk.topology, desk.folder / "a", 30, clock, f"http://{registry.address}")
    processor.start()
    desk.drive(processor, until=lambda: is_active(processor))
    yield processor
    processor.close()


def schedule(job_id: str, due_ms: int) -> Schedule:
    return {
        "job_id": job_id,
        "due_ms": due_ms,
        "created_ms": now_ms(),
        "on_conflict": "REPLACE",
        "retention_ms": 60_000,
        "queue": "default",
        "work": {"task": "t", "content_type": "application/json", "payload": b"{}", "headers": {}, "policy": None},
        "limits": None,
        "recurrence": None,
        "delivery": None,
    }


def publish(desk: Desk, job_id: str, value: bytes) -> None:
    desk.publish([Raw(job_id.encode(), value)])


def test_a_job_in_confluents_format_runs_and_its_repetition_is_known(desk: Desk, registry: FakeRegistry, processor: Processor) -> None:
    registry.register(7, CURRENT["Schedule"].parsed)
    value = codec.encode_schedule(schedule("theirs", now_ms()))
    publish(desk, "theirs", framed(7, value))
    publish(desk, "theirs", framed(7, value))
    publish(desk, "theirs", value)  # the same command from a client of ours
    publish(desk, "last", codec.encode_schedule(schedule("last", now_ms())))
    desk.drive(processor, until=lambda: {"theirs", "last"} <= set(desk.dispatched()))
    desk.drive_for(processor, seconds=0.5)
    assert sorted(desk.dispatched()) == ["last", "theirs"]
    assert desk.dead_letters() == []


def test_an_unknown_schema_is_a_dead_letter(desk: Desk, processor: Processor) -> None:
    publish(desk, "theirs", framed(8, codec.encode_schedule(schedule("theirs", now_ms()))))
    desk.drive(processor, until=desk.dead_letters)
    assert [letter["reason"] for letter in desk.dead_letters()] == [Reason.UNKNOWN_SCHEMA]


def test_while_the_registry_is_away_intake_waits_and_timers_fire(
    desk: Desk, registry: FakeRegistry, processor: Processor, clock: SteadyClock
) -> None:
    due_ms = now_ms() + 3_000
    publish(desk, "early", codec.encode_schedule(schedule("early", due_ms)))
    desk.drive(processor, until=lambda: any(b"dearly" in part for part in desk.fold().values()))
    registry.answers[9] = (503, b"")
    publish(desk, "theirs", framed(9, codec.encode_schedule(schedule("theirs", now_ms()))))
    desk.drive(processor, until=lambda: registry.asked and desk.dispatched() == ["early"])
    assert desk.dead_letters() == []
    registry.register(9, CURRENT["Schedule"].parsed)
    clock.passed_ms = AWAY_MS
    desk.drive(processor, until=lambda: sorted(desk.dispatched()) == ["early", "theirs"])
