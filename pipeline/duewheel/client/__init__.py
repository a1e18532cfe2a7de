"""What a producer imports: schedules jobs and cancels them, durably, and waits for them."""

from duewheel.client.bulk import JobFailed, Scheduled
from duewheel.client.client import Client, JobHandle
from duewheel.client.commands import Job
from duewheel.client.reading import Decision, JobConflict, JobDidNotSucceed, JobReplaced, JobResult, JobUnknown

__all__ = [
    "Client",
    "Decision",
    "Job",
    "JobConflict",
    "JobDidNotSucceed",
    "JobFailed",
    "JobHandle",
    "JobReplaced",
    "JobResult",
    "JobUnknown",
    "Scheduled",
]
