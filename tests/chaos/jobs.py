"""What the producers of a fault test ask for: a script, made from a seed, so that a run can be repeated.

    script(Workload(seed=7, jobs=5_000, span_ms=40_000))[0]    Step(at_ms=3, verb="schedule", job_id="job-00000", …)

A payload says how its job behaves (`tests.chaos.tasks` obeys it):

    {"do": "work", "ms": 20}                      takes 20 ms
    {"do": "fail", "times": 2}                    fails twice, then succeeds; from four times on it dies, until it is redriven
    {"do": "snooze", "times": 1, "snooze_ms": 50} puts itself off once
    {"do": "discard"}                             gives up
    {"do": "crash", "times": 1}                   ends its process, once
    {"do": "beat", "ms": 3000}                    takes 3 s, and says that it goes on

Jobs come in waves, and fall due in waves: a transaction costs the brokers much the same whatever it carries, and a test that shares two
cores with three brokers should spend them on faults.

Behaviours that cost others time, such as those that end a whole worker, are few and their number is fixed; the rest is drawn.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final, NamedTuple

WAVE_MS: Final = 500
DELAY_MS_MAX: Final = 15_000
# A cancel or a new definition that comes this long before its job is due came in time, even where its producer is a little late.
AHEAD_MS: Final = 2_500

# One job of so many takes its worker along, or runs for longer than a worker may be silent, or is a record that nobody can read.
WORKER_CRASH_ONE_OF: Final = 2_500
LONG_ONE_OF: Final = 400
BAD_ONE_OF: Final = 500
# One job of so many dies for certain: its attempts fail until they are used up, once or, where it is redriven, twice.
DYING_ONE_OF: Final = 100
DYING_TIMES: Final = (5, 9)
LONG_MS: Final = (11_000, 16_000)


class Workload(NamedTuple):
    """How much is asked for, and within which time."""

    seed: int
    jobs: int
    span_ms: int


class Step(NamedTuple):
    """One thing that a producer asks for.

    Attributes:
        at_ms: when, counted from the start; of one wave all the same, and no two of them concern one job.
        verb: "schedule", "replace", "cancel", or "spoil": write a record that nobody can read.
        delay_ms: how long after `at_ms` the job is due.
        expires_ms: how long after that no attempt may start any more; 0 for never.
    """

    at_ms: int
    verb: str
    job_id: str
    task: str = "plain"
    payload: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    delay_ms: int = 0
    expires_ms: int = 0
    crash_limit: int | None = None


def script(workload: Workload) -> list[Step]:
    """All steps, in order of time."""
    random = Random(f"script {workload.seed}")
    steps: list[Step] = []
    for number in range(workload.jobs):
        steps += _steps(random, number, number * workload.span_ms // workload.jobs, workload)
    return sorted((step._replace(at_ms=_wave(step.at_ms), delay_ms=_wave(step.delay_ms)) for step in steps), key=lambda step: step.at_ms)


def _steps(random: Random, number: int, at_ms: int, workload: Workload) -> list[Step]:
    task, payload = _behaviour(random, number)
    delay_ms = random.choice((0, 0, random.randrange(1_000), random.randrange(min(DELAY_MS_MAX, workload.span_ms))))
    step = Step(at_ms, "schedule", f"job-{number:05}", task, payload, delay_ms)
    if number % DYING_ONE_OF == DYING_ONE_OF // 3:
        return [step._replace(task="plain", payload={"do": "fail", "times": random.choice(DYING_TIMES)})]
    if random.random() < 0.06:
        step = step._replace(expires_ms=random.randrange(300, 20_000))
    if payload["do"] == "crash" and random.random() < 0.2:
        step = step._replace(crash_limit=random.choice((1, 2)))
    steps = [step]
    if delay_ms > 2 * AHEAD_MS and random.random() < 0.3:
        later_ms = at_ms + random.randrange(WAVE_MS, delay_ms - AHEAD_MS)
        if random.random() < 0.7:
            steps.append(Step(later_ms, "cancel", step.job_id))
        else:
            steps.append(step._replace(at_ms=later_ms, verb="replace", delay_ms=random.randrange(5_000)))
    elif random.random() < 0.03:
        steps.append(Step(at_ms + delay_ms + WAVE_MS, "cancel", step.job_id))
    if number % BAD_ONE_OF == BAD_ONE_OF // 3:
        steps.append(Step(at_ms, "spoil", f"bad-{number:05}"))
    return steps


def _wave(at_ms: int) -> int:
    return at_ms // WAVE_MS * WAVE_MS


def _behaviour(random: Random, number: int) -> tuple[str, dict[str, Any]]:
    """A task and a payload for it."""
    if number % WORKER_CRASH_ONE_OF == WORKER_CRASH_ONE_OF // 3:
        return "plain", {"do": "crash", "times": 1, "ms": 20}
    if number % LONG_ONE_OF == LONG_ONE_OF // 3:
        return "plain", {"do": "work", "ms": random.randrange(*LONG_MS)}
    draw = random.random()
    if draw < 0.68:
        return "plain", {"do": "work", "ms": random.choice((0, 1, 5, 20, 80))}
    if draw < 0.76:
        return "plain", {"do": "work", "ms": random.randrange(100, 900)}
    if draw < 0.86:
        return "plain", {"do": "fail", "times": random.choice((1, 1, 2, 3, 9)), "ms": random.randrange(20)}
    if draw < 0.93:
        return "plain", {"do": "snooze", "times": random.choice((1, 2)), "snooze_ms": random.choice((50, 400, 3_000))}
    if draw < 0.96:
        return "plain", {"do": "discard"}
    if draw < 0.975:
        return "beating", {"do": "beat", "ms": random.randrange(500, 4_000)}
    if draw < 0.98:
        return "limited", {"do": "work", "ms": random.choice((100, 3_000))}
    if draw < 0.984:
        return "apart", {"do": "crash", "times": random.choice((1, 1, 2, 9)), "ms": random.randrange(20)}
    return "looped", {"do": "work", "ms": random.choice((1, 20, 200))}
