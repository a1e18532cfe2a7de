"""Duewheel: a distributed job scheduler on Kafka."""

from duewheel.client import Client, Job, JobFailed, JobHandle, Scheduled
from duewheel.wiring import connect

__all__ = ["Client", "Job", "JobFailed", "JobHandle", "Scheduled", "connect"]
