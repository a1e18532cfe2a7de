"""An installation of real processes, broken in every run of the tests; `make chaos` breaks it more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.chaos.__main__ import ROOT
from tests.chaos.course import JOBS_A_CLOSING

# The same in every run, as far as that can be, so that a failure is told by what changed and not by the day.
SEED = 20_300_131
JOBS = 5_000
TIMEOUT_S = 420
# Nothing may be lost, early or accepted twice, however busy the machine is. How late things are says more of the machine, which the tests
# share with whatever else it does: so these bounds only find what hangs. `make chaos` has narrow ones.
BOUNDS = ("--punctual", "60", "--recovery", "120")


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_nothing_is_lost_early_or_accepted_twice_while_processes_and_a_broker_are_killed() -> None:
    doses = ("--jobs", f"{JOBS}", "--kills", "6", "--pauses", "2", "--broker-kills", "1", "--span", "40", "--seed", f"{SEED}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *doses, *BOUNDS, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-10_000:]
    found = json.loads(done.stdout)
    assert found["proven"], found
    assert found["jobs"] == JOBS
    assert found["acknowledged"] >= JOBS * 0.99
    assert {kind: found["faults"][kind] for kind in ("kill", "pause", "broker kill")} == {"kill": 6, "pause": 2, "broker kill": 1}
    assert set(found["broken"].values()) == {0}
    assert min(found["redriven"], found["dropped"]) >= JOBS // JOBS_A_CLOSING
    assert found["repeated"] > 0, "six processes were killed among thousands of runs, and none was caught"
