"""What processes of a fault test write down while they live: events of the history, one JSON line each.

Each process appends to a file of its own, with one write() a line: what it wrote before a kill -9 stays written, since the bytes are the
operating system's already. A line without its newline was never finished, and is passed over.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from duewheel.proof.history import Event, from_line, to_line

_SUFFIX: Final = ".events"


class Notes:
    """This process's own file in `folder`, whose name begins with `name`. For any number of threads."""

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.{uuid.uuid4().hex}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tell(self, event: Event) -> None:
        os.write(self._file, f"{to_line(event)}\n".encode())


def notes_of(folder: Path, name: str = "") -> Iterator[Event]:
    """What was written down in `folder`; by processes of this name alone where one is given."""
    for path in sorted(folder.glob(f"{name}.*{_SUFFIX}" if name else f"*{_SUFFIX}")):
        whole, newline, _ = path.read_text().rpartition("\n")
        if newline:
            yield from map(from_line, whole.split("\n"))
