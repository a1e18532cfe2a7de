"""The local store where it fails: what fails is named, and a store that failed can be emptied and goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duewheel.adapters.rocks.folder import StateFolder
from duewheel.adapters.rocks.store import Memory, RocksStore
from duewheel.core.errors import StateFolderInUse, StoreDamaged
from duewheel.ports import Mark

MARK = Mark(7, 1_000)


@contextmanager
def full_disk(bytes_max: int) -> Iterator[None]:
    """Files cannot grow beyond this size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(store: RocksStore) -> None:
    for n in range(100):
        store.write([(b"d%d" % n, bytes(range(256)) * 400)], [], [b"\0timer%d" % n], b"", MARK)


def test_a_store_that_cannot_be_written_says_so_and_goes_on_after_it_was_emptied(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "0", "cluster/topic/0", Memory())
    store.write([(b"dold", b"1")], [], [b"\0timer"], b"", MARK)
    # RLIMIT_FSIZE raises SIGXFSZ, which Python ignores, so that writes fail with EFBIG.
    with (
        full_disk(2_000_000),
        pytest.raises(StoreDamaged, match=r"cannot be written: .*It is a cache: with the processor stopped, delete it"),
    ):
        fill(store)
    assert store.damaged
    store.clear()
    assert (store.damaged, store.mark, store.get(b"dold")) == (False, None, None)
    store.write([(b"dnew", b"2")], [], [], b"", MARK)
    assert store.get(b"dnew") == b"2"
    store.close()


def test_emptying_works_while_the_error_is_still_being_handled(tmp_path: Path) -> None:
    """An exception keeps the frames it came through alive; what they hold must not keep the database open."""
    store = RocksStore(tmp_path / "0", "cluster/topic/0", Memory())
    with full_disk(2_000_000), pytest.raises(StoreDamaged) as caught:
        fill(store)
    store.clear()
    store.close()
    del caught


def test_a_store_of_another_topic_is_emptied(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "0", "cluster/topic-1/0", Memory())
    store.write([(b"d", b"1")], [], [], b"", MARK)
    store.close()
    same = RocksStore(tmp_path / "0", "cluster/topic-1/0", Memory())
    assert (same.mark, same.get(b"d")) == (MARK, b"1")
    same.close()
    other = RocksStore(tmp_path / "0", "cluster/topic-2/0", Memory())
    assert (other.mark, other.get(b"d")) == (None, None)
    other.close()


def test_timers_are_set_unset_and_done(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "0", "cluster/topic/0", Memory())
    keys = [b"%d" % n for n in range(10)]
    store.write([], [], keys, b"", MARK)
    store.write([], [keys[8]], [], keys[3], MARK)
    assert store.timers(b"", b"~", 100) == [*keys[3:8], keys[9]]
    assert store.timers(keys[5], keys[9], 2) == keys[5:7]
    store.write([], [keys[1]], [keys[2]], b"", MARK)  # behind what is done, and there again
    assert store.timers(b"", b"~", 100) == [keys[2], *keys[3:8], keys[9]]
    store.write([], [keys[2]], [], keys[4], MARK)
    assert store.timers(b"", b"~", 100) == [*keys[4:8], keys[9]]
    store.close()


def test_a_folder_has_one_holder_and_can_be_had_again(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    with pytest.raises(StateFolderInUse, match=r"held by process \d+; stop that one, or give this one another --state-dir"):
        StateFolder(tmp_path)
    folder.close()
    StateFolder(tmp_path).close()
