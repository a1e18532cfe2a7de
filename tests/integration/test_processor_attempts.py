"""What owners do with attempts that did not simply succeed, on a real broker. The workers' words are written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.core.limits import CRASHES_MAX_DEFAULT, LEASE_MS
from duewheel.core.model import Closing, DeadRun, Dispatch, Limits, Phase, Result, State, Stop
from duewheel.core.step import Reason
from duewheel.engine.processor import Processor
from tests.integration.desk import PARTITIONS, Desk, HandClock, Raw, home, job_ids, now_ms, raw_schedule

ERROR = {"type": "shop.Timeout", "message": "no answer", "traceback": "line 1"}


def limits(**given: int) -> Limits:
    return {"expires_ms": 0, "total_timeout_ms": 0, "crashes_max": 0, **given}  # type: ignore[typeddict-item]


def raw_redrive(run: DeadRun) -> Raw:
    record = {"job_id": run["job_id"], "token": run["token"], "created_ms": now_ms()}
    return Raw(run["job_id"].encode(), codec.encode_redrive(record))  # type: ignore[arg-type]


def raw_drop(run: DeadRun) -> Raw:
    record = {"job_id": run["job_id"], "token": run["token"], "created_ms": now_ms()}
    return Raw(run["job_id"].encode(), codec.encode_drop(record))  # type: ignore[arg-type]


def handed_out(desk: Desk) -> list[Dispatch]:
    """All dispatches there are, by token within a timer partition. A redrive counts attempts anew, so that an attempt may come twice."""
    desk.read(desk.topology.dispatch("default"))
    found = sorted(desk.dispatches(), key=lambda d: (d["timer_partition"], d["token"]))
    tokens = [(d["timer_partition"], d["token"]) for d in found]
    assert len(set(tokens)) == len(tokens), "a token used twice"
    return found


def states(desk: Desk) -> dict[str, State]:
    return {
        key[1:].decode(): codec.decode_state(value) for records in desk.fold().values() for key, value in records.items() if key[:1] == b"s"
    }


def closings(desk: Desk) -> list[tuple[str, int, str]]:
    """What became of dead runs: job id, token of the death, how."""
    records = [codec.decode_dead_letter_topic(message.value()) for message in desk.read(desk.topology.dead_letter)]
    return [(record["job_id"], record["token"], record["how"]) for kind, record in records if kind == "closed"]  # type: ignore[typeddict-item]


def stops(desk: Desk) -> list[Stop]:
    return [codec.decode_stop(message.value()) for message in desk.read(desk.topology.control)]


def is_so(desk: Desk, job_ids: Iterable[str], phase: Phase) -> Callable[[], bool]:
    def check() -> bool:
        phases = desk.phases()
        return all(phases.get(job_id) == phase for job_id in job_ids)

    return check


def run_once(desk: Desk, processor: Processor, job_ids: list[str], **fields: Any) -> list[Dispatch]:
    """Schedules jobs for now; their first dispatches."""
    before = len(desk.dispatches())
    desk.publish(raw_schedule(job_id, now_ms(), **fields) for job_id in job_ids)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= before + len(job_ids))
    return [d for d in handed_out(desk) if d["job_id"] in job_ids]


# --- retries ---


def test_what_is_to_be_tried_again_comes_back_after_its_delay_and_not_before(desk: Desk) -> None:
    processor = desk.active()
    ids = job_ids(20)
    first = run_once(desk, processor, ids)
    answered_ms = now_ms()
    for n, d in enumerate(first):
        desk.answer([d], Result.RETRY, retry_after_ms=1_500 + 20 * n, error=ERROR)
    desk.drive(processor, until=is_so(desk, ids, Phase.WAITING))
    desk.leave(processor)
    again = desk.active("b")  # the wait outlives its owner, and the store is made anew
    desk.drive(again, until=lambda: len(desk.dispatches()) >= 40)
    second = {d["job_id"]: d for d in desk.all_dispatches() if d["attempt"] == 2}
    assert sorted(second) == sorted(ids)
    for n, d in enumerate(first):
        assert second[d["job_id"]]["token"] > d["token"]
        assert second[d["job_id"]]["slot_ms"] == d["slot_ms"]
        assert second[d["job_id"]]["dispatched_ms"] >= answered_ms + 1_500 + 20 * n
    desk.answer(second.values())
    desk.drive(again, until=is_so(desk, ids, Phase.SUCCEEDED))
    desk.leave(again)
    desk.check_stores("b")
    endings = [
        (e["attempt"], e["result"], e["type"]) for state in states(desk).values() for e in (state["trail"] or {"endings": []})["endings"]
    ]
    assert endings == [(1, "RETRY", "shop.Timeout")] * 20


def test_a_snoozed_run_comes_back_as_the_same_attempt(desk: Desk) -> None:
    processor = desk.active()
    (first,) = run_once(desk, processor, ["job"])
    desk.answer([first], Result.SNOOZED, retry_after_ms=400)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    second = handed_out(desk)[1]
    assert (second["attempt"], second["token"] > first["token"]) == (1, True)
    assert second["dispatched_ms"] >= first["dispatched_ms"] + 400


# --- dead runs ---


def test_a_failure_and_its_dead_letter_are_one_transaction(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction that carries both is aborted at first, when its records are at the broker: then neither is to be seen."""
    processor = desk.active()
    (d,) = run_once(desk, processor, ["job"], payload=b"precious")
    aborted: list[str] = []
    publish = Processor._publish_endings

    def failing(self: Processor, transaction: Any, *rest: Any) -> None:
        publish(self, transaction, *rest)
        if not aborted:
            transaction._producer.flush(10)
            aborted.append("once")
            raise BufferError("the queue is full")

    monkeypatch.setattr(Processor, "_publish_endings", failing)
    desk.answer([d], Result.FAILED, error=ERROR)
    desk.drive(processor, until=lambda: aborted)
    assert (desk.phases(), desk.dead_runs()) == ({"job": Phase.DISPATCHED}, [])
    desk.drive(processor, until=is_so(desk, ["job"], Phase.FAILED))
    desk.leave(processor)
    (run,) = desk.dead_runs()
    assert (run["job_id"], run["token"], run["reason"]) == ("job", d["token"], Reason.FAILED)
    assert (run["timer_partition"], run["definition"]["schedule"]["work"]["payload"]) == (home("job"), b"precious")
    assert run["state"] == states(desk)["job"]
    assert run["state"]["error"] == ERROR
    desk.check_stores("a")


