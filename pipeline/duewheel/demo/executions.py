"""The handlers' own record of what ran and when: the demo's witness against the engine.

Each worker process appends lines, "token started_ms job_id", each with one write(), to a file of its own. What it wrote before a kill -9
stays written, even where the kill came with the next instruction: the bytes are the operating system's already.

    7 1767225600105 later-00042
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from duewheel.core.errors import BadConfiguration
from duewheel.demo.evidence import Execution

FOLDER_VARIABLE: Final = "DUEWHEEL_DEMO_EXECUTIONS"
_SUFFIX: Final = ".executions"


class ExecutionWriter:
    """Appends to this process's file, in the folder that FOLDER_VARIABLE names. For any number of threads.

    Raises:
        BadConfiguration: the variable is not set.
    """

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            raise BadConfiguration(f"{FOLDER_VARIABLE} is not set; it names the folder where executions are written down")
        path = Path(folder) / f"{os.getpid()}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, execution: Execution) -> None:
        token, started_ms, job_id = execution
        os.write(self._file, f"{token} {started_ms} {job_id}\n".encode())


class ExecutionReader:
    """Reads the files of all worker processes of a folder, and goes on reading where it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}

    def read(self) -> list[Execution]:
        """What was written since the last call."""
        return [execution for path in sorted(self._folder.glob(f"*{_SUFFIX}")) for execution in self._read(path)]

    def _read(self, path: Path) -> list[Execution]:
        with path.open("rb") as file:
            file.seek(self._read_bytes.get(path, 0))
            lines = file.read().rpartition(b"\n")[0]  # what is behind the last newline is being written
        if not lines:
            return []
        self._read_bytes[path] = self._read_bytes.get(path, 0) + len(lines) + 1
        fields = (line.split(" ", 2) for line in lines.decode().split("\n"))
        return [Execution(int(token), int(started_ms), job_id) for token, started_ms, job_id in fields]
