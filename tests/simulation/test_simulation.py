"""The simulator in the test run: a few hundred seeds, and that a seed says what it found and repeats it.

How many, and from which on: DUEWHEEL_SIMULATE_SEEDS and DUEWHEEL_SIMULATE_FIRST. By hand: `make simulate SEEDS=10000`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from duewheel.engine.partition import Partition
from tests.simulation import __main__ as command
from tests.simulation import crowd
from tests.simulation.coverage import DEEDS, SEEDS_MIN, missing
from tests.simulation.producers import Producers
from tests.simulation.trial import Trial
from tests.simulation.weather import AT_CALLS, AT_TIMES

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("DUEWHEEL_SIMULATE_SEEDS", "300"))
FIRST = int(os.environ.get("DUEWHEEL_SIMULATE_FIRST", "1"))
TOGETHER = 25

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def met(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """Where seeds leave what they met, for all processes of this test run."""
    folder = tmp_path_factory.getbasetemp().parent / f"seeds-{testrun_uid}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
def test_whatever_goes_wrong_every_promise_is_kept(first: int, met: Path) -> None:
    for seed in range(first, min(first + TOGETHER, FIRST + SEEDS)):
        trial = Trial(seed)
        trial.run()
        assert not trial.verdict, trial.account()
        written = met / f"{seed}.part"
        written.write_text(json.dumps(trial.met))
        written.rename(met / f"{seed}.json")


@pytest.mark.timeout(300)
def test_a_few_hundred_seeds_do_everything_that_can_go_wrong(met: Path) -> None:
    """Else they prove nothing of what they never did. Takes what was met so far, and runs further seeds only as far as need be."""
    counts = Counter[str]()
    files = {seed: met / f"{seed}.json" for seed in range(FIRST, FIRST + SEEDS_MIN)}
    for file in files.values():
        if file.exists():
            counts.update(json.loads(file.read_text()))
    for seed, file in files.items():
        if missing(counts) and not file.exists():
            trial = Trial(seed)
            trial.run()
            counts.update(trial.met)
    assert missing(counts) == []


def test_a_set_of_seeds_that_never_did_something_is_vacuous(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Boring:
        verdict: Final = ()

        def __init__(self, seed: int, calm: bool) -> None:
            self.met = Counter(dict.fromkeys((*AT_CALLS, *AT_TIMES, *DEEDS), 1) | {left_out: 0})

        def run(self) -> None: ...

    monkeypatch.setattr(crowd, "Trial", Boring)
    monkeypatch.setattr(sys, "argv", ["simulation", "--processes", "1", "--seeds", str(SEEDS_MIN)])
    for left_out in ("late", "job id used anew", "handler began"):
        assert command.main() == 1
        assert f"VACUOUS: never happened: {left_out}\n" in capsys.readouterr().out
    left_out = "something else"
    assert command.main() == 0


@pytest.mark.parametrize("never", ["handler began", "job asked for"])
def test_a_seed_that_never_did_something_is_no_failure_by_itself(never: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one in which the queue is gone, or nobody is let in, nearly all the time; others make up for it."""
    monkeypatch.setattr(Producers, "begin", lambda *arguments: None)
    trial = Trial(1)
    trial.run()
    assert (trial.verdict, trial.met[never]) == ([], 0)


def test_in_good_weather_everything_is_on_time() -> None:
    for seed in range(1, 6):
        trial = Trial(seed, calm=True)
        trial.run()
        assert not trial.verdict, trial.account()
        assert trial.report is not None
        assert trial.report.acknowledged == trial.report.jobs >= 20


def digest(seed: int, hash_seed: str) -> str:
    """What another process makes of a seed."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)
    return done.stdout


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_seed_gives_the_same_trace_in_every_process(seed: int) -> None:
    """Also where sets and dicts of strings would be walked through in another order."""
    told = digest(seed, "1")
    assert f"seed {seed}: " in told
    assert told == digest(seed, "2")


def test_a_seed_that_fails_says_so_with_its_last_events_and_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def save_nothing(self: Partition, *arguments: object) -> None: ...

    monkeypatch.setattr(Partition, "save", save_nothing)
    trial = Trial(1)
    trial.run()
    account = trial.account()
    assert "WRONG: " in account
    assert "starts a run job-" in account
    assert account.endswith("again: make simulate SEED=1")
