"""The state folder of one process: locked while it lives, with a sub-folder for each timer partition.

state/duewheel/lock    the holder's process id; locked by the kernel, so that a killed holder leaves no stale lock
state/duewheel/3/      the store of timer partition 3
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from duewheel.core.errors import StateFolderInUse


class StateFolder:
    """Holds a folder for this process.

    Args:
        path: the folder; made when missing.

    Raises:
        StateFolderInUse: another process holds it; the message names its process id.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 20, 0).decode() or "unknown"
            os.close(self._lock)
            message = f"state folder {path} is held by process {holder}; stop that one, or give this one another --state-dir"
            raise StateFolderInUse(message) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def partition(self, number: int) -> Path:
        """Where the store of a timer partition lies."""
        return self._path / str(number)

    def close(self) -> None:
        """Lets others have the folder."""
        os.close(self._lock)
