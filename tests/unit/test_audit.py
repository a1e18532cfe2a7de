"""An audit finds each kind of difference where it is planted, and nothing in what is faithful."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duewheel.adapters.avro import codec
from duewheel.cli.verify_view import difference_json, difference_line, remedy
from duewheel.core.audit import Audit
from duewheel.core.differences import SKEW_MS, Kind, Unjudged
from duewheel.core.judgement import judge
from duewheel.core.limits import DAY_MS
from duewheel.core.model import Overlap
from duewheel.core.store_audit import PROGRESS, STATE
from tests.audit_world import HOUR_MS, START_MS, DictStore, Life, differences, fold, needs_timer, outcome, schedule, store_differences
from tests.recurring import every, every_after

WORK = codec.decode_command(codec.encode_schedule(schedule("a")))[2]


def lived() -> Life:
    """A partition whose jobs have met every fate."""
    life = Life()
    for job_id in ("done", "dead", "redriven", "retried", "running", "discarded", "gone", "returned", "again"):
        life.command(schedule(job_id, START_MS, retention_ms=DAY_MS if job_id != "gone" else 0))
    for job_id in ("waits", "cancelled", "replaced"):
        life.command(schedule(job_id, START_MS + 30 * DAY_MS))
    life.command(schedule("replaced", START_MS + 31 * DAY_MS, on_conflict="REPLACE"))
    life.command(schedule("expired", START_MS, limits={"expires_ms": START_MS, "total_timeout_ms": 0, "crashes_max": 0}))
    life.change("cancel", "cancelled")
    life.pass_time(1_000)
    for job_id, result in (
        ("done", "SUCCEEDED"),
        ("gone", "SUCCEEDED"),
        ("dead", "FAILED"),
        ("redriven", "FAILED"),
        ("discarded", "DISCARDED"),
    ):
        life.outcome(job_id, result)
    life.outcome("retried", "RETRY", retry_after_ms=DAY_MS)
    life.outcome("running", "STARTED", lease_ms=DAY_MS)
    life.outcome("returned", "LOST")
    life.change("redrive", "redriven")
    life.pass_time(HOUR_MS)
    life.forget("gone")
    return life


def record(life: Life, key: bytes, value: bytes | None, at_ms: int | None = None) -> None:
    """Somebody writes into the state topic."""
    life.logs.state.append((life.now_ms if at_ms is None else at_ms, key, value))


def forge(life: Life, job_id: str, **fields: Any) -> None:
    """Somebody writes a state that is not the owner's."""
    state: Any = {**(life.state(job_id) or {}), **fields}
    record(life, b"s" + job_id.encode(), codec.encode_state(state))


def progress(life: Life, **fields: int) -> None:
    known = {"token": life.last_token, "intake_offset": len(life.logs.intake), "outcomes_offset": len(life.logs.outcomes)}
    told: Any = {**known, **fields}
    record(life, PROGRESS, codec.encode_progress(told))


def without(life: Life, name: str, chosen: Callable[[Any], bool]) -> None:
    """What is chosen of a log was never written."""
    log: list[Any] = getattr(life.logs, name)
    kept = [entry for entry in log if not chosen(entry)]
    assert len(kept) < len(log)
    log[:] = kept


def unanswered(life: Life, name: str, job_id: str) -> None:
    """The outcome of a job never came: in its place lies one that says nothing."""
    index = next(n for n, (_, told) in enumerate(life.logs.outcomes) if told["job_id"] == job_id)
    life.logs.outcomes[index] = (life.now_ms, outcome(name, 0, "STARTED"))


def unasked(life: Life, job_id: str) -> None:
    """Nobody asked for a job: in the place of its Schedule lies another's cancel."""
    index = next(n for n, (_, _, asked) in enumerate(life.logs.intake) if asked["job_id"] == job_id)
    life.logs.intake[index] = (life.now_ms, "cancel", {"job_id": "nobody", "created_ms": 0})


