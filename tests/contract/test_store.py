"""`ports.Store`: in memory and in RocksDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from duewheel.adapters.memory.store import Disk, MemoryStore
from duewheel.adapters.memory.world import Process, World
from duewheel.adapters.rocks.store import Memory, RocksStore
from duewheel.ports import Mark, Store

MARK = Mark(7, 1_000)
LATER = Mark(9, 2_000)
Open = Callable[[str], Store]


@pytest.fixture(params=["memory", "rocks"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store again and again, as a copy of the named changelog."""
    if request.param == "memory":
        process, disk = Process(World(), "test"), Disk()
        return lambda identity: MemoryStore(process, disk, 0, identity)
    memory = Memory()
    return lambda identity: RocksStore(tmp_path / "0", identity, memory)


def test_a_new_store_is_empty(open_store: Open) -> None:
    store = open_store("log")
    assert (store.mark, store.damaged, store.get(b"d1")) == (None, False, None)
    assert (store.records(b"", b"~", 9), store.timers(b"", b"~", 9)) == ([], [])
    store.write([(b"b", b"1")], [], [b"u"], b"", LATER)
    assert (store.records(b"", b"~", 9), store.timers(b"", b"~", 9), store.mark) == ([(b"b", b"1")], [b"u"], LATER)
    store.close()


def test_the_copy_of_another_changelog_is_emptied(open_store: Open) -> None:
    store = open_store("log")
    store.write([(b"a", b"1")], [], [b"t"], b"", MARK)
    store.close()
    other = open_store("another")
    assert (other.mark, other.get(b"a"), other.timers(b"", b"~", 9)) == (None, None, [])
    other.close()
