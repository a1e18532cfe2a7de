"""What each function of the codec costs. `python tests/bench/codec.py` prints microseconds a call, the best of several rounds.

The records resemble a busy installation: ids and times differ from call to call, so that no cache shines more than it will in life.
"guarded" are jobs with limits, terms and a policy: many share the policy, each expires at a time of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.core.commands import check_cancel, check_schedule
from duewheel.core.model import Cancel, Ending, Failure, Limits, Outcome, Policy, Schedule, State, Terms, Trail, Work

COUNT: Final = 20_000
ROUNDS: Final = 7
NOW_MS: Final = 1_790_000_000_000


def work(pick: random.Random, headers: int) -> Work:
    payload = b'{"user": %d, "text": "%s"}' % (pick.randrange(10**6), b"x" * pick.randrange(20, 120))
    return {
        "task": "send_email",
        "content_type": "application/json",
        "payload": payload,
        "headers": {f"header-{n}": f"{pick.randrange(10**9)}" for n in range(headers)},
        "policy": None,
    }


def schedule(pick: random.Random, headers: int) -> Schedule:
    return {
        "job_id": f"job-{pick.randrange(10**12):012}",
        "due_ms": NOW_MS + pick.randrange(86_400_000),
        "created_ms": NOW_MS + pick.randrange(1_000),
        "on_conflict": "IGNORE",
        "retention_ms": 86_400_000,
        "queue": "default",
        "limits": None,
        "recurrence": None,
        "delivery": None,
        "work": work(pick, headers),
    }


def policy(attempts_max: int) -> Policy:
    return {
        "attempts_max": attempts_max,
        "delays_ms": [1_000, 60_000],
        "factor": 2.0,
        "delay_ms_max": 3_600_000,
        "jitter": 0.5,
        "give_up_on": ["app.errors.NotFound"],
        "retry_on": [],
        "run_timeout_ms": 60_000,
    }


def guarded(pick: random.Random) -> Schedule:
    record = schedule(pick, 0)
    limits: Limits = {"expires_ms": record["due_ms"] + 3_600_000, "total_timeout_ms": 600_000, "crashes_max": 0}
    return {**record, "limits": limits, "work": {**record["work"], "policy": policy(pick.randrange(3, 9))}}


def terms(record: Schedule) -> Terms | None:
    limits = record["limits"]
    return limits and {"crashes": 0, "is_last_life": False, "expires_ms": limits["expires_ms"], "deadline_ms": 0}


NO_TRAIL: Trail = {
    "wake_ms": 0,
    "lease_ms": 0,
    "first_ms": 0,
    "output": None,
    "endings": [],
    "runs": [],
    "queued_ms": 0,
    "answers": [],
    "is_quiet": False,
}


def state(pick: random.Random, now_ms: int) -> State:
    return {
        "generation": 1,
        "phase": "DISPATCHED",
        "attempt": 1,
        "crashes": 0,
        "token": pick.randrange(10**8),
        "slot_ms": NOW_MS + pick.randrange(86_400_000),
        "changed_ms": now_ms,
        "error": None,
        "trail": None,
    }


def running(pick: random.Random, now_ms: int) -> State:
    trail: Trail = {**NO_TRAIL, "wake_ms": now_ms + 30_000, "lease_ms": 30_000}
    return {**state(pick, now_ms), "phase": "RUNNING", "trail": trail}


def waiting(pick: random.Random, now_ms: int, endings_count: int) -> State:
    endings: list[Ending] = [
        {
            "attempt": n + 1,
            "token": pick.randrange(10**8),
            "result": "RETRY",
            "started_ms": now_ms - 1_000 * n,
            "ended_ms": now_ms - 1_000 * n + pick.randrange(900),
            "worker": "worker-1",
            "type": "TimeoutError",
            "message": f"no answer from {pick.randrange(10**6)}.example",
        }
        for n in range(endings_count)
    ]
    wake_ms = now_ms + 4**endings_count * 1_000 + pick.randrange(500)
    trail: Trail = {**NO_TRAIL, "wake_ms": wake_ms, "endings": endings}
    return {**state(pick, now_ms), "phase": "WAITING", "attempt": endings_count, "error": failure(pick), "trail": trail}


def failure(pick: random.Random) -> Failure:
    return {"type": "TimeoutError", "message": f"no answer from {pick.randrange(10**6)}.example", "traceback": "x" * 600}


def outcome(pick: random.Random, now_ms: int) -> Outcome:
    return {
        "token": pick.randrange(10**8),
        "job_id": f"job-{pick.randrange(10**12):012}",
        "slot_ms": NOW_MS + pick.randrange(86_400_000),
        "attempt": 1,
        "result": "SUCCEEDED",
        "started_ms": now_ms + pick.randrange(20),
        "finished_ms": now_ms + pick.randrange(20),
        "worker": "worker-1",
        "error": None,
        "retry_after_ms": 0,
        "lease_ms": 0,
        "output": None,
    }


def retry(pick: random.Random, now_ms: int) -> Outcome:
    return {**outcome(pick, now_ms), "result": "RETRY", "error": failure(pick), "retry_after_ms": 4_000 + pick.randrange(500)}


def heartbeat(pick: random.Random, now_ms: int) -> Outcome:
    return {**outcome(pick, now_ms), "result": "HEARTBEAT", "lease_ms": 30_000, "output": b"0.25"}


def microseconds(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
    """The time of one call, in the fastest round; what the loop itself takes is taken off."""
    return (_round(call, arguments) - _round(_nothing, arguments)) / len(arguments) * 1e6


def _round(call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
    """Seconds of the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for each in arguments:
            call(*each)
        best = min(best, time.perf_counter() - begin)
    return best


