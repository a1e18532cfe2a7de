"""Inputs that once broke something, kept for ever.

A find is one file, `corpus/<target>/<name>.txt`: what it was, and one input a line, since some inputs break things only after others.
Inputs are in hexadecimal; `00*500000` is a byte, or several, so many times.

    # RecursionError in payloads.py:read
    5b*1000 5d*1000
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "corpus"
# Runs shorter than this are written out.
_RUN_MIN: Final = 24
_RUNS: Final = re.compile(rb"(?s)(.{1,8}?)\1{%d,}" % (_RUN_MIN - 1))


class Find(NamedTuple):
    """What a file of the corpus holds."""

    path: Path
    inputs: list[bytes]


def finds(folder: Path = FOLDER) -> list[tuple[str, Find]]:
    """Every find, with its target's name."""
    return [(path.parent.name, Find(path, _read(path))) for path in sorted(folder.glob("*/*.txt"))]


def keep(target: str, problem: str, inputs: Sequence[bytes], folder: Path = FOLDER) -> Path:
    """Writes a find down, and says where."""
    name = sha256(b"\n".join(inputs)).hexdigest()[:12]
    path = folder / target / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {' '.join(problem.split())}", *(to_text(each) for each in inputs)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def to_text(value: bytes) -> str:
    """An input, in one line; what repeats itself is counted."""
    words, at = [], 0
    for run in _RUNS.finditer(value):
        if run.start() > at:
            words.append(value[at : run.start()].hex())
        unit = run[1]
        words.append(f"{unit.hex()}*{len(run[0]) // len(unit)}")
        at = run.end()
    if at < len(value) or not words:
        words.append(value[at:].hex() or "-")
    return " ".join(words)


def from_text(line: str) -> bytes:
    """What `to_text` wrote."""
    value = bytearray()
    for word in line.split():
        if word != "-":
            digits, _, count = word.partition("*")
            value += bytes.fromhex(digits) * int(count or 1)
    return bytes(value)


def _read(path: Path) -> list[bytes]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [from_text(line) for line in lines if line and not line.startswith("#")]
