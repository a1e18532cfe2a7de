"""Rows of many partitions, read in one go and needed one partition after the other: kept in temporary files meanwhile.

    spool = Spool()
    spool.add(3, [("a", 41), ("b", 42)])
    list(spool.rows(3))                       [("a", 41), ("b", 42)]
    spool.close()

A row is a tuple of what `marshal` writes: text, numbers, bytes, None. It never leaves this process, so that the format may be any.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO


class Spool:
    """Rows by partition, in the order in which they came. They lie in the machine's folder for temporary files (TMPDIR)."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="duewheel-spool-")
        self._files: dict[int, BinaryIO] = {}
        self._counts: dict[int, int] = {}

    def count(self, partition: int) -> int:
        """How many rows of a partition there are."""
        return self._counts.get(partition, 0)

    def add(self, partition: int, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keeps rows."""
        file = self._files.get(partition)
        if file is None:
            file = self._files[partition] = (Path(self._folder.name) / str(partition)).open("w+b")
        marshal.dump([tuple(row) for row in rows], file)
        self._counts[partition] = self.count(partition) + len(rows)

    def rows(self, partition: int) -> Iterator[tuple[Any, ...]]:
        """All rows of a partition, a batch in memory at a time. Add none to it meanwhile."""
        file = self._files.get(partition)
        if file is None:
            return
        end = file.tell()
        file.seek(0)
        while file.tell() < end:
            yield from marshal.load(file)

    def close(self) -> None:
        """Removes everything."""
        for file in self._files.values():
            file.close()
        self._folder.cleanup()
