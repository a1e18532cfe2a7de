"""What can happen to a folder of stores on a disk: it is deleted, or some of its bytes are not what was written."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from random import Random
from typing import Final

_BYTES: Final = (16, 4_096)
# Of a store that is open, only files that are read again or written again can hurt.
_HOT: Final = ("*.sst", "*.log", "CURRENT")


def is_possible(stores: Path) -> bool:
    """Whether there is anything to be damaged."""
    return any((partition / "CURRENT").exists() for partition in _partitions(stores))


def delete(stores: Path, random: Random) -> str:
    """Deletes one partition's store, or all. Gives what was done, in words."""
    partitions = _partitions(stores)
    if not partitions or random.random() < 0.3:
        shutil.rmtree(stores, ignore_errors=True)
        return "all stores deleted"
    chosen = random.choice(partitions)
    shutil.rmtree(chosen, ignore_errors=True)
    return f"store {chosen.name} deleted"


def overwrite(stores: Path, random: Random, *, is_open: bool) -> str:
    """Overwrites some bytes of each store, or cuts a file short. Gives what was done, in words.

    Args:
        is_open: whether a process works with them just now.
    """
    done = []
    for partition in _partitions(stores):
        patterns = _HOT if is_open else ("*",)
        files = sorted({path for pattern in patterns for path in partition.glob(pattern) if path.is_file() and path.name != "LOCK"})
        files = [path for path in files if _size(path)]
        if files:
            chosen = random.choice(files)
            with contextlib.suppress(FileNotFoundError):  # RocksDB deletes files while it works
                done.append(f"{partition.name}/{chosen.name} {_spoil(chosen, random)}")
    return ", ".join(done) or "nothing: it was being made anew"


def _spoil(path: Path, random: Random) -> str:
    size = _size(path)
    at = random.randrange(size)
    if random.random() < 0.3:
        os.truncate(path, at)
        return f"cut at {at}"
    count = min(random.randrange(*_BYTES), size - at)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(random.randbytes(count))
    return f"overwritten at {at}, {count} bytes"


def _partitions(stores: Path) -> list[Path]:
    return sorted(path for path in stores.glob("*/*") if path.is_dir())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
