"""What the simulated producers ask for, and what handlers do with it.

A payload says how its job behaves, so that the same handler does all of it:

    {"do": "work", "ms": 20}                      takes 20 ms
    {"do": "fail", "times": 2}                    fails twice, then succeeds
    {"do": "crash", "times": 1}                   takes its worker down, once
    {"do": "snooze", "times": 1, "ms": 300}       puts itself off once
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

from duewheel.adapters.memory.world import Process
from duewheel.core.retry import RetryPolicy
from duewheel.proof.history import Effect
from duewheel.worker.app import App, Context
from duewheel.worker.verdicts import Discard
from tests.simulation.site import Site

QUICK: Final = RetryPolicy(attempts=4, delays=(0.2, 1.0))


class Sink:
    """Something outside that handlers change: it remembers the highest token of each job, and refuses lower ones."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._tokens: dict[str, int] = {}

    def change(self, context: Context) -> bool:
        job_id, token = context.job_id, context.fencing_token
        accepted = token >= self._tokens.get(job_id, 0)
        if accepted:
            self._tokens[job_id] = token
        self._site.tell(Effect(self._site.world.now_ms, job_id, token, accepted))
        return accepted


class Tasks:
    """What workers run; remembers what only the outside could remember.

    Args:
        crashes: whether some take their worker down.
        long_share: how many of them take so long that they need leases, from 0 to 1.
    """

    def __init__(self, site: Site, crashes: bool, long_share: float) -> None:
        self._crashes = crashes
        self._long_share = long_share
        self._site = site
        self._sink = Sink(site)
        self._times: Counter[str] = Counter()

    def app(self, process: Process) -> App:
        """The app as one process has it."""
        app = App()
        sink, times, kernel = self._sink, self._times, self._site.kernel

        def behave(payload: dict[str, Any], context: Context) -> str:
            what, job = str(payload["do"]), context.job_id
            times[job] += 1
            first = times[job] <= payload.get("times", 0)
            end_us = process.world.now_us + payload.get("ms", 5) * 1000
            while process.world.now_us < end_us:
                process.sleep(min(0.2, (end_us - process.world.now_us) / 1_000_000))
                context.raise_if_cancelled()
                if what == "beat":
                    context.heartbeat({"at": process.world.now_us})
            if what == "crash" and first:
                kernel.crash(process)
            if what == "fail" and first:
                raise ValueError(f"{job} fails for the {times[job]}. time")
            if what == "snooze" and first:
                context.snooze(payload.get("snooze_ms", 300) / 1000)
            if what == "discard":
                raise Discard("not wanted")
            sink.change(context)
            return what

        app.task(name="plain", retry=QUICK, keep_result=True)(behave)
        app.task(name="limited", retry=QUICK, timeout=2.0)(behave)
        app.task(name="beating", retry=QUICK, heartbeat=1.5)(behave)
        return app

    def behaviour(self, random: Random) -> tuple[str, dict[str, Any]]:
        """A task and a payload for it."""
        if random.random() < self._long_share:
            # Who beats has the shorter lease: it ends while its last words wait behind a stuck marker, or for an owner.
            task, does = random.choice((("plain", "work"), ("beating", "beat")))
            return task, {"do": does, "ms": random.randrange(11_000, 45_000)}
        draw = random.random()
        if draw < 0.48:
            return "plain", {"do": "work", "ms": random.choice((0, 1, 5, 20, 80, 300))}
        if draw < 0.63:
            return "plain", {"do": "work", "ms": random.randrange(1_000, 9_000)}
        if draw < 0.73:
            return "plain", {"do": "fail", "times": random.choice((1, 2, 3, 9)), "ms": random.randrange(60)}
        if draw < 0.80:
            return "plain", {"do": "snooze", "times": random.choice((1, 2, 4)), "snooze_ms": random.choice((50, 400, 3_000))}
        if draw < 0.84:
            return "plain", {"do": "discard"}
        if draw < 0.90:
            return "limited", {"do": "work", "ms": random.choice((100, 1_500, 3_000))}
        if draw < 0.95 or not self._crashes:
            return "beating", {"do": "beat", "ms": random.randrange(500, 9_000)}
        return "plain", {"do": "crash", "times": random.choice((1, 1, 2, 9)), "ms": random.randrange(40)}
