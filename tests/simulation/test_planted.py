"""The simulator is checked too: bugs that such a system must not have are planted, and it has to find each."""

from __future__ import annotations

import pytest

from duewheel.core.errors import BrokenInvariant
from duewheel.core.step import Step
from tests.simulation.planted import BUGS, HARMLESS, Bug, find, planted
from tests.simulation.trial import Trial

SEEDS = range(1, 301)
# Tried first, since they found these bugs before: it takes a while to come to them.
LIKELY = {
    "offsets not sent in timer-only batches": 17,
    "changelog's end taken before committed offsets": 65,
    "claim skipped": 7,
    "lease expired before outcomes are read": 58,
    "dead letter kept when its partition is lost": 25,
    "producer reused after an unknown commit": 10,
}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [name for name in BUGS if name not in HARMLESS])
def test_a_planted_bug_is_found(name: str) -> None:
    trial = find(name, (LIKELY.get(name, 1), *SEEDS))
    assert trial is not None, f"{name}: not found by seeds {SEEDS.start} to {SEEDS.stop - 1}"


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quiet")
def test_a_successor_without_a_name_to_fence_is_safe_by_the_order_of_its_questions_alone() -> None:
    """Else the planted order would prove nothing: it is planted together with a fencing that finds no name."""
    seed = LIKELY["changelog's end taken before committed offsets"]
    with planted("nobody is fenced"):
        trial = Trial(seed)
        trial.run()
    assert not trial.verdict, trial.account()


@pytest.mark.usefixtures("quiet")
def test_the_model_of_the_commands_tells_what_stores_and_changelog_have_in_common() -> None:
    trial = find("a redefinition counts twice", SEEDS)
    assert trial is not None
    assert any(line.startswith("WitnessesAgree") and "model says {'generation': 2" in line for line in trial.verdict)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "name, said",
    [
        ("slot skipped after a takeover", "slots that it had to decide about have no run, and only"),
        ("slot run once more after a takeover", "was handed out twice"),
    ],
)
def test_it_is_told_of_slots_that_are_skipped_or_run_twice(name: str, said: str) -> None:
    for seed in SEEDS:
        with planted(name):
            trial = Trial(seed)
            trial.run()
        if any(line.startswith("EverySlotOnce") and said in line for line in trial.verdict):
            return
    raise AssertionError(f"{name}: no seed says that")


def test_a_bug_that_does_not_fit_the_code_any_more_is_not_planted_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUGS, "gone", (Bug(Step, "fire", "text that is not there", ""),))
    with pytest.raises(BrokenInvariant, match=r"'gone' cannot be planted: Step.fire does not say"):
        find("gone", SEEDS)