def dead(desk: Desk, processor: Processor, job_id: str = "job") -> tuple[Dispatch, DeadRun]:
    (d,) = run_once(desk, processor, [job_id])
    desk.answer([d], Result.FAILED, error=ERROR)
    desk.drive(processor, until=is_so(desk, [job_id], Phase.FAILED))
    (run,) = [run for run in desk.dead_runs() if run["job_id"] == job_id]
    return d, run


def test_a_redrive_runs_a_dead_run_once_more_however_often_it_is_said(desk: Desk) -> None:
    processor = desk.active()
    first, run = dead(desk, processor)
    desk.publish([raw_redrive(run), raw_redrive(run)])
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    desk.publish([raw_redrive(run)])
    desk.leave(processor)
    again = desk.active("b")
    desk.publish([raw_redrive(run)])
    (marker,) = run_once(desk, again, job_ids(1, partition=home("job"), prefix="after"))  # what lies before it was read
    second = next(d for d in handed_out(desk) if d["job_id"] == "job" and d is not first and d["token"] != first["token"])
    assert (second["attempt"], second["terms"], second["slot_ms"]) == (1, None, first["slot_ms"])
    assert second["token"] > first["token"]
    desk.answer([first, second, marker])  # the first one's word comes too late
    desk.drive(again, until=is_so(desk, ["job", marker["job_id"]], Phase.SUCCEEDED))
    desk.publish([raw_redrive(run)])
    desk.drive_for(again, seconds=0.2)
    desk.leave(again)
    assert [d["job_id"] for d in handed_out(desk)].count("job") == 2
    assert closings(desk) == [("job", run["token"], Closing.REDRIVEN)]
    assert desk.dead_letters() == []
    desk.check_stores("b")


def test_a_dropped_run_is_forgotten_and_its_id_may_come_again(desk: Desk) -> None:
    processor = desk.active()
    first, run = dead(desk, processor)
    wrong = {**run, "token": run["token"] + 1}
    desk.publish([raw_drop(wrong)])  # type: ignore[arg-type]
    desk.publish([raw_drop(run), raw_drop(run), raw_redrive(run)])
    desk.drive(processor, until=lambda: closings(desk))
    assert not {key for key in desk.fold()[home("job")] if key[1:] == b"job"}
    (second,) = [d for d in run_once(desk, processor, ["job"]) if d["token"] != first["token"]]
    assert (second["generation"], second["attempt"], second["token"] > first["token"]) == (1, 1, True)
    desk.answer([second])
    desk.drive(processor, until=is_so(desk, ["job"], Phase.SUCCEEDED))
    desk.leave(processor)
    assert closings(desk) == [("job", run["token"], Closing.DROPPED)]
    desk.check_stores("a")


