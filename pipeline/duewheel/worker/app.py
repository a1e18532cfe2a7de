"""What a user writes: an `App` with tasks.

    from duewheel import App, Context, RetryPolicy

    app = App()

    @app.task
    def send_email(order: Order, context: Context) -> None:
        mail.send(order.address, key=context.idempotency_key)

    @app.task(name="billing.charge", retry=RetryPolicy.fixed(timedelta(minutes=5), attempts=20), timeout=30)
    async def charge(payload: dict) -> None:
        ...

    @app.task(executor="process", timeout=timedelta(hours=1), concurrency=2, keep_result=True)
    def render(film: Film) -> str:
        ...

A task's name is what producers call it by: the function's own name unless another is given. A handler takes at most two parameters:
the payload, made from the job's bytes as `payloads` says, and the context of this attempt, which is whichever parameter is annotated
`Context`. A handler that returns has succeeded, whatever it returns; what becomes of one that raises, `verdicts` says.

Plain functions run in threads, coroutine functions in one event loop, which they must not block; both in processes of their own where
the task asks for it. What ends at its run timeout depends on that: a process is killed and a coroutine is cancelled, but nothing can end a
thread. Its attempt is over then, another thread takes its place, and the handler goes on until it returns, to no effect but its own.

The registered functions stay what they are: call them in your tests as you would any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, Unpack, overload

from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import LEASE_MARGIN_MS, LEASE_MS_MAX, RUN_TIMEOUT_MS_DEFAULT, RUN_TIMEOUT_MS_MAX, TASK_BYTES_MAX
from duewheel.core.model import Dispatch
from duewheel.core.recurrence import BadExpression, check_expression
from duewheel.core.retry import DEFAULT, RetryPolicy
from duewheel.core.topology import QUEUE_DEFAULT
from duewheel.worker.declared import Declarations, Declared, Options
from duewheel.worker.payloads import reader, resolved_hints
from duewheel.worker.verdicts import Cancelled, encoded, milliseconds, snooze

Handler = TypeVar("Handler", bound=Callable[..., Any])
Layer = TypeVar("Layer", bound=object)

THREAD: Final = "thread"
LOOP: Final = "loop"
PROCESS: Final = "process"


class Control(Protocol):
    """How a handler and its worker reach each other while it runs."""

    cancelled: bool
    """Whether the handler is asked to stop."""

    def beat(self, progress: bytes | None) -> None:
        """Takes in that the handler goes on, and what it says of its progress."""


class _Nobody:
    """Stands in where no worker is, as in tests of a handler."""

    cancelled = False

    def beat(self, progress: bytes | None) -> None: ...


_NOBODY: Final = _Nobody()


class Context:
    """Which attempt this is, what it needs for effects outside Kafka, and how it speaks with its worker.

    It is read from the dispatch when asked, since most handlers ask for little. Made from a dispatch alone, as in a test of a handler, it
    works without a worker: nobody cancels it, and nobody hears it beat.
    """

    __slots__ = ("_control", "_dispatch", "_queue")

    def __init__(self, dispatch: Dispatch, queue: str = QUEUE_DEFAULT, control: Control = _NOBODY) -> None:
        self._dispatch = dispatch
        self._queue = queue
        self._control = control

    @property
    def job_id(self) -> str:
        """The job's id, which is also its partition key."""
        return self._dispatch["job_id"]

    @property
    def slot_ms(self) -> int:
        """The scheduled time that the run stands for."""
        return self._dispatch["slot_ms"]

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of a run: `job_id/slot_ms`."""
        return f"{self._dispatch['job_id']}/{self._dispatch['slot_ms']}"

    @property
    def fencing_token(self) -> int:
        """Grows with every attempt of a job; let your database refuse what comes with a lower one than it has seen."""
        return self._dispatch["token"]

    @property
    def attempt(self) -> int:
        """From 1; attempts that were snoozed or interrupted are not counted."""
        return self._dispatch["attempt"]

    @property
    def crashes(self) -> int:
        """How many of the attempts before ended because their worker vanished."""
        terms = self._dispatch.get("terms")
        return terms["crashes"] if terms else 0

    @property
    def deadline_ms(self) -> int:
        """When the time for all attempts together is over, in milliseconds since the epoch; 0: never."""
        terms = self._dispatch.get("terms")
        return terms["deadline_ms"] if terms else 0

    @property
    def task(self) -> str:
        """The name under which the handler was called."""
        return self._dispatch["work"]["task"]

    @property
    def queue(self) -> str:
        """Where the dispatch was read."""
        return self._queue

    @property
    def headers(self) -> Mapping[str, str]:
        """The producer's own."""
        return self._dispatch["work"]["headers"]

    @property
    def dispatched_ms(self) -> int:
        """When the timer processor handed the attempt out."""
        return self._dispatch["dispatched_ms"]

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled meanwhile. A coroutine is cancelled besides; in a thread, look here now and then."""
        return self._control.cancelled

    def raise_if_cancelled(self) -> None:
        """Ends the attempt where the job was cancelled meanwhile.

        Raises:
            Cancelled: it was.
        """
        if self._control.cancelled:
            raise Cancelled("the job was cancelled")

    def heartbeat(self, progress: object = None) -> None:
        """Says that the handler goes on. A task with a heartbeat timeout must call it more often than that; in others it only tells the
        progress. From any thread, and as often as you like: the worker passes on what is needed.

        Args:
            progress: what JSON can say, at most 8 KiB of it; shown with the job while it runs.

        Raises:
            ResultTooLarge: the progress is larger, or nothing that JSON can say.
        """
        self._control.beat(None if progress is None else encoded(progress, "the progress"))

    def snooze(self, span: timedelta | float) -> NoReturn:
        """Ends this attempt, without using it up, and puts the run off.

        Args:
            span: for how long, as a timedelta or in seconds; at most 30 days.
        """
        snooze(span)

    def __repr__(self) -> str:
        return f"Context({self.task!r}, {self.idempotency_key!r}, attempt={self.attempt}, fencing_token={self.fencing_token})"


Call: TypeAlias = Callable[[Context], Any]


class Task:
    """A handler under its name.

    Attributes:
        name: what producers call it.
        is_async: whether calling it gives a coroutine.
        executor: who runs it: thread, loop or process.
        policy: when its failures are tried again.
        run_timeout_ms: how long an attempt may take.
        heartbeat_timeout_ms: within which time it promises to call `heartbeat`; 0: the worker beats for it.
        concurrency: how many of it may run at a time in a worker; 0: as many as the worker can.
        is_plain: whether it runs in threads, without a limit of its own, as most do.
        keeps_result: whether what it returns is kept.
        call: runs it for a context, between the app's middleware; for a coroutine function, returns the coroutine.
    """

    __slots__ = (
        "_bare",
        "call",
        "concurrency",
        "executor",
        "handler",
        "heartbeat_timeout_ms",
        "is_async",
        "is_plain",
        "keeps_result",
        "name",
        "policy",
        "run_timeout_ms",
    )

    def __init__(
        self,
        name: str,
        handler: Callable[..., Any],
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | None = None,
        heartbeat: timedelta | float | None = None,
        executor: str | None = None,
        concurrency: int | None = None,
        keep_result: bool = False,
    ) -> None:
        self.name = name
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler)
        self.executor = _executor(name, executor, self.is_async)
        self.policy = DEFAULT if retry is None else retry
        self.run_timeout_ms = RUN_TIMEOUT_MS_DEFAULT if timeout is None else _span(name, "timeout", timeout, RUN_TIMEOUT_MS_MAX)
        self.heartbeat_timeout_ms = 0 if heartbeat is None else _span(name, "heartbeat", heartbeat, LEASE_MS_MAX - LEASE_MARGIN_MS)
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise BadConfiguration(f"the concurrency of task {name!r} is {concurrency!r}; it must be a whole number from 1, or left out")
        self.concurrency = concurrency or 0
        self.is_plain = self.executor == THREAD and not self.concurrency
        self.keeps_result = keep_result
        self._bare = self.call = _caller(name, handler)

    def wrap(self, middleware: list[object]) -> None:
        """Puts the middleware around the handler, the first one outermost."""
        self.call = self._bare
        for layer in reversed(middleware):
            self.call = _wrapped_async(self.call, layer) if self.is_async else _wrapped(self.call, layer)


class App:
    """A set of tasks that workers run, and of schedules for them.

    Args:
        name: what job ids of its schedules begin with; only an app with schedules needs one.

    Raises:
        BadConfiguration: the name is none.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.tasks: dict[str, Task] = {}
        self._middleware: list[object] = []
        self._declarations = Declarations(name)

    @overload
    def task(self, handler: Handler, /) -> Handler: ...

    @overload
    def task(
        self,
        handler: None = None,
        /,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | None = None,
        heartbeat: timedelta | float | None = None,
        executor: Literal["thread", "process"] | None = None,
        concurrency: int | None = None,
        keep_result: bool = False,
    ) -> Callable[[Handler], Handler]: ...

    def task(
        self, handler: Handler | None = None, /, *, name: str | None = None, **settings: Any
    ) -> Handler | Callable[[Handler], Handler]:
        """Registers a plain or coroutine function; used as `@app.task` or `@app.task(name="…")`.

        Args:
            name: what producers call it; the function's own name by default.
            retry: when its failures are tried again; by default five attempts with growing waits.
            timeout: how long an attempt may take, as a timedelta or in seconds; a day by default.
            heartbeat: the handler promises to call `context.heartbeat` at least this often, so that it is noticed early when it hangs.
                By default the worker beats for it, as long as its process lives.
            executor: "process" for what must be killed at its timeout, may crash, or computes for long. By default a thread for plain
                functions and the event loop for coroutine functions.
            concurrency: how many of it may run at a time in a worker, whatever the worker's own limit.
            keep_result: keeps what it returns, in at most 8 KiB of JSON, with the finished job.

        Raises:
            BadConfiguration: the name is taken or too long, the parameters are not what a handler may take, or a setting is wrong.
        """

        def register(handler: Handler) -> Handler:
            task_name = handler.__name__ if name is None else name
            if not 1 <= len(task_name.encode()) <= TASK_BYTES_MAX:
                raise BadConfiguration(f"task name {task_name!r} must be 1 to {TASK_BYTES_MAX} bytes of UTF-8")
            if task_name in self.tasks:
                raise BadConfiguration(f"task {task_name!r} is registered twice; give one of them another name: @app.task(name=…)")
            self.tasks[task_name] = task = Task(task_name, handler, **settings)
            task.wrap(self._middleware)
            return handler

        return register if handler is None else register(handler)

    def cron(self, line: str, *, tz: str = "UTC", name: str | None = None, **options: Unpack[Options]) -> Callable[[Handler], Handler]:
        """Declares that a task runs as a cron line says, once `duewheel schedules apply` was called; beside `@app.task`, in any order.

        Args:
            line: five fields, six with seconds before them, or a nickname as @daily.
            tz: whose clocks the line means: an IANA name.
            name: of the schedule; the task's by default.
            options: as of `Client.schedule`: payload, queue, misfire, overlap, …

        Raises:
            BadConfiguration: the line or a name is none, or the app has no name.
        """
        try:
            check_expression(line)
        except BadExpression as error:
            raise BadConfiguration(f"@app.cron({line!r}): {error}") from error
        return self._declare(name, {"cron": line, "tz": tz, **options})

    def every(self, span: timedelta | float, *, name: str | None = None, **options: Unpack[Options]) -> Callable[[Handler], Handler]:
        """Declares that a task runs again and again, as `cron` does.

        Args:
            span: how long after one another, as a timedelta or in seconds. Without `start` counted from Monday, 1 January 2018, 0:00 UTC:
                every hour is on the hour, whoever deploys when.
            name, options: as of `cron`.

        Raises:
            BadConfiguration: as of `cron`.
        """
        return self._declare(name, {"every": span, **options})

    def every_after(self, span: timedelta | float, *, name: str | None = None, **options: Unpack[Options]) -> Callable[[Handler], Handler]:
        """As `every`, counted from the end of the run before; the first is due when it is applied, unless there is a `start`."""
        return self._declare(name, {"every_after": span, **options})

    @property
    def schedules(self) -> list[Declared]:
        """What was declared, in the order of job ids.

        Raises:
            BadConfiguration: a schedule belongs to no task, or two have the same name.
        """
        names = {task.handler: task.name for task in self.tasks.values()}
        return self._declarations.resolved(names.get)

    def _declare(self, name: str | None, options: Mapping[str, Any]) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self._declarations.add(name, handler, options)
            return handler

        return register

    def middleware(self, layer: Layer) -> Layer:
        """Puts an object around every run, of tasks registered before and after. It has any of these methods, plain ones also where
        the handler is a coroutine function; they run where the handler runs, and share its context variables:

            before(context)            before the handler; what it raises fails the run, and the handler is not called
            after(context, value)      when the handler returned; what it raises fails the run
            error(context, exception)  when the handler, or a layer within, raised; the exception goes on afterwards

        What is registered first is outermost: its `before` is the first, its `after` or `error` the last.

        Raises:
            BadConfiguration: the object has none of the methods.
        """
        if not any(callable(getattr(layer, method, None)) for method in ("before", "after", "error")):
            raise BadConfiguration(f"{layer!r} cannot be middleware: it has none of the methods before, after, error")
        self._middleware.append(layer)
        for task in self.tasks.values():
            task.wrap(self._middleware)
        return layer


