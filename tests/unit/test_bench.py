"""The arithmetic of the benches."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition

from duewheel.bench import floor, process
from duewheel.bench.floor import Samples, batches
from duewheel.bench.lateness import due_ms
from duewheel.bench.report import Report, rounded
from duewheel.core.topology import Topology


def test_a_report_becomes_one_json_object() -> None:
    report = Report("path", {"jobs": 10}, "4.3.1", machine={"cores": 2})
    report.add("ratio", 0.412345, "path to floor")
    report.add("ratios", [0.412345, 123_456.7], "each round")
    assert json.loads(json.dumps(report.as_dict())) == {
        "bench": "path",
        "ratio": 0.4123,
        "ratios": [0.4123, 123_500],
        "settings": {"jobs": 10},
        "machine": {"cores": 2, "kafka": "4.3.1"},
    }


@pytest.mark.parametrize(
    "value,shown", [(0, 0), (123_456, 123_456), (0.0, 0.0), (123_456.0, 123_500), (12.3456, 12.35), (3.0, 3.0), (0.000123456, 0.0001235)]
)
def test_measured_figures_have_four_digits_and_counts_all(value: float, shown: float) -> None:
    assert rounded(value) == shown
    assert type(rounded(value)) is type(shown)


def test_jobs_are_due_at_the_rate_and_none_early() -> None:
    dues = [due_ms(1_000, rate=300, number=number) for number in range(300)]
    assert dues[0] == 1_000
    assert dues[-1] == 1_996
    assert {after - before for before, after in itertools.pairwise(dues)} == {3, 4}


def test_the_floor_writes_each_job_once_in_batches_of_the_processor() -> None:
    samples = Samples([(b"d", b"k")] * 3, [(b"s", b"k")] * 3, [(b"x", b"k")] * 3)
    found = batches(samples, count=10, batch=4)
    assert [[len(records) for records in batch] for batch in found] == [[4, 4, 4], [4, 4, 4], [2, 2, 2]]
    assert {value for batch in found for value, _ in batch.definitions} == {b"d"}


class Kafka:
    """Stands for the floor's consumer and for one of its producers at once; notes in which order it is called."""

    def __init__(self) -> None:
        self.read = 0
        self.committed = 0
        self.calls: list[str] = []
        self.reading = threading.Event()

    def consume(self, count: int, _timeout_s: float) -> list[Message]:
        self.read += count
        self.reading.set()
        return [Message(offset=offset) for offset in range(self.read - count, self.read)]

    def consumer_group_metadata(self) -> object:
        return object()

    def begin_transaction(self) -> None:
        self.calls.append("begin")
        self.reading.clear()

    def produce(self, topic: str, _value: bytes, _key: bytes, _partition: int) -> None:
        self.calls.append(topic)

    def send_offsets_to_transaction(self, positions: list[TopicPartition], _member: object, _timeout_s: float) -> None:
        # The last batch has nothing to be read after it.
        assert self.read == TOTAL or self.reading.wait(10), "the next batch is not read while this one is being committed"
        self.committed = positions[0].offset

    def commit_transaction(self, _timeout_s: float) -> None:
        self.calls.append(f"commit {self.committed}")


TOTAL = 5


def test_the_floor_reads_on_while_it_commits_and_begins_after_the_commit() -> None:
    kafka, other = Kafka(), Topology("other")
    samples = Samples([(b"d", b"k")], [(b"s", b"k")], [(b"x", b"k")])
    assert floor.write(kafka, [kafka, kafka], Topology("one"), other, batches(samples, TOTAL, 2)) == 3  # type: ignore[arg-type, list-item]
    written = [[other.state] * 2 * size + [other.dispatch("default")] * size for size in (2, 2, 1)]
    assert kafka.calls == ["begin", *written[0], "commit 2", "begin", *written[1], "commit 4", "begin", *written[2], "commit 5"]


def test_a_process_is_measured_by_what_the_kernel_says() -> None:
    before_s = process.cpu_s(os.getpid())
    while process.cpu_s(os.getpid()) < before_s + 0.02:
        sum(range(10_000))
    now_mb, peak_mb = process.resident_mb(os.getpid())
    assert 5 < now_mb <= peak_mb
    assert process.cpu_s(None) == 0.0


def test_a_folder_takes_what_its_files_take(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    empty = process.folder_bytes(tmp_path)
    (tmp_path / "below" / "file").write_bytes(b"x" * 100_000)
    assert process.folder_bytes(tmp_path) - empty >= 100_000
