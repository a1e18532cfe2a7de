"""A job is shown as it was, as far as the log can tell, and where it cannot, that is said."""

from __future__ import annotations

import json

import click

from duewheel.adapters.avro import codec
from duewheel.cli.state_view import Seen, seen_json, seen_lines
from duewheel.core.past import Known, Past, Written
from duewheel.core.store_audit import DEFINITION, PROGRESS, STATE
from tests.audit_world import HOUR_MS, START_MS, Life, schedule
from tests.recurring import every

Log = list[tuple[int, int, bytes, bytes | None]]


def lived() -> Log:
    """A job is scheduled, dispatched an hour later, done an hour later, and forgotten: offset, time, key and value."""
    life = Life()
    life.command(schedule("a", START_MS + HOUR_MS, retention_ms=0))
    life.command(schedule("b", START_MS + 50 * HOUR_MS))
    life.pass_time(HOUR_MS)
    life.pass_time(HOUR_MS)
    life.outcome("a", "RETRY", retry_after_ms=3 * HOUR_MS, error={"type": "OSError", "message": "away", "traceback": "x\n"})
    life.pass_time(3 * HOUR_MS)
    life.outcome("a", "SUCCEEDED", output=b"7")
    life.pass_time(HOUR_MS)
    life.forget("a")
    return [(offset, *entry) for offset, entry in enumerate(life.logs.state)]


def compacted(log: Log, end: int) -> Log:
    """What is left when everything below offset `end` was cleaned, long ago."""
    newest = {key: offset for offset, _, key, _ in log if offset < end}
    return [entry for entry in log if entry[0] >= end or (newest[entry[2]] == entry[0] and entry[3] is not None)]


def seen(log: Log, at_ms: int | None, job_id: str = "a") -> Seen:
    past = Past(job_id, at_ms)
    for offset, written_ms, key, value in log:
        past.take(key, Written(offset, written_ms, value))
    defined, moved = past.record(DEFINITION), past.record(STATE)
    definition = codec.decode_definition(defined.value) if defined is not None and defined.value is not None else None
    state = codec.decode_state(moved.value) if moved is not None and moved.value is not None else None
    return Seen(past, "duewheel.state", 3, definition, state)


def page(look: Seen) -> str:
    return click.unstyle("\n".join(seen_lines(look)))


def test_a_whole_log_tells_every_moment() -> None:
    log = lived()
    phases = [seen(log, START_MS + hours * HOUR_MS).phase for hours in (-1, 0, 1, 2, 4, 5, 6)]
    assert phases == [None, "WAITING", "DISPATCHED", "WAITING", "WAITING", "SUCCEEDED", None]
    assert seen(log, None).phase is None
    assert seen(log, None, "b").phase == "WAITING"
    assert seen(log, START_MS + 2 * HOUR_MS).wake_ms == START_MS + 5 * HOUR_MS
    assert seen(log, START_MS).wake_ms == START_MS + HOUR_MS
    assert seen(log, START_MS + 5 * HOUR_MS).wake_ms == 0


def test_the_page_says_what_the_job_is() -> None:
    log = lived()
    assert "not yet: it was defined at 2030-03-17T17:46:40.000Z" in page(seen(log, START_MS - 1))
    assert "no: it was forgotten at 2030-03-17T23:46:40.000Z" in page(seen(log, None))
    assert "has nothing of it" in page(seen(log, None, "nobody"))
    waiting = page(seen(log, START_MS))
    assert "WAITING, not dispatched yet" in waiting
    assert "2030-03-17T18:46:40.000Z: its next attempt" in waiting
    retried = page(seen(log, START_MS + 2 * HOUR_MS))
    for words in ("WAITING since 2030-03-17T19:46:40.000Z", "1, token 1", "22:46:40.000Z: its next attempt", "OSError: away", "retry"):
        assert words in retried
    done = page(seen(log, START_MS + 5 * HOUR_MS))
    assert "output    7" in done
    assert "kept      until 2030-03-17T22:46:40.000Z" in done


