"""Recurring jobs in the hands of a whole processor: through the codec, the changelog, and a restore from it. The world is in memory."""

from __future__ import annotations

from collections import Counter

import pytest
import structlog.testing

from duewheel.adapters.avro import codec
from duewheel.core.limits import HOUR_MS, JOB_ID_BYTES_MAX, MINUTE_MS, SECOND_MS
from duewheel.core.model import Limits, Misfire, Overlap, Phase, Recurrence, Result, State
from duewheel.core.run_ids import parse, run_id
from tests.engine_world import START_MS, TOPOLOGY, Instance, World, answer, command, dispatches, schedule
from tests.recurring import cron, every, every_after


@pytest.fixture
def world() -> World:
    return World()


def slots(world: World, job_id: str) -> list[int]:
    """Slots that were dispatched, each as often as it was."""
    runs = [parse(d["job_id"]) for d in dispatches(world)]
    return sorted(run.slot_ms for run in runs if run is not None and run.job_id == job_id)


def state(world: World, job_id: str) -> State:
    values = [value for partition in (0, 1) for key, value in world.log(TOPOLOGY.state, partition) if key == b"s" + job_id.encode()]
    return codec.decode_state(values[-1])


def refusals(world: World) -> list[str]:
    return [codec.decode_dead_letter(value)["reason"] for _, value in world.log(TOPOLOGY.dead_letter, 0)]


def test_every_slot_is_dispatched_at_its_time_and_workers_may_retry_and_finish_it(world: World) -> None:
    instance = Instance(world, 0, 1)
    first_ms = world.now_ms + 40
    schedule(world, "nightly", first_ms, recurrence=every(2 * SECOND_MS))
    instance.turn(10)
    (d,) = dispatches(world)
    assert (d["job_id"], d["slot_ms"], d["attempt"]) == (run_id("nightly", first_ms), first_ms, 1)
    answer(world, d, Result.RETRY, retry_after_ms=100)
    instance.turn(20)
    again = dispatches(world)[-1]
    assert (again["job_id"], again["attempt"]) == (d["job_id"], 2)
    answer(world, again)
    instance.turn(100)
    assert sorted({*slots(world, "nightly")}) == [first_ms, first_ms + 2 * SECOND_MS]
    assert (state(world, d["job_id"])["phase"], state(world, "nightly")["phase"]) == (Phase.SUCCEEDED, Phase.WAITING)


def test_runs_lie_in_the_partition_of_their_job(world: World) -> None:
    instance = Instance(world, 0, 1)
    for n in range(20):
        schedule(world, f"job-{n}", world.now_ms, recurrence=every(HOUR_MS))
    instance.turn(10)
    where = {key[1:]: p for p in (0, 1) for key, _ in world.log(TOPOLOGY.state, p) if key[:1] == b"d"}
    runs = {key: p for key, p in where.items() if b"@" in key}
    assert (len(where), len(runs), {*runs.values()}) == (40, 20, {0, 1})
    assert all(where[key.partition(b"@")[0]] == p for key, p in runs.items())


@pytest.mark.parametrize("overlap", list(Overlap))
def test_after_a_restore_every_slot_still_has_one_run(world: World, overlap: str) -> None:
    """Owners follow one another at moments that have nothing to do with the slots, each with an empty store."""
    schedule(world, "every", world.now_ms + 100, recurrence=every(SECOND_MS, overlap=overlap, runs_max=12))
    schedule(world, "after", world.now_ms + 100, recurrence=every_after(SECOND_MS, overlap=overlap, runs_max=8))
    schedule(world, "cron", world.now_ms + 100, recurrence=cron("* * * * * *", overlap=overlap, runs_max=12))
    answered = 0
    for turns in (3, 31, 47, 5, 64, 80, 23, 90, 200, 400):
        instance = Instance(world, 0, 1)
        for _ in range(turns):
            instance.turn(1)
            found = dispatches(world)
            found.sort(key=lambda d: d["dispatched_ms"])
            for d in found[answered:]:
                answer(world, d)
            answered = len(found)
    for job_id, count in (("every", 12), ("after", 8), ("cron", 12)):
        fired = slots(world, job_id)
        assert (len(fired), max(Counter(fired).values())) == (count, 1), job_id
        assert (state(world, job_id)["phase"], state(world, job_id)["attempt"]) == (Phase.SUCCEEDED, count)


def test_a_slot_that_waits_and_a_run_that_goes_on_survive_a_restore(world: World) -> None:
    instance = Instance(world, 0, 1)
    first_ms = world.now_ms
    schedule(world, "queued", first_ms, recurrence=every(SECOND_MS, overlap=Overlap.QUEUE))
    schedule(world, "after", first_ms, recurrence=every_after(SECOND_MS))
    instance.turn(160)
    assert (slots(world, "queued"), slots(world, "after")) == ([first_ms], [first_ms])
    instance = Instance(world, 0, 1)
    for d in dispatches(world):
        answer(world, d)
    ended_ms = world.now_ms
    instance.turn(3)
    assert slots(world, "queued") == [first_ms, first_ms + SECOND_MS]
    instance.turn(60)
    (_, next_ms) = slots(world, "after")
    assert ended_ms + SECOND_MS <= next_ms <= ended_ms + SECOND_MS + 100


# --- T10: the table in docs/schedules.md. A slot every ten minutes from 0:10 on, and no processor from 0:05 on, for an hour


def at(minutes: float) -> int:
    """So long after a full hour."""
    return START_MS + HOUR_MS - START_MS % HOUR_MS + round(minutes * MINUTE_MS)


