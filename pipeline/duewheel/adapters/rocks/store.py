"""The local store of one timer partition, in RocksDB.

One database a partition, three column families:

    jobs     changelog key → changelog value, byte for byte; so the store is the fold of the changelog, and nothing is translated
    timers   due time (8 bytes, big-endian) and job id → nothing; in order of time
    meta     how far the store has come, and of which changelog it is a copy

Timers that have fired lie in front of the ones to come as tombstones, and the first seek past a million of them takes 0.2 s. So readers
start from a cursor of their own, and what lies behind is removed by range.

The write-ahead log is on and not synced: kill -9 loses nothing, a power cut loses what the changelog brings back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from duewheel.core.errors import StoreDamaged
from duewheel.ports import Mark

FORMAT_VERSION: Final = 1

# Shared by all partitions of a process. Reads of recent jobs come from memtables, so the cache may be small.
BLOCK_CACHE_BYTES: Final = 32 << 20
MEMTABLES_BYTES: Final = 96 << 20
MEMTABLE_BYTES: Final = 16 << 20
WAL_BYTES_MAX: Final = 64 << 20
_BLOOM_BITS: Final = 10  # 1 % of look-ups of unknown ids touch the disk
MARK: Final = b"mark"


class Memory:
    """The memory that the stores of one process share."""

    def __init__(self) -> None:
        self.cache = Cache(BLOCK_CACHE_BYTES)
        self.buffers = WriteBufferManager(MEMTABLES_BYTES, False)

    def options(self) -> Options:
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_bloom_filter(_BLOOM_BITS, False)
        blocks.set_cache_index_and_filter_blocks(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_size(MEMTABLE_BYTES)
        options.set_write_buffer_manager(self.buffers)
        options.set_max_total_wal_size(WAL_BYTES_MAX)
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.1)
        options.set_keep_log_file_num(2)
        options.set_is_fd_close_on_exec(True)
        return options


class RocksStore:
    """`ports.Store` in a folder.

    Args:
        folder: where the database lies; made when missing.
        identity: names the changelog partition that this is a copy of (cluster, topic id, partition). A folder with another
            identity or format is emptied.
        memory: shared by the stores of a process.

    Raises:
        StoreDamaged: the folder cannot be used even when emptied.
    """

    def __init__(self, folder: Path, identity: str, memory: Memory) -> None:
        self._folder = folder
        self._identity = identity
        self._memory = memory
        self.mark: Mark | None = None
        self.damaged = False
        self._done = b""
        try:
            self._open()
        except StoreDamaged:
            self.clear()

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except Exception as error:  # not through _damage: this is called for every job
            raise self._damaged("read", error) from error

    def write(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timers_unset: Sequence[bytes],
        timers_set: Collection[bytes],
        timers_done: bytes,
        mark: Mark,
    ) -> None:
        # In two functions, as are reading and its errors: what lives in a frame lives as long as an exception that came through it, and a
        # handle or an iterator that lives keeps the database's lock when it is closed.
        batch = self._batch(records, timers_unset, timers_set, timers_done, mark)
        with self._damage("written"):
            self._db.write(batch)
        self.mark = mark

    def _batch(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        timers_unset: Sequence[bytes],
        timers_set: Collection[bytes],
        timers_done: bytes,
        mark: Mark,
    ) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        put, delete, jobs, timers = batch.put, batch.delete, self._jobs_handle, self._timers_handle
        if timers_done > self._done:
            batch.delete_range(self._done, timers_done, timers)
            self._done = timers_done
        for key in timers_unset:
            if key >= self._done:
                delete(key, timers)
        for key in timers_set:
            put(key, b"", timers)
        earliest = min(timers_set, default=self._done)
        self._done = min(self._done, earliest)
        for key, value in records:
            if value is None:
                delete(key, jobs)
            else:
                put(key, value, jobs)
        meta = {"format": FORMAT_VERSION, "identity": self._identity, **mark._asdict()}
        put(MARK, json.dumps(meta).encode(), self._meta_handle)
        return batch

    def timers(self, start: bytes, end: bytes, count_max: int) -> list[bytes]:
        return [key for key, _ in self._scan(self._timers, start, end, count_max)]

    def records(self, start: bytes, end: bytes, count_max: int) -> list[tuple[bytes, bytes]]:
        return self._scan(self._jobs, start, end, count_max)

    def clear(self) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.damaged = False
        self._open()

    def close(self) -> None:
        # A column family's handle that outlives the database keeps its lock.
        for name in ("_get", "_jobs_handle", "_timers_handle", "_meta_handle"):
            self.__dict__.pop(name, None)
        for name in ("_jobs", "_timers", "_meta", "_db"):
            database = self.__dict__.pop(name, None)
            if database is not None:
                with suppress(Exception):  # after a failed write this flushes in vain, and closes all the same
                    database.close()
        self.mark = None
        self._done = b""

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        families = {name: self._memory.options() for name in ("jobs", "timers", "meta")}
        with self._damage("opened"):
            self._db = Rdict(str(self._folder), self._memory.options(), column_families=families)
        self._jobs, self._timers, self._meta = (self._db.get_column_family(name) for name in families)
        self._jobs_handle, self._timers_handle, self._meta_handle = (self._db.get_column_family_handle(name) for name in families)
        self._get = self._jobs.get
        with self._damage("read"):
            written = self._meta.get(MARK)
        if written is None:
            return
        meta = json.loads(written)
        if (meta.pop("format"), meta.pop("identity")) != (FORMAT_VERSION, self._identity):
            self.clear()
            return
        self.mark = Mark(**meta)

    def _scan(self, family: Any, start: bytes, end: bytes, count_max: int) -> list[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        found: list[tuple[bytes, bytes]] = []
        with self._damage("read"):
            cursor = family.iter(options)
            try:
                cursor.seek(start)
                while len(found) < count_max and cursor.valid():
                    found.append((cursor.key(), cursor.value()))
                    cursor.next()
                # An iterator ends at damage as it ends at the end; only its status tells.
                cursor.status()
            finally:
                del cursor
        return found

    @contextmanager
    def _damage(self, verb: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises plain Exception for whatever RocksDB reports
            raise self._damaged(verb, error) from error

    def _damaged(self, verb: str, error: Exception) -> StoreDamaged:
        self.damaged = True
        return StoreDamaged(
            f"the local store {self._folder} cannot be {verb}: {error}. It is a cache: with the processor stopped, delete it"
        )
