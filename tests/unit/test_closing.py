"""A consumer that cannot leave its group holds up nobody."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from duewheel.adapters.kafka import readers
from duewheel.adapters.kafka.helper import Helper
from duewheel.adapters.kafka.readers import KafkaGroupReader
from duewheel.adapters.kafka.settings import KafkaConfig


class Consumer:
    """Closes when it may, and fails when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_close = threading.Event()
        self.closed = threading.Event()
        self._error = error

    def close(self) -> None:
        if self._error is not None:
            raise self._error
        self.may_close.wait()
        self.closed.set()


@pytest.fixture
def reader() -> KafkaGroupReader:
    reader = KafkaGroupReader(KafkaConfig("127.0.0.1:1", {"log_level": 0}), "intake", "processors")
    reader.consumer.close()
    return reader


def test_closing_waits_for_the_consumer_to_leave(reader: Any) -> None:
    reader.consumer = consumer = Consumer()
    consumer.may_close.set()
    reader.close()
    assert consumer.closed.is_set()


def test_a_consumer_that_hangs_is_left_behind_and_named(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CLOSE_TIMEOUT_S", 0.05)
    reader.consumer = consumer = Consumer()
    with capture_logs() as lines:
        reader.close()
    assert not consumer.closed.is_set()
    (line,) = lines
    assert (line["event"], line["group"], line["topic"]) == ("reader.close_abandoned", "processors", "intake")
    consumer.may_close.set()
    assert consumer.closed.wait(5)


def test_what_a_consumer_raises_while_it_leaves_is_raised(reader: Any) -> None:
    reader.consumer = Consumer(ZeroDivisionError("in a listener"))
    with pytest.raises(ZeroDivisionError, match="in a listener"):
        reader.close()


def test_a_helper_makes_its_calls_in_order_and_ends() -> None:
    helper, made = Helper("test-helper"), []
    for number in range(3):
        helper.start(lambda number=number: made.append((number, threading.current_thread().name)))  # type: ignore[misc]
    last = helper.start(lambda: None)
    helper.stop()
    last.result(5)
    assert made == [(number, "test-helper") for number in range(3)]
