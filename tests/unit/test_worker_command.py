"""`duewheel worker`: what is wrong with an app or a cluster is said at start, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duewheel.cli.worker import shares_of
from duewheel.core.errors import BadConfiguration

APPS = {
    "good.py": "import duewheel\napp = duewheel.App()\nhandlers = app\nnumber = 5\n@app.task\ndef t(): pass\n",
    "empty.py": "import duewheel\napp = duewheel.App()\n",
    "none.py": "x = 1\n",
    "broken.py": "import not_there_at_all\n",
}


def worker(folder: Path, *arguments: str) -> tuple[int, str]:
    for name, text in APPS.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "duewheel.cli.main", "worker", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "argument, message",
    [
        ("good", "'good' does not name an app; write MODULE:APP"),
        ("nowhere:app", "module 'nowhere' was not found from "),
        ("good:number", "good:number is not a duewheel.App: module good has a int there; it has an App called app"),
        ("good:missing", "good:missing is not a duewheel.App: module good has no such name; it has an App called app"),
        ("none:app", "module none has no such name; write: app = duewheel.App()"),
        ("empty:app", "empty:app has no tasks; decorate functions with @app.task"),
    ],
)
def test_an_app_that_cannot_be_had_is_named(tmp_path: Path, argument: str, message: str) -> None:
    code, said = worker(tmp_path, argument)
    assert code == 2
    assert said.startswith("duewheel: ")
    assert message in said


def test_an_app_that_cannot_be_imported_shows_its_own_error(tmp_path: Path) -> None:
    code, said = worker(tmp_path, "broken:app")
    assert code == 1
    assert "No module named 'not_there_at_all'" in said
    assert 'broken.py", line 1' in said


def test_a_queue_that_cannot_be_a_topic_is_refused(tmp_path: Path) -> None:
    code, said = worker(tmp_path, "good:app", "-q", "no spaces")
    assert code == 2
    assert "queue 'no spaces' cannot be part of a topic's name; use 1 to 100 characters" in said


def test_queues_share_a_worker_by_weight_or_in_order() -> None:
    assert shares_of(["critical:5", "default:1"], strict=False).turns() == [0, 0, 0, 1, 0, 0]
    assert shares_of(["mail"], strict=False).queues == ("mail",)
    strict = shares_of(["critical", "default"], strict=True)
    assert (strict.queues, strict.strict) == (("critical", "default"), True)


@pytest.mark.parametrize(
    "queues, strict, message",
    [
        (["mail", "mail:2"], False, "queue 'mail' is given twice; name it once, with the weight that it should have"),
        (["mail:0"], False, "the weight of queue 'mail' is 0; it must be from 1 to 100"),
        (["mail:101"], False, "the weight of queue 'mail' is 101; it must be from 1 to 100"),
        (["mail:"], False, "the weight of queue 'mail' is ''; it must be a whole number from 1 to 100"),
        (["mail:-1"], False, "the weight of queue 'mail' is '-1'; it must be a whole number"),
        (["mail:1.5"], False, "the weight of queue 'mail' is '1.5'; it must be a whole number"),
        (["mail:\u0664"], False, "must be a whole number"),
        (["a:1:2"], False, "the weight of queue 'a' is '1:2'"),
        ([":5"], False, "queue '' cannot be part of a topic's name"),
        ([f"q{number}" for number in range(21)], False, "a worker serves 1 to 20 queues, not 21"),
        (["a:5", "b"], True, "queue 'a' has a weight, which means nothing with --strict"),
    ],
)
def test_queues_that_cannot_be_served_are_refused(queues: list[str], strict: bool, message: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        shares_of(queues, strict)
    assert message in str(refused.value)


def test_the_queues_may_stand_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUEWHEEL_QUEUE", "critical:5 default:0")
    code, said = worker(tmp_path, "good:app")
    assert code == 2
    assert "the weight of queue 'default' is 0" in said


def test_a_broker_that_is_away_is_named_and_waited_for_as_long_as_configured(tmp_path: Path) -> None:
    code, said = worker(tmp_path, "good:app", "-b", "127.0.0.1:1", "--broker-timeout", "1")
    assert code == 3
    assert "127.0.0.1:1" in said.splitlines()[-1]


@pytest.mark.parametrize("value", ["soon", "6000.5", "0x1770", ""])
def test_a_session_timeout_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    code, said = worker(tmp_path, "good:app", "-X", f"session.timeout.ms={value}")
    assert code == 2
    assert "session.timeout.ms" in said
    assert "Traceback" not in said
