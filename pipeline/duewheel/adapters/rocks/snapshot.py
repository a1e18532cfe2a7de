"""A local store as it is at one moment, read while its owner may be at work.

RocksDB lets one process write and others follow it as secondaries: they read its manifest, its files and its write-ahead log, take no
lock and change nothing. A secondary that never asks for more stays at the moment when it was opened. It keeps all files open, so that the
owner may delete them meanwhile. What RocksDB writes on behalf of a secondary, a log of its own, goes to a temporary folder.

    snapshot = Snapshot(folder / "3")
    snapshot.mark, snapshot.identity
    for key, value in snapshot.records(): …
    snapshot.close()
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rocksdict import AccessType, Options, Rdict, ReadOptions

from duewheel.adapters.rocks.store import FORMAT_VERSION, MARK
from duewheel.core.errors import StoreDamaged
from duewheel.ports import Mark

# An owner that works may delete a file between our reading its name and opening it; the next try finds another list of files.
_TRIES: Final = 5
_FAMILIES: Final = ("jobs", "timers", "meta")


class Snapshot:
    """`core.store_audit.StoreView` over the folder of a `RocksStore`.

    Attributes:
        mark: how far the store had come; None where it was made or emptied and not filled yet.
        identity: of which changelog it is a copy; None along with the mark.
        is_known_format: whether this version can read it.

    Raises:
        StoreDamaged: it cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = TemporaryDirectory(prefix="duewheel-verify-")
        try:
            self._open()
        except StoreDamaged:
            self._aside.cleanup()
            raise

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is a store in this folder."""
        return (folder / "CURRENT").exists()

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self._walk(self._jobs, b"")

    def get(self, key: bytes) -> bytes | None:
        return self._get(self._jobs, key)

    def has_timer(self, key: bytes) -> bool:
        return self._get(self._timers, key) is not None

    def timers(self, start: bytes) -> Iterator[bytes]:
        for key, _ in self._walk(self._timers, start):
            yield key

    def close(self) -> None:
        for family in (self._jobs, self._timers, self._meta, self._db):
            family.close()
        self._aside.cleanup()

    def _open(self) -> None:
        options = Options(raw_mode=True)
        options.set_max_open_files(-1)  # all at once, and none again
        families = {name: Options(raw_mode=True) for name in _FAMILIES}
        for left in reversed(range(_TRIES)):
            try:
                self._db = Rdict(str(self._folder), options, column_families=families, access_type=AccessType.secondary(self._aside.name))
                break
            except Exception as error:  # rocksdict raises plain Exception for whatever RocksDB reports
                if not left:
                    raise self._damaged(error) from error
        self._jobs, self._timers, self._meta = (self._db.get_column_family(name) for name in _FAMILIES)
        written = self._get(self._meta, MARK)
        self.mark: Mark | None = None
        self.identity: str | None = None
        self.is_known_format = True
        if written is not None:
            meta = json.loads(written)
            self.is_known_format = meta["format"] == FORMAT_VERSION
            self.identity = meta["identity"]
            self.mark = Mark(meta["changelog_offset"], meta["saved_ms"])

    def _get(self, family: Any, key: bytes) -> bytes | None:
        try:
            value: bytes | None = family.get(key)
        except Exception as error:
            raise self._damaged(error) from error
        return value

    def _walk(self, family: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = family.iter(ReadOptions())
        try:
            cursor.seek(start)
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            # An iterator ends at damage as it ends at the end; only its status tells.
            try:
                cursor.status()
            except Exception as error:
                raise self._damaged(error) from error
        finally:
            del cursor

    def _damaged(self, error: Exception) -> StoreDamaged:
        return StoreDamaged(f"the local store {self._folder} cannot be read: {error}")
