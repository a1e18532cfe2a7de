"""What a producer imports: schedules jobs and cancels them, durably, and waits for them."""

from duewheel.client.bulk import JobFailed, Scheduled
from duewheel.client.client import ChangeHandle, Client, JobHandle
from duewheel.client.commands import Delivery, Job, Update
from duewheel.client.reading import ChangeRefused, Decision, JobConflict, JobDidNotSucceed, JobReplaced, JobResult, JobStatus, JobUnknown

__all__ = [
    "ChangeHandle",
    "ChangeRefused",
    "Client",
    "Decision",
    "Delivery",
    "Job",
    "JobConflict",
    "JobDidNotSucceed",
    "JobFailed",
    "JobHandle",
    "JobReplaced",
    "JobResult",
    "JobStatus",
    "JobUnknown",
    "Scheduled",
    "Update",
]