def test_a_redrive_whose_time_to_start_is_over_is_refused_and_the_run_stays_dead(desk: Desk) -> None:
    processor = desk.active()
    expires_ms = now_ms() + 1_500
    (d,) = run_once(desk, processor, ["job"], limits=limits(expires_ms=expires_ms))
    desk.answer([d], Result.FAILED, error=ERROR)
    desk.drive(processor, until=lambda: now_ms() > expires_ms and is_so(desk, ["job"], Phase.FAILED)())
    desk.publish([raw_redrive(desk.dead_runs()[0])])
    desk.drive(processor, until=desk.dead_letters)
    desk.leave(processor)
    (letter,) = desk.dead_letters()
    assert (letter["reason"], letter["topic"], str(expires_ms) in letter["message"]) == ("expired", desk.topology.intake, True)
    assert (desk.phases(), closings(desk), len(handed_out(desk))) == ({"job": Phase.FAILED}, [], 1)


# --- crashes ---


def test_W7_a_run_whose_workers_vanish_is_dead_at_the_crash_limit_and_its_partition_goes_on(desk: Desk) -> None:
    processor = desk.active()
    others = job_ids(100, partition=home("poison"), prefix="other")
    (d,) = run_once(desk, processor, ["poison"])
    for n in range(1, CRASHES_MAX_DEFAULT):
        desk.answer([d], Result.LOST)
        desk.publish(raw_schedule(job_id, now_ms()) for job_id in others[50 * (n - 1) : 50 * n])
        desk.drive(processor, until=lambda n=n: sum(d["job_id"] == "poison" for d in desk.dispatches()) > n)  # type: ignore[misc]
        d = max((d for d in handed_out(desk) if d["job_id"] == "poison"), key=lambda d: d["token"])
        last = n == CRASHES_MAX_DEFAULT - 1
        assert (d["attempt"], d["terms"]) == (n + 1, {"crashes": n, "is_last_life": last, "expires_ms": 0, "deadline_ms": 0})
    desk.answer([d], Result.LOST)
    desk.answer(d for d in handed_out(desk) if d["job_id"] in others)
    desk.drive(processor, until=is_so(desk, others, Phase.SUCCEEDED))
    desk.leave(processor)
    assert sorted(desk.dispatched()) == sorted([*others, *["poison"] * CRASHES_MAX_DEFAULT])
    (run,) = desk.dead_runs()
    assert (run["job_id"], run["reason"], run["state"]["crashes"]) == ("poison", Reason.CRASH_LIMIT, CRASHES_MAX_DEFAULT)
    assert [e["result"] for e in (run["state"]["trail"] or {"endings": []})["endings"]] == ["LOST"] * CRASHES_MAX_DEFAULT
    desk.check_stores("a")


# --- leases ---


def test_W5_a_run_that_falls_silent_is_dispatched_again_after_its_lease(desk: Desk) -> None:
    processor = desk.active()
    (first,) = run_once(desk, processor, ["job"])
    said_ms = now_ms()
    desk.answer([first], Result.STARTED, lease_ms=1_000)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    second = handed_out(desk)[1]
    assert (second["attempt"], second["token"] > first["token"]) == (2, True)
    assert second["dispatched_ms"] >= said_ms + 1_000
    assert second["terms"] == {"crashes": 1, "is_last_life": False, "expires_ms": 0, "deadline_ms": 0}
    desk.answer([first])  # it was not dead after all
    desk.answer([second], Result.STARTED, lease_ms=60_000)
    desk.drive(processor, until=is_so(desk, ["job"], Phase.RUNNING))
    desk.answer([second])
    desk.drive(processor, until=is_so(desk, ["job"], Phase.SUCCEEDED))
    desk.leave(processor)
    assert desk.dispatched() == ["job", "job"]
    assert states(desk)["job"]["token"] == second["token"]
    desk.check_stores("a")


