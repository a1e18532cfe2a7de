"""The simulator in the test run: a few hundred seeds, and that a seed says what it found and repeats it.

How many, and from which on: DUEWHEEL_SIMULATE_SEEDS and DUEWHEEL_SIMULATE_FIRST. By hand: `make simulate SEEDS=10000`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duewheel.engine.partition import Partition
from tests.simulation.trial import Trial

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("DUEWHEEL_SIMULATE_SEEDS", "300"))
FIRST = int(os.environ.get("DUEWHEEL_SIMULATE_FIRST", "1"))
TOGETHER = 25

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
def test_whatever_goes_wrong_every_promise_is_kept(first: int) -> None:
    for seed in range(first, min(first + TOGETHER, FIRST + SEEDS)):
        trial = Trial(seed)
        trial.run()
        assert not trial.verdict, trial.account()


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
