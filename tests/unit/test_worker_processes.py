"""Child processes: they run what threads run, die without harm, and never outlive their worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duewheel.adapters.system import SystemClock
from duewheel.core.model import Dispatch
from duewheel.worker.crew import Crew, Desk
from duewheel.worker.executors import processes
from duewheel.worker.executors.shares import Shares
from duewheel.worker.holding import Holding
from duewheel.worker.runs import Run
from tests.unit.process_tasks import app

APP_PATH = "tests.unit.process_tasks:app"
HOLDING = Holding("t", 0, "w")


def run(task: str, payload: Any = None, token: int = 1) -> Run:
    dispatch: Dispatch = {
        "token": token,
        "job_id": "j",
        "generation": 1,
        "slot_ms": 5,
        "attempt": 2,
        "timer_partition": 0,
        "dispatched_ms": 0,
        "terms": {"crashes": 1, "is_last_life": False, "expires_ms": 0, "deadline_ms": 0},
        "work": {
            "task": task,
            "content_type": "application/json",
            "payload": json.dumps(payload).encode(),
            "headers": {},
            "policy": None,
        },
    }
    return Run(HOLDING, 0, b"k", dispatch, app.tasks[task], 1)


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew(2, SystemClock(), APP_PATH, Shares({"q": 1}))
    crew.desk("q").gate_ms = 1 << 60
    yield crew
    crew.close()
    assert children() == []


@pytest.fixture
def desk(crew: Crew) -> Desk:
    return crew.desk("q")


def children() -> list[int]:
    """Ours that run our program, zombies too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == os.getpid() and (fields[0] == "Z" or b"executors.child" in command):
            found.append(int(stat.parent.name))
    return found


