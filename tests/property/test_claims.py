"""Claims: whatever happens, the committed offset and its metadata say what was started and not finished."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from duewheel.core.claims import Claim, Ledger, decode, encode
from duewheel.core.errors import BrokenInvariant
from duewheel.core.limits import CLAIM_DISPATCHES_MAX, CLAIM_METADATA_BYTES_MAX, CLAIM_OWNER_CHARS_MAX

OFFSETS = st.integers(0, 2**62)
GAPS = st.one_of(st.integers(1, 3), st.integers(1, 300), st.integers(1, 40_000), st.integers(1, 2**40))
OWNERS = st.text("abcXYZ019._-", max_size=CLAIM_OWNER_CHARS_MAX)


@given(OWNERS, OFFSETS, st.lists(GAPS, max_size=50))
def test_a_claim_reads_back_as_written(owner: str, offset: int, gaps: list[int]) -> None:
    unfinished = [offset]
    for gap in gaps:
        unfinished.append(unfinished[-1] + gap)
    claimed_upto = unfinished.pop() + 1 if not gaps else unfinished.pop()
    claim = Claim(owner, claimed_upto if unfinished else offset, tuple(unfinished))
    assert decode(encode(claim, offset), offset) == claim


@given(OWNERS, OFFSETS, st.integers(0, 2**40))
def test_a_range_of_unknown_state_reads_back_as_written(owner: str, offset: int, length: int) -> None:
    claim = Claim(owner, offset + length, None)
    assert decode(encode(claim, offset), offset) == claim


@given(st.one_of(st.none(), st.text(), st.from_regex(r"dw1:[a-z]{0,3}:\*?[A-Za-z0-9+/=]*", fullmatch=True)), st.integers(0, 1000))
def test_foreign_metadata_is_no_claim_and_never_an_error(metadata: str | None, offset: int) -> None:
    claim = decode(metadata, offset)
    if claim is not None:
        assert decode(encode(claim, offset), offset) == claim


def test_a_new_topic_is_marked_as_never_started() -> None:
    assert encode(Claim("", 0), 0) == "dw1::AA"
    assert decode("dw1::AA", 0) == Claim("", 0, ())


def test_a_claim_cannot_be_committed_at_an_offset_that_passes_an_unfinished_one() -> None:
    with pytest.raises(BrokenInvariant, match="lowest unfinished one is 10"):
        encode(Claim("w", 20, (10, 12)), 11)


def test_an_owner_that_would_break_the_format_is_refused() -> None:
    with pytest.raises(BrokenInvariant, match="owner"):
        encode(Claim("a:b", 0), 0)


def test_the_largest_claim_at_two_bytes_each_fits() -> None:
    ledger = Ledger(Claim("w" * CLAIM_OWNER_CHARS_MAX, 0))
    offsets = range(0, CLAIM_DISPATCHES_MAX * 11, 11)
    assert ledger.room(offsets[-1]) == CLAIM_DISPATCHES_MAX
    ledger.claim(offsets)
    assert len(ledger.position()[1]) <= CLAIM_METADATA_BYTES_MAX
    assert ledger.room(offsets[-1] + 1) == 0


@given(st.lists(GAPS, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_W9_runs_finish_out_of_order(gaps: list[int], random: Random) -> None:
    ledger = Ledger(Claim("w", 0))
    offsets = list(accumulate(gaps))
    ledger.claim(offsets)
    unfinished = set(offsets)
    for offset in random.sample(offsets, len(offsets)):
        ledger.finish(offset)
        unfinished.remove(offset)
        committed, metadata = ledger.position()
        assert all(committed <= other for other in unfinished)  # no offset passes an unfinished run
        claim = decode(metadata, committed)
        assert claim is not None
        assert set(claim.unfinished or ()) == unfinished  # no finished run is returned
    assert ledger.position()[0] == offsets[-1] + 1


class LedgerAgainstSets(RuleBasedStateMachine):
    """The ledger beside the plainest thing that could be right: a set of what is unfinished."""

    @initialize(owner=OWNERS, start=OFFSETS)
    def begin(self, owner: str, start: int) -> None:
        self.owner = owner
        self.ledger = Ledger(Claim(owner, start))
        self.upto = start
        self.unfinished: set[int] = set()
        self.finished: set[int] = set()

    @rule(gaps=st.lists(GAPS, min_size=1, max_size=400), repeat=st.integers(1, 4))
    def claim(self, gaps: list[int], repeat: int) -> None:
        offsets, last = [], self.upto - 1
        for gap in gaps * repeat:
            last += gap
            offsets.append(last)
        if last >= 2**63:
            return
        room = self.ledger.room(offsets[-1])
        if len(offsets) > room:
            with pytest.raises(BrokenInvariant):
                self.ledger.claim(offsets)
            offsets = offsets[:room]
        self.ledger.claim(offsets)
        if offsets:
            self.upto = offsets[-1] + 1
            self.unfinished.update(offsets)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def finish_out_of_order(self, data: st.DataObject) -> None:
        for offset in data.draw(st.lists(st.sampled_from(sorted(self.unfinished)), unique=True)):
            self.ledger.finish(offset)
            self.unfinished.remove(offset)
            self.finished.add(offset)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def unclaim(self, data: st.DataObject) -> None:
        never_started = data.draw(st.sets(st.sampled_from(sorted(self.unfinished))))
        must_finish = set(self.ledger.unclaim(never_started))
        assert must_finish <= never_started
        taken_back = never_started - must_finish
        started = (self.unfinished - never_started) | self.finished
        # Taken back is exactly what lies above everything that was started.
        assert taken_back == {offset for offset in never_started if offset > max(started, default=-1)}
        if taken_back:
            self.upto = min(taken_back)
        self.unfinished -= taken_back

    @invariant()
    def position_says_all(self) -> None:
        offset, metadata = self.ledger.position()
        assert len(metadata) <= CLAIM_METADATA_BYTES_MAX
        assert offset == min(self.unfinished, default=self.upto)
        assert decode(metadata, offset) == Claim(self.owner, self.upto, tuple(sorted(self.unfinished)))


TestLedgerAgainstSets = LedgerAgainstSets.TestCase
