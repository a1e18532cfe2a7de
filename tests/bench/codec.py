"""What each function of the codec costs. `python tests/bench/codec.py` prints microseconds a call, the best of several rounds.

The records resemble a busy installation: ids and times differ from call to call, so that no cache shines more than it will in life.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from duewheel.adapters.avro import codec
from duewheel.core.commands import check_cancel, check_schedule
from duewheel.core.model import Cancel, Outcome, Schedule, State, Work

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
    }


def schedule(pick: random.Random, headers: int) -> Schedule:
    return {
        "job_id": f"job-{pick.randrange(10**12):012}",
        "due_ms": NOW_MS + pick.randrange(86_400_000),
        "created_ms": NOW_MS + pick.randrange(1_000),
        "on_conflict": "IGNORE",
        "retention_ms": 86_400_000,
        "queue": "default",
        "work": work(pick, headers),
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
    }


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
    }


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


def main() -> None:
    pick = random.Random(7)
    schedules = [(schedule(pick, 0),) for _ in range(COUNT)]
    headed = [(schedule(pick, 3),) for _ in range(COUNT)]
    states = [(state(pick, NOW_MS + n // 4_000),) for n in range(COUNT)]
    outcomes = [(outcome(pick, NOW_MS + n // 400),) for n in range(COUNT)]
    cancels: list[tuple[Cancel]] = [({"job_id": record["job_id"], "created_ms": record["created_ms"]},) for (record,) in schedules]
    progress = [({"token": n, "intake_offset": 3 * n, "outcomes_offset": 2 * n},) for n in range(COUNT)]
    commands = [codec.encode_schedule(record) for (record,) in schedules]
    definitions = [(codec.splice_definition(1, command),) for command in commands]
    dispatching = [
        (n, record["job_id"], 1, record["due_ms"], 1, 3, NOW_MS + n // 4_000, codec.decode_command(command)[2])
        for n, ((record,), command) in enumerate(zip(schedules, commands, strict=True))
    ]
    rows: list[tuple[str, Callable[..., Any], Sequence[tuple[Any, ...]]]] = [
        ("encode_schedule", codec.encode_schedule, schedules),
        ("encode_schedule, 3 headers", codec.encode_schedule, headed),
        ("encode_cancel", codec.encode_cancel, cancels),
        ("encode_state", codec.encode_state, states),
        ("encode_progress", codec.encode_progress, progress),
        ("encode_outcome", codec.encode_outcome, outcomes),
        ("splice_definition", codec.splice_definition, [(1, command) for command in commands]),
        ("splice_dispatch", codec.splice_dispatch, dispatching),
        ("decode_command, schedule", codec.decode_command, [(command,) for command in commands]),
        ("decode_command, 3 headers", codec.decode_command, [(codec.encode_schedule(record),) for (record,) in headed]),
        ("decode_command, cancel", codec.decode_command, [(codec.encode_cancel(record),) for (record,) in cancels]),
        ("decode_state", codec.decode_state, [(codec.encode_state(record),) for (record,) in states]),
        ("decode_outcome", codec.decode_outcome, [(codec.encode_outcome(record),) for (record,) in outcomes]),
        ("decode_dispatch", codec.decode_dispatch, [(codec.splice_dispatch(*each),) for each in dispatching]),
        ("peek_definition", codec.peek_definition, definitions),
        ("check_schedule", check_schedule, schedules),
        ("check_schedule, 3 headers", check_schedule, headed),
        ("check_cancel", check_cancel, cancels),
    ]
    for name, call, arguments in rows:
        print(f"{name:<28}{microseconds(call, arguments):6.2f} µs")  # noqa: T201


if __name__ == "__main__":
    main()