def test_W4_a_run_that_beats_is_left_alone_for_as_long_as_it_takes(desk: Desk) -> None:
    """Three leases long, and its owner is replaced meanwhile; then it falls silent."""
    processor = desk.active()
    (d,) = run_once(desk, processor, ["job"])
    desk.answer([d], Result.STARTED, lease_ms=1_000)
    for n in range(1, 10):
        end = time.monotonic() + 0.3
        desk.drive(processor, until=lambda end=end: time.monotonic() > end)  # type: ignore[misc]
        desk.answer([d], Result.HEARTBEAT, lease_ms=1_000, output=b"%d" % n)
        if n == 5:
            desk.leave(processor)
            processor = desk.active("b")
    assert handed_out(desk) == [d]
    desk.drive(processor, until=lambda: (states(desk)["job"]["trail"] or {"output": None})["output"] == b"9")
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    assert [d["attempt"] for d in desk.all_dispatches()] == [1, 2]


def test_outcomes_delayed_by_a_minute_bring_no_second_attempt(desk: Desk) -> None:
    """The owner goes; every lease runs out; all runs finish; a minute after they started an owner comes. It must read before it judges.

    That minute is on the new owner's clock only. It is as good as a real one: nobody else looks at leases, and an owner that starts cannot
    tell whether a minute passed or its clock says so.
    """
    first = desk.active()
    ids = job_ids(200)
    dispatches = run_once(desk, first, ids)
    desk.answer(dispatches, Result.STARTED, lease_ms=LEASE_MS)
    desk.drive(first, until=is_so(desk, ids, Phase.RUNNING))
    desk.leave(first)
    desk.answer(dispatches)
    late = HandClock()
    late.ahead_ms = 60_000
    assert late.ahead_ms > LEASE_MS
    second = desk.active("b", clock=late)
    desk.drive(second, until=is_so(desk, ids, Phase.SUCCEEDED))
    desk.drive_for(second, seconds=0.5)
    desk.leave(second)
    assert desk.dispatched() == sorted(ids)
    desk.check_stores("b")


def test_an_owner_that_stood_still_while_leases_ran_out_reads_before_it_judges(desk: Desk) -> None:
    """Here time passes for real, and so leases are short: what counts is that the owner was away for longer than one. One of the runs says
    nothing at all, and is given up; but not before the owner has listened for as long as its lease.
    """
    processor = desk.active()
    ids = job_ids(200)
    silent = job_ids(1, prefix="silent")
    dispatches = run_once(desk, processor, ids + silent)
    desk.answer(dispatches, Result.STARTED, lease_ms=1_000)
    desk.drive(processor, until=is_so(desk, ids + silent, Phase.RUNNING))
    told_ms = now_ms()
    while now_ms() < told_ms + 1_500:  # nobody turns the processor
        time.sleep(0.05)
    desk.answer(d for d in dispatches if d["job_id"] in ids)
    awake_ms = now_ms()
    desk.drive(processor, until=is_so(desk, ids, Phase.SUCCEEDED))
    desk.drive(processor, until=lambda: len(desk.dispatches()) > len(dispatches))
    desk.leave(processor)
    assert desk.dispatched() == sorted(ids + silent + silent)
    (again,) = [d for d in desk.all_dispatches() if d["attempt"] == 2]
    assert again["dispatched_ms"] >= awake_ms


# --- bounds in time ---


def test_no_attempt_starts_at_or_after_its_time(desk: Desk) -> None:
    """One job found nobody in time, another would be tried again too late."""
    expires_ms = now_ms() + 2_500
    desk.publish([raw_schedule("too-late", now_ms() - 1_000, limits=limits(expires_ms=now_ms()))])
    processor = desk.active()
    (d,) = run_once(desk, processor, ["failing"], limits=limits(expires_ms=expires_ms))
    assert d["terms"] == {"crashes": 0, "is_last_life": False, "expires_ms": expires_ms, "deadline_ms": 0}
    desk.answer([d], Result.RETRY, retry_after_ms=60_000, error=ERROR)
    desk.drive(processor, until=is_so(desk, ["failing", "too-late"], Phase.EXPIRED))
    desk.leave(processor)
    assert desk.dispatched() == ["failing"]
    assert states(desk)["failing"]["changed_ms"] >= expires_ms
    assert desk.dead_runs() == []
    desk.check_stores("a")


