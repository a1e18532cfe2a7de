"""The lifecycle table: what it lists happens, what it does not list raises and changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.core.lifecycle import TERMINAL, TRANSITIONS, Event, IllegalTransition, follow
from duewheel.core.model import Phase


@given(st.sampled_from(Phase), st.sampled_from(Event))
def test_only_listed_events_lead_on(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert follow(phase, event) is TRANSITIONS[phase, event]
    else:
        with pytest.raises(IllegalTransition, match=phase):
            follow(phase, event)


@given(st.lists(st.sampled_from(Event)))
def test_a_finished_job_stays_finished(events: list[Event]) -> None:
    phase, finished = Phase.WAITING, None
    for event in events:
        try:
            phase = follow(phase, event)
        except IllegalTransition:
            pass
        assert finished in (None, phase)
        if phase in TERMINAL:
            finished = phase


def test_every_phase_can_be_reached_and_left_until_it_is_terminal() -> None:
    reached, frontier = {Phase.WAITING}, {Phase.WAITING}
    while frontier:
        frontier = {after for (phase, _), after in TRANSITIONS.items() if phase in frontier} - reached
        reached |= frontier
    assert reached == set(Phase)
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - TERMINAL