def be_down(world: World, recurrence: Recurrence, back_at: float) -> Instance:
    """Lets a job be defined, and nobody be there until then; whoever comes has nothing but the changelog."""
    world.now_ms = at(5)
    instance = Instance(world, 0, 1)
    schedule(world, "a", at(10), recurrence=recurrence)
    instance.turn(5)
    world.now_ms = at(back_at)
    back = Instance(world, 0, 1)
    back.turn(10)
    return back


@pytest.mark.parametrize("kind", [every(10 * MINUTE_MS), cron("*/10 * * * *", "Europe/Berlin")], ids=["EVERY", "CRON"])
@pytest.mark.parametrize(
    "misfire, misfire_max, back_at_62, back_at_60_30",
    [
        (Misfire.ONCE, 0, [60], [50, 60]),
        (Misfire.SKIP, 0, [], [60]),
        (Misfire.ALL, 0, [10, 20, 30, 40, 50, 60], [10, 20, 30, 40, 50, 60]),
        (Misfire.ALL, 2, [50, 60], [40, 50, 60]),
    ],
)
def test_T10_after_an_hour_without_a_processor(
    kind: Recurrence, misfire: str, misfire_max: int, back_at_62: list[int], back_at_60_30: list[int]
) -> None:
    recurrence: Recurrence = {**kind, "misfire": misfire, "misfire_max": misfire_max, "overlap": Overlap.ALLOW}
    for back_at, fired in ((62, back_at_62), (60.5, back_at_60_30)):
        world = World()
        instance = be_down(world, recurrence, back_at)
        assert slots(world, "a") == [at(minutes) for minutes in fired]
        assert (state(world, "a")["phase"], state(world, "a")["slot_ms"]) == (Phase.WAITING, at(70))
        world.now_ms = at(70)
        instance.turn(10)
        assert slots(world, "a") == [at(minutes) for minutes in (*fired, 70)]


@pytest.mark.parametrize("misfire, fired", [(Misfire.ONCE, [10]), (Misfire.ALL, [10]), (Misfire.SKIP, [])])
def test_T10_after_an_hour_without_a_processor_a_job_that_counts_from_ends_has_one_slot(
    world: World, misfire: str, fired: list[int]
) -> None:
    instance = be_down(world, every_after(10 * MINUTE_MS, misfire=misfire), 62)
    assert slots(world, "a") == [at(minutes) for minutes in fired]
    if not fired:
        assert state(world, "a")["slot_ms"] == at(70)  # as many intervals later as it takes
        return
    world.now_ms = at(65)
    (d,) = dispatches(world)
    answer(world, d)
    instance.turn(3)
    next_ms = state(world, "a")["slot_ms"]
    assert at(75) <= next_ms <= at(75) + SECOND_MS
    world.now_ms = next_ms
    instance.turn(10)
    assert slots(world, "a") == [at(10), next_ms]


def test_T11_five_schedulers_with_one_cron_line_make_one_run_a_slot(world: World) -> None:
    instance = Instance(world, 0, 1)
    for _ in range(5):
        schedule(world, "report", START_MS, recurrence=cron("* * * * * *", overlap=Overlap.ALLOW))
        world.now_ms += 20  # another command, made at another time
    instance.turn(200)
    fired = slots(world, "report")
    assert (len(fired), fired) == (5, sorted(set(fired)))


def test_T12_a_slot_that_is_left_out_is_seen(world: World) -> None:
    with structlog.testing.capture_logs() as logs:
        instance = Instance(world, 0, 1)
        schedule(world, "slow", START_MS + 100, recurrence=every(SECOND_MS))
        instance.turn(1_100)
    reports = [line for line in logs if line["event"] == "processor.report"]
    left_out = [line for line in logs if line["event"] == "processor.slots_left_out"]
    assert sum(line["slots_fired"] for line in reports) == 1
    assert sum(line["slots_overlapped"] for line in reports) == sum(line["overlapped"] for line in left_out) > 5
    assert {job for line in left_out for job in line["jobs"]} == {"slow"}


def test_a_run_may_be_cancelled_by_its_id(world: World) -> None:
    instance = Instance(world, 0, 1)
    schedule(world, "a", START_MS, recurrence=every(HOUR_MS))
    instance.turn(5)
    (d,) = dispatches(world)
    command(world, d["job_id"], codec.encode_cancel({"job_id": d["job_id"], "created_ms": world.now_ms, "reach": "DEFAULT"}))
    instance.turn(3)
    assert (state(world, d["job_id"])["phase"], state(world, "a")["phase"], refusals(world)) == (Phase.CANCELLING, Phase.WAITING, [])


@pytest.mark.parametrize(
    "job_id, recurrence, limits, reason",
    [
        (f"a@{START_MS}", None, None, "bad_job_id"),
        (f"a@{START_MS}", every(HOUR_MS), None, "bad_job_id"),
        ("a" * (JOB_ID_BYTES_MAX - 13), every(HOUR_MS), None, "bad_job_id"),
        ("a", every(HOUR_MS), {"expires_ms": START_MS + HOUR_MS, "total_timeout_ms": 0, "crashes_max": 0}, "bad_limits"),
    ],
)
def test_what_no_recurring_job_may_be_is_refused(
    world: World, job_id: str, recurrence: Recurrence | None, limits: Limits | None, reason: str
) -> None:
    instance = Instance(world, 0, 1)
    schedule(world, job_id, START_MS, recurrence=recurrence, limits=limits)
    instance.turn(5)
    assert (refusals(world), dispatches(world)) == ([reason], [])


def test_a_recurring_job_may_have_an_id_that_is_as_long_as_its_runs_allow(world: World) -> None:
    instance = Instance(world, 0, 1)
    schedule(world, "a" * (JOB_ID_BYTES_MAX - 14), START_MS, recurrence=every(HOUR_MS))
    instance.turn(5)
    assert [len(d["job_id"]) for d in dispatches(world)] == [JOB_ID_BYTES_MAX]
