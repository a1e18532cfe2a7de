"""Virtual time, the processes that live in it, and the one gate through which each of them reaches the outside.

Nothing here sleeps, and nothing happens by itself: what is to happen later stands on the world's agenda, and time is wherever the last of
it was. So a minute costs as much as what happens in it, and the same calls give the same history.

    world = World()                          nothing takes time, nothing fails
    world.later(1_500_000, ring)             in a second and a half
    process = Process(world, "worker-1")
    process.wait(2_000_000)                  two seconds pass: ring() was called

Whatever a process does outside itself passes `Process.reach` before it has an effect, and `Process.answer` after it had one and before
the process knows. Both ask the world's `Hook`, and there a simulator takes hold: it lets time pass and others go on, and raises a `Fault`,
or a crash, on the way there (nothing has happened) or on the way back (it has happened, and nobody knows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
START_MS: Final = 1_900_000_000_000


class Kind(Enum):
    """What a fault asks of whoever meets it; as librdkafka's flags do."""

    RETRIABLE = "retriable"
    ABORT = "abort required"
    FATAL = "fatal"


class Fault(Exception):
    """What the outside answers instead of doing what it was asked, or although it has done it, or will.

    Attributes:
        kind: what follows from it.
        lands_us: after how long a transaction's end takes effect all the same, if nobody was given its id by then.
        is_by_value: a record is refused for what it is.
        is_fencing: somebody took the transactional id over.
    """

    def __init__(
        self, kind: Kind, message: str, lands_us: int | None = None, *, is_by_value: bool = False, is_fencing: bool = False
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.lands_us = lands_us
        self.is_by_value = is_by_value
        self.is_fencing = is_fencing


class Crash(BaseException):
    """The process ends here and now. Nothing that it calls has an effect any more."""


class Hook(Protocol):
    """Decides how long things take, what fails, and who goes on meanwhile."""

    def reach(self, process: Process, where: str) -> None:
        """A call of `process` is on its way out. May wait; may raise `Fault` or `Crash`."""

    def answer(self, process: Process, where: str) -> None:
        """It had its effect, and the answer is on its way back. May wait; may raise `Fault` or `Crash`."""

    def wait(self, process: Process, duration_us: int) -> None:
        """Lets time pass for `process`, at most so long; less where it is woken."""

    def wake(self, process: Process) -> None:
        """Something that `process` may wait for has happened."""

    def start(self, process: Process, call: Callable[[], None]) -> None:
        """Makes a call of `process` beside what it is doing."""

    def delay_us(self, what: str) -> int:
        """How long something takes that the outside does by itself, such as a transaction's markers."""

    def order(self, items: Sequence[T]) -> list[T]:
        """Things that may come in any order, in the one that they come in."""

    def portion(self, process: Process, count_max: int) -> int:
        """How many records come at once, of at most so many."""


class Observer(Protocol):
    """Is told what the brokers do, for whoever writes down a history."""

    def offset_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """An offset counts from now on."""

    def generation_formed(self, group: str, generation: int) -> None:
        """A rebalance came to its end."""

    def transaction_aborted(self, transactional_id: str, opened_us: int, how: str) -> None:
        """A transaction left nothing; `how`: "aborted" by its producer, or "fenced" by whom took its place or by its timeout."""


class Calm:
    """A `Hook` for good weather: nothing takes time, nothing fails, and calls are made one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._woken = False

    def reach(self, process: Process, where: str) -> None: ...
    def answer(self, process: Process, where: str) -> None: ...

    def wait(self, process: Process, duration_us: int) -> None:
        self._woken = False
        until_us = self._world.now_us + duration_us
        while not self._woken and self._world.run_next(until_us):
            pass
        if not self._woken:
            self._world.now_us = until_us

    def wake(self, process: Process) -> None:
        self._woken = True

    def start(self, process: Process, call: Callable[[], None]) -> None:
        call()

    def delay_us(self, what: str) -> int:
        return 0

    def order(self, items: Sequence[T]) -> list[T]:
        return list(items)

    def portion(self, process: Process, count_max: int) -> int:
        return count_max


class World:
    """Time and what is to happen in it.

    Attributes:
        now_us: microseconds since the world began.
        hook: see `Hook`.
        observer: see `Observer`; None where nobody looks.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.observer: Observer | None = None
        self.hook: Hook = Calm(self)
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def now_ms(self) -> int:
        """The true time, in milliseconds since the epoch."""
        return START_MS + self.now_us // 1000

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        """Puts a call on the agenda."""
        self._count += 1
        heappush(self.agenda, (self.now_us + delay_us, self._count, call))

    def run_next(self, until_us: int) -> bool:
        """Makes the next call of the agenda that is due by then; False when there is none, and time stands still."""
        if not self.agenda or self.agenda[0][0] > until_us:
            return False
        self.now_us, _, call = heappop(self.agenda)
        call()
        return True

    def soon(self, what: str, call: Callable[[], None]) -> None:
        """Makes a call after the time that it takes: at once, where it takes none."""
        delay_us = self.hook.delay_us(what)
        if delay_us > 0:
            self.later(delay_us, call)
        else:
            call()


class Process:
    """A process, as the outside world sees it. It is its own `ports.Clock`.

    Attributes:
        name: for traces.
        alive: false from its end on.
        stopped: whether it stands still, as after SIGSTOP.
        cut_off: whether nothing that it sends arrives, and nothing that is sent to it.
        skew_us: how far its wall clock is ahead of the true time.
        on_return: called when it can be reached again.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.stopped = False
        self.cut_off = False
        self.skew_us = 0
        self.on_return: list[Callable[[], None]] = []

    @property
    def reachable(self) -> bool:
        return self.alive and not self.stopped and not self.cut_off

    def reach(self, where: str) -> None:
        self.world.hook.reach(self, where)

    def answer(self, where: str) -> None:
        self.world.hook.answer(self, where)

    def wait(self, duration_us: int) -> None:
        self.world.hook.wait(self, duration_us)

    def wake(self) -> None:
        self.world.hook.wake(self)

    def sleep(self, seconds: float) -> None:
        """Waits for so long, whoever wakes it meanwhile."""
        until_us = self.world.now_us + round(seconds * 1_000_000)
        while self.world.now_us < until_us:
            self.wait(until_us - self.world.now_us)

    def aside(self, call: Callable[[], T]) -> Future[T]:
        """Makes a blocking call beside what the process is doing."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                value = call()
            except Crash:
                raise
            except BaseException as error:  # carried to whoever asks, whatever it is
                future.set_exception(error)
            else:
                future.set_result(value)
            self.wake()

        self.world.hook.start(self, run)
        return future

    def await_done(self, future: Future[Any], timeout_s: float) -> bool:
        """Waits until a call beside is over; False where it takes longer."""
        until_us = self.world.now_us + round(timeout_s * 1_000_000)
        while not future.done() and self.world.now_us < until_us:
            self.wait(until_us - self.world.now_us)
        return future.done()

    # --- ports.Clock ---

    def wall_ms(self) -> int:
        return START_MS + (self.world.now_us + self.skew_us) // 1000

    def steady_ms(self) -> int:
        return self.world.now_us // 1000