def lost(life: Life) -> None:
    life.logs.intake.append((life.now_ms, "schedule", schedule("never")))
    progress(life)


def forgotten(life: Life) -> None:
    record(life, b"ddone", None)
    record(life, b"sdone", None)


def dispatched(life: Life, like: str, **fields: Any) -> None:
    row = next(row for row in reversed(life.logs.dispatches) if row.job_id == like)
    life.logs.dispatches.append(row._replace(**fields))


def heard_nothing(life: Life) -> None:
    life.logs.outcomes.append((life.now_ms, outcome("running", life.token("running"), "SUCCEEDED")))
    progress(life)


def spoke_of_the_future(life: Life) -> None:
    life.logs.outcomes.append((life.now_ms, outcome("running", 10_000, "SUCCEEDED")))
    progress(life)


def not_replaced(life: Life) -> None:
    replaced = schedule("waits", START_MS + 40 * DAY_MS, on_conflict="REPLACE")
    life.logs.intake.append((life.now_ms, "schedule", replaced))
    progress(life)


def invented(life: Life) -> None:
    record(life, b"dstranger", codec.splice_definition(1, 0, codec.encode_schedule(schedule("stranger", START_MS + DAY_MS))))


def younger(life: Life) -> None:
    value = life.values[b"dreplaced"]
    assert codec.peek_definition(value).generation == 2
    record(life, b"dreplaced", codec.splice_definition(1, 0, codec.peek_definition(value).command))


PLANTED: list[tuple[str, Callable[[Life], None], set[tuple[Kind, str | None]]]] = [
    ("a definition is taken away", lambda life: record(life, b"dwaits", None), {(Kind.LOST, "waits")}),
    ("a definition is taken away, its state is left", lambda life: record(life, b"drunning", None),
     {(Kind.LOST, "running"), (Kind.ORPHAN, "running")}),
    ("a job is never taken in", lost, {(Kind.LOST, "never")}),
    ("a job is forgotten while it should be kept", forgotten, {(Kind.FORGOTTEN_EARLY, "done")}),
    ("a definition is invented", invented, {(Kind.PHANTOM, "stranger")}),
    ("nobody asked for a job", lambda life: unasked(life, "waits"), {(Kind.PHANTOM, "waits")}),
    ("a dispatch is invented", lambda life: dispatched(life, "done", job_id="stranger"), {(Kind.PHANTOM, "stranger")}),
    ("a job is not replaced", not_replaced, {(Kind.NOT_REPLACED, "waits")}),
    ("a generation comes back", younger, {(Kind.WENT_BACK, "replaced")}),
    ("a token falls", lambda life: forge(life, "returned", token=1), {(Kind.WENT_BACK, "returned"), (Kind.AHEAD, "returned"),
                (Kind.UNKNOWN_TOKEN, "returned"),
                                                                   (Kind.UNDISPATCHED, "returned")}),
    ("a position falls", lambda life: progress(life, intake_offset=len(life.logs.intake) - 1), {(Kind.WENT_BACK, None)}),
    ("a token of the partition falls", lambda life: progress(life, token=life.last_token - 1), {
        (Kind.WENT_BACK, None), (Kind.UNKNOWN_TOKEN, "redriven")}),
    ("a success is forged", lambda life: forge(life, "running", phase="SUCCEEDED"), {(Kind.UNFOUNDED, "running")}),
    ("a success is forged, with a new token", lambda life: forge(life, "running", phase="SUCCEEDED", token=10_000),
     {(Kind.UNKNOWN_TOKEN, "running")}),
    ("a cancel is forged", lambda life: forge(life, "retried", phase="CANCELLED"), {(Kind.UNFOUNDED, "retried")}),
    ("an expiry is forged", lambda life: forge(life, "retried", phase="EXPIRED"), {(Kind.UNFOUNDED, "retried")}),
    ("a death is forged", lambda life: forge(life, "retried", phase="FAILED"), {(Kind.UNFOUNDED, "retried")}),
    ("the outcome of a success is missing", lambda life: unanswered(life, "done", "done"), {(Kind.UNFOUNDED, "done")}),
    ("the cancel of a job is missing", lambda life: without(life, "intake", lambda entry: entry[1] == "cancel"),
     {(Kind.UNFOUNDED, "cancelled")}),
    ("a run ends twice", lambda life: forge(life, "done", phase="DISCARDED"), {(Kind.ENDED_TWICE, "done"), (Kind.UNFOUNDED, "done")}),
    ("a dead run goes on without being redriven", lambda life: forge(life, "dead", phase="RUNNING"),
     {(Kind.ENDED_TWICE, "dead"), (Kind.UNHEARD, "dead"), (Kind.NOT_DEAD, "dead")}),
    ("an outcome is not obeyed", heard_nothing, {(Kind.UNHEARD, "running")}),
    ("an outcome has a token of nobody", spoke_of_the_future, {(Kind.UNKNOWN_TOKEN, "running")}),
    ("a dispatch comes early", lambda life: dispatched(life, "returned", token=1, dispatched_ms=START_MS - 1), {(Kind.EARLY, "returned")}),
    ("a token is dispatched twice", lambda life: dispatched(life, "done"), {(Kind.DISPATCHED_TWICE, "done")}),
    ("a dispatch is ahead of its job", lambda life: dispatched(life, "done", token=life.last_token), {(Kind.AHEAD, "done")}),
    ("a state is taken away", lambda life: record(life, b"sdone", None), {(Kind.AHEAD, "done")}),
    ("a dispatch is missing", lambda life: without(life, "dispatches", lambda row: row.job_id == "running"),
     {(Kind.UNDISPATCHED, "running")}),
    ("a dead run is missing", lambda life: without(life, "dead", lambda row: row[1] == "dead"), {(Kind.NOT_BURIED, "dead")}),
    ("a dead run is closed", lambda life: life.logs.dead.append(("closed", "dead", life.token("dead"), life.now_ms)),
     {(Kind.STILL_DEAD, "dead")}),
    ("a dead run is not closed", lambda life: without(life, "dead", lambda row: row[0] == "closed"), {(Kind.NOT_DEAD, "redriven")}),
]  # fmt: skip