def _executor(name: str, executor: str | None, is_async: bool) -> str:
    if executor not in (None, THREAD, PROCESS):
        raise BadConfiguration(f"the executor of task {name!r} is {executor!r}; it must be {THREAD!r}, {PROCESS!r} or left out")
    if executor == THREAD and is_async:
        raise BadConfiguration(f"task {name!r} is a coroutine function, which runs in the event loop; leave its executor out")
    return executor or (LOOP if is_async else THREAD)


def _span(name: str, setting: str, span: timedelta | float, max_ms: int) -> int:
    span_ms = milliseconds(span, f"the {setting} of task {name!r}", max_ms)
    if span_ms == 0:
        raise BadConfiguration(f"the {setting} of task {name!r} is 0; leave it out, or give it some time")
    return span_ms


def _methods(layer: object) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    def nothing(*arguments: object) -> None: ...

    return getattr(layer, "before", nothing), getattr(layer, "after", nothing), getattr(layer, "error", nothing)


def _wrapped(inner: Call, layer: object) -> Call:
    before, after, error = _methods(layer)

    def call(context: Context) -> Any:
        before(context)
        try:
            value = inner(context)
        except BaseException as raised:
            error(context, raised)
            raise
        after(context, value)
        return value

    return call


def _wrapped_async(inner: Callable[[Context], Awaitable[Any]], layer: object) -> Call:
    before, after, error = _methods(layer)

    async def call(context: Context) -> Any:
        before(context)
        try:
            value = await inner(context)
        except BaseException as raised:
            error(context, raised)
            raise
        after(context, value)
        return value

    return call