def is_gone(pid: int) -> bool:
    """Whether it has ended; who inherited it may not have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition: Callable[[], Any], desk: Desk | None = None, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        if desk is None:
            time.sleep(0.01)
        else:
            desk.wait(0.01)
            desk.nudge()


def perform(desk: Desk, *runs: Run) -> list[Run]:
    desk.submit(runs)
    until(lambda: desk.finished_count == len(runs), desk)
    return desk.take(len(runs))


def output(run: Run) -> Any:
    assert run.output is not None, run.error
    return json.loads(run.output)


def test_a_handler_in_a_process_gets_and_gives_what_one_in_a_thread_does(desk: Desk) -> None:
    (done,) = perform(desk, run("describe", {"a": [1, "é"]}, token=9))
    told = output(done)
    assert told.pop("pid") != os.getpid()
    assert told == {"payload": {"a": [1, "é"]}, "key": "j/5", "token": 9, "queue": "q", "crashes": 1}
    assert done.result == "SUCCEEDED"
    assert 0 < done.started_ms <= done.finished_ms
    assert done.started_steady_ms > 0


def test_children_are_made_when_needed_and_used_again(desk: Desk) -> None:
    assert children() == []
    pids = {output(perform(desk, run("describe"))[0])["pid"] for _ in range(5)}
    assert pids == set(children())
    assert len(pids) == 1
    perform(desk, *[run("describe") for _ in range(50)])
    assert 1 <= len(children()) <= 2


def test_a_coroutine_function_may_ask_for_a_process_too(desk: Desk) -> None:
    (done,) = perform(desk, run("describe_later", [1]))
    told = output(done)
    assert told["payload"] == [1]
    assert told["pid"] in children()


def test_verdicts_are_those_of_the_task_in_the_child(desk: Desk) -> None:
    done = {each.dispatch["work"]["payload"]: each for each in perform(desk, *[run("fail", how) for how in ("v", "exit", "later")])}
    assert [done[how].result for how in (b'"v"', b'"exit"', b'"later"')] == ["RETRY", "RETRY", "RETRY"]
    assert done[b'"later"'].retry_after_ms == 7_000
    error = done[b'"v"'].error
    assert error is not None
    assert (error["type"], error["message"]) == ("ValueError", "v")
    assert "process_tasks.py" in error["traceback"]
    exited = done[b'"exit"'].error
    assert exited is not None
    assert (exited["type"], exited["message"]) == ("SystemExit", "3")


def test_an_error_that_breaks_its_own_verdict_ends_its_run_and_not_the_child(desk: Desk) -> None:
    pid = output(perform(desk, run("describe"))[0])["pid"]
    assert perform(desk, run("be_busy"))[0].result == "RETRY"
    assert output(perform(desk, run("describe"))[0])["pid"] == pid


@pytest.mark.parametrize(
    "code, how",
    [(0, "ended with exit code 0"), (3, "ended with exit code 3"), (-11, "was killed by SIGSEGV"), (-9, "was killed by SIGKILL")],
)
def test_W7_a_handler_that_ends_its_process_loses_its_run_and_nothing_else(desk: Desk, code: int, how: str) -> None:
    done = perform(desk, run("leave", code), *[run("describe", n) for n in range(20)])
    lost = [each for each in done if each.result == "LOST"]
    assert [each.dispatch["work"]["task"] for each in lost] == ["leave"]
    assert lost[0].error is not None
    assert lost[0].error["type"] == "duewheel.ProcessDied"
    assert f"the process that ran task 'leave' {how}" in lost[0].error["message"]
    assert sum(each.result == "SUCCEEDED" for each in done) == 20


def test_a_death_is_noticed_though_somebody_else_holds_the_socket(desk: Desk, tmp_path: Path) -> None:
    heir = tmp_path / "heir"
    (done,) = perform(desk, run("leave_heir", str(heir)))
    until(lambda: is_gone(int(heir.read_text())))
    assert done.result == "LOST"
    assert done.error is not None
    assert "exit code 7" in done.error["message"]


def test_a_child_that_dies_between_runs_costs_none(desk: Desk) -> None:
    pid = output(perform(desk, run("describe"))[0])["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid))
    (done,) = perform(desk, run("describe"))
    if done.result == "INTERRUPTED":  # the child was found alive when the run was taken, and dead when it was sent
        (done,) = perform(desk, run("describe"))
    assert output(done)["pid"] != pid


def test_W12_a_process_is_killed_at_its_time_limit_and_its_slot_goes_on(desk: Desk, tmp_path: Path) -> None:
    for round_ in range(3):
        stuck = [run("hang", str(tmp_path / f"{round_}-{n}")) for n in range(2)]
        desk.submit(stuck)
        until(lambda: all((tmp_path / f"{round_}-{n}").exists() for n in range(2)), desk)  # noqa: B023
        pids = [int((tmp_path / f"{round_}-{n}").read_text()) for n in range(2)]
        assert set(desk.running()) == set(stuck)
        assert all(desk.abandon(each) for each in stuck)
        assert desk.running() == []
        until(lambda: not set(pids) & set(children()))  # noqa: B023
    assert perform(desk, run("describe"))[0].result == "SUCCEEDED"
    assert desk.finished_count == 0


@pytest.mark.parametrize("end", ["given up", "closed", "killed"])
def test_what_a_handler_started_ends_with_it(crew: Crew, desk: Desk, tmp_path: Path, end: str) -> None:
    stuck, file = run("hang_with_another", str(tmp_path / "pid")), tmp_path / "pid"
    desk.submit([stuck])
    until(file.exists, desk)
    match end:
        case "given up":
            assert desk.abandon(stuck)
        case "closed":
            crew.close()
        case "killed":
            os.kill(children()[0], signal.SIGKILL)
    until(lambda: is_gone(int(file.read_text())))


def test_a_child_that_hangs_when_it_starts_is_killed_and_its_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs_at_import.py").write_text("import threading\n\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(processes, "START_S", 0.2)
    crew = Crew(2, SystemClock(), "hangs_at_import:app", Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1 << 60
    (done,) = perform(desk, run("describe"))
    assert done.result == "RETRY"
    assert done.error is not None
    assert "had not imported hangs_at_import:app within 0.2 s; does that hang?" in done.error["message"]
    crew.close()
    assert children() == []


def test_a_run_that_has_ended_cannot_be_given_up(desk: Desk) -> None:
    (done,) = perform(desk, run("describe"))
    assert not desk.abandon(done)
    assert not done.abandoned


@pytest.mark.parametrize("task", ["obey", "obey_later"])
def test_a_cancel_reaches_the_handler(desk: Desk, tmp_path: Path, task: str) -> None:
    asked = run(task, str(tmp_path / "started"))
    desk.submit([asked])
    until((tmp_path / "started").exists, desk)
    desk.cancel(asked)
    until(lambda: desk.finished_count, desk)
    assert desk.take(1) == [asked]
    assert asked.result == "CANCELLED"


def test_a_cancel_that_comes_before_the_child_is_ready_is_not_forgotten(desk: Desk, tmp_path: Path) -> None:
    asked = run("obey", str(tmp_path / "started"))
    desk.submit([asked])
    desk.cancel(asked)
    until(lambda: desk.finished_count, desk)
    assert asked.result == "CANCELLED"


def test_heartbeats_and_progress_come_through_and_no_flood_of_them(desk: Desk) -> None:
    beating = run("beat", 100_000)
    desk.submit([beating])
    until(lambda: beating.progress == b'{"done":100000}', desk)
    assert beating.beat_ms >= beating.started_steady_ms > 0
    desk.cancel(beating)
    until(lambda: desk.finished_count, desk)
    assert beating.result == "SUCCEEDED"


def test_signals_for_the_whole_family_are_left_to_the_worker(desk: Desk) -> None:
    done = perform(desk, run("interrupt"), run("start_and_end_another"))
    assert [each.result for each in done] == ["SUCCEEDED", "SUCCEEDED"]
    assert {each.dispatch["work"]["task"]: each.output for each in done}["start_and_end_another"] == b"-15"


def test_a_child_inherits_no_descriptors(desk: Desk) -> None:
    read, write = os.pipe()
    for each in (read, write):
        os.set_inheritable(each, True)  # as a C library's sockets may be
    done = perform(desk, run("has_descriptor", read + 100), run("has_descriptor", write))
    os.close(read)
    os.close(write)
    assert [each.output for each in done] == [b"false", b"false"]


@pytest.mark.parametrize(
    "app_path, message", [(None, "was given its app as MODULE:APP"), ("no.such:app", "cannot import no.such:app: BadConfiguration: module")]
)
def test_runs_fail_and_say_why_where_no_child_can_run_them(app_path: str | None, message: str) -> None:
    crew = Crew(2, SystemClock(), app_path, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1 << 60
    done = perform(desk, *[run("describe") for _ in range(3)])
    crew.close()
    assert {each.result for each in done} == {"RETRY"}
    assert all(each.error is not None and message in each.error["message"] for each in done)


def test_closing_ends_children_that_run_and_that_do_not(tmp_path: Path) -> None:
    crew = Crew(2, SystemClock(), APP_PATH, Shares({"q": 1}))
    desk = crew.desk("q")
    desk.gate_ms = 1 << 60
    perform(desk, run("describe"))
    desk.submit([run("hang", str(tmp_path / "pid"))])
    until((tmp_path / "pid").exists, desk)
    desk.close()
    assert children() == []


PARENT = """
import sys
from pathlib import Path
from duewheel.adapters.system import SystemClock
from duewheel.worker.crew import Crew
from duewheel.worker.executors.shares import Shares
from tests.unit.test_worker_processes import APP_PATH, perform, run, until

crew = Crew(2, SystemClock(), APP_PATH, Shares({"q": 1}))
desk = crew.desk("q")
desk.gate_ms = 1 << 60
perform(desk, run("describe"))
if sys.argv[1] != "idle":
    file = Path(sys.argv[2])
    desk.submit([run(sys.argv[1], str(file))])
    until(file.exists, desk)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["hang", "hang_with_another", "idle"])
def test_no_child_outlives_a_worker_that_is_killed(tmp_path: Path, state: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state, str(tmp_path / "pid")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    # Its children, and theirs, have the same standard output, which is at its end when the last of them is gone.
    parent.communicate(timeout=10)
    assert parent.returncode == -signal.SIGKILL