def test_a_job_that_had_expired_long_before_it_was_asked_for_is_not_lost() -> None:
    """A producer that was away for hours sends what it had made before; sent twice, it is still one job."""
    expired: Any = {"expires_ms": START_MS - 5 * HOUR_MS, "total_timeout_ms": 0, "crashes_max": 0}
    for gap_ms in (10, 3 * HOUR_MS):
        life = Life()
        asked = schedule("late", START_MS - 6 * HOUR_MS, limits=expired, retention_ms=HOUR_MS)
        life.command(asked)
        life.pass_time(gap_ms)
        life.forget("late")
        life.command(asked)
        life.pass_time(3 * HOUR_MS)
        life.forget("late")
        assert life.state("late") is None
        assert differences(life.logs, life.now_ms) == []


def test_a_faithful_partition_has_no_difference() -> None:
    life = lived()
    assert differences(life.logs, life.now_ms) == []
    found, comparison = store_differences(life.logs, DictStore(life))
    assert (found, comparison.beyond) == ([], 0)
    phases = {life.state(key[1:].decode())["phase"] for key in life.values if key[:1] == STATE}  # type: ignore[index]
    assert phases == {"SUCCEEDED", "FAILED", "DISPATCHED", "RUNNING", "WAITING", "CANCELLED", "DISCARDED", "EXPIRED"}


@pytest.mark.parametrize("plant, expected", [pytest.param(plant, expected, id=name) for name, plant, expected in PLANTED])
def test_what_is_planted_is_found_and_nothing_else(plant: Callable[[Life], None], expected: set[tuple[Kind, str | None]]) -> None:
    life = lived()
    plant(life)
    found = differences(life.logs, life.now_ms)
    assert {(difference.kind, difference.job_id) for difference in found} == expected
    for difference in found:
        assert "{" not in difference_line(difference)  # every fact that its words name is there
        assert difference.kind in difference_json(difference)
        assert remedy(difference)