def _caller(name: str, handler: Callable[..., Any]) -> Call:
    """What calls `handler` with the arguments that its parameters ask for."""
    hints = resolved_hints(handler)
    payload, context = _parameters(name, handler, hints)
    if payload is None:
        if context is None:
            return lambda of: handler()
        if context.kind is context.KEYWORD_ONLY:
            return lambda of: handler(**{context.name: of})
        return handler
    read = reader(hints.get(payload.name, Any))
    if context is None:

        def call(of: Context) -> Any:
            work = of._dispatch["work"]
            return handler(read(work["payload"], work["content_type"]))

        return call
    both = _in_order(handler, context, list(inspect.signature(handler).parameters).index(context.name))

    def call_with_context(of: Context) -> Any:
        work = of._dispatch["work"]
        return both(read(work["payload"], work["content_type"]), of)

    return call_with_context


def _in_order(handler: Callable[..., Any], context: inspect.Parameter, index: int) -> Callable[[Any, Context], Any]:
    """`handler`, taking the payload first and the context second."""
    if context.kind is context.KEYWORD_ONLY:
        return lambda payload, of: handler(payload, **{context.name: of})
    if index == 0:
        return lambda payload, of: handler(of, payload)
    return handler


def _parameters(
    name: str, handler: Callable[..., Any], hints: Mapping[str, Any]
) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
    """The parameters that take the payload and the context."""
    payload = context = None
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadConfiguration(f"task {name!r} takes any number of arguments; a handler takes the payload, a Context, both or neither")
        if context is None and hints.get(parameter.name) is Context:
            context = parameter
        elif payload is None and parameter.kind is not parameter.KEYWORD_ONLY:
            payload = parameter
        elif parameter.default is parameter.empty:
            raise BadConfiguration(f"task {name!r} takes {parameter.name!r} too; a handler takes the payload, a Context, both or neither")
    return payload, context
