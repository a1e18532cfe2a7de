"""Throws inputs at a victim, and makes of whatever breaks it the smallest input that still does.

    report = hunt(inputs=20_000, seed=7)
    report.finds        one for each fault: target, what it was, the inputs, and the number that repeats it

The victim is another process (`victim`). It tells what it notices itself; where it dies, of a crash, a hang or its own memory, the board
says at which input, and a new one goes on behind it. An input that breaks nothing by itself is given with those before it, as decoders
remember what they have seen; so a find is a sequence, mostly of one. Whether such a sequence fails is asked of a new victim each time.

Shrinking halves: pieces of half the size are left out, then of a quarter, down to one byte, for as long as the same fault shows. What is
slow or takes memory is kept as it is, since a smaller one is less of that.
"""

from __future__ import annotations

import json
import mmap
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, TypeVar

from tests.fuzz.mutations import Maker
from tests.fuzz.target import Target
from tests.fuzz.victim import BOARD, Limits

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = "tests.fuzz.targets"
CHUNK_INPUTS: Final = 2_000
# A victim that lived long remembers much; what it does then is hard to repeat.
_VICTIM_INPUTS_MAX: Final = 50_000
_FINDS_MAX: Final = 10  # of one target
TRIES_MAX: Final = 400
_DEATHS_MAX: Final = 60  # of those tries, since each costs a new process

S = TypeVar("S", bytes, list[bytes])


class Died(Exception):
    """The victim is no more.

    Attributes:
        sign: how it ended, the same for the same fault.
        index: at which input.
    """

    def __init__(self, sign: str, index: int, detail: str) -> None:
        super().__init__(sign)
        self.sign = sign
        self.index = index
        self.detail = detail


class Find(NamedTuple):
    """A fault.

    Attributes:
        number: of the input, which with the seed makes it again.
        sign, detail: what happened.
        inputs: what does it again, the last of them at the latest; empty where nothing did.
    """

    target: str
    number: int
    sign: str
    detail: str
    inputs: list[bytes]


@dataclass
class Report:
    """What became of a hunt."""

    inputs: int = 0
    finds: list[Find] = field(default_factory=list)


class Hunter:
    """Owns a victim, and replaces it when it is dead. Use it in a `with`.

    Args:
        module: where the TARGETS are.
    """

    def __init__(self, module: str = TARGETS, limits: Limits = Limits()) -> None:  # noqa: B008
        self._module = module
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._board_file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._board_file.truncate(BOARD.size)
        self._board = mmap.mmap(self._board_file.fileno(), BOARD.size)

    def __enter__(self) -> Hunter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()
        self._board.close()
        self._board_file.close()
        self._complaints.close()

    def ask(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The victim's answers.

        Raises:
            Died: in the middle of them.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said before is still to be read
        for line in process.stdout:
            answer = json.loads(line)
            if "done" in answer:
                return
            yield answer
        raise self._died()

    def problems(self, target: str, inputs: Sequence[bytes]) -> list[tuple[str, str]]:
        """The sign and the detail of everything that goes wrong with these inputs, in that order."""
        found: list[tuple[str, str]] = []
        try:
            for answer in self.ask({"try": target, "inputs": [each.hex() for each in inputs]}):
                found.append((answer["found"]["sign"], answer["found"]["detail"]))  # noqa: PERF401 (it may end with an error)
        except Died as death:
            found.append((death.sign, death.detail))
        return found

    @property
    def lives(self) -> bool:
        """Whether there is a victim."""
        return self._process is not None

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        self._complaints.truncate(0)
        self._complaints.seek(0)
        BOARD.pack_into(self._board, 0, -1)
        arguments = [self._module, json.dumps(self._limits), self._board_file.name]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.victim", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True, cwd=ROOT,
        )  # fmt: skip
        return self._process

    def _died(self) -> Died:
        process, self._process = self._process, None
        assert process is not None
        process.communicate()
        self._complaints.seek(0)
        complaint = self._complaints.read().decode(errors="replace")
        (index,) = BOARD.unpack_from(self._board)
        if index < 0:
            raise RuntimeError(f"the victim died before its first input, with exit code {process.returncode}: {complaint[-3_000:]}")
        if "TooMuchMemory" in complaint:
            sign = "memory"
        elif complaint.startswith("Timeout ("):
            sign = "hang"
        elif process.returncode < 0:
            sign = f"crash, {signal.Signals(-process.returncode).name}"
        else:
            sign = f"the victim ended with exit code {process.returncode}"
        return Died(sign, index, complaint[-3_000:])