def test_each_kind_is_planted_somewhere() -> None:
    planted = {kind for _, _, expected in PLANTED for kind, _ in expected}
    of_reading = {Kind.UNREADABLE, Kind.MISPLACED, Kind.UNANSWERED, Kind.LOG_SHORTER}  # planted on a real broker
    assert {kind for kind in Kind if not kind.startswith("store")} == planted | of_reading


# --- what is not kept any more ---


@pytest.mark.parametrize(
    "name, job_id, log, why",
    [
        ("a definition is taken away", "waits", "outcomes", Unjudged.OUTCOMES),
        ("a definition is taken away", "waits", "dead letters", Unjudged.DEAD_LETTERS),
        ("nobody asked for a job", "waits", "intake", Unjudged.INTAKE),
        ("the outcome of a success is missing", "done", "outcomes", Unjudged.OUTCOMES),
        ("the cancel of a job is missing", "cancelled", "intake", Unjudged.INTAKE),
        ("a dispatch is missing", "running", "dispatch default", Unjudged.DISPATCHES),
        ("a dead run is missing", "dead", "dead letters", Unjudged.DEAD_LETTERS),
    ],
)
def test_what_a_log_cannot_tell_any_more_is_counted_and_not_guessed(name: str, job_id: str, log: str, why: Unjudged) -> None:
    life = lived()
    next(plant for other, plant, _ in PLANTED if other == name)(life)
    life.logs.since_ms[log] = life.now_ms
    audit = Audit(0)
    fold(life.logs, audit)
    assert job_id not in {difference.job_id for difference in [*audit.drained(), *judge(audit, life.now_ms)]}
    assert audit.unjudged[why] >= 1


def _unread(life: Life, job_id: str) -> None:
    """All commands for a job are in a format that this reader cannot read."""
    told = [(at_ms, "unread" if record["job_id"] == job_id else name, record) for at_ms, name, record in life.logs.intake]
    assert told != life.logs.intake
    life.logs.intake[:] = told


@pytest.mark.parametrize("job_id", sorted({record["job_id"] for _, _, record in lived().logs.intake}))
def test_what_hangs_on_commands_that_cannot_be_read_is_counted_and_not_guessed(job_id: str) -> None:
    life = lived()
    _unread(life, job_id)
    audit = Audit(0)
    fold(life.logs, audit)
    assert [*audit.drained(), *judge(audit, life.now_ms)] == []
    assert audit.unjudged == {Unjudged.REGISTRY: sum(name == "unread" for _, name, _ in life.logs.intake)}


def test_commands_that_cannot_be_read_hide_nothing_else() -> None:
    life = lived()
    for job_id in ("running", "waits", "done"):
        _unread(life, job_id)
    forge(life, "running", phase="SUCCEEDED")
    forge(life, "done", phase="FAILED")
    without(life, "dispatches", lambda row: row.job_id == "returned")
    kinds = {(difference.kind, difference.job_id) for difference in differences(life.logs, life.now_ms)}
    assert kinds == {
        (Kind.UNFOUNDED, "running"),
        (Kind.ENDED_TWICE, "done"),
        (Kind.UNFOUNDED, "done"),
        (Kind.UNDISPATCHED, "returned"),
    }


def test_a_log_that_reaches_back_just_far_enough_is_believed() -> None:
    life = lived()
    forge(life, "running", phase="SUCCEEDED", changed_ms=life.now_ms)
    for margin_ms, expected in ((SKEW_MS, ["unfounded"]), (SKEW_MS - 1, [])):
        life.logs.since_ms["outcomes"] = life.now_ms - margin_ms
        assert [d.kind for d in differences(life.logs, life.now_ms) if d.job_id == "running"] == expected


