"""Schedules in code: what may be declared, and what follows where the cluster has something else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.client.commands import schedule_command
from duewheel.client.deployment import ORIGIN, Action, Change, Running, plan, wanted_job
from duewheel.core.errors import BadConfiguration, RejectedJob
from duewheel.core.limits import HOUR_MS
from duewheel.core.model import Phase
from duewheel.core.recurrence import first_slot_ms
from duewheel.core.retry import RetryPolicy
from duewheel.worker.app import App

NOW_MS = 1_764_633_600_000  # 2 December 2025, midnight in UTC


def declared(**schedules: dict[str, Any]) -> App:
    app = App("billing")

    @app.task
    def close(payload: None) -> None: ...

    for name, options in schedules.items():
        more = {key: value for key, value in options.items() if key not in ("cron", "every", "every_after")}
        [(kind, when)] = [(key, options[key]) for key in ("cron", "every", "every_after") if key in options]
        getattr(app, kind)(when, name=name, **more)(close)
    return app


def compare(app: App, running: dict[str, Running], now_ms: int = NOW_MS) -> list[Change]:
    return plan([wanted_job(*each) for each in app.schedules], running, now_ms)


def deployed(app: App, now_ms: int = NOW_MS, phase: Phase = Phase.WAITING) -> dict[str, Running]:
    """What runs after somebody applied it."""
    running = {}
    for change in compare(app, {}, now_ms):
        assert change.job is not None
        running[change.job_id] = Running(schedule_command(change.job, now_ms, str), phase, 0, 0)
    return running


def actions(changes: list[Change]) -> dict[str, Action]:
    return {change.job_id: change.action for change in changes}


DAILY = {"cron": "30 2 * * *", "tz": "Europe/Berlin"}


# --- what is declared ---


def test_decorators_stand_in_any_order_and_leave_the_function_alone() -> None:
    app = App("billing")

    @app.cron("30 2 * * *", tz="Europe/Berlin")
    @app.task(name="books.close")
    @app.every(timedelta(hours=1), name="hourly", payload={"a": 1})
    def close(payload: Any) -> int:
        return 7

    assert close(None) == 7
    assert [(each.job_id, each.task, dict(each.options)) for each in app.schedules] == [
        ("billing:books.close", "books.close", DAILY),
        ("billing:hourly", "books.close", {"every": timedelta(hours=1), "payload": {"a": 1}}),
    ]


def test_what_cannot_be_declared_is_refused_where_it_stands() -> None:
    app = App("billing")
    with pytest.raises(BadConfiguration, match=r"@app.cron\('0 0 30 2 \*'\): no month that it names has such a day"):
        app.cron("0 0 30 2 *")
    with pytest.raises(BadConfiguration, match=r"a schedule has no option 'on_conflict'; there are crash_limit, end, "):
        app.every(60, on_conflict="replace")(print)  # type: ignore[call-arg]
    with pytest.raises(BadConfiguration, match=r"a schedule's name is 1 to 100 characters .* 'a:b' is not"):
        app.every(60, name="a:b")(print)
    with pytest.raises(BadConfiguration, match=r"an app with schedules needs a name"):
        App().every(60)(print)
    with pytest.raises(BadConfiguration, match=r"an app's name is .* 'a:b' is not"):
        App("a:b")


def test_a_schedule_of_no_task_and_two_of_one_name_are_refused() -> None:
    app = App("billing")

    @app.every(60)
    def close(payload: None) -> None: ...

    with pytest.raises(BadConfiguration, match=r"close has a schedule and is no task; decorate it with @app.task too"):
        _ = app.schedules
    app.task(close)
    assert [each.job_id for each in app.schedules] == ["billing:close"]
    app.every(90)(close)
    with pytest.raises(BadConfiguration, match=r"two schedules are named 'close'"):
        _ = app.schedules


def test_a_schedule_that_breaks_a_rule_is_named() -> None:
    with pytest.raises(RejectedJob, match=r"^schedule billing:a: .*Mars"):
        compare(declared(a={"cron": "0 9 * * *", "tz": "Mars"}), {})


# --- when they are due ---


@given(st.integers(0, 90 * 24 * HOUR_MS), st.integers(1, 400))
def test_the_slots_of_an_interval_do_not_depend_on_who_deploys_when(later_ms: int, minutes: int) -> None:
    app = declared(a={"every": timedelta(minutes=minutes)})
    [change] = compare(app, {}, NOW_MS + later_ms)
    assert change.job is not None
    command = schedule_command(change.job, NOW_MS + later_ms, str)
    assert command["recurrence"] is not None
    first_ms = first_slot_ms(command["recurrence"], command["due_ms"])
    assert (first_ms - int(ORIGIN.timestamp()) * 1_000) % (minutes * 60_000) == 0
    assert 0 <= first_ms - (NOW_MS + later_ms) < minutes * 60_000


def test_an_interval_with_a_start_of_its_own_keeps_it() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert wanted_job(*declared(a={"every": 60, "start": start}).schedules[0]).start == start
    assert wanted_job(*declared(a={"every_after": 60}).schedules[0]).start is None


# --- what is to be done ---


def test_what_is_new_is_created_unless_it_is_known() -> None:
    [change] = compare(declared(a=DAILY), {})
    assert (change.job_id, change.action) == ("billing:a", Action.CREATE)
    assert change.job is not None
    assert (change.job.on_conflict, change.job.task) == ("ignore", "close")


OPTIONS: list[dict[str, Any]] = [
    DAILY,
    {"every": 60, "payload": {"a": [1, 2.5, "ä"]}, "headers": {"b": "1", "a": "2"}, "queue": "q"},
    {"every_after": 60, "retry": RetryPolicy.fixed(timedelta(seconds=5), attempts=3), "timeout": 10, "jitter": 2},
    {"cron": "@daily", "misfire": "all", "misfire_limit": 3, "overlap": "allow", "overlap_limit": 2, "max_runs": 9, "grace": 60},
    {
        "every": 60,
        "start": datetime(2026, 1, 1, tzinfo=UTC),
        "end": datetime(2027, 1, 1, tzinfo=UTC),
        "total_timeout": 60,
        "crash_limit": 2,
    },
]


@pytest.mark.parametrize("options", OPTIONS)
def test_applied_twice_it_is_as_declared_whoever_asks_later(options: dict[str, Any]) -> None:
    app = declared(a=options)
    assert actions(compare(app, deployed(app), NOW_MS + 5 * HOUR_MS)) == {"billing:a": Action.SAME}


@pytest.mark.parametrize(
    "after, field",
    [
        ({**DAILY, "cron": "30 3 * * *"}, "recurrence.expression"),
        ({**DAILY, "tz": "UTC"}, "recurrence.zone"),
        ({**DAILY, "payload": 2}, "payload"),
        ({**DAILY, "payload": 1, "queue": "other"}, "queue"),
        ({**DAILY, "payload": 1, "overlap": "queue"}, "recurrence.overlap"),
        ({**DAILY, "payload": 1, "headers": {"a": "b"}}, "headers.a"),
        ({**DAILY, "payload": 1, "timeout": 3}, "policy.run_timeout_ms"),
        ({**DAILY, "payload": 1, "crash_limit": 9}, "limits.crashes_max"),
    ],
)
def test_what_differs_is_named_and_defined_anew_with_the_anchor_of_what_runs(after: dict[str, Any], field: str) -> None:
    running = deployed(declared(a={**DAILY, "payload": 1}))
    [change] = compare(declared(a=after), running, NOW_MS + HOUR_MS)
    assert change.action == Action.CHANGE
    assert field in [name for name, _, _ in change.differences]
    assert change.job is not None
    assert (change.job.on_conflict, change.job.at) == ("replace", NOW_MS)


def test_what_was_cancelled_is_revived_and_what_had_its_last_run_is_over() -> None:
    app = declared(a=DAILY)
    [cancelled] = compare(app, deployed(app, phase=Phase.CANCELLED))
    assert (cancelled.action, cancelled.job is not None and cancelled.job.on_conflict) == (Action.REVIVE, "replace")
    assert actions(compare(app, deployed(app, phase=Phase.SUCCEEDED))) == {"billing:a": Action.OVER}
    assert actions(compare(declared(a={**DAILY, "payload": 2}), deployed(app, phase=Phase.SUCCEEDED))) == {"billing:a": Action.CHANGE}


def test_what_is_not_in_the_code_is_pruned_unless_it_is_over() -> None:
    running = deployed(declared(a=DAILY, b=DAILY)) | deployed(declared(c=DAILY), phase=Phase.CANCELLED)
    changes = compare(declared(b=DAILY), running)
    assert actions(changes) == {"billing:a": Action.PRUNE, "billing:b": Action.SAME}
    assert changes[0].job is None
