"""What a worker remembers of cancelled jobs, and one place for last lives."""

from __future__ import annotations

from typing import Any

from duewheel.adapters.avro import codec
from duewheel.core.model import Dispatch
from duewheel.worker.doorstep import LastLives
from duewheel.worker.stops import POLL_EVERY_MS, STOPS_MAX, Stops
from tests.worker_world import Clock, Control, Stopped


def dispatch(job_id: str, token: int) -> Dispatch:
    return {"job_id": job_id, "token": token}  # type: ignore[typeddict-item]


class Topic(Control):
    def __init__(self) -> None:
        super().__init__()
        self.assigned: dict[int, int] = {}
        self.polls = 0

    def assign(self, partition: int, offset: int) -> None:
        self.assigned[partition] = offset

    def poll(self, timeout_s: float, count_max: int) -> list[Any]:
        self.polls += 1
        assert timeout_s == 0, "the loop must not wait here"
        return super().poll(timeout_s, count_max)

    def put(self, job_id: str, token: int) -> None:
        self.queue.append(Stopped(codec.encode_stop({"job_id": job_id, "token": token, "queue": "q"})))


def stops_of(topic: Topic, clock: Clock, end: int = 0) -> Stops:
    return Stops(topic, {0: (0, end)}, codec, clock)


def test_it_begins_so_far_before_the_end_as_it_can_remember() -> None:
    short, long = Topic(), Topic()
    stops_of(short, Clock(), 5)
    stops_of(long, Clock(), STOPS_MAX + 5)
    assert (short.assigned, long.assigned) == ({0: 0}, {0: 5})


def test_a_stop_names_its_token_and_those_before_and_no_other_job() -> None:
    topic = Topic()
    stops = stops_of(topic, Clock())
    topic.put("a", 5)
    topic.put("a", 3)  # late
    stops.poll()
    assert [stops.names(dispatch("a", token)) for token in (4, 5, 6)] == [True, True, False]
    assert not stops.names(dispatch("b", 5))


def test_the_topic_is_polled_now_and_then_however_often_it_is_asked_for() -> None:
    topic, clock = Topic(), Clock()
    stops = stops_of(topic, clock)
    for _ in range(10 * POLL_EVERY_MS):
        stops.poll()
        clock.now_ms += 1
    assert topic.polls == 10


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    topic, clock = Topic(), Clock()
    stops = stops_of(topic, clock)
    for number in range(STOPS_MAX + 1):
        topic.put(f"j{number}", 1)
    topic.put("j1", 2)  # is new again
    topic.put("last", 1)
    stops.poll()
    assert stops.count == STOPS_MAX + 3
    assert [stops.names(dispatch(job, 1)) for job in ("j0", "j1", "j2", "j3", "last")] == [False, True, False, True, True]


def test_what_cannot_be_read_is_passed_over() -> None:
    topic, clock = Topic(), Clock()
    stops = stops_of(topic, clock)
    topic.queue.append(Stopped(b"\xc3\x01nonsense"))
    topic.put("a", 1)
    stops.poll()
    assert stops.names(dispatch("a", 1))


def test_one_last_life_at_a_time_and_only_who_entered_makes_room() -> None:
    lives = LastLives()
    assert lives.enter(dispatch("a", 1))
    assert not lives.enter(dispatch("b", 2))
    lives.leave(dispatch("b", 2))
    lives.leave(dispatch("a", 9))
    assert not lives.enter(dispatch("b", 2))
    lives.leave(dispatch("a", 1))
    assert lives.enter(dispatch("b", 2))