def test_a_flood_of_different_commands_for_one_job_is_held_in_part() -> None:
    life = Life()
    for n in range(60):
        life.command(schedule("a", START_MS + DAY_MS, created_ms=n))
    assert differences(life.logs, life.now_ms) == []
    life.logs.intake[0] = (life.now_ms, "cancel", {"job_id": "nobody", "created_ms": 0})
    assert differences(life.logs, life.now_ms) == []  # its definition may be among those that were not held


# --- stores ---


def of_store(life: Life, damage: Callable[[DictStore], object], mark: int | None = None) -> set[tuple[Kind, str | None]]:
    store = DictStore(life)
    damage(store)
    found, _ = store_differences(life.logs, store, mark)
    for difference in found:
        assert "{" not in difference_line(difference)
    return {(difference.kind, difference.job_id) for difference in found}


def test_each_damage_to_a_store_is_found() -> None:
    life = lived()
    assert of_store(life, lambda store: store.values.update({b"sdone": store.values[b"sdead"]})) == {(Kind.STORE_VALUE, "done")}
    assert of_store(life, lambda store: store.values.update({b"sdone": b"junk"})) == {(Kind.STORE_VALUE, "done")}
    assert of_store(life, lambda store: store.values.update({b"ddone": store.values[b"ddead"]})) == {(Kind.STORE_VALUE, "done")}
    assert of_store(life, lambda store: store.values.update({PROGRESS: b"junk"})) == {(Kind.STORE_VALUE, None)}
    assert of_store(life, lambda store: store.values.pop(b"sdone")) == {(Kind.STORE_MISSING, "done"), (Kind.STORE_TIMER, "done")}
    assert of_store(life, lambda store: store.values.pop(b"ddone")) == {(Kind.STORE_MISSING, "done")}
    assert of_store(life, lambda store: store.values.pop(PROGRESS)) == {(Kind.STORE_MISSING, None)}
    assert of_store(life, lambda store: store.values.update({b"sx": b"1"})) == {(Kind.STORE_EXTRA, "x")}
    for job_id in ("waits", "retried", "replaced", "running"):
        assert of_store(life, lambda store, job_id=job_id: store.keys.remove(needs_timer(life, job_id))) == {  # type: ignore[misc]
            (Kind.STORE_TIMER, job_id)
        }


def test_a_lease_that_was_put_off_has_a_later_timer() -> None:
    life = lived()
    due = needs_timer(life, "running")

    def put_off(store: DictStore) -> None:
        store.keys.remove(due)
        store.keys.add((int.from_bytes(due[:8]) + 250).to_bytes(8) + b"running")

    assert of_store(life, put_off) == set()


def test_beyond_its_mark_a_store_may_hold_any_value_since_then_and_no_other() -> None:
    life = lived()
    mark = len(life.logs.state)
    at_mark = DictStore(life)
    life.outcome("running", "HEARTBEAT", lease_ms=DAY_MS)
    between, beat = life.values[b"srunning"], needs_timer(life, "running")
    life.outcome("running", "SUCCEEDED")
    life.command(schedule("new", START_MS + 50 * DAY_MS))
    found, comparison = store_differences(life.logs, at_mark, mark)
    assert (found, comparison.beyond) == ([], 3)  # the run, the new definition and the progress; and nothing else
    at_mark.values[b"srunning"] = between
    at_mark.keys.add(beat)
    assert store_differences(life.logs, at_mark, mark)[0] == []
    at_mark.values[b"srunning"] = life.values[b"sdone"]
    assert [d.kind for d in store_differences(life.logs, at_mark, mark)[0]] == [Kind.STORE_VALUE]
    damaged = of_store(life, lambda store: store.values.update({b"srunning": between}))
    assert damaged == {(Kind.STORE_VALUE, "running"), (Kind.STORE_TIMER, "running")}  # it has come all the way, and may not


# --- recurring jobs ---


