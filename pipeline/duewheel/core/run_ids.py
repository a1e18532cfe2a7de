"""The names of a recurring job's runs.

Each slot that fires becomes a job of its own, which runs once. Its id is the recurring job's, an @, and the slot in milliseconds since the
epoch, which has thirteen digits from 2001 to 2286:

    report@1764600000000     the run of `report` at 14:40 on 1 December 2025

A run lives in the partition of its recurring job, so that one step can look at both: whoever hashes a job id leaves out what comes from
the @ on (`home`). The form is reserved. A producer cannot schedule a job under such an id, but may cancel, redrive or drop the run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_DIGITS: Final = 13
SUFFIX_BYTES: Final = 1 + _DIGITS
_AT: Final = ord("@")


class RunId(NamedTuple):
    """Which run an id names."""

    job_id: str
    slot_ms: int


def run_id(job_id: str, slot_ms: int) -> str:
    """The id of the run of `job_id` for this slot."""
    return f"{job_id}@{slot_ms}"


def parse(job_id: str) -> RunId | None:
    """Which run `job_id` names; None where it is not of that form."""
    # Called at the end of every job: most ids fail the first question.
    if job_id[-SUFFIX_BYTES:-_DIGITS] != "@" or len(job_id) == SUFFIX_BYTES:
        return None
    digits = job_id[-_DIGITS:]
    return RunId(job_id[:-SUFFIX_BYTES], int(digits)) if digits.isascii() and digits.isdigit() else None


def home(key: bytes) -> bytes:
    """What is hashed of a key to find its timer partition: all of it, but for a run the id of its recurring job."""
    if len(key) > SUFFIX_BYTES and key[-SUFFIX_BYTES] == _AT and key[-_DIGITS:].isdigit():
        return key[:-SUFFIX_BYTES]
    return key
