"""What a job carries along that did not simply succeed at its first attempt: when to look at it again, and how it went so far.

Most jobs have none of it (`State.trail` is null), and the rules are written so that those never come here.

A trail is never changed, since the state that holds it may be committed; each function gives a new one. Where there is nothing to carry
it gives None.
"""

from __future__ import annotations

from typing import Final

from duewheel.core.limits import (
    CRASHES_MAX_DEFAULT,
    ENDING_MESSAGE_CHARS_MAX,
    ENDINGS_MAX,
    ERROR_TYPE_CHARS_MAX,
    LEASE_MS,
    LEASE_MS_MAX,
    OUTPUT_BYTES_MAX,
    RETRY_DELAY_MS_MAX,
)
from duewheel.core.model import Answer, Ending, Limits, Outcome, State, Terms, Trail

# The name of a worker is cut as the name of an error's class is: whoever writes outcomes may write anything.
_WORKER_CHARS_MAX: Final = ERROR_TYPE_CHARS_MAX


def carried(
    trail: Trail | None, *, wake_ms: int = 0, lease_ms: int = 0, output: bytes | None = None, is_quiet: bool = False
) -> Trail | None:
    """The trail of the next state: how it went so far stays, the rest is as given."""
    first_ms, endings = (0, _NONE) if trail is None else (trail["first_ms"], trail["endings"])
    if not (wake_ms or lease_ms or first_ms or endings or output is not None or is_quiet):
        return None
    return {**_trail(wake_ms, lease_ms, first_ms, output, endings), "is_quiet": is_quiet}


def waking(trail: Trail | None, wake_ms: int) -> Trail:
    """The same trail with another moment to look at the job."""
    return {**(_trail(0, 0, 0, None, _NONE) if trail is None else trail), "wake_ms": wake_ms, "answers": _NO_ANSWERS}


def answered(trail: Trail | None, answers: list[Answer]) -> Trail:
    """The same trail, with what became of commands."""
    return {**(_trail(0, 0, 0, None, _NONE) if trail is None else trail), "answers": answers}


def quiet(trail: Trail | None, is_quiet: bool) -> Trail | None:
    """The same trail, of a job whose worker is told of a cancel, or not."""
    if trail is None:
        return carried(None, is_quiet=is_quiet)
    return trail if trail["is_quiet"] == is_quiet else {**trail, "is_quiet": is_quiet}


def is_quiet(trail: Trail | None) -> bool:
    return trail is not None and trail["is_quiet"]


def unanswered(trail: Trail) -> Trail:
    """The same trail, without what became of earlier commands."""
    return {**trail, "answers": _NO_ANSWERS}


def begun(trail: Trail | None, first_ms: int) -> Trail | None:
    """The trail with another time of its first dispatch."""
    endings = _NONE if trail is None else trail["endings"]
    if not (first_ms or endings):
        return None
    return _trail(0, 0, first_ms, None, endings)


def ended(trail: Trail | None, ending: Ending) -> Trail:
    """The trail with one more ending. The first one is kept, which often tells the cause, and the latest."""
    first_ms, endings = (0, _NONE) if trail is None else (trail["first_ms"], trail["endings"])
    if len(endings) >= ENDINGS_MAX:
        endings = [endings[0], *endings[2 - ENDINGS_MAX :]]
    return _trail(0, 0, first_ms, None, [*endings, ending])


def recurring(wake_ms: int, runs: list[int], queued_ms: int = 0) -> Trail:
    """The trail of a recurring job: when to look at it, which of its runs may go on, and which slot waits for these."""
    return {**_trail(wake_ms, 0, 0, None, _NONE), "runs": runs, "queued_ms": queued_ms}


def runs_of(state: State | None) -> list[int]:
    """Slots of a recurring job's runs that may go on."""
    return _NO_RUNS if state is None or state["trail"] is None else state["trail"]["runs"]


def _trail(wake_ms: int, lease_ms: int, first_ms: int, output: bytes | None, endings: list[Ending]) -> Trail:
    return {
        "wake_ms": wake_ms,
        "lease_ms": lease_ms,
        "first_ms": first_ms,
        "output": output,
        "endings": endings,
        "runs": _NO_RUNS,
        "queued_ms": 0,
        "answers": _NO_ANSWERS,
        "is_quiet": False,
    }


def ending_told(state: State, record: Outcome) -> Ending:
    """How an attempt ended, as its worker told."""
    error = record["error"]
    return {
        "attempt": state["attempt"],
        "token": state["token"],
        "result": record["result"],
        "started_ms": record["started_ms"],
        "ended_ms": record["finished_ms"],
        "worker": record["worker"][:_WORKER_CHARS_MAX],
        "type": "" if error is None else error["type"][:ERROR_TYPE_CHARS_MAX],
        "message": "" if error is None else error["message"][:ENDING_MESSAGE_CHARS_MAX],
    }


def ending_concluded(state: State, result: str, now_ms: int) -> Ending:
    """How an attempt ended of which nobody told."""
    return {
        "attempt": state["attempt"],
        "token": state["token"],
        "result": result,
        "started_ms": 0,
        "ended_ms": now_ms,
        "worker": "",
        "type": "",
        "message": "",
    }


def crashes_max(limits: Limits | None) -> int:
    """How many attempts may end because their worker vanished; with the last of them the run is dead."""
    return CRASHES_MAX_DEFAULT if limits is None else limits["crashes_max"] or CRASHES_MAX_DEFAULT


def expires_ms(limits: Limits | None) -> int:
    """From when on no attempt starts; 0: never."""
    return 0 if limits is None else limits["expires_ms"]


def deadline_ms(limits: Limits | None, trail: Trail | None) -> int:
    """When the time for all attempts together is over; 0: never, or it has not begun."""
    if limits is None or trail is None or not limits["total_timeout_ms"] or not trail["first_ms"]:
        return 0
    return trail["first_ms"] + limits["total_timeout_ms"]


def terms(limits: Limits | None, trail: Trail | None, crashes: int) -> Terms | None:
    """What a dispatch tells its worker about bounds; nothing where there are none.

    A last life is one that is under suspicion: its worker vanished before. A job that may not crash at all is under none at first, or
    workers would run all such jobs one after the other.
    """
    last_life = crashes > 0 and crashes >= crashes_max(limits) - 1
    expires, deadline = expires_ms(limits), deadline_ms(limits, trail)
    if not (crashes or last_life or expires or deadline):
        return None
    return {"crashes": crashes, "is_last_life": last_life, "expires_ms": expires, "deadline_ms": deadline}


def delay_of(record: Outcome) -> int:
    """How long the next attempt waits, in milliseconds: as the worker says, within the limits."""
    return min(max(0, record["retry_after_ms"]), RETRY_DELAY_MS_MAX)


def lease_of(record: Outcome) -> int:
    """The length of a lease, in milliseconds: as the worker says, within the limits."""
    lease_ms = record["lease_ms"]
    return min(lease_ms, LEASE_MS_MAX) if lease_ms > 0 else LEASE_MS


def output_of(record: Outcome) -> bytes | None:
    """What a worker says of a result or of progress; nothing where it is too large to be kept, which our own workers refuse before."""
    output = record["output"]
    return output if output is not None and len(output) <= OUTPUT_BYTES_MAX else None


_NONE: Final[list[Ending]] = []
_NO_RUNS: Final[list[int]] = []
_NO_ANSWERS: Final[list[Answer]] = []
