"""The process that inputs are thrown at, so that what breaks is not whoever throws.

    python -m tests.fuzz.victim MODULE LIMITS BOARD

It reads requests from standard input, one line of JSON each, and answers with such lines:

    {"run": "decode_state", "seed": 7, "begin": 0, "count": 5000}    {"found": …} for each problem, {"done": 5000}
    {"try": "decode_state", "inputs": ["c301…", …]}                  {"found": …} for the first problem, {"done": 1}

Four things are watched. An error that was not declared, and a disagreement, are told. So is an input that takes longer than it may, by the
processor's time and three times over, so that a machine that is busy with other things accuses nobody. Memory is measured as the highest
number of resident bytes beyond what was there after the imports; whoever exceeds it is told of, and ends the process, since that number
never falls; what would take far more is refused by the system. A crash and a hang end the process with a stack on standard error; which
input that was stands on the board, a file of eight bytes that both have mapped.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import logging
import mmap
import resource
import struct
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.fuzz.mutations import Maker
from tests.fuzz.target import Disagreement, Target

# Virtual memory beyond what is there, for a decoder that asks for terabytes: far more than is allowed, so that the measurement comes first.
_ADDRESS_SPACE_BYTES: Final = 4 << 30
# The fault handler is wound up once for so many inputs, as each time starts a thread.
_WATCHED_INPUTS: Final = 64
_KIB: Final = 1 if sys.platform == "darwin" else 1_024  # of ru_maxrss
BOARD: Final = struct.Struct("<q")


class Limits(NamedTuple):
    """What one input may cost."""

    time_ms: int = 50
    memory_bytes: int = 256 << 20
    hang_s: int = 20


class Problem(NamedTuple):
    """What an input did.

    Attributes:
        sign: the same for inputs that hit the same fault.
        detail: for people.
    """

    sign: str
    detail: str


class TooMuchMemory(Exception):
    pass


class Victim:
    """Takes inputs, within limits."""

    def __init__(self, targets: dict[str, Target], limits: Limits, board: mmap.mmap) -> None:
        self._targets = targets
        self._limits = limits
        self._board = board
        self._makers: dict[str, Maker] = {}
        self._memory_bytes_max = 0

    def settle(self) -> None:
        """Counts memory from here."""
        gc.collect()
        gc.freeze()  # or each collection would walk through all that was imported, on some input's time
        self._memory_bytes_max = _peak_bytes() + self._limits.memory_bytes

    def answer(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        name = request.get("run") or request["try"]
        target = self._targets[name]
        if "run" in request:
            if name not in self._makers:
                self._makers[name] = Maker(target)
                self.settle()
            maker, seed, begin = self._makers[name], request["seed"], request["begin"]
            indexes = range(begin, begin + request["count"])
            yield from self._examine(target, ((index, maker.make(seed, index)) for index in indexes))
            yield {"done": request["count"]}
        else:
            self.settle()
            inputs = [bytes.fromhex(each) for each in request["inputs"]]
            yield from self._examine(target, enumerate(inputs))
            yield {"done": len(inputs)}

    def _examine(self, target: Target, inputs: Iterable[tuple[int, bytes]]) -> Iterator[dict[str, Any]]:
        for index, value in inputs:
            if index % _WATCHED_INPUTS == 0:
                faulthandler.dump_traceback_later(self._limits.hang_s, exit=True)
            BOARD.pack_into(self._board, 0, index)
            problem = self._problem(target, value)
            if problem is not None:
                yield {"found": problem._asdict(), "index": index, "input": value.hex()}
            if _peak_bytes() > self._memory_bytes_max:
                sign = f"more than {self._limits.memory_bytes >> 20} MB of memory"
                yield {"found": {"sign": sign, "detail": f"{len(value):,} bytes of input"}, "index": index, "input": value.hex()}
                raise TooMuchMemory
        faulthandler.cancel_dump_traceback_later()

    def _problem(self, target: Target, value: bytes) -> Problem | None:
        try:
            found, took_ms = _timed(target, value)
            if isinstance(found, Exception):
                str(found).encode()  # it will stand in a dead letter, or in a log
            target.check(value, found)
        except Disagreement as error:
            return Problem(f"disagreement, {str(error).partition(':')[0]}", str(error))
        except Exception as error:
            return Problem(_sign(error), "".join(traceback.format_exception(error))[-3_000:])
        if took_ms > self._limits.time_ms:
            took_ms = min(took_ms, *(_timed(target, value)[1] for _ in range(2)))
            if took_ms > self._limits.time_ms:
                return Problem(f"more than {self._limits.time_ms} ms", f"{took_ms:.0f} ms for {len(value):,} bytes")
        return None


def _timed(target: Target, value: bytes) -> tuple[Any, float]:
    """The result, or the declared error; and the milliseconds of processor's time that it took."""
    begin = time.thread_time()
    try:
        found = target.call(value)
    except target.legal as error:
        found = error
    return found, (time.thread_time() - begin) * 1_000


def _sign(error: Exception) -> str:
    """The error's class, and the innermost function of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "duewheel" in Path(frame.filename).parts] or frames
    return f"{type(error).__name__} in {Path(ours[-1].filename).name}:{ours[-1].name}"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def main(module: str, limits: Limits, board_path: str) -> None:
    faulthandler.enable()
    logging.disable(logging.CRITICAL)  # OpenTelemetry's opinions of bad headers
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever is printed by what is tried must not look like an answer
    with open(board_path, "r+b") as file:  # noqa: PTH123
        board = mmap.mmap(file.fileno(), BOARD.size)
    victim = Victim(importlib.import_module(module).TARGETS, limits, board)
    if Path("/proc/self/statm").exists():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ADDRESS_SPACE_BYTES,) * 2)
    for line in sys.stdin:
        for answer in victim.answer(json.loads(line)):
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1], Limits(*json.loads(sys.argv[2])), sys.argv[3])
