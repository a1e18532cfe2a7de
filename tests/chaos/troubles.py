"""What is done to the processes of a fault test, and when: drawn from a seed, spread over the time in which jobs are asked for.

    kill            kill -9 of a processor, a worker or a producer; it is started again some seconds later
    pause           SIGSTOP of one of these, or of a broker, for longer and shorter than its group waits for it
    partition       the lane of a process is cut (see `lanes`)
    broker kill     kill -9 of a broker: in turn the one that coordinates the processors, their transactions, the workers, theirs, anyone
    damaged store   RocksDB folders deleted or overwritten, of a dead processor or of one that works
    full disk       no byte is left where a processor keeps its stores
    storm           processors and workers come and go, so that groups rebalance again and again

One broker at a time is broken, and only while all replicas are in sync: with two of three away nothing goes on, which is no fault but a
cluster that is off. Processes are broken whatever else is broken. A handler that ends its worker, as some jobs do, is a fault of the kind
"crash", which nobody planned.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Final, TypeAlias

from duewheel.proof.history import Event, FaultBegan, FaultEnded
from tests.chaos import damage
from tests.chaos.lanes import Cut
from tests.chaos.site import Machine, Site

KILLED_ROLES: Final = ("processor", "worker", "producer")
PAUSED_ROLES: Final = ("processor", "worker", "broker", "producer")
# A group waits 6 s for a member; a broker is missed after 4 s.
PAUSE_MS: Final = (2_000, 12_000)
CUT_MS: Final = (3_000, 15_000)
BROKER_AWAY_MS: Final = (2_000, 8_000)
FULL_MS: Final = (3_000, 8_000)
# A member of a storm lives so long.
GUEST_MS: Final = (800, 2_500)
GUESTS: Final = 4
# In which part of the time faults begin.
_FROM, _TO = 0.08, 0.85
_AGAIN_S: Final = 0.5
_GUEST_GONE_S: Final = 8.0

Action: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doses:
    """How many faults of each kind."""

    kills: int = 0
    pauses: int = 0
    partitions: int = 0
    broker_kills: int = 0
    damaged_stores: int = 0
    full_disks: int = 0
    storms: int = 0

    @property
    def by_kind(self) -> Mapping[str, int]:
        """As the history calls them."""
        return {field.name.removesuffix("s").replace("_", " "): getattr(self, field.name) for field in fields(self)}


class Troubles:
    """Breaks things and mends them. `tick` often.

    Args:
        full_disk: fills the disk of the one processor that has a small one, and frees it again; None where there is none.
    """

    def __init__(self, site: Site, doses: Doses, span_ms: int, random: Random) -> None:
        self._site = site
        self._random = random
        self._doses = doses
        self._span_ms = span_ms
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, Action]] = []
        self._duties = itertools.count()
        self._broken_broker = False
        self.began: Counter[str] = Counter()
        self.damaged: set[str] = set()

    def begin(self, at: float) -> None:
        """Plans all of it, from this moment of the steady clock on."""
        planned = list(self._planned())
        self._random.shuffle(planned)
        stretch_s = self._span_ms / 1_000 * (_TO - _FROM) / max(1, len(planned))
        for place, action in enumerate(planned):
            when_s = self._span_ms / 1_000 * _FROM + (place + self._random.random()) * stretch_s
            self._at(at + when_s, action)

    @property
    def over(self) -> bool:
        """Whether nothing is broken, and nothing will be."""
        return not self._agenda

    def tick(self) -> None:
        """Does what is due."""
        while self._agenda and self._agenda[0][0] <= time.monotonic():
            heapq.heappop(self._agenda)[2]()

    def crashed(self, machine: Machine) -> None:
        """Takes down that a process ended by itself."""
        self._end(self._begin("crash", machine.name))

    # --- the plan ---

    def _planned(self) -> Iterator[Action]:
        doses, random = self._doses, self._random
        for role in _dealt(KILLED_ROLES, doses.kills, random):
            yield lambda role=role: self._kill(role)  # type: ignore[misc]
        for role in _dealt(PAUSED_ROLES, doses.pauses, random):
            lasts_s = random.randrange(*PAUSE_MS) / 1_000
            if role == "broker":
                yield lambda lasts_s=lasts_s: self._pause_broker(lasts_s)  # type: ignore[misc]
            else:
                yield lambda role=role, lasts_s=lasts_s: self._pause(role, lasts_s)  # type: ignore[misc]
        for number in range(doses.partitions):
            how = list(Cut)[number % len(Cut)]
            lasts_s = random.randrange(*CUT_MS) / 1_000
            yield lambda how=how, lasts_s=lasts_s: self._cut(how, lasts_s)  # type: ignore[misc]
        yield from [self._kill_broker] * doses.broker_kills
        for number in range(doses.damaged_stores):
            yield lambda number=number: self._damage(number)  # type: ignore[misc]
        yield from [self._storm] * doses.storms
        yield from [self._fill] * doses.full_disks

    def _at(self, when: float, action: Action) -> None:
        heapq.heappush(self._agenda, (when, next(self._numbers), action))

    def _later(self, seconds: float, action: Action) -> None:
        self._at(time.monotonic() + seconds, action)

    def _victim(self, machines: list[Machine]) -> Machine | None:
        sound = [m for m in machines if m.wanted and m.child.running and not m.busy and not m.finished]
        return self._random.choice(sound) if sound else None

    def _free(self, machine: Machine, fault: str, mend: Action) -> None:
        mend()
        machine.busy = ""
        self._end(fault)

    # --- processes ---

    def _kill(self, role: str) -> None:
        machine = self._victim(self._site.of(role))
        if machine is None:
            return self._again(role, self._kill)
        fault = self._begin("kill", machine.name)
        machine.child.kill()
        self._end(fault)
        return self._site.restart_later(machine)

    def _pause(self, role: str, lasts_s: float) -> None:
        machine = self._victim(self._site.of(role))
        if machine is None:
            return self._again(role, lambda role: self._pause(role, lasts_s))
        fault = machine.busy = self._begin("pause", machine.name)
        machine.child.pause()
        return self._later(lasts_s, lambda: self._free(machine, fault, machine.child.resume))

    def _again(self, role: str, action: Callable[[str], None]) -> None:
        """Nobody of this role can be broken now: a little later, and one of another role where the work of these is done."""
        if role == "producer" and self._site.producers_finished():
            role = self._random.choice(("processor", "worker"))
        self._later(_AGAIN_S, lambda: action(role))

    def _cut(self, how: Cut, lasts_s: float) -> None:
        machine = self._victim([m for m in self._site.machines.values() if m.lane is not None])
        if machine is None or machine.lane is None:
            return self._later(_AGAIN_S, lambda: self._cut(how, lasts_s))
        lane = machine.lane
        fault = machine.busy = self._begin("partition", f"{machine.name}, {how.value}")
        self._site.lanes.cut(lane, how)
        return self._later(lasts_s, lambda: self._free(machine, fault, lambda: self._site.lanes.mend(lane)))

    def _storm(self) -> None:
        fault = self._begin("storm", "groups")
        left = itertools.count(GUESTS - 1, -1)

        def come() -> None:
            guests = [self._site.add(role, f"{fault}-{role}-{self._random.randrange(10**6)}") for role in ("processor", "worker")]
            for guest in guests:
                guest.busy = fault
            self._later(self._random.randrange(*GUEST_MS) / 1_000, lambda: go(guests))

        def go(guests: list[Machine]) -> None:
            for guest in guests:
                guest.wanted = False
                guest.child.request_stop()
                self._later(_GUEST_GONE_S, guest.child.close)
            if next(left):
                come()
            else:
                self._end(fault)

        come()

    # --- brokers, one at a time ---

    def _kill_broker(self) -> None:
        if not self._may_break_broker():
            return self._later(_AGAIN_S, self._kill_broker)
        broker, duty = self._site.broker_by_duty(next(self._duties))
        fault = self._begin("broker kill", f"broker {broker.node_id}, {duty}")
        broker.kill()
        self._end(fault)

        def start() -> None:
            broker.start()
            self._await_in_sync()

        return self._later(self._random.randrange(*BROKER_AWAY_MS) / 1_000, start)

    def _pause_broker(self, lasts_s: float) -> None:
        if not self._may_break_broker():
            return self._later(_AGAIN_S, lambda: self._pause_broker(lasts_s))
        broker = self._random.choice(self._site.cluster.brokers)
        fault = self._begin("pause", f"broker {broker.node_id}")
        broker.pause()

        def go_on() -> None:
            broker.resume()
            self._end(fault)
            self._await_in_sync()

        return self._later(lasts_s, go_on)

    def _may_break_broker(self) -> bool:
        if self._broken_broker or not self._site.in_sync():
            return False
        self._broken_broker = True
        return True

    def _await_in_sync(self) -> None:
        if self._site.in_sync():
            self._broken_broker = False
        else:
            self._later(_AGAIN_S, self._await_in_sync)

    # --- disks ---

    def _damage(self, number: int) -> None:
        machine = self._victim(self._site.of("processor"))
        if machine is None:
            return self._later(_AGAIN_S, lambda: self._damage(number))
        stores, random = self._site.stores(machine), self._random
        if not damage.is_possible(stores):  # it has none yet, or it is being made anew
            return self._later(_AGAIN_S, lambda: self._damage(number))
        self.damaged.add(machine.name)
        if number % 3 == 1:  # while it works with them
            what = damage.overwrite(stores, random, is_open=True)
            return self._end(self._begin("damaged store", f"{machine.name} at work: {what}"))
        machine.child.kill()
        what = damage.delete(stores, random) if number % 3 == 2 else damage.overwrite(stores, random, is_open=False)
        fault = self._begin("damaged store", f"{machine.name}, dead: {what}")
        self._end(fault)
        return self._site.restart_later(machine)

    def _fill(self) -> None:
        machine = self._site.machines.get(self._site.small_disk)
        if machine is None or machine.busy or not machine.child.running:
            return self._later(_AGAIN_S, self._fill)
        fault = machine.busy = self._begin("full disk", machine.name)
        self._site.fill_disk()
        return self._later(self._random.randrange(*FULL_MS) / 1_000, lambda: self._free(machine, fault, self._site.free_disk))

    # --- telling ---

    def _begin(self, kind: str, target: str) -> str:
        fault = f"{kind} {self.began[kind] + 1}".replace(" ", "-")
        self.began[kind] += 1
        self._tell(FaultBegan(_now_ms(), fault, kind, target))
        return fault

    def _end(self, fault: str) -> None:
        self._tell(FaultEnded(_now_ms(), fault))

    def _tell(self, event: Event) -> None:
        self._site.history.append(event)


def _dealt(roles: tuple[str, ...], count: int, random: Random) -> list[str]:
    """`count` roles: each as often as the others, or once more."""
    dealt = [*roles] * (count // len(roles))
    return dealt + random.sample(roles, count % len(roles))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
