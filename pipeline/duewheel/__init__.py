"""Duewheel: a distributed job scheduler on Kafka."""

from duewheel.client import Client, Job, JobFailed, JobHandle, Scheduled
from duewheel.wiring import connect
from duewheel.worker.app import App, Context

__all__ = ["App", "Client", "Context", "Job", "JobFailed", "JobHandle", "Scheduled", "connect"]