def hunt(
    inputs: int,
    seed: int,
    names: Sequence[str] = (),
    *,
    module: str = TARGETS,
    targets: Mapping[str, Target] | None = None,
    limits: Limits = Limits(),  # noqa: B008
    begin: int = 0,
    tries_max: int = TRIES_MAX,
    on_progress: Callable[[str, int, int], None] = lambda target, done, count: None,
    on_find: Callable[[Find], None] = lambda find: None,
) -> Report:
    """Throws `inputs` in all at the targets, by their weights.

    Args:
        names: of the targets; all by default.
        begin: the number of the first input of each.
        tries_max: how often to try whether a smaller input does the same; with 0 a fault's input is left as it was found.
        on_progress: told of a target how many of its inputs are done, of how many.
        on_find: told of each fault, when it is small.
    """
    known = _targets(module) if targets is None else targets
    chosen = [known[name] for name in names or known]
    weights = sum(target.weight for target in chosen)
    report = Report()
    with Hunter(module, limits) as hunter:
        lived = 0
        for target in chosen:
            count = -(-inputs * target.weight // weights)
            if lived + count > _VICTIM_INPUTS_MAX:
                hunter.end()
                lived = 0
            lived += count
            for find in _hunt_one(hunter, target, seed, begin, count, tries_max, on_progress):
                report.finds.append(find)
                on_find(find)
            report.inputs += count
    return report


def _targets(module: str) -> Mapping[str, Target]:
    import importlib

    found: Mapping[str, Target] = importlib.import_module(module).TARGETS
    return found


def _hunt_one(
    hunter: Hunter, target: Target, seed: int, begin: int, count: int, tries_max: int, on_progress: Callable[[str, int, int], None]
) -> Iterator[Find]:
    signs: set[str] = set()
    at, end, born = begin, begin + count, begin
    while at < end:
        problems: list[tuple[int, str, str]] = []
        size = min(CHUNK_INPUTS, end - at)
        try:
            for answer in hunter.ask({"run": target.name, "seed": seed, "begin": at, "count": size}):
                problems.append((answer["index"], answer["found"]["sign"], answer["found"]["detail"]))  # noqa: PERF401 (it may end with an error)
            at += size
        except Died as death:
            if death.sign != "memory":  # of which it told before
                problems.append((death.index, death.sign, death.detail))
            at = death.index + 1
        for index, sign, detail in problems:
            if sign not in signs and len(signs) < _FINDS_MAX:
                signs.add(sign)
                yield _small(hunter, target, seed, born, Find(target.name, index, sign, detail, []), tries_max)
                hunter.end()  # who knows what it has seen
        if at - born > _VICTIM_INPUTS_MAX:
            hunter.end()
        if not hunter.lives:
            born = at
        on_progress(target.name, min(at, end) - begin, count)


def _small(hunter: Hunter, target: Target, seed: int, born: int, find: Find, tries_max: int) -> Find:
    """`find` with inputs that do it again: the one, or those before it too; and as small as halving makes them."""
    maker = Maker(target)
    alone = [maker.make(seed, find.number)]
    if not tries_max:
        return find._replace(inputs=alone)
    tries = _Tries(hunter, find, tries_max)
    if tries.fails_afresh(alone):
        if find.sign.startswith("more than"):
            return find._replace(inputs=alone)
        smaller = [shrunk(alone[0], lambda value: tries.fails([value]))]
        return find._replace(inputs=smaller if tries.fails_afresh(smaller) else alone)
    inputs = [maker.make(seed, number) for number in range(born, find.number + 1)]
    return find._replace(inputs=shrunk(inputs, tries.fails_afresh)) if tries.fails_afresh(inputs) else find


class _Tries:
    """Whether inputs still do what was found, asked `tries_max` times at most."""

    def __init__(self, hunter: Hunter, find: Find, tries_max: int) -> None:
        self._hunter = hunter
        self._find = find
        self._left = tries_max
        self._deaths_left = _DEATHS_MAX

    def fails_afresh(self, inputs: Sequence[bytes]) -> bool:
        """As `fails`, by a victim that has seen nothing before."""
        self._hunter.end()
        self._deaths_left -= 1
        return self.fails(inputs)

    def fails(self, inputs: Sequence[bytes]) -> bool:
        if self._left <= 0 or self._deaths_left <= 0:
            return False
        self._left -= 1
        signs = [sign for sign, _ in self._hunter.problems(self._find.target, inputs)]
        self._deaths_left -= not self._hunter.lives
        return self._find.sign in signs


def shrunk(whole: S, fails: Callable[[S], bool]) -> S:
    """The smallest part of `whole`, of those that halving finds, that still fails."""
    size = len(whole) // 2
    while size:
        at = 0
        while at < len(whole):
            smaller = whole[:at] + whole[at + size :]
            if smaller and fails(smaller):
                whole = smaller
            else:
                at += size
        size //= 2
    return whole