def test_what_would_go_beyond_its_total_timeout_is_dead(desk: Desk) -> None:
    processor = desk.active()
    (first,) = run_once(desk, processor, ["job"], limits=limits(total_timeout_ms=1_500))
    deadline_ms = first["dispatched_ms"] + 1_500
    assert first["terms"] == {"crashes": 0, "is_last_life": False, "expires_ms": 0, "deadline_ms": deadline_ms}
    desk.answer([first], Result.RETRY, retry_after_ms=100, error=ERROR)
    desk.drive(processor, until=lambda: len(desk.dispatches()) >= 2)
    second = handed_out(desk)[1]
    assert second["terms"] == first["terms"]
    desk.answer([second], Result.RETRY, retry_after_ms=1_500, error=ERROR)
    desk.drive(processor, until=is_so(desk, ["job"], Phase.FAILED))
    desk.leave(processor)
    (run,) = desk.dead_runs()
    assert (run["reason"], run["state"]["error"], run["died_ms"] < deadline_ms + 1_500) == (Reason.TOTAL_TIMEOUT, ERROR, True)
    assert desk.dispatched() == ["job", "job"]
    desk.check_stores("a")


# --- cancelling what runs ---


def test_a_cancel_of_a_running_job_reaches_its_worker_and_ends_it(desk: Desk) -> None:
    processor = desk.active()
    (d,) = run_once(desk, processor, ["job"])
    desk.answer([d], Result.STARTED, lease_ms=60_000)
    desk.drive(processor, until=is_so(desk, ["job"], Phase.RUNNING))
    assert stops(desk) == []
    desk.cancel("job")
    desk.drive(processor, until=is_so(desk, ["job"], Phase.CANCELLING))
    stop = {"job_id": "job", "token": d["token"], "queue": "default"}
    assert stops(desk) == [stop]
    desk.answer([d], Result.HEARTBEAT, lease_ms=60_000)  # it has not heard
    desk.drive(processor, until=lambda: stops(desk) == [stop, stop])
    desk.answer([d], Result.CANCELLED)
    desk.drive(processor, until=is_so(desk, ["job"], Phase.CANCELLED))
    desk.leave(processor)
    assert (desk.dispatched(), desk.dead_runs()) == (["job"], [])
    desk.check_stores("a")


def test_a_cancelled_run_that_falls_silent_is_over_and_runs_nowhere_else(desk: Desk) -> None:
    processor = desk.active()
    (d,) = run_once(desk, processor, ["job"])
    desk.answer([d], Result.STARTED, lease_ms=700)
    desk.cancel("job")
    desk.drive(processor, until=is_so(desk, ["job"], Phase.CANCELLED))
    desk.leave(processor)
    assert desk.dispatched() == ["job"]
    desk.check_stores("a")


def test_leases_and_waits_of_all_partitions_survive_a_new_owner(desk: Desk) -> None:
    """One of each kind in every partition; the next owner has no store, and each goes its way at its time."""
    first = desk.active()
    kinds = {kind: [job_ids(1, n, kind)[0] for n in range(PARTITIONS)] for kind in ("leased", "retried", "cancelling")}
    dispatches = {d["job_id"]: d for d in run_once(desk, first, [*chain(*kinds.values())])}
    desk.answer([dispatches[job_id] for job_id in kinds["leased"] + kinds["cancelling"]], Result.STARTED, lease_ms=1_500)
    desk.answer([dispatches[job_id] for job_id in kinds["retried"]], Result.RETRY, retry_after_ms=1_500)
    for job_id in kinds["cancelling"]:
        desk.cancel(job_id)
    desk.drive(first, until=is_so(desk, kinds["cancelling"], Phase.CANCELLING))
    desk.drive(first, until=is_so(desk, kinds["retried"], Phase.WAITING))
    desk.drive(first, until=is_so(desk, kinds["leased"], Phase.RUNNING))
    desk.leave(first)
    second = desk.active("b")
    desk.drive(second, until=lambda: len(desk.dispatches()) >= len(dispatches) + 2 * PARTITIONS)
    desk.drive(second, until=is_so(desk, kinds["cancelling"], Phase.CANCELLED))
    desk.leave(second)
    again = [d for d in desk.all_dispatches() if d["attempt"] == 2]
    assert sorted(d["job_id"] for d in again) == sorted(kinds["leased"] + kinds["retried"])
    for d in again:
        assert d["dispatched_ms"] >= dispatches[d["job_id"]]["dispatched_ms"] + 1_500
    desk.check_stores("b")