def _nothing(*arguments: Any) -> None:
    pass


Row = tuple[str, Callable[..., Any], Sequence[tuple[Any, ...]]]


def jobs(name: str, records: Sequence[Schedule]) -> list[Row]:
    """A job's way through the codec, where it succeeds at once."""
    commands = [codec.encode_schedule(record) for record in records]
    definitions = [codec.splice_definition(1, 10**6, command) for command in commands]
    dispatching = [
        (n, record["job_id"], 1, record["due_ms"], 1, 3, NOW_MS + n // 4_000, terms(record), codec.decode_command(command)[2])
        for n, (record, command) in enumerate(zip(records, commands, strict=True))
    ]
    return [
        (f"encode_schedule{name}", codec.encode_schedule, [(record,) for record in records]),
        (f"decode_command{name}", codec.decode_command, [(command,) for command in commands]),
        (f"splice_definition{name}", codec.splice_definition, [(1, 10**6, command) for command in commands]),
        (f"peek_definition{name}", codec.peek_definition, [(definition,) for definition in definitions]),
        (f"splice_dispatch{name}", codec.splice_dispatch, dispatching),
        (f"decode_dispatch{name}", codec.decode_dispatch, [(codec.splice_dispatch(*each),) for each in dispatching]),
    ]


def both_ways(name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], records: Sequence[Any]) -> list[Row]:
    return [
        (f"{encode.__name__}{name}", encode, [(record,) for record in records]),
        (f"{decode.__name__}{name}", decode, [(encode(record),) for record in records]),
    ]


def main() -> None:
    pick = random.Random(7)
    schedules = [schedule(pick, 0) for _ in range(COUNT)]
    headed = [schedule(pick, 3) for _ in range(COUNT)]
    cancels: list[Cancel] = [{"job_id": record["job_id"], "created_ms": record["created_ms"], "reach": "DEFAULT"} for record in schedules]
    progress = [({"token": n, "intake_offset": 3 * n, "outcomes_offset": 2 * n},) for n in range(COUNT)]
    outcome_ms, state_ms = [NOW_MS + n // 400 for n in range(COUNT)], [NOW_MS + n // 4_000 for n in range(COUNT)]
    rows: list[Row] = [
        *jobs("", schedules),
        *jobs(", 3 headers", headed)[:2],
        *jobs(", guarded", [guarded(pick) for _ in range(COUNT)]),
        *both_ways("", codec.encode_state, codec.decode_state, [state(pick, ms) for ms in state_ms]),
        *both_ways(", running", codec.encode_state, codec.decode_state, [running(pick, ms) for ms in state_ms]),
        *both_ways(", 1 ending", codec.encode_state, codec.decode_state, [waiting(pick, ms, 1) for ms in state_ms]),
        *both_ways(", 4 endings", codec.encode_state, codec.decode_state, [waiting(pick, ms, 4) for ms in state_ms]),
        *both_ways("", codec.encode_outcome, codec.decode_outcome, [outcome(pick, ms) for ms in outcome_ms]),
        *both_ways(", retry", codec.encode_outcome, codec.decode_outcome, [retry(pick, ms) for ms in outcome_ms]),
        *both_ways(", heartbeat", codec.encode_outcome, codec.decode_outcome, [heartbeat(pick, ms) for ms in outcome_ms]),
        *both_ways(", cancel", codec.encode_cancel, codec.decode_command, cancels),
        ("encode_progress", codec.encode_progress, progress),
        ("check_schedule", check_schedule, [(record,) for record in schedules]),
        ("check_schedule, 3 headers", check_schedule, [(record,) for record in headed]),
        ("check_cancel", check_cancel, [(record,) for record in cancels]),
    ]
    for name, call, arguments in rows:
        print(f"{name:<28}{microseconds(call, arguments):6.2f} µs")  # noqa: T201


if __name__ == "__main__":
    main()
