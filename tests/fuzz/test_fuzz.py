"""20,000 bad inputs in every run; and the fuzzer itself, which must find what is there to be found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import planted
from tests.fuzz.corpus import finds, from_text, keep, to_text
from tests.fuzz.hunt import ROOT, Find, Hunter, Report, hunt, shrunk
from tests.fuzz.mutations import Maker
from tests.fuzz.targets import TARGETS
from tests.fuzz.victim import Limits

# The same inputs in every run, so that a change is told by what it breaks and not by the day; `make fuzz` chooses new ones.
SEED = 20_300_131
INPUTS = 20_000


def test_every_decoder_takes_what_comes() -> None:
    report = hunt(INPUTS, SEED, tries_max=0)  # to make a find small would take longer than a test may
    assert report.inputs >= INPUTS
    assert [_told(find) for find in report.finds] == []


def _told(find: Find) -> str:
    inputs = ", ".join(to_text(value)[:2_000] for value in find.inputs) or "not repeatable"
    again = f"make fuzz SEED={SEED} ARGS='--target {find.target} --input {find.number}'"
    return f"{find.target}: {find.sign}: {inputs}; repeat: {again}; {find.detail}"


def _hunted(target: str) -> Report:
    limits = Limits(hang_s=1) if target == "hanging" else Limits()
    return hunt(400, 7, [target], module="tests.fuzz.planted", limits=limits)


@pytest.mark.parametrize(
    "target, sign",
    [
        ("undeclared", "KeyError in planted.py:_undeclared"),
        ("disagreeing", "disagreement, the answer"),
        ("crashing", "crash, SIGSEGV"),
        ("hanging", "hang"),
        ("unspeakable", "UnicodeEncodeError in victim.py:_problem"),
    ],
)
def test_a_fault_is_found_once_and_its_input_is_as_small_as_can_be(target: str, sign: str) -> None:
    [find] = _hunted(target).finds
    assert (find.target, find.sign, find.inputs) == (target, sign, [b"B"])
    assert b"B" in Maker(planted.TARGETS[target]).make(7, find.number)


@pytest.mark.parametrize("target, sign", [("slow", "more than 50 ms"), ("greedy", "more than 256 MB of memory")])
def test_what_takes_too_much_is_found_and_kept_whole(target: str, sign: str) -> None:
    [find] = [find for find in _hunted(target).finds if find.sign == sign]  # to fill much memory takes long, too
    assert find.inputs == [Maker(planted.TARGETS[target]).make(7, find.number)]


def test_a_fault_that_needs_two_inputs_is_kept_with_both() -> None:
    [find] = _hunted("remembering").finds
    assert find.sign == "IndexError in planted.py:_remembering"
    assert len(find.inputs) == 2
    with Hunter("tests.fuzz.planted") as hunter:
        assert hunter.problems("remembering", find.inputs[1:]) == []
        hunter.end()
        assert len(hunter.problems("remembering", find.inputs)) == 1


def test_a_hunt_goes_on_after_a_death() -> None:
    told: list[tuple[str, int, int]] = []
    report = hunt(800, 7, ["crashing", "faultless"], module="tests.fuzz.planted", on_progress=lambda *progress: told.append(progress))
    assert len(report.finds) == 1
    assert ("crashing", 400, 400) in told
    assert ("faultless", 400, 400) in told


def test_a_victim_that_cannot_begin_ends_the_hunt() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'tests\.fuzz\.nowhere'"):
        hunt(10, 7, ["faultless"], module="tests.fuzz.nowhere", targets=planted.TARGETS)


def test_inputs_follow_from_seed_and_number_in_any_process() -> None:
    program = (
        "from tests.fuzz.mutations import Maker; from tests.fuzz.targets import TARGETS; from hashlib import sha256; "
        "print([sha256(Maker(TARGETS[t]).make(7, n)).hexdigest() for t in ('decode_state', 'payloads') for n in range(50)])"
    )
    told = {subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True).stdout for _ in range(2)}
    assert len(told) == 1
    maker = Maker(TARGETS["decode_state"])
    assert len({maker.make(7, number) for number in range(500)}) > 400
    assert maker.make(7, 0) != maker.make(8, 0)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_good_inputs_are_good(name: str) -> None:
    """A target whose seeds are all refused would be fuzzed at its front door only."""
    target = TARGETS[name]
    accepted = refused = 0
    for seed in target.seeds():
        try:
            found = target.call(seed)
        except target.legal as error:
            found = error
            refused += 1
        else:
            accepted += 1
        target.check(seed, found)
    assert accepted >= max(2, refused // 20)


def test_intake_is_fuzzed_with_all_kinds_of_answers() -> None:
    target = TARGETS["intake"]
    maker = Maker(target)
    kinds = {target.call(maker.make(7, number))[0].name for number in range(4_000)}
    assert kinds == {"SCHEDULE", "CANCEL", "REDRIVE", "DROP", "CHANGE", "FORWARD", "REFUSE"}


def test_shrinking_keeps_what_is_needed() -> None:
    assert shrunk(b"xxaxxxxbxx", lambda value: b"a" in value and b"b" in value) == b"ab"
    assert shrunk([b"1", b"2", b"3", b"4"], lambda values: b"3" in values) == [b"3"]
    assert shrunk(b"abc", lambda value: False) == b"abc"


def test_the_corpus_gives_back_what_was_kept(tmp_path: Path) -> None:
    pick = Random(7)
    inputs = [pick.randbytes(300), b"[" * 100_000 + b"]" * 99_999, b'{"a":' * 1_000, b"", bytes(23), bytes(24) + b"x"]
    path = keep("decode_state", "KeyError\nin x", inputs, tmp_path)
    assert path.read_text().startswith("# KeyError in x\n")
    assert path.stat().st_size < 1_000
    assert finds(tmp_path) == [("decode_state", (path, inputs))]
    assert all(from_text(to_text(value)) == value for value in inputs)
