"""What goes wrong, by the seed.

Each seed has a climate: of all kinds of faults it draws a few, and how often they come. Few kinds at a time find more than all of them at
once, since what is always broken is never half done.

Some faults meet a call on its way out (nothing has happened), or its answer on the way back (it has happened, and nobody knows): these
are drawn at each call, rare calls being met more often. Others happen at their time, to a process, a disk, a clock, a log (`Storm`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from duewheel.adapters.memory.groups import Standing
from duewheel.adapters.memory.world import Fault, Kind, Process, World
from duewheel.proof.history import FaultBegan, FaultEnded
from tests.simulation.kernel import Kernel
from tests.simulation.site import QUEUE, TOPOLOGY, Machine, ProcessorMachine, Site, WorkerMachine

# How often a call is met, in a moderate climate. A process polls fifty times a second, and claims its partitions once in a while.
_RATES: Final = {
    "group.poll": 2e-4,
    "reader.poll": 1e-4,
    "group.commit": 4e-3,
    "group.committed": 3e-2,
    "cluster": 3e-2,
    "transactions.init": 3e-2,
    "transactions.begin": 2e-2,
    "transactions": 3e-3,
    "store.open": 2e-2,
    "store": 1e-3,
    "intake": 2e-2,
}

OFFSETS_RESET: Final = "offsets reset"
QUEUE_GONE: Final = "queue made anew"
DOWNTIME: Final = "downtime of all processors"
AT_CALLS: Final = ("crash", "pause", "slow", "retriable", "abort", "fatal", "answer lost", "late", "hang", "awakening")
AT_TIMES: Final = (
    "kill",
    "stop",
    "cut off",
    "outage",
    "clock step",
    "clock leap",
    "worker clock leap",
    "restart",
    "store dropped",
    "store damaged",
    "store left behind",
    "power cut",
    "disk full",
    "compaction",
    "retention",
    OFFSETS_RESET,
    QUEUE_GONE,
    "storm",
    "slow markers",
    "stuck marker",
)

_BROKER_CALLS: Final = ("cluster", "group.commit", "group.committed", "transactions", "intake")
# Where an ambush lies: on the way into a transaction, and in the middle of one, when offsets have arrived and records are under way.
_AMBUSH_RATES: Final = {"transactions.begin": 0.05, "transactions.offsets": 0.1}
# How often somebody wakes up at a step of a takeover: most often where it asks for what he may just be changing.
_TAKING_OVER: Final = {
    "cluster.owners": 0.1,
    "cluster.visible": 0.1,
    "cluster.watermarks": 0.2,
    "cluster.fence": 0.2,
    "group.committed": 0.5,
    "transactions.init": 0.1,
}
_CUT_OFF_US: Final = {"cluster": 5_000_000, "group": 6_000_000, "transactions": 1_000_000, "intake": 8_000_000, "states": 5_000_000}


class Climate:
    """The kinds of faults of one seed, and how often they come."""

    def __init__(self, random: Random, calm: bool = False) -> None:
        share = 0.0 if calm else random.choice((0.15, 0.3, 0.5))
        self.at_calls = [kind for kind in AT_CALLS if random.random() < share]
        self.at_times = [kind for kind in AT_TIMES if random.random() < share]
        # Whoever is about to commit, or has half done it, stands still until he was replaced, and goes on in the middle of that.
        self.ambush = random.choice(sorted(_AMBUSH_RATES)) if not calm and random.random() < 0.3 else ""
        if self.ambush:
            self.at_calls, self.at_times = ["pause", "awakening"], []
        self.intensity = random.choice((0.5, 1.0, 3.0)) if self.at_calls else 0.0
        # Where fetching is slow, records come a few at a time, and restoring takes seconds as it does with a million jobs.
        # One by one, whoever reads a little too far, or not far enough, stops just there.
        self.fetch_every_us = 0 if calm else random.choice((0, 0, 0, 30_000, 150_000, 400_000))
        self.portions = (1,) if self.fetch_every_us == 30_000 or self.ambush else (1, 2, 5, 20)
        if self.ambush:
            self.fetch_every_us = random.choice((0, 10_000, 30_000))
        self.every_us = random.choice((2_000_000, 5_000_000, 12_000_000))


class Sky:
    """The kernel's weather.

    Attributes:
        is_open: whether anything may go wrong now.
        markers_us: how long a transaction's markers take, from and to.
        stuck_markers: so many markers to come, in the outcomes, take half a minute: what lies behind them cannot be read for so long.
        counts: what went wrong, by kind.
    """

    def __init__(self, world: World, random: Random, climate: Climate) -> None:
        self.world = world
        self.is_open = False
        self.counts: Counter[str] = Counter()
        self.markers_us = (0, 3_000)
        self.stuck_markers = 0
        self._random = random
        self._climate = climate
        self._rates: dict[str, float] = {}
        self._faults = 0
        self._fetched_us: dict[Process, int] = {}
        self.site: Site | None = None
        self.kernel: Kernel | None = None

    # --- kernel.Weather ---

    def reach(self, process: Process, where: str) -> None:
        if process.cut_off and not where.startswith(("store", "group.poll", "reader.poll")):
            self._wait_in_vain(process, where)
        if self.is_open:
            if where in _TAKING_OVER and "awakening" in self._climate.at_calls:
                self._awaken(process, _TAKING_OVER[where])
            if self._random.random() < self._rate(where) and self._climate.ambush != "transactions.offsets":
                self._strike(process, where)

    def answer(self, process: Process, where: str) -> None:
        if self.is_open and self._random.random() < self._rate(where):
            self._strike_answer(process, where)

    def delay_us(self, what: str) -> int:
        random = self._random
        if what.startswith("marker"):
            if self.stuck_markers and what.endswith(".outcomes"):
                self.stuck_markers -= 1
                return random.randrange(20_000_000, 45_000_000)
            return random.randrange(*self.markers_us) if random.random() < 0.9 else random.randrange(30_000)
        if what == "heartbeat.return":
            return random.choice((random.randrange(2_000), random.randrange(1_000_000)))
        if what == "assignment":
            return random.randrange(1_000, 30_000)
        return random.randrange(1_000, 20_000)

    def portion(self, process: Process, count_max: int) -> int:
        every_us = self._climate.fetch_every_us
        if not every_us or not self.is_open:
            return count_max
        if self.world.now_us < self._fetched_us.get(process, 0):
            return 0
        self._fetched_us[process] = self.world.now_us + self._random.randrange(every_us)
        return min(count_max, self._random.choice(self._climate.portions))

    # --- at calls ---

    def _rate(self, where: str) -> float:
        rate = self._rates.get(where)
        if rate is None:
            rate = _RATES.get(where) or _RATES.get(where.partition(".")[0]) or 0.0
            if self._climate.ambush:
                rate = _AMBUSH_RATES[where] if where == self._climate.ambush else 0.0
            self._rates[where] = rate = rate * self._climate.intensity
        return rate

    def _strike(self, process: Process, where: str) -> None:
        assert self.kernel is not None
        kinds = [kind for kind in self._climate.at_calls if _applies(kind, where)]
        if not kinds:
            return
        kind, random, kernel = self._random.choice(kinds), self._random, self.kernel
        if kind == "crash" and where.startswith("intake"):
            return
        self._note(kind, process, where)
        if kind == "crash":
            kernel.crash(process)
        elif kind == "pause":
            kernel.stop(process, self._pause_us(where))
        elif kind == "slow":
            process.sleep(random.choice((0.02, 0.3, 2.0, 4.0)))
        elif kind == "retriable":
            raise Fault(Kind.RETRIABLE, "COORDINATOR_NOT_AVAILABLE, as the weather has it")
        elif kind == "abort":
            raise Fault(Kind.ABORT, "an error that requires an abort, as the weather has it")
        elif kind == "fatal":
            raise Fault(Kind.FATAL, "a fatal error, as the weather has it")
        elif kind == "late":
            raise Fault(Kind.FATAL, "nobody knows, as the weather has it", lands_us=random.choice((500, 20_000, 1_000_000, 8_000_000)))
        elif kind == "hang":
            process.sleep(25.0 if where.startswith("transactions") else 7.0)

    def _pause_us(self, where: str) -> int:
        """Who stands still right before a transaction, or in it, for long enough wakes up as somebody who was replaced, with a batch in
        hand.
        """
        likely_us: tuple[int, ...] = (
            (9_000_000, 12_000_000, 20_000_000) if where in _AMBUSH_RATES else (20_000, 400_000, 3_000_000, 9_000_000)
        )
        return self._random.choice((*likely_us, 20_000_000))

    def _awaken(self, process: Process, chance: float) -> None:
        """Somebody who stood still goes on just while another takes over what was his, step by step."""
        assert self.kernel is not None
        asleep = [other for other in self.kernel.processes() if other.stopped]
        if asleep and self._random.random() < chance:
            other = self._random.choice(asleep)
            self._note("awakening", other, process.name)
            self.kernel.go_on(other)
            process.sleep(self._random.choice((0.0, 0.005, 0.05)))

    def _strike_answer(self, process: Process, where: str) -> None:
        assert self.kernel is not None
        kinds = [kind for kind in ("crash", "pause", "answer lost") if kind in self._climate.at_calls]
        if not kinds:
            return
        kind = self._random.choice(kinds)
        if kind == "crash" and where.startswith("intake"):
            return
        self._note(kind, process, f"{where}, done")
        if kind == "crash":
            self.kernel.crash(process)
        elif kind == "pause":
            self.kernel.stop(process, self._pause_us(where))
        else:
            raise Fault(self._random.choice((Kind.RETRIABLE, Kind.FATAL)), "the answer was lost, as the weather has it")

    def _wait_in_vain(self, process: Process, where: str) -> None:
        """Nothing gets through; the client tries for a while."""
        until_us = self.world.now_us + _CUT_OFF_US[where.partition(".")[0]]
        while process.cut_off and self.world.now_us < until_us:
            process.sleep(0.25)
        if process.cut_off:
            raise Fault(Kind.RETRIABLE, "no broker can be reached")

    def _note(self, kind: str, process: Process, where: str) -> None:
        assert self.kernel is not None
        self.counts[kind] += 1
        self.kernel.note(process.name, f"meets: {kind}", where)
        self.tell(kind, process.name, 25_000 if kind == "hang" else 9_000 if kind in ("pause", "slow") else 0)

    def tell(self, kind: str, target: str, lasts_ms: int) -> None:
        """Writes a fault into the history."""
        assert self.site is not None
        self._faults += 1
        name, now_ms = f"f{self._faults}", self.world.now_ms
        self.site.tell(FaultBegan(now_ms, name, kind, target))
        self.site.tell(FaultEnded(now_ms + lasts_ms, name))


def _applies(kind: str, where: str) -> bool:
    if kind in ("crash", "pause", "slow"):
        return True
    if where.startswith("store"):
        return kind == "fatal"
    if not where.startswith(_BROKER_CALLS):
        return False
    if kind == "awakening":
        return False  # at its own moments
    if kind == "late":
        return where == "transactions.commit"
    return where.startswith("transactions") if kind == "abort" else True


class Storm:
    """What happens at its time, to one machine or to the brokers."""

    def __init__(self, site: Site, sky: Sky, climate: Climate, random: Random, machines: list[Machine], spares: list[Machine]) -> None:
        self._site = site
        self._kernel = site.kernel
        self._sky = sky
        self._climate = climate
        self._random = random
        self._machines = machines
        self._spares = spares
        self._copies: list[tuple[ProcessorMachine, int, object]] = []

    def begin(self) -> None:
        self._later()

    def _later(self) -> None:
        if self._climate.at_times:
            self._site.world.later(self._random.randrange(self._climate.every_us * 2), self._strike)

    def _strike(self) -> None:
        if not self._sky.is_open:
            return
        kind = self._random.choice(self._climate.at_times)
        self._sky.counts[kind] += 1
        getattr(self, "_" + kind.replace(" ", "_"))()
        self._later()

    def _one(self) -> Machine:
        return self._random.choice(self._machines)

    def _processor(self) -> ProcessorMachine:
        return self._random.choice([m for m in self._machines if isinstance(m, ProcessorMachine)])

    def _tell(self, kind: str, target: str, lasts_us: int = 0) -> None:
        self._kernel.note(target, kind, lasts_us)
        self._sky.tell(kind, target, lasts_us // 1000)

    # --- processes ---

    def _kill(self) -> None:
        machine = self._one()
        self._tell("kill", machine.name)
        self._kernel.crash(machine.process)

    def _stop(self) -> None:
        machine, lasts_us = self._one(), self._random.choice((300_000, 2_000_000, 8_000_000, 20_000_000, 40_000_000))
        self._tell("stop", machine.name, lasts_us)
        self._kernel.stop(machine.process, lasts_us)

    def _cut_off(self) -> None:
        machine, lasts_us = self._one(), self._random.choice((500_000, 4_000_000, 9_000_000, 25_000_000))
        self._tell("cut off", machine.name, lasts_us)
        self._kernel.cut_off(machine.process, lasts_us)

    def _outage(self) -> None:
        lasts_us = self._random.choice((500_000, 3_000_000, 8_000_000))
        self._tell("outage", "brokers", lasts_us)
        for machine in self._machines:
            self._kernel.cut_off(machine.process, lasts_us)

    def _restart(self) -> None:
        machine = self._one()
        self._tell("restart", machine.name, 8_000_000)
        machine.drain()
        self._site.world.later(self._random.randrange(100_000, 12_000_000), machine.start)

    def _storm(self) -> None:
        """Members come and go."""
        self._tell("storm", "groups", 8_000_000)
        for at in range(self._random.randrange(2, 6)):
            spare = self._random.choice(self._spares)
            act = spare.drain if spare.process.alive else spare.start
            self._site.world.later(at * self._random.randrange(200_000, 3_000_000), act)

    def downtime(self, lasts_us: int) -> None:
        """Lets there be no timer processor for long, so that slots are missed."""
        if not self._sky.is_open:
            return
        self._sky.counts[DOWNTIME] += 1
        self._tell(DOWNTIME, "processors", lasts_us)
        for machine in (*self._machines, *self._spares):
            if isinstance(machine, ProcessorMachine) and machine.process.alive:
                machine.crash()
                self._site.world.later(lasts_us, machine.start)

    # --- clocks ---

    def _clock_step(self) -> None:
        machine = self._one()
        machine.skew_us = machine.process.skew_us = self._random.randrange(-4_000_000, 1)
        self._tell("clock step", machine.name)

    def _clock_leap(self) -> None:
        # Well beyond what a processor believes at once (core/timekeeper.py), wherever its clock stood.
        self._leap("clock leap", self._processor(), self._random.choice((5_000_000, 3_600_000_000, 10**12)))

    def _worker_clock_leap(self) -> None:
        # A worker believes its clock, and says EXPIRED too early; its owner does not believe it.
        worker = self._random.choice([m for m in self._machines if isinstance(m, WorkerMachine)])
        self._leap("worker clock leap", worker, self._random.choice((-4_000_000, 5_000_000, 60_000_000, 3_600_000_000)))

    def _leap(self, kind: str, machine: Machine, by_us: int) -> None:
        process, before_us, lasts_us = machine.process, machine.process.skew_us, self._random.randrange(1_000_000, 15_000_000)
        process.skew_us = by_us
        self._tell(kind, machine.name, lasts_us)

        def back() -> None:
            process.skew_us = before_us

        self._site.world.later(lasts_us, back)

    # --- disks ---

    def _offline(self, meddle: str) -> None:
        """Kills a processor, meddles with a store of its, and lets it come back."""
        machine = self._processor()
        numbers = sorted(machine.disk.contents)
        self._tell(meddle, machine.name)
        self._kernel.crash(machine.process)
        if not numbers:
            return
        number = self._random.choice(numbers)
        if meddle == "store dropped":
            machine.disk.drop(number)
        elif meddle == "store left behind":
            old = self._random.choice([c for m, n, c in self._copies if m is machine and n == number] or [None])
            if old is not None:
                machine.disk.put(number, old)  # type: ignore[arg-type]
        else:
            machine.disk.lose_writes(number, self._random.randrange(1, 60))
        self._copies.append((machine, number, machine.disk.copy(number)))

    def _store_dropped(self) -> None:
        self._offline("store dropped")

    def _store_left_behind(self) -> None:
        for machine in self._machines:
            if isinstance(machine, ProcessorMachine):
                self._copies += [(machine, number, machine.disk.copy(number)) for number in sorted(machine.disk.contents)]
        self._offline("store left behind")

    def _power_cut(self) -> None:
        self._offline("power cut")

    def _store_damaged(self) -> None:
        machine = self._processor()
        self._tell("store damaged", machine.name)
        numbers = sorted(machine.disk.contents)
        if numbers:
            machine.disk.damage(self._random.choice(numbers))

    def _disk_full(self) -> None:
        machine, lasts_us = self._processor(), self._random.randrange(100_000, 8_000_000)
        self._tell("disk full", machine.name, lasts_us)
        machine.disk.full = True

        def free() -> None:
            machine.disk.full = False

        self._site.world.later(lasts_us, free)

    # --- logs ---

    def _compaction(self) -> None:
        self._kernel.note("brokers", "compaction")
        for log in self._site.broker.topic("sim.state"):
            log.compact()

    def _retention(self) -> None:
        """Deletes what every group has passed."""
        self._kernel.note("brokers", "retention")
        for group in self._site.broker.groups.values():
            for (topic, partition), position in sorted(group.offsets.items()):
                log = self._site.broker.find(topic, partition)
                if log is not None and position.offset is not None:
                    log.delete_before(position.offset)

    # --- people ---

    def _offsets_reset(self) -> None:
        """Sets a group back to where its logs begin. Kafka lets nobody do that while it has members, so all of them are ended before; or
        stand still for so long that the group takes them for dead, and go on later with what they had begun.
        """
        kind, group, topics = self._random.choice(
            (
                (WorkerMachine, TOPOLOGY.worker_group(QUEUE), (TOPOLOGY.dispatch(QUEUE),)),
                (ProcessorMachine, TOPOLOGY.processor_group, (TOPOLOGY.intake, TOPOLOGY.outcomes)),
            )
        )
        self._tell(OFFSETS_RESET, group, 30_000_000)
        machines = [machine for machine in (*self._machines, *self._spares) if isinstance(machine, kind)]
        stand_still = self._random.random() < 0.5
        for machine in machines:
            if stand_still and machine.process.alive:
                self._kernel.stop(machine.process, self._random.choice((9_000_000, 12_000_000, 20_000_000)))
            else:
                machine.crash()
        it = self._site.broker.group(group)
        self._once(lambda: it.standing is Standing.EMPTY, lambda: self._reset(group, topics, machines))

    def _reset(self, group: str, topics: Sequence[str], machines: Sequence[Machine]) -> None:
        if all(topic in self._site.broker.topics for topic in topics):
            with suppress(Fault):  # somebody has come meanwhile
                self._site.reset_offsets(group, topics)
                self._sky.counts[f"{OFFSETS_RESET}: {group}"] += 1
        for machine in machines:
            machine.start()

    def _queue_made_anew(self) -> None:
        """Deletes the queue's topic, while it has no workers, and makes it again later. What lay in it is lost, and handed out again."""
        if self._site.is_queueless:
            return
        workers = [machine for machine in (*self._machines, *self._spares) if isinstance(machine, WorkerMachine)]
        partitions, gone_us = len(self._site.broker.topic(TOPOLOGY.dispatch(QUEUE))), self._random.randrange(100_000, 9_000_000)
        self._tell(QUEUE_GONE, "brokers", 10_000_000 + gone_us)
        drains = self._random.random() < 0.5
        for worker in workers:
            (worker.drain if drains else worker.crash)()

        def make() -> None:
            self._site.make_queue(QUEUE, partitions)
            for worker in workers:
                worker.start()

        def delete() -> None:
            if any(worker.process.alive for worker in workers) or self._site.is_queueless:
                return
            self._site.delete_queue(QUEUE)
            self._sky.counts["queue made anew: deleted"] += 1
            self._site.world.later(gone_us, make)

        self._once(lambda: not any(worker.process.alive for worker in workers), delete)

    def _once(self, done: Callable[[], bool], call: Callable[[], None], looks: int = 40) -> None:
        """Makes a call when something is so, or after ten seconds in which it was not."""
        if done() or not looks:
            call()
        else:
            self._site.world.later(250_000, lambda: self._once(done, call, looks - 1))

    # --- transactions' markers ---

    def _slow_markers(self) -> None:
        lasts_us = self._random.randrange(1_000_000, 10_000_000)
        self._tell("slow markers", "brokers", lasts_us)
        self._sky.markers_us = (1_000, self._random.choice((100_000, 2_000_000)))

        def fast() -> None:
            self._sky.markers_us = (0, 3_000)

        self._site.world.later(lasts_us, fast)

    def _stuck_marker(self) -> None:
        self._tell("stuck marker", "brokers", 60_000_000)
        self._sky.stuck_markers = self._random.randrange(1, 6)
