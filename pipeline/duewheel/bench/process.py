"""What the kernel says of a process: CPU time and memory. Read from /proc, so Linux only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from duewheel.core.errors import EnvironmentFailure

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_KIB: Final = 1_024
_MB: Final = 1_000_000


def cpu_s(pid: int | None) -> float:
    """CPU time that a process has used, in seconds, to 10 ms; 0 where it is not ours to look at."""
    if pid is None:
        return 0.0
    # The name in parentheses may hold spaces; behind it, counted from the state, user and system time are fields 11 and 12.
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int | None) -> tuple[float, float]:
    """Resident memory of a process in MB (10⁶ bytes): now, and at its highest."""
    status = dict(line.split(":", 1) for line in _read(pid, "status").splitlines())
    now, peak = (int(status[name].split()[0]) * _KIB / _MB for name in ("VmRSS", "VmHWM"))
    return now, peak


def folder_bytes(folder: Path) -> int:
    """What a folder takes on disk, as `du` counts."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # the store has just compacted it away
            continue
    return total


def _read(pid: int | None, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError as error:
        raise EnvironmentFailure(f"process {pid} cannot be measured: {error}; benches read Linux's /proc") from error