def recurred(**fields: Any) -> Life:
    """A job with a run that has ended, one that is dead, and one that goes on; and what else its recurrence says."""
    life = Life()
    life.command(schedule("r", START_MS, recurrence=every(HOUR_MS, overlap="ALLOW", **fields)))
    for result in ("SUCCEEDED", "FAILED"):
        life.pass_time(0)
        life.pass_time(HOUR_MS // 2)
        life.outcome(run_of(life), result)
        life.pass_time(HOUR_MS // 2)
    life.pass_time(HOUR_MS // 2 + 60_000)
    return life


def is_handed_out(life: Life, job_id: str) -> bool:
    state = life.state(job_id)
    return state is not None and state["phase"] in ("DISPATCHED", "CANCELLING")


def run_of(life: Life) -> str:
    return life.logs.dispatches[-1].job_id


@pytest.mark.parametrize("fields", [{}, {"jitter_ms": HOUR_MS // 2}, {"runs_max": 3}, {"end_ms": START_MS + 2 * HOUR_MS + 1}])
def test_runs_of_a_recurring_job_are_judged_by_it(fields: dict[str, Any]) -> None:
    life = recurred(**fields)
    assert differences(life.logs, life.now_ms) == []
    assert store_differences(life.logs, DictStore(life))[0] == []


@pytest.mark.parametrize("kind, overlap", [(kind, overlap) for kind in (every, every_after) for overlap in Overlap])
def test_recurring_jobs_of_all_kinds_are_faithful_at_every_stage(kind: Callable[..., Any], overlap: str) -> None:
    life = Life()
    life.command(schedule("r", START_MS, recurrence=kind(HOUR_MS, overlap=overlap, runs_max=6)))
    for n in range(12):
        life.pass_time(HOUR_MS // 2)
        if n % 3 == 2:
            for job_id in {d.job_id for d in life.logs.dispatches if is_handed_out(life, d.job_id)}:
                life.outcome(job_id, "SUCCEEDED" if n % 2 else "CANCELLED")
        assert differences(life.logs, life.now_ms) == []
        assert store_differences(life.logs, DictStore(life))[0] == []
    life.change("cancel", "r")
    life.pass_time(DAY_MS)
    life.forget("r")
    assert differences(life.logs, life.now_ms) == []


def test_a_run_of_a_job_that_nobody_asked_for_is_a_phantom() -> None:
    life = recurred()
    without(life, "state", lambda entry: entry[1] in (b"dr", b"sr"))
    life.logs.intake[0] = (START_MS, "cancel", {"job_id": "other", "created_ms": START_MS})
    found = differences(life.logs, life.now_ms)
    assert {(d.kind, d.facts.get("what")) for d in found} == {(Kind.PHANTOM, "run")}


@pytest.mark.parametrize("late_ms", [1, HOUR_MS // 2])
def test_a_run_that_stands_for_no_slot_is_a_phantom(late_ms: int) -> None:
    life = recurred()
    slot_ms = START_MS + HOUR_MS + late_ms
    command = codec.splice_schedule(f"r@{slot_ms}", slot_ms, slot_ms, HOUR_MS, "default", None, None, WORK)
    record(life, f"dr@{slot_ms}".encode(), codec.splice_definition(1, -1, command))
    progress(life)
    (found,) = differences(life.logs, life.now_ms)
    assert (found.kind, found.job_id, found.facts["what"]) == (Kind.PHANTOM, f"r@{slot_ms}", "slot")


def changed() -> Life:
    """A partition whose jobs were paused, updated and run at once."""
    life = Life()
    for job_id in ("held", "moved", "brought", "plain"):
        life.command(schedule(job_id, START_MS + DAY_MS, on_conflict="REPLACE"))
    life.command(schedule("retried", START_MS))
    life.outcome("retried", "RETRY", retry_after_ms=DAY_MS)
    life.command(schedule("r", START_MS + HOUR_MS, recurrence=every(HOUR_MS, overlap=Overlap.ALLOW)))
    life.modify("PAUSE", "held")
    life.modify("UPDATE", "moved", due_ms=START_MS + 2 * DAY_MS)
    life.modify("UPDATE", "retried", payload=b"2")
    life.modify("RUN_NOW", "brought")
    life.modify("PAUSE", "nobody")
    life.pass_time(HOUR_MS)
    life.modify("RUN_NOW", "r")
    life.pass_time(HOUR_MS // 2)
    life.modify("RUN_NOW", "r")
    return life


def test_jobs_that_were_changed_agree_with_what_was_asked_for() -> None:
    life = changed()
    audit = Audit(0)
    fold(life.logs, audit)
    assert [*audit.drained(), *judge(audit, life.now_ms)] == []
    assert audit.unjudged == {}, "and nothing of them is left out"
    assert store_differences(life.logs, DictStore(life))[0] == []
    beside = [known for known in map(life.defined, (f"r@{START_MS + HOUR_MS + 1}", f"r@{life.now_ms}")) if known is not None]
    assert [known.offset for known in beside] == [len(life.logs.intake) - 2, len(life.logs.intake) - 1]


def unasked_change(life: Life, action: str, job_id: str) -> None:
    """Nobody asked for a change: in its place lies another's cancel."""
    index = next(
        n
        for n, (_, name, asked) in enumerate(life.logs.intake)
        if name == "change" and (asked["action"], asked["job_id"]) == (action, job_id)
    )
    life.logs.intake[index] = (life.now_ms, "cancel", {"job_id": "somebody", "created_ms": 0})


@pytest.mark.parametrize(
    "action, job_id, kind, found",
    [
        ("PAUSE", "held", Kind.UNFOUNDED, "held"),
        ("UPDATE", "moved", Kind.NOT_REPLACED, "moved"),
        ("UPDATE", "retried", Kind.PHANTOM, "retried"),
        ("RUN_NOW", "brought", Kind.NOT_REPLACED, "brought"),
        ("RUN_NOW", "r", Kind.PHANTOM, f"r@{START_MS + HOUR_MS + 1}"),
    ],
)
def test_a_change_that_nobody_asked_for_is_found(action: str, job_id: str, kind: Kind, found: str) -> None:
    life = changed()
    unasked_change(life, action, job_id)
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [(kind, found)]
    life.logs.since_ms["intake"] = life.now_ms + 10 * HOUR_MS
    assert differences(life.logs, life.now_ms) == [], "where the intake does not reach back, nobody can tell"


def test_a_definition_that_no_update_can_have_made_is_found() -> None:
    """It says that it came from a command before the one that replaced it."""
    life = changed()
    value = life.values[b"dmoved"]
    known = codec.peek_definition(value)
    life.command(schedule("moved", START_MS + 3 * DAY_MS, on_conflict="REPLACE"))
    record(life, b"dmoved", codec.splice_definition(9, known.offset, known.command))
    progress(life)
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [(Kind.NOT_REPLACED, "moved")]


def test_a_recurring_job_that_is_over_and_has_slots_left_is_unfounded() -> None:
    life = recurred()
    forge(life, "r", phase="SUCCEEDED")
    progress(life)
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [(Kind.UNFOUNDED, "r")]


def test_a_run_that_is_cancelled_with_its_job_has_a_reason() -> None:
    life = recurred()
    life.outcome(run_of(life), "RETRY", retry_after_ms=DAY_MS)
    life.change("cancel", "r", reach="RUNNING")
    state = life.state(run_of(life))
    assert state is not None
    assert state["phase"] == "CANCELLED"
    assert differences(life.logs, life.now_ms) == []


def test_a_run_that_is_cancelled_for_no_reason_is_unfounded() -> None:
    life = recurred()
    forge(life, run_of(life), phase="CANCELLED")
    progress(life)
    assert [(d.kind, d.job_id) for d in differences(life.logs, life.now_ms)] == [(Kind.UNFOUNDED, run_of(life))]
