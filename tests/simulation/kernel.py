"""Runs any number of processes in one thread, in virtual time, always in the same order.

Each activity of a process is a `Strand`: ordinary code, which is left in the middle wherever it waits, and gone on with when its time has
come. Whatever is due is done by the hub, in order of time, and of what is due at the same time in the order in which it was planned. So
between two calls of one process anything may happen in the others, as on real machines, and yet the seed decides all of it.

    world = World(); kernel = Kernel(world, Random(7), weather)
    kernel.start(process, main)
    kernel.run(until_us=60_000_000)

Most waits are short, and nothing else happens within them: then time is simply moved on, and nobody is switched to.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from duewheel.adapters.memory.world import Crash, Process, World

T = TypeVar("T")
LAST_EVENTS: Final = 60

# How long the loops wait where nothing is due: for them it is a way of looking again and again, of which the kernel frees them.
_IDLE_US: Final = frozenset({2_000, 5_000, 10_000, 20_000, 100_000})

# What a call takes, from and to, in microseconds. What is not here takes no time.
_TAKES_US: Final = {
    "cluster": (300, 3_000),
    "group.commit": (500, 3_000),
    "group.committed": (300, 3_000),
    "group.poll": (20, 60),
    "reader.poll": (5, 20),
    "states": (300, 2_000),
    "transactions.init": (500, 5_000),
    "transactions.produce": (200, 2_000),
    "transactions.offsets": (200, 2_000),
    "transactions.commit": (300, 2_000),
    "transactions.abort": (300, 2_000),
    "intake": (300, 3_000),
}


class Weather(Protocol):
    """Decides what goes wrong."""

    def reach(self, process: Process, where: str) -> None:
        """Before a call has its effect. May raise, or stop the process."""

    def answer(self, process: Process, where: str) -> None:
        """After it."""

    def delay_us(self, what: str) -> int:
        """See `Hook.delay_us`."""

    def portion(self, process: Process, count_max: int) -> int:
        """See `Hook.portion`."""


class Strand(greenlet):  # type: ignore[misc]
    """One activity of a process.

    Attributes:
        ticket: of the wait that it is in; 0 while it runs.
    """

    def __init__(self, hub: greenlet, process: Process, call: Callable[[], None]) -> None:
        super().__init__(parent=hub)
        self.process = process
        self.call = call
        self.ticket = 0
        self.woken = False

    def run(self) -> None:
        try:
            self.call()
        except Crash:
            pass


class Kernel:
    """A `Hook` that runs strands.

    Args:
        rest_us: how long an idle poll lasts at least, unless something wakes it. Without, a processor would look a hundred times a second
            whether anything has come, of which it is told anyway.

    Attributes:
        trace: the last events.
        digest: of all events.
        events: how many there were.
        failure: an error that escaped from a strand, of the kind that must not.
    """

    def __init__(self, world: World, random: Random, weather: Weather, rest_us: int) -> None:
        self.world = world
        self.random = random
        self.weather = weather
        self.trace: deque[tuple[int, str, str, str]] = deque(maxlen=LAST_EVENTS)
        self.digest = 0
        self.events = 0
        self._hub = getcurrent()
        self._rest_us = rest_us
        self._limit_us = 0
        self._tickets = 0
        self._strands: dict[Process, dict[Strand, None]] = {}
        self._held: dict[Process, list[Strand]] = {}
        self._takes: dict[str, tuple[int, int] | None] = {}
        world.hook = self

    def run(self, until_us: int, done: Callable[[], bool] = lambda: False) -> None:
        """Runs everything until then, or until `done`."""
        self._limit_us = until_us
        while not done():
            if not self.world.run_next(until_us):
                self.world.now_us = until_us
                return

    def note(self, who: str, what: str, detail: object = "") -> None:
        """Writes an event into the trace."""
        entry = (self.world.now_us, who, what, str(detail))
        self.trace.append(entry)
        self.events += 1
        self.digest = zlib.crc32(repr(entry).encode(), self.digest)

    # --- processes ---

    def processes(self) -> list[Process]:
        """Those that live."""
        return [process for process in self._strands if process.alive]

    def start(self, process: Process, call: Callable[[], None]) -> None:
        strand = Strand(self._hub, process, lambda: self._main(strand, call))
        self._strands.setdefault(process, {})[strand] = None
        self.world.later(self.random.randrange(50), lambda: self._begin(strand))

    def crash(self, process: Process) -> None:
        """Ends a process at once. Called by a strand of it, it does not return."""
        if not process.alive:
            return
        process.alive = False
        self.note(process.name, "crashes")
        self.world.later(0, lambda: self.reap(process))
        current = getcurrent()
        if isinstance(current, Strand) and current.process is process:
            raise Crash

    def stop(self, process: Process, duration_us: int) -> None:
        """Lets a process stand still for so long, as SIGSTOP does."""
        if process.stopped or not process.alive:
            return
        process.stopped = True
        self.note(process.name, "stands still", duration_us)
        self.world.later(duration_us, lambda: self.go_on(process))
        current = getcurrent()
        if isinstance(current, Strand) and current.process is process:
            self._stand_still(current)

    def go_on(self, process: Process) -> None:
        if not process.stopped:
            return
        process.stopped = False
        self.note(process.name, "goes on")
        for strand in self._held.pop(process, []):
            self._resume_later(strand, self.random.randrange(100))  # which of its threads comes first, nobody knows
        self._returned(process)

    def cut_off(self, process: Process, duration_us: int) -> None:
        """Lets nothing through between a process and the brokers for so long."""
        if process.cut_off or not process.alive:
            return
        process.cut_off = True
        self.note(process.name, "is cut off", duration_us)
        self.world.later(duration_us, lambda: self.reconnect(process))

    def reconnect(self, process: Process) -> None:
        if not process.cut_off:
            return
        process.cut_off = False
        self.note(process.name, "is connected")
        self._returned(process)

    def _returned(self, process: Process) -> None:
        if process.reachable:
            for call in list(process.on_return):
                call()

    def _main(self, strand: Strand, call: Callable[[], None]) -> None:
        try:
            if strand.process.alive:
                call()
        finally:
            self._strands[strand.process].pop(strand, None)

    def _begin(self, strand: Strand) -> None:
        if strand.process.stopped:
            self._held.setdefault(strand.process, []).append(strand)
            strand.ticket = -1
        elif strand.process.alive:
            strand.switch()

    def reap(self, process: Process) -> None:
        """Ends whatever a process that is no more had going on. For the hub."""
        for strand in list(self._strands.get(process, {})):
            if strand.dead or not strand:
                self._strands[process].pop(strand, None)
            else:
                strand.throw(Crash())
        self._held.pop(process, None)

    # --- Hook ---

    def reach(self, process: Process, where: str) -> None:
        if not process.alive:
            raise Crash
        self.weather.reach(process, where)
        takes = self._takes_us(where)
        if takes is not None:
            self._wait(process, self.random.randrange(*takes))

    def answer(self, process: Process, where: str) -> None:
        if not process.alive:
            raise Crash
        takes = self._takes_us(where)
        if takes is not None:
            self._wait(process, takes[0])
        self.weather.answer(process, where)

    def wait(self, process: Process, duration_us: int) -> None:
        self._wait(process, max(duration_us, self._rest_us) if duration_us in _IDLE_US else duration_us)

    def wake(self, process: Process) -> None:
        for strand in self._strands.get(process, ()):
            if strand.ticket > 0 and not strand.woken:
                strand.woken = True
                self._resume_later(strand, self.random.randrange(20, 400))

    def delay_us(self, what: str) -> int:
        return self.weather.delay_us(what)

    def portion(self, process: Process, count_max: int) -> int:
        return self.weather.portion(process, count_max)

    def order(self, items: Sequence[T]) -> list[T]:
        ordered = list(items)
        if len(ordered) > 1:
            self.random.shuffle(ordered)
        return ordered

    # --- switching ---

    def _takes_us(self, where: str) -> tuple[int, int] | None:
        try:
            return self._takes[where]
        except KeyError:
            takes = self._takes[where] = _TAKES_US.get(where) or _TAKES_US.get(where.partition(".")[0])
            return takes

    def _wait(self, process: Process, duration_us: int) -> None:
        if not process.alive:
            raise Crash
        world = self.world
        until_us = world.now_us + duration_us
        if until_us <= self._limit_us and (not world.agenda or world.agenda[0][0] > until_us) and not process.stopped:
            world.now_us = until_us
            return
        strand: Any = getcurrent()
        strand.woken = False
        self._tickets += 1
        strand.ticket = self._tickets
        self._resume_later(strand, duration_us)
        self._hub.switch()
        strand.ticket = 0
        if process.stopped:
            self._stand_still(strand)
        if not process.alive:
            raise Crash

    def _stand_still(self, strand: Strand) -> None:
        """Until the process goes on."""
        while strand.process.stopped and strand.process.alive:
            self._held.setdefault(strand.process, []).append(strand)
            self._tickets += 1
            strand.ticket = self._tickets
            strand.woken = True  # nothing wakes it but going on
            self._hub.switch()
            strand.ticket = 0
        if not strand.process.alive:
            raise Crash

    def _resume_later(self, strand: Strand, delay_us: int) -> None:
        ticket = strand.ticket

        def resume() -> None:
            if strand.ticket == ticket and not strand.dead:
                strand.switch()

        self.world.later(delay_us, resume)
