"""One process, several queues: they start together, end together, and none outlives another's failure."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from duewheel.core.errors import BrokerUnavailable
from duewheel.worker.loop import Worker
from duewheel.worker.station import Station
from duewheel.worker.stops import Stops


class Loop:
    """A worker's loop that does nothing, until told to fail or to drain."""

    def __init__(self, queue: str, fails: Exception | None = None) -> None:
        self.queue = queue
        self.fails = fails
        self.stopped = self.closed = self.is_shut = False
        self.turned = threading.Event()
        self.thread: threading.Thread | None = None
        self.grace_ms: int | None = None

    def start(self) -> None: ...

    def drain(self, grace_ms: int) -> None:
        self.grace_ms = grace_ms

    def turn(self) -> None:
        self.thread = threading.current_thread()
        self.turned.set()
        if self.fails is not None:
            raise self.fails
        self.stopped = self.grace_ms is not None

    def shut(self) -> None:
        self.is_shut = True

    def close(self) -> None:
        self.closed = True


class Topic:
    closed = False

    def close(self) -> None:
        self.closed = True


def station(topic: Topic, *loops: Loop) -> Station:
    return Station([cast(Worker, loop) for loop in loops], cast(Stops, topic))


def test_one_queue_is_served_on_the_calling_thread() -> None:
    loop, topic = Loop("a"), Topic()
    station(topic, loop).run(loop.turned.is_set, 7)
    assert loop.thread is threading.current_thread()
    assert (loop.grace_ms, loop.closed, topic.closed) == (7, True, True)


def test_several_queues_have_a_thread_each_and_all_drain() -> None:
    loops, topic = [Loop(name) for name in "abc"], Topic()
    station(topic, *loops).run(lambda: all(loop.turned.is_set() for loop in loops), 7)
    assert len({loop.thread for loop in loops} | {threading.current_thread()}) == 4
    assert [(loop.grace_ms, loop.closed) for loop in loops] == [(7, True)] * 3
    assert topic.closed


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_where_one_fails_the_others_drain_and_its_error_comes_out(failing: int) -> None:
    error = BrokerUnavailable("nobody answers")
    loops: list[Any] = [Loop(name, error if index == failing else None) for index, name in enumerate("abc")]
    with pytest.raises(BrokerUnavailable) as raised:
        station(Topic(), *loops).run(lambda: False, 7)
    assert raised.value is error
    others = [loop for loop in loops if loop.fails is None]
    assert [(loop.grace_ms, loop.closed) for loop in others] == [(7, True)] * 2
    assert [loop.is_shut for loop in loops] == [loop.fails is not None for loop in loops]
