"""How much a processor takes in a turn of what waits for it. The world is in memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.core.limits import BATCH_TIMERS_MAX
from duewheel.core.model import Phase
from duewheel.engine.partition import Partition
from tests.engine_world import TOPOLOGY, Instance, World, answer, dispatched, dispatches, schedule


def ended(world: World) -> int:
    """How many jobs have succeeded, as the changelog has it."""
    states = {key: value for p in (0, 1) for key, value in world.log(TOPOLOGY.state, p) if key[:1] == b"s" and value}
    return Counter(codec.decode_state(value)["phase"] for value in states.values())[Phase.SUCCEEDED]


def test_what_is_due_comes_before_what_has_ended() -> None:
    """More of both than a turn can do: all is dispatched before more than half of the outcomes were taken in, and these are in the end."""
    world, count = World(), 3 * BATCH_TIMERS_MAX
    instance = Instance(world, 0, 1)
    for n in range(count):
        schedule(world, f"early-{n}", world.now_ms)
    instance.turn(8)
    found = dispatches(world)
    assert len(found) == count
    due_ms = world.now_ms + 10_000
    for n in range(count):
        schedule(world, f"late-{n}", due_ms)
    instance.turn(8)
    world.now_ms = due_ms
    instance.turn(1)
    for d in found:
        answer(world, d)
    turns = 0
    while len(dispatches(world)) < 2 * count:
        instance.turn(1)
        turns += 1
    assert turns <= 4
    assert 0 < ended(world) <= count / 2
    instance.turn(8)
    assert ended(world) == count


@pytest.mark.parametrize(
    "each_us, least, most", [(100, 800, 1_000), (50, 1_800, 2_000), (5_000, 200, 200), (1, BATCH_TIMERS_MAX, BATCH_TIMERS_MAX)]
)
def test_a_turn_fires_what_takes_a_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch, each_us: int, least: int, most: int) -> None:
    """So that whoever schedules or cancels meanwhile need not wait longer, however slow the machine is."""
    world, changes, count = World(), Partition.changes, 20_000

    def slow_changes(self: Partition, step: Any, *offsets: int) -> Any:
        world.now_ms += len(step.fired) * each_us // 1_000
        return changes(self, step, *offsets)

    monkeypatch.setattr(Partition, "changes", slow_changes)
    instance = Instance(world, 0, 1)
    due_ms = world.now_ms + 10_000
    for n in range(count):
        schedule(world, f"job-{n}", due_ms)
    instance.turn(12)
    world.now_ms = due_ms
    instance.turn(2)  # to find out how fast it is
    for _ in range(3):
        before = len(dispatched(world))
        instance.turn(1)
        assert least <= len(dispatched(world)) - before <= most
