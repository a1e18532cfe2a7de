"""`ports.IntakeLog`: what is acknowledged is stored, and what cannot be is said."""

from __future__ import annotations

import pytest

from duewheel.core.errors import CallerError, EnvironmentFailure, TopicMissing
from duewheel.core.topology import partition_of
from tests.contract.grounds import Grounds, values


def test_a_record_lies_where_its_receipt_says(grounds: Grounds) -> None:
    topic = grounds.topic(4)
    log = grounds.intake(topic)
    for n in range(6):
        key = b"job-%d" % n
        receipt = log.append(key, b"value-%d" % n)
        assert receipt.partition == partition_of(key, 4)
        assert values(grounds.reader(topic), grounds, receipt.partition, receipt.offset + 1)[receipt.offset] == b"value-%d" % n


def test_many_are_all_stored_and_counted(grounds: Grounds) -> None:
    topic = grounds.topic(1)
    failed: list[object] = []
    progress: list[int] = []
    records = [(n, b"key", b"%d" % n) for n in range(500)]
    grounds.intake(topic).append_many(records, lambda tag, error: failed.append(tag), progress.append)
    assert (failed, progress[-1]) == ([], 500)
    assert values(grounds.reader(topic), grounds, 0, 500) == [b"%d" % n for n in range(500)]


def test_a_topic_that_is_missing_is_named(grounds: Grounds) -> None:
    with pytest.raises(TopicMissing, match="missing"):
        grounds.intake(grounds.name("missing")).append(b"key", b"value")


def test_what_is_too_large_is_refused_and_not_stored(grounds: Grounds) -> None:
    topic = grounds.topic(1)
    log = grounds.intake(topic)
    with pytest.raises(EnvironmentFailure, match="is not stored"):
        log.append(b"key", bytes(2_000_000))
    assert log.append(b"key", b"small").offset == 0


def test_a_closed_log_takes_nothing(grounds: Grounds) -> None:
    log = grounds.intake(grounds.topic(1))
    log.close()
    with pytest.raises(CallerError, match="closed"):
        log.append(b"key", b"value")
    log.close()
