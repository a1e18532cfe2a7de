"""The simulator is checked too: bugs that such a system must not have are planted, and it has to find each."""

from __future__ import annotations

import pytest

from duewheel.core.errors import BrokenInvariant
from duewheel.core.step import Step
from tests.simulation.planted import BUGS, Bug, find

SEEDS = range(1, 301)
# Tried first, since it found this bug before: it takes a minute to come to it.
LIKELY = {"offsets not sent in timer-only batches": 162}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    trial = find(name, (LIKELY.get(name, 1), *SEEDS))
    assert trial is not None, f"{name}: not found by seeds {SEEDS.start} to {SEEDS.stop - 1}"


def test_a_bug_that_does_not_fit_the_code_any_more_is_not_planted_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUGS, "gone", (Bug(Step, "fire", "text that is not there", ""),))
    with pytest.raises(BrokenInvariant, match=r"'gone' cannot be planted: Step.fire does not say"):
        find("gone", SEEDS)
