"""What goes wrong, through the whole chain: producer, timer processor, workers as processes, and what was accepted in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from duewheel import Job, RetryPolicy
from duewheel.adapters.kafka import positions
from duewheel.cli.main import cli
from duewheel.core.limits import CRASHES_MAX_DEFAULT
from duewheel.core.retry import delay_ms
from duewheel.core.step import Reason
from duewheel.devbroker.runfolder import RunFolder
from duewheel.fleet import Fleet
from tests.conftest import Installation
from tests.integration.attempt_site import END_S, SESSION_TIMEOUT_S, AttemptSite, all_in, names
from tests.integration.desk import PARTITIONS, TIMEOUT_S, Desk, home, job_ids, now_ms

# Three crashes, each with a session timeout, a rebalance and a start.
CRASHES_S: Final = 90.0


@pytest.fixture
def site(installation: Installation, desk: Desk, tmp_path: Path) -> Iterator[AttemptSite]:
    folder = tmp_path / "site"
    folder.mkdir()
    with RunFolder.take(tmp_path, "fleet") as run, Fleet(installation.kafka, installation.topology, run) as fleet:
        yield AttemptSite(fleet, desk, folder)


# --- workers that vanish ---


def poisoned(task: str, poison: str) -> list[Job]:
    """1,000 jobs of one task, and in their middle one that crashes."""
    jobs = [Job(task, job_id=job_id) for job_id in names("other", 1_000)]
    return [*jobs[:500], Job(poison, job_id="poison"), *jobs[500:]]


def check_poison(site: AttemptSite) -> None:
    """It was executed as often as the limit allows, then it was dead; everybody else succeeded."""
    ends = site.ends()
    poison = ends.pop("poison")
    assert (poison["phase"], poison["crashes"], poison["attempt"]) == ("FAILED", CRASHES_MAX_DEFAULT, CRASHES_MAX_DEFAULT)
    assert poison["error"] is not None
    assert poison["error"]["type"] == "duewheel.CrashLimit"
    assert [execution.attempt for execution in site.executions("poison")] == [1, 2, 3]
    [dead] = site.desk.dead_runs()
    assert (dead["job_id"], dead["reason"], dead["token"]) == ("poison", Reason.CRASH_LIMIT, poison["token"])
    assert Counter(state["phase"] for state in ends.values()) == {"SUCCEEDED": 1_000}


def test_W7_a_handler_that_crashes_its_worker_dies_alone(site: AttemptSite) -> None:
    for name in ("worker-1", "worker-2"):
        site.worker(name)
    site.await_ready()
    with site.client() as client:
        client.schedule_many(poisoned("noop", "poison"))
    revived = site.await_revived(lambda: len(site.ends()) == 1_001, "all jobs have ended", CRASHES_S)
    check_poison(site)
    assert revived == CRASHES_MAX_DEFAULT


def test_W7_a_handler_that_crashes_its_own_process_harms_nobody(site: AttemptSite) -> None:
    site.worker("worker")
    site.await_ready()
    with site.client() as client:
        client.schedule_many(poisoned("noop_in_process", "poison_in_process"))
    site.await_that(lambda: len(site.ends()) == 1_001, "all jobs have ended")
    check_poison(site)
    assert Counter(execution.attempt for execution in site.executions() if execution.job_id != "poison") == {1: 1_000}


def test_kill_9_with_300_runs_in_flight_runs_each_once_more(site: AttemptSite) -> None:
    victim = site.worker("victim", concurrency=300)
    site.worker("other", concurrency=100)
    site.await_ready()
    done, held = names("done", 200), names("held", 720)
    with site.client() as client:
        client.schedule_many(Job("noop", job_id=job_id) for job_id in done)
        site.await_phases(all_in("SUCCEEDED", done))
        client.schedule_many(Job("held", "victim", job_id=job_id) for job_id in held)
    site.await_that(lambda: sum(e.worker == "victim" for e in site.executions(*held)) == 300, "300 runs are in flight")
    first = {e.job_id: e for e in site.executions(*held) if e.worker == "victim"}

    killed_ms = now_ms()
    victim.kill()
    site.await_phases(all_in("SUCCEEDED", done + held))
    again = [e for e in site.executions(*first) if e.worker == "other"]
    assert sorted(e.job_id for e in again) == sorted(first)
    assert all(e.attempt == 2 and e.token > first[e.job_id].token for e in again)
    assert max(e.at_ms for e in again) - killed_ms < (SESSION_TIMEOUT_S + 5) * 1000
    assert Counter(e.job_id for e in site.executions()) == {job_id: 1 + (job_id in first) for job_id in done + held}
    ends = site.ends()
    assert {(ends[e.job_id]["attempt"], ends[e.job_id]["crashes"], ends[e.job_id]["token"] == e.token) for e in again} == {(2, 1, True)}
    assert {ends[job_id]["attempt"] for job_id in done} == {1}


def test_a_group_reset_to_the_earliest_offset_repeats_nothing(site: AttemptSite) -> None:
    worker = site.worker("worker")
    site.await_ready()
    done = names("done", 300)
    with site.client() as client:
        client.schedule_many([Job("noop", job_id="early"), Job("doze", 3_600, job_id="dozes"), Job("give_up", job_id="discarded")])
        client.schedule_many(Job("noop", job_id=job_id) for job_id in done)
        expected = {"early": "SUCCEEDED", "dozes": "WAITING", "discarded": "DISCARDED", **all_in("SUCCEEDED", done)}
        site.await_phases(expected)
        worker.stop()
        before, states, outcomes = site.executions(), len(site.states()), len(site.outcomes())
        topic, group = site.desk.topology.dispatch("default"), site.desk.topology.worker_group("default")
        positions.commit(site.desk.kafka, group, [TopicPartition(topic, p, 0) for p in range(PARTITIONS)], TIMEOUT_S)

        worker.start()
        site.await_that(lambda: len(site.outcomes()) >= outcomes + len(before), "all dispatches were returned")
        last = client.schedule("noop", job_id="last")
        site.await_phases({**expected, last.job_id: "SUCCEEDED"})
    assert {outcome["result"] for outcome in site.outcomes()[outcomes:]} == {"LOST", "SUCCEEDED"}
    assert [e.job_id for e in site.executions()[len(before) :]] == ["last"]
    assert {job_id for job_id, _ in site.states()[states:]} == {"last"}


# --- attempts that fail ---


def test_T13_jobs_that_fail_at_once_come_back_spread_out(site: AttemptSite) -> None:
    site.worker("worker")
    site.await_ready()
    jobs, due_ms = names("job", 300), now_ms() + 1_500
    with site.client() as client:
        client.schedule_many(Job("fail_once", at=due_ms, job_id=job_id) for job_id in jobs)
    site.await_phases(all_in("SUCCEEDED", jobs))
    at_ms: dict[int, list[int]] = {1: [], 2: []}
    failed_ms = {outcome["job_id"]: outcome["finished_ms"] for outcome in site.outcomes() if outcome["result"] == "RETRY"}
    for d in site.desk.all_dispatches():
        at_ms[d["attempt"]].append(d["dispatched_ms"])
        if d["attempt"] == 2:
            waited_ms = d["dispatched_ms"] - failed_ms[d["job_id"]]
            assert waited_ms >= delay_ms(POLICY, 1, d["job_id"], 1)
    assert fullest(at_ms[1], 200) > 200  # in lock step
    # Half of 2 s is jitter: five fifths of a second with 60 each, if chance were perfect; by these ids' own hashes it is 75.
    assert len(at_ms[2]) == 300
    assert fullest(at_ms[2], 200) < 180  # a busy machine collects what is due
    assert max(at_ms[2]) - min(at_ms[2]) > 900


POLICY: Final = RetryPolicy.exponential(first=2, factor=2, jitter=0.5, attempts=2)


def fullest(at_ms: list[int], width_ms: int) -> int:
    """How many there are in the fullest span of this width."""
    ordered, first, most = sorted(at_ms), 0, 0
    for last, end in enumerate(ordered):
        while ordered[first] <= end - width_ms:
            first += 1
        most = max(most, last - first + 1)
    return most


def test_W10_an_unknown_task_is_tried_until_a_worker_knows_it(site: AttemptSite) -> None:
    site.worker("old")
    site.worker("new", app="attempted_anew:app")
    site.await_ready()
    jobs = names("job", 64)  # of a few only, the one worker might get none by chance
    with site.client() as client:
        patient = RetryPolicy.fixed(timedelta(milliseconds=200), attempts=100)
        client.schedule_many(Job("brand_new", job_id=job_id, retry=patient) for job_id in jobs)
        nobodys = client.schedule("brand_old", job_id="nobody", retry=RetryPolicy.fixed(0.1, attempts=3)).wait(END_S)
    site.await_phases(all_in("SUCCEEDED", jobs))
    assert sorted(e.job_id for e in site.executions()) == jobs
    assert {e.worker for e in site.executions()} == {"new"}
    turned_away = [outcome for outcome in site.outcomes() if outcome["job_id"] in jobs and outcome["result"] == "RETRY"]
    assert turned_away
    assert {(outcome["worker"], outcome["error"] and outcome["error"]["type"]) for outcome in turned_away} == {
        ("old", "duewheel.UnknownTask")
    }

    assert (nobodys.phase, nobodys.attempts) == ("FAILED", 3)
    [dead] = site.desk.dead_runs()
    assert (dead["job_id"], dead["reason"]) == ("nobody", Reason.FAILED)
    error = dead["state"]["error"]
    assert error is not None
    assert error["type"] == "duewheel.UnknownTask"
    assert error["message"].startswith("task 'brand_old' is not registered in the app of worker ")


def test_a_total_timeout_ends_what_fails_and_what_runs(site: AttemptSite) -> None:
    site.worker("worker")
    site.await_ready()
    with site.client() as client:
        failing = client.schedule("fail_always", job_id="failing", total_timeout=3)
        running = client.schedule("endless", job_id="running", total_timeout=3)
        for handle in (failing, running):
            end = handle.wait(END_S)
            assert end.phase == "FAILED"
            assert end.ended_ms < site.executions(handle.job_id)[0].at_ms + 3_000 + 3_000
    assert 2 <= len(site.executions("failing")) <= 3_000 // 300 + 1
    assert len(site.executions("running")) == 1
    assert {dead["job_id"]: dead["reason"] for dead in site.desk.dead_runs()} == {
        "failing": Reason.TOTAL_TIMEOUT,
        "running": Reason.TOTAL_TIMEOUT,
    }


def test_jobs_that_wait_behind_others_for_too_long_expire(site: AttemptSite) -> None:
    site.worker("worker", concurrency=2)
    site.await_ready()
    quick = names("quick", 50)
    with site.client() as client:
        # After a burst a worker claims more than it has threads for: what is late waits there, and not only in the log.
        client.schedule_many(Job("noop", job_id=job_id) for job_id in quick)
        site.await_that(lambda: len(site.executions()) == 50, "the burst has run")
        busy = [client.schedule(task, "worker", job_id=f"busy-{task}") for task in ("held", "held_alone")]
        site.await_that(lambda: len(site.executions()) == 52, "the worker is busy")
        expires_ms = now_ms() + 1_000
        late = [client.schedule(task, "worker", job_id=f"late-{task}", expires_at=expires_ms) for task in ("held", "held_alone")]
        in_time = client.schedule("noop", job_id="in-time", expires_at=now_ms() + 600_000)
        with pytest.raises(TimeoutError):
            in_time.wait(1.2)
        site.allow("go")
        assert [handle.wait(END_S).phase for handle in busy] == ["SUCCEEDED"] * 2
        assert [handle.wait(END_S).phase for handle in late] == ["EXPIRED"] * 2
        assert in_time.wait(END_S).phase == "SUCCEEDED"
    assert Counter(e.job_id for e in site.executions()) == dict.fromkeys([*quick, "busy-held", "busy-held_alone", "in-time"], 1)
    assert site.desk.dead_runs() == []


def test_handlers_decide_what_becomes_of_their_attempt(site: AttemptSite) -> None:
    site.worker("worker")
    site.await_ready()
    with site.client() as client:
        handles = [client.schedule("ask_again"), client.schedule("doze", 0.7), client.schedule("give_up")]
        asked, dozed, gave_up = [handle.wait(END_S) for handle in handles]
    assert (asked.phase, asked.attempts) == ("SUCCEEDED", 2)
    assert (dozed.phase, dozed.attempts) == ("SUCCEEDED", 1)  # its policy allows no second
    assert (gave_up.phase, gave_up.attempts) == ("DISCARDED", 1)
    assert gave_up.error is not None
    assert gave_up.error["message"] == "the customer is gone"
    for handle, attempts in ((handles[0], [1, 2]), (handles[1], [1, 1])):
        first, second = site.executions(handle.job_id)
        assert [first.attempt, second.attempt] == attempts
        assert second.at_ms - first.at_ms >= 700
        assert second.token > first.token
    assert len(site.executions(handles[2].job_id)) == 1
    assert site.desk.dead_runs() == []


def test_a_dead_run_is_redriven_from_the_command_line_once(site: AttemptSite) -> None:
    site.worker("worker")
    site.await_ready()
    with site.client() as client:
        died = client.schedule("broken", job_id="broken").wait(END_S)
        assert (died.phase, died.attempts) == ("FAILED", 2)
        [dead] = site.desk.dead_runs()
        site.allow("mended")
        told = redrive(site, "--id", "broken")
        assert (told["token"], told["how"]) == (dead["token"], "REDRIVEN")
        site.await_phases({"broken": "SUCCEEDED"})
        # Nothing is left to redrive, neither for the command nor for whoever still has the token.
        assert redrive(site, "--id", "broken") == {}
        client.redrive("broken", dead["token"])
        [after] = job_ids(1, home("broken"), "after")  # read after it
        assert client.schedule("noop", job_id=after).wait(END_S).succeeded
    executions = site.executions("broken")
    assert [e.attempt for e in executions] == [1, 2, 1]
    assert executions[2].token > executions[1].token == dead["token"]
    assert sorted(d["token"] for d in site.dispatches() if d["job_id"] == "broken") == [e.token for e in executions]


def redrive(site: AttemptSite, *arguments: str) -> dict[str, object]:
    """`duewheel dead redrive` as somebody calls it, and what it told of the one run that it touched; nothing if of none."""
    where = ["-b", site.desk.kafka.bootstrap_servers, "--prefix", site.desk.topology.prefix]
    result = CliRunner().invoke(cli, ["dead", "redrive", *where, "--wait", "--json", *arguments])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) <= 1
    return json.loads(lines[0]) if lines else {}
