"""The group in memory where its members cannot be reached at bad moments; all else that it does, it does as Kafka's (tests/contract)."""

from __future__ import annotations

from duewheel.adapters.memory.broker import Broker
from duewheel.adapters.memory.readers import MemoryGroupReader
from duewheel.adapters.memory.world import Calm, Process, World
from tests.contract.grounds import Member

ASSIGNMENT_US = 1_000


class SlowAssignments(Calm):
    """An assignment is made some time after all have joined."""

    def delay_us(self, what: str) -> int:
        return ASSIGNMENT_US if what == "assignment" else 0


def test_what_a_member_was_to_let_go_of_while_it_could_not_be_reached_is_anothers() -> None:
    """It learns late that it holds too much, and is away again before it has let go."""
    world = World()
    world.hook = SlowAssignments(world)
    broker = Broker(world)
    broker.create("t", 4)
    away, other = Process(world, "away"), Process(world, "other")

    def turn(*members: Member, until_us: int) -> None:
        while world.now_us < until_us:
            for member in members:
                member.poll()

    def come_back() -> None:
        away.stopped = False
        for call in away.on_return:
            call()

    first = Member(MemoryGroupReader(away, broker, "t", "g"))
    turn(first, until_us=3_000_000)
    second = Member(MemoryGroupReader(other, broker, "t", "g"))
    assert (first.held, second.held) == ([0, 1, 2, 3], [])
    group = broker.group("g")
    before = group.generation
    while group.generation == before:  # until it has joined, and the assignment is under way
        assert world.run_next(world.now_us + 5_000_000)
    away.stopped = True
    turn(second, until_us=world.now_us + 2 * ASSIGNMENT_US)
    come_back()
    away.stopped = True
    turn(second, until_us=world.now_us + 4_000_000)
    away.stopped = False
    first.poll()  # it lets go, and hears only then how it stands
    come_back()
    turn(first, second, until_us=world.now_us + 10_000_000)
    assert sorted(first.held + second.held) == [0, 1, 2, 3]
    assert len(first.held) == 2
