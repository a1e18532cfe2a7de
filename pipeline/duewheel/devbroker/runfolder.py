"""A folder for one run, gone when the run is over, and swept by the next one where the run was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

from duewheel.core.errors import StateFolderInUse


class RunFolder:
    """Holds a lock that lives as long as anything of the run does: what is started with `lock` open holds it too.

    As a context manager it removes the folder in the end.

    Attributes:
        path: the folder.
        lock: the lock's file descriptor.
    """

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path = path
        self.lock = file.fileno()
        self._file = file

    @classmethod
    def take(cls, parent: Path, kind: str, chosen: Path | None = None) -> RunFolder:
        """A new folder below `parent`, after removing those of this kind whose runs are over; or `chosen`.

        Raises:
            StateFolderInUse: `chosen` belongs to a run that goes on.
        """
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / f"{kind}s.lock").open("w") as one_at_a_time:  # nobody sweeps a folder that is made and not locked yet
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            if chosen is not None:
                chosen.mkdir(parents=True, exist_ok=True)
                return cls._take(chosen)
            for old in parent.glob(f"{kind}-*/"):
                with contextlib.suppress(StateFolderInUse):
                    cls._take(old).release(keep=False)
            return cls._take(Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=parent)))

    @classmethod
    def _take(cls, path: Path) -> RunFolder:
        file = (path / "lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise StateFolderInUse(f"{path} is used by another run (process {holder}); end it, or name another folder") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return cls(path, file)

    def release(self, *, keep: bool) -> None:
        """Ends the run; removes the folder unless `keep`, which the next run of this kind sweeps when it is below `parent`."""
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        self._file.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release(keep=False)
