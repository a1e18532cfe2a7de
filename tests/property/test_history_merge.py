"""Whatever order partitions are read in, their history is told in order of time and whole."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.history import Entry, Happening, Merge, Source

TIMES = st.lists(st.lists(st.integers(0, 50), max_size=12).map(sorted), min_size=1, max_size=4)


def _entry(partition: int, written_ms: int) -> Entry:
    source = Source(topic="t", partition=partition, offset=0, written_ms=written_ms)
    return Entry(source=source, at_ms=written_ms, event=Happening.SCHEDULE, job_id=None)


@given(TIMES, st.randoms(use_true_random=False), st.integers(1, 5))
def test_history_is_told_in_order_and_whole(times: list[list[int]], random: Random, batch: int) -> None:
    merge = Merge(range(len(times)))
    unread = {partition: list(written) for partition, written in enumerate(times)}
    told: list[Entry] = []
    while unread:
        partition = random.choice(sorted(unread))
        for written_ms in unread[partition][:batch]:
            merge.reach(partition, written_ms)
            merge.add(_entry(partition, written_ms))
        del unread[partition][:batch]
        if not unread[partition]:
            merge.finish(partition)
            del unread[partition]
        told += merge.release()
    assert merge.past_is_read
    assert [entry.at_ms for entry in told] == sorted(time for written in times for time in written)
