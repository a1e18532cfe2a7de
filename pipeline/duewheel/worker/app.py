"""What a user writes: an `App` with tasks.

    from duewheel import App, Context

    app = App()

    @app.task
    def send_email(order: Order, context: Context) -> None:
        mail.send(order.address, key=context.idempotency_key)

    @app.task(name="billing.charge")
    async def charge(payload: dict) -> None:
        ...

A task's name is what producers call it by: the function's own name unless another is given. A handler takes at most two parameters:
the payload, made from the job's bytes as `payloads` says, and the context of this attempt, which is whichever parameter is annotated
`Context`. A handler that returns has succeeded, whatever it returns; one that raises has failed. Plain functions run in threads,
coroutine functions in one event loop, which they must not block.

The registered functions stay what they are: call them in your tests as you would any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, overload

from duewheel.core.errors import BadConfiguration
from duewheel.core.limits import TASK_BYTES_MAX
from duewheel.core.model import Dispatch
from duewheel.worker.payloads import reader, resolved_hints

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Context:
    """Which attempt this is, and what it needs for effects outside Kafka.

    Attributes:
        job_id: the job's id, which is also its idempotency key and its partition key.
        slot_ms: the scheduled time that the run stands for.
        attempt: from 1.
        task: the name under which the handler was called.
        queue: where the dispatch was read.
        headers: the producer's own; treat them as read only.
        fencing_token: grows with every attempt of a job; let your database refuse what comes with a lower one than it has seen.
        dispatched_ms: when the timer processor handed the attempt out.
    """

    __slots__ = ("attempt", "dispatched_ms", "fencing_token", "headers", "job_id", "queue", "slot_ms", "task")

    def __init__(self, dispatch: Dispatch, queue: str) -> None:
        work = dispatch["work"]
        self.job_id = dispatch["job_id"]
        self.slot_ms = dispatch["slot_ms"]
        self.attempt = dispatch["attempt"]
        self.task = work["task"]
        self.queue = queue
        self.headers: Mapping[str, str] = work["headers"]
        self.fencing_token = dispatch["token"]
        self.dispatched_ms = dispatch["dispatched_ms"]

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of a run: `job_id/slot_ms`."""
        return f"{self.job_id}/{self.slot_ms}"

    def __repr__(self) -> str:
        return f"Context({self.task!r}, {self.idempotency_key!r}, attempt={self.attempt}, fencing_token={self.fencing_token})"


class Task:
    """A handler under its name.

    Attributes:
        name: what producers call it.
        is_async: whether calling it gives a coroutine.
        call: runs it for a dispatch read from a queue; for a coroutine function, returns the coroutine.
    """

    __slots__ = ("call", "handler", "is_async", "name")

    def __init__(self, name: str, handler: Callable[..., Any]) -> None:
        self.name = name
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler)
        self.call: Final = _caller(name, handler)


class App:
    """A set of tasks that workers run."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    @overload
    def task(self, handler: Handler, /) -> Handler: ...

    @overload
    def task(self, handler: None = None, /, *, name: str | None = None) -> Callable[[Handler], Handler]: ...

    def task(self, handler: Handler | None = None, /, *, name: str | None = None) -> Handler | Callable[[Handler], Handler]:
        """Registers a plain or coroutine function; used as `@app.task` or `@app.task(name="…")`.

        Raises:
            BadConfiguration: the name is taken or too long, or the parameters are not what a handler may take.
        """

        def register(handler: Handler) -> Handler:
            task_name = handler.__name__ if name is None else name
            if not 1 <= len(task_name.encode()) <= TASK_BYTES_MAX:
                raise BadConfiguration(f"task name {task_name!r} must be 1 to {TASK_BYTES_MAX} bytes of UTF-8")
            if task_name in self.tasks:
                raise BadConfiguration(f"task {task_name!r} is registered twice; give one of them another name: @app.task(name=…)")
            self.tasks[task_name] = Task(task_name, handler)
            return handler

        return register if handler is None else register(handler)


def _caller(name: str, handler: Callable[..., Any]) -> Callable[[Dispatch, str], Any]:
    """What calls `handler` with the arguments that its parameters ask for."""
    hints = resolved_hints(handler)
    payload, context = _parameters(name, handler, hints)
    if payload is None:
        if context is None:
            return lambda dispatch, queue: handler()
        if context.kind is context.KEYWORD_ONLY:
            return lambda dispatch, queue: handler(**{context.name: Context(dispatch, queue)})
        return lambda dispatch, queue: handler(Context(dispatch, queue))
    read = reader(hints.get(payload.name, Any))
    if context is None:

        def call(dispatch: Dispatch, queue: str) -> Any:
            work = dispatch["work"]
            return handler(read(work["payload"], work["content_type"]))

        return call
    both = _in_order(handler, context, list(inspect.signature(handler).parameters).index(context.name))

    def call_with_context(dispatch: Dispatch, queue: str) -> Any:
        work = dispatch["work"]
        return both(read(work["payload"], work["content_type"]), Context(dispatch, queue))

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
