"""Dead runs to test with, as records and as the bytes that lie on the dead-letter topic."""

from __future__ import annotations

from typing import Any, Final, cast

from duewheel.adapters.avro import codec
from duewheel.core.model import DeadLetter, DeadRun, DeadRunClosed, Failure, Phase

DIED_MS: Final = 1_772_366_400_007  # 2026-03-01T12:00:00.007Z

ERROR: Final[Failure] = {
    "type": "smtplib.SMTPDataError",
    "message": "no such address",
    "traceback": 'Traceback (most recent call last):\n  File "mail.py", line 7, in send\nsmtplib.SMTPDataError: no such address\n',
}


def ending(attempt: int, token: int, **fields: Any) -> dict[str, Any]:
    """How an attempt ended that failed after 11 ms."""
    started_ms = DIED_MS - 1_000 * (6 - attempt)
    ended = {"attempt": attempt, "token": token, "result": "RETRY", "started_ms": started_ms, "ended_ms": started_ms + 11, "worker": "w1"}
    return {**ended, "type": ERROR["type"], "message": ERROR["message"], **fields}


def dead_run(job_id: str, token: int, **fields: Any) -> DeadRun:
    """A run of mail.send that used up five attempts; `fields` are its own, or of its state, trail, schedule or work."""
    work: dict[str, Any] = {
        "task": "mail.send",
        "content_type": "application/json",
        "payload": b'{"to":"ada"}',
        "headers": {},
        "policy": None,
    }
    schedule: dict[str, Any] = {"job_id": job_id, "due_ms": DIED_MS - 9_000, "created_ms": DIED_MS - 9_500, "on_conflict": "IGNORE"}
    schedule |= {"retention_ms": 86_400_000, "queue": "mail", "limits": None, "recurrence": None, "delivery": None, "work": work}
    trail: dict[str, Any] = {"wake_ms": 0, "lease_ms": 0, "first_ms": DIED_MS - 9_000, "output": None}
    trail |= {
        "endings": [ending(attempt, token - 5 + attempt) for attempt in range(1, 6)],
        "runs": [],
        "queued_ms": 0,
        "answers": [],
        "is_quiet": False,
    }
    state: dict[str, Any] = {"generation": 1, "phase": Phase.FAILED, "attempt": 5, "crashes": 1, "token": token, "slot_ms": DIED_MS - 9_000}
    state |= {"changed_ms": DIED_MS, "error": ERROR, "trail": trail}
    run: dict[str, Any] = {"job_id": job_id, "token": token, "timer_partition": 3, "died_ms": DIED_MS, "reason": "failed"}
    run |= {"state": state, "definition": {"generation": 1, "offset": 0, "schedule": schedule}}
    for name, value in fields.items():
        next(record for record in (work, schedule, trail, state, run) if name in record)[name] = value
    return cast(DeadRun, run)


def died(job_id: str, token: int, **fields: Any) -> tuple[bytes, bytes]:
    """Key and value of a DeadRun."""
    return job_id.encode(), codec.encode_dead_run(dead_run(job_id, token, **fields))


def closed(job_id: str, token: int, how: str = "REDRIVEN", closed_ms: int = DIED_MS + 60_000) -> tuple[bytes, bytes]:
    """Key and value of a DeadRunClosed."""
    return job_id.encode(), codec.encode_dead_run_closed(DeadRunClosed(job_id=job_id, token=token, closed_ms=closed_ms, how=how))


def refused(key: str, reason: str = "due_too_early") -> tuple[bytes, bytes]:
    """Key and value of a DeadLetter."""
    letter = DeadLetter(
        reason=reason, message="due_ms 1893456000 lies in 1970", topic="duewheel.intake", partition=1, offset=5, at_ms=DIED_MS,
        key=key.encode(), value=b"?", headers=[],
    )  # fmt: skip
    return key.encode(), codec.encode_dead_letter(letter)
