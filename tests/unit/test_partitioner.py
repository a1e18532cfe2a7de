"""The hash in C and the hash in Python are one."""

from __future__ import annotations

import ctypes

import pytest
from confluent_kafka import cimpl
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from duewheel.adapters.kafka import partitioner
from duewheel.core import topology


@given(st.binary(max_size=300), st.integers(1, 2_000))
def test_both_agree_on_every_key(key: bytes, partitions: int) -> None:
    assert partitioner.partition_of(key, partitions) == topology.partition_of(key, partitions)


def test_the_hash_in_c_is_in_use_here() -> None:
    with capture_logs() as lines:
        partitioner.choose(cimpl.__file__)(b"k", 7)
    assert lines == []


def test_without_the_function_the_pure_one_serves_and_says_so_once() -> None:
    with capture_logs() as lines:
        partition_of = partitioner.choose("no-such-library.so")
        assert lines == []
        assert [partition_of(b"job-%d" % n, 16) for n in range(50)] == [topology.partition_of(b"job-%d" % n, 16) for n in range(50)]
    assert [(line["event"], line["log_level"]) for line in lines] == [("partitioner.pure", "warning")]
    assert "no-such-library.so" in lines[0]["error"]


def test_a_library_without_the_function_is_no_use() -> None:
    import _ctypes

    with capture_logs() as lines:
        assert partitioner.choose(_ctypes.__file__)(b"job-7", 16) == topology.partition_of(b"job-7", 16)
    assert len(lines) == 1


def test_a_function_that_hashes_otherwise_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.PyDLL(cimpl.__file__)

    class Other:
        rd_kafka_msg_partitioner_murmur2 = library.rd_kafka_msg_partitioner_consistent  # CRC32

    monkeypatch.setattr(ctypes, "PyDLL", lambda path: Other)
    with capture_logs() as lines:
        assert partitioner.choose("other")(b"job-7", 16) == topology.partition_of(b"job-7", 16)
    assert "puts key" in lines[0]["error"]
