"""The promises, one class each. A class says in its docstring what must hold, and `check` finds where it did not.

outcomes.py   nothing is lost, invented, or ended twice
times.py      nothing is early, and nothing late without an excuse
fencing.py    tokens rise, and each dispatch is started once
slots.py      every slot of a recurring job is run once, or told as left out
failures.py   what is cancelled, dead, crashing or silent is treated as it must be
deliveries.py what is delivered to a topic lies there once
changes.py    what is asked to change is answered once, and what is paused does not start
logs.py       offsets, backlogs, and that all witnesses know the same
"""

from __future__ import annotations

from typing import Final

from duewheel.proof.invariants.base import Invariant, Violation
from duewheel.proof.invariants.changes import AnsweredOnce, PausedStays
from duewheel.proof.invariants.deliveries import DeliveredOnce
from duewheel.proof.invariants.failures import CancelledStays, CrashLimit, HeardOut, OneDeadLetter
from duewheel.proof.invariants.fencing import StartedOnce, TokensRise
from duewheel.proof.invariants.logs import BacklogDrains, OffsetsRise, WitnessesAgree
from duewheel.proof.invariants.outcomes import NoLoss, NoPhantom, OneOutcome, SlotsMatched
from duewheel.proof.invariants.slots import EverySlotOnce
from duewheel.proof.invariants.times import NeverEarly, Punctual

INVARIANTS: Final[tuple[Invariant, ...]] = (
    NoLoss(),
    NoPhantom(),
    NeverEarly(),
    Punctual(),
    OneOutcome(),
    TokensRise(),
    StartedOnce(),
    SlotsMatched(),
    EverySlotOnce(),
    DeliveredOnce(),
    CancelledStays(),
    OffsetsRise(),
    WitnessesAgree(),
    BacklogDrains(),
    OneDeadLetter(),
    CrashLimit(),
    HeardOut(),
    AnsweredOnce(),
    PausedStays(),
)

__all__ = ["INVARIANTS", "Invariant", "Violation"]
