"""Which queue is blamed for transactions that fail."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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


LANE = ">orders"


class LaneLoop:
    """Has records for a topic, of which it takes those that are good, and dispatches for a queue in every transaction."""

    def __init__(self, records: list[bool], *, is_by_value: bool) -> None:
        self.doubts = Doubts()
        self.steady_ms = 1_000_000
        self.good = {f"{n}": is_good for n, is_good in enumerate(records)}
        self.waiting = dict.fromkeys(self.good, self.steady_ms)
        self.is_by_value = is_by_value
        self.taken: list[str] = []
        self.dead: list[str] = []
        self.failures = 0

    def turn(self) -> None:
        """One transaction, and what is due then."""
        self.doubts.begin()
        wakes, dead, sent = dict(self.waiting), [], []
        for job_id in sorted((job_id for job_id, due_ms in self.waiting.items() if due_ms <= self.steady_ms), key=self.waiting.__getitem__):
            admission = self.doubts.admits_record(LANE, job_id, 1, self.steady_ms)
            if admission.refused:
                dead.append(job_id)
            elif admission.wait_ms:
                wakes[job_id] = self.steady_ms + admission.wait_ms
            else:
                sent.append(job_id)
        queues = {LANE, "default"} if sent else {"default"}
        if not all(self.good[job_id] for job_id in sent):
            self.failures += 1
            self.doubts.failed(queues, self.steady_ms, "why", is_by_value=self.is_by_value)
            return
        self.doubts.committed(queues)
        self.taken += sent
        self.dead += dead
        self.waiting = {job_id: due_ms for job_id, due_ms in wakes.items() if job_id not in sent and job_id not in dead}

    def run(self, span_ms: int) -> None:
        until_ms = self.steady_ms + span_ms
        while self.steady_ms < until_ms:
            self.turn()
            self.steady_ms = max(self.steady_ms + 5, min([*self.waiting.values(), until_ms]))


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.booleans())
def test_of_the_records_for_a_topic_the_good_ones_are_taken_and_the_others_found(records: list[bool], is_by_value: bool) -> None:
    loop = LaneLoop(records, is_by_value=is_by_value)
    loop.run(2 * MINUTE_MS)
    good = {job_id for job_id, is_good in loop.good.items() if is_good}
    bad = loop.good.keys() - good
    assert sorted(loop.taken) == sorted(good)
    assert set(loop.dead) <= bad
    assert len(loop.dead) == len(set(loop.dead))
    if is_by_value:
        loop.run(2 * MINUTE_MS)
        assert set(loop.dead) == bad
        assert loop.failures <= 12 * len(bad)
    elif not good:
        assert loop.dead == [], "nobody knows whether the topic takes anything at all"


def test_a_record_that_the_topic_refuses_while_it_takes_others_is_found_although_brokers_do_not_say_why() -> None:
    loop = LaneLoop([False], is_by_value=False)
    for n in range(1, 200):
        loop.good[f"{n}"] = True
        loop.waiting[f"{n}"] = loop.steady_ms
        loop.run(1_000)
    assert loop.dead == ["0"]
    assert len(loop.taken) == 199


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
