"""Which queue is blamed for transactions that fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.limits import MINUTE_MS, PARKED_MS
from duewheel.engine.doubts import Doubts


class Loop:
    """Has jobs for some queues at all times, in this order, and topics that refuse."""

    def __init__(self, *queues: str, refusing: set[str]) -> None:
        self.doubts = Doubts()
        self.queues = queues
        self.refusing = refusing
        self.steady_ms = 1_000_000
        self.sent: list[set[str]] = []
        self.failures = 0

    def turn(self, wait_ms: int = 5) -> bool:
        """One transaction. Whether it was committed."""
        self.steady_ms += wait_ms
        self.doubts.begin()
        queues = {queue for queue in self.queues if self.doubts.admits(queue, self.steady_ms)}
        if queues & self.refusing:
            self.failures += 1
            self.doubts.failed(queues, self.steady_ms)
            return False
        self.sent.append(queues)
        self.doubts.committed(queues)
        return True

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_K10_one_queue_that_refuses_is_found_soon_and_the_others_go_on(count: int) -> None:
    queues = [f"q{n}" for n in range(count)]
    for bad in queues:
        loop = Loop(*queues, refusing={bad})
        while not loop.turn():
            assert loop.failures <= 3 + 4 + 3
        loop.run(20)
        assert loop.sent[-1] == set(queues) - {bad}
        assert loop.failures <= 3 + 8 + 3, "three, then about twice as often as twenty can be halved, then three times alone"


def test_several_that_refuse_are_found_too() -> None:
    loop = Loop(*"abcdefgh", refusing={"b", "c", "h"})
    loop.run(40)
    assert loop.sent[-1] == set("adefg")


def test_it_rests_for_longer_and_longer_and_is_trusted_when_it_takes_records_again() -> None:
    loop = Loop("a", "b", refusing={"b"})
    loop.run(20)
    rests = []
    for _ in range(7):
        began_ms = loop.steady_ms
        while loop.turn(100):
            pass
        assert not loop.turn()
        assert not loop.turn()
        rests.append(loop.steady_ms - began_ms)
    assert rests == pytest.approx([PARKED_MS, *(PARKED_MS * 2**n for n in (1, 2, 3)), *[MINUTE_MS] * 3], rel=0.05)
    loop.refusing.clear()
    while loop.sent[-1] != {"a", "b"}:
        assert loop.turn(100)
    loop.run(5)
    assert all(sent == {"a", "b"} for sent in loop.sent[-5:])


def test_a_failure_now_and_then_is_nobodys_fault() -> None:
    doubts = Doubts()
    for n in range(1_000):
        doubts.begin()
        assert doubts.admits("a", n)
        if n % 6 == 0:
            assert not doubts.failed({"a"}, n)
        else:
            doubts.committed({"a"})


def test_if_it_fails_without_dispatches_it_was_not_the_queues() -> None:
    doubts = Doubts()
    for n in range(6):
        doubts.begin()
        assert doubts.admits("a", n)
        assert doubts.failed({"a"}, n) == (n >= 3), "the later ones were tries"
    doubts.begin()
    assert not doubts.admits("a", 6)
    assert not doubts.failed(set(), 7)
    doubts.begin()
    assert doubts.admits("a", 8)


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd")), st.booleans(), st.sampled_from([0, 1, PARKED_MS, MINUTE_MS])), max_size=60))
def test_whatever_happened_every_queue_is_tried_again_within_a_minute(history: list[tuple[set[str], bool, int]]) -> None:
    doubts, steady_ms = Doubts(), 0
    for wanted, fails, wait_ms in history:
        steady_ms += wait_ms
        doubts.begin()
        queues = {queue for queue in sorted(wanted) if doubts.admits(queue, steady_ms)}
        if fails:
            doubts.failed(queues, steady_ms)
        else:
            doubts.committed(queues)
    steady_ms += MINUTE_MS
    for _ in range(4):
        doubts.begin()
        doubts.committed({queue for queue in "abcd" if doubts.admits(queue, steady_ms)})
    doubts.begin()
    assert all(doubts.admits(queue, steady_ms) for queue in "abcd")
