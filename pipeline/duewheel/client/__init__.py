"""What a producer imports: schedules jobs and cancels them, durably."""

from duewheel.client.bulk import JobFailed, Scheduled
from duewheel.client.client import Client, JobHandle
from duewheel.client.commands import Job

__all__ = ["Client", "Job", "JobFailed", "JobHandle", "Scheduled"]
