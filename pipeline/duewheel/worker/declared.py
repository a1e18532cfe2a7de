"""Schedules that stand in the code, beside the task that they run.

    app = App("billing")

    @app.cron("30 2 * * *", tz="Europe/Berlin")
    @app.task
    def close_books(payload: None, context: Context) -> None: ...

    @app.every(timedelta(minutes=5), name="poll-7", payload={"feed": 7}, overlap="skip")
    @app.every(timedelta(hours=1), name="poll-8", payload={"feed": 8})
    @app.task
    def poll(payload: dict) -> None: ...

They only say what should be: `duewheel schedules apply` makes a cluster so. A schedule is a recurring job whose id is made of the app's
name and its own, `billing:poll-7`, so that all who deploy the app mean the same job, and so that those which were taken out of the code
can be told from everybody else's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypedDict

from duewheel.core.errors import BadConfiguration
from duewheel.core.retry import RetryPolicy

SEPARATOR: Final = ":"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Options(TypedDict, total=False):
    """What a schedule may say besides when; each as in `Client.schedule`."""

    payload: Any
    queue: str
    headers: Mapping[str, str]
    retention: timedelta | float
    retry: RetryPolicy
    timeout: timedelta | float
    total_timeout: timedelta | float
    crash_limit: int
    start: datetime | int
    end: datetime | int
    max_runs: int
    jitter: timedelta | float
    misfire: Literal["once", "skip", "all"]
    misfire_limit: int
    grace: timedelta | float
    overlap: Literal["skip", "allow", "queue", "replace"]
    overlap_limit: int


_OPTIONS: Final = Options.__annotations__.keys()


class Declared(NamedTuple):
    """A schedule as the code has it.

    Attributes:
        job_id: of the recurring job.
        task: the handler's name.
        options: what else makes the job; the names are those of `Client.schedule`.
    """

    job_id: str
    task: str
    options: Mapping[str, Any]


class Declarations:
    """The schedules of an app, by name."""

    def __init__(self, app_name: str | None) -> None:
        if app_name is not None and not _NAME.fullmatch(app_name):
            raise BadConfiguration(f"an app's name is 1 to 100 characters of a-z A-Z 0-9 . _ -, and {app_name!r} is not")
        self._app_name = app_name
        self._said: list[tuple[str | None, Callable[..., Any], Mapping[str, Any]]] = []

    def add(self, name: str | None, handler: Callable[..., Any], options: Mapping[str, Any]) -> None:
        """Takes in a schedule; its task may be registered later.

        Raises:
            BadConfiguration: the app or the schedule has no proper name, or an option does not exist.
        """
        if self._app_name is None:
            raise BadConfiguration('an app with schedules needs a name, which their job ids begin with: App("billing")')
        if name is not None and not _NAME.fullmatch(name):
            raise BadConfiguration(f"a schedule's name is 1 to 100 characters of a-z A-Z 0-9 . _ -, and {name!r} is not")
        unknown = [option for option in options if option not in _OPTIONS and option not in ("every", "every_after", "cron", "tz")]
        if unknown:
            raise BadConfiguration(f"a schedule has no option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
        self._said.append((name, handler, options))

    def resolved(self, task_of: Callable[[Callable[..., Any]], str | None]) -> list[Declared]:
        """All schedules, in the order of their ids.

        Args:
            task_of: under which name a function is registered as a task, if it is.

        Raises:
            BadConfiguration: one belongs to no task, or two have the same name.
        """
        found: dict[str, Declared] = {}
        for name, handler, options in self._said:
            task = task_of(handler)
            if task is None:
                raise BadConfiguration(f"{handler.__qualname__} has a schedule and is no task; decorate it with @app.task too")
            name = task if name is None else name
            if not _NAME.fullmatch(name):
                raise BadConfiguration(f"the schedule of task {task!r} needs a name of its own, of a-z A-Z 0-9 . _ -: name=…")
            job_id = f"{self._app_name}{SEPARATOR}{name}"
            if job_id in found:
                raise BadConfiguration(f"two schedules are named {name!r}, which is the task's name by default; give one of them name=…")
            found[job_id] = Declared(job_id, task, options)
        return [found[job_id] for job_id in sorted(found)]