def test_a_job_that_was_defined_anew_waits_whatever_its_old_state_says() -> None:
    life = Life()
    life.command(schedule("a", START_MS))
    life.command(schedule("a", START_MS + HOUR_MS, on_conflict="REPLACE"))
    look = seen([(offset, *entry) for offset, entry in enumerate(life.logs.state)], None)
    assert (look.phase, look.wake_ms, look.current) == ("WAITING", START_MS + HOUR_MS, None)
    assert "1, token 1, of generation 1, which is DISPATCHED" in page(look)


def test_compaction_is_silent_only_where_nothing_is_left() -> None:
    """Checked against the whole log: what a compacted one tells is right, and where it is silent it says so."""
    log = lived()
    moments = [START_MS + hours * HOUR_MS for hours in range(-1, 8)]
    silent = 0
    for end in range(len(log) + 1):
        for at_ms in moments:
            whole, left = seen(log, at_ms), seen(compacted(log, end), at_ms)
            for kind, true, told in ((DEFINITION, whole.definition, left.definition), (STATE, whole.state, left.state)):
                if left.past.known(kind) is Known.REMOVED:
                    silent += 1
                    assert told is None
                else:
                    assert told == true, (end, at_ms, kind)
    assert silent > 20


def test_silence_is_told_with_what_comes_next() -> None:
    log = lived()
    retried = next(offset for offset, at_ms, key, _ in log if key == b"sa" and at_ms == START_MS + 2 * HOUR_MS)
    left = compacted(log, retried + 2)  # and the Progress of that transaction
    look = seen(left, START_MS + HOUR_MS)
    assert (look.past.known(DEFINITION), look.past.known(STATE), look.phase) == (Known.IS, Known.REMOVED, None)
    told = page(look)
    assert "not known: compaction has removed what its state was then" in told
    assert "is complete from 2030-03-17T22:46:40.000Z on; of before only the newest of each job is left" in told
    assert "the first state that is left was written at 2030-03-17T19:46:40.000Z: WAITING, attempt 1, token 1" in told
    gone = page(seen(left, START_MS - 1))
    assert "cannot be told: compaction has removed what was then" in gone
    assert "is complete from" not in page(seen(left, START_MS + 2 * HOUR_MS))


def test_json_has_always_the_same_keys() -> None:
    log = lived()
    looks = [seen(log, None, "nobody"), seen(log, START_MS), seen(log, START_MS + 5 * HOUR_MS), seen(compacted(log, 9), START_MS)]
    told = [json.loads(seen_json(look)) for look in looks]
    assert len({frozenset(entry) for entry in told}) == 1
    assert len({frozenset(entry["log"]) for entry in told}) == 1
    assert [entry["known"] for entry in told][:3] == [False, True, True]
    assert told[2]["state"]["trail"]["output"] == "7"
    assert told[1]["definition"]["work"]["payload"] == 1


def test_an_empty_log_and_one_without_a_progress() -> None:
    assert seen([], START_MS).past.known(DEFINITION) is Known.NEVER
    assert seen([(7, START_MS + 1, b"da", None)], START_MS).past.known(DEFINITION) is Known.REMOVED
    assert all(key != PROGRESS for _, _, key, _ in [(7, START_MS + 1, b"da", None)])


def test_a_recurring_job_is_shown_with_its_next_slot_and_the_runs_that_go_on() -> None:
    life = Life()
    life.command(schedule("r", START_MS, recurrence=every(HOUR_MS, overlap="QUEUE", runs_max=9)))
    life.pass_time(0)
    life.pass_time(HOUR_MS)
    log = [(offset, *entry) for offset, entry in enumerate(life.logs.state)]
    look = seen(log, None, "r")
    assert (look.phase, look.wake_ms) == ("WAITING", START_MS + 2 * HOUR_MS)
    shown = page(look)
    for line in (
        "recurs    every 3,600,000 ms, at most 9 runs, misfire once, overlap queue",
        "runs      1 handed out, each a job of its own",
        f"run       r@{START_MS}, of 2030-03-17T17:46:40.000Z; it went on when it was looked at last",
        "queued    2030-03-17T18:46:40.000Z: it waits for the run before to end",
        "next      2030-03-17T19:46:40.000Z: its next slot",
    ):
        assert line in shown
    assert json.loads(seen_json(look))["state"]["trail"]["runs"] == [START_MS]
