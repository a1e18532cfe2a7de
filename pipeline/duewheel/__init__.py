"""Duewheel: a distributed job scheduler on Kafka."""

from duewheel.client import (
    ChangeHandle,
    ChangeRefused,
    Client,
    Decision,
    Job,
    JobConflict,
    JobDidNotSucceed,
    JobFailed,
    JobHandle,
    JobReplaced,
    JobResult,
    JobStatus,
    JobUnknown,
    Scheduled,
    Update,
)
from duewheel.core.retry import RetryPolicy
from duewheel.wiring import connect
from duewheel.worker.app import App, Context
from duewheel.worker.verdicts import (
    Cancelled,
    Discard,
    HeartbeatTimeout,
    ProcessDied,
    ResultTooLarge,
    Retry,
    RunTimeout,
    Snooze,
    UnknownTask,
)

__all__ = [
    "App",
    "Cancelled",
    "ChangeHandle",
    "ChangeRefused",
    "Client",
    "Context",
    "Decision",
    "Discard",
    "HeartbeatTimeout",
    "Job",
    "JobConflict",
    "JobDidNotSucceed",
    "JobFailed",
    "JobHandle",
    "JobReplaced",
    "JobResult",
    "JobStatus",
    "JobUnknown",
    "ProcessDied",
    "ResultTooLarge",
    "Retry",
    "RetryPolicy",
    "RunTimeout",
    "Scheduled",
    "Snooze",
    "UnknownTask",
    "Update",
    "connect",
]
