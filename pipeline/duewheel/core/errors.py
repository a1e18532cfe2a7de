"""The errors, by whose fault they are.

    DuewheelError
    ├── CallerError            yours: what you asked for cannot be
    │   ├── RejectedJob        a job or command breaks a rule (`reason` is a fixed code)
    │   └── BadConfiguration   a setting has a wrong value
    ├── EnvironmentFailure     the surroundings': a broker, a disk, another process
    │   ├── BrokerUnavailable
    │   ├── RegistryUnavailable
    │   ├── TopicMissing
    │   ├── StateFolderInUse
    │   └── StoreDamaged
    ├── UndecodableRecord      a record from outside cannot be read (`reason` is a fixed code)
    ├── IllegalTransition      an event met a job in a phase where it changes nothing
    └── BrokenInvariant        ours: please report it

Every message names the thing, the value, the limit where there is one, and what to do.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a record was refused: the code in dead letters, logs and `RejectedJob.reason`."""

    # The bytes could not be read.
    NO_VALUE = "no_value"
    TOO_LARGE = "too_large"
    UNKNOWN_FORMAT = "unknown_format"
    UNKNOWN_SCHEMA = "unknown_schema"
    MALFORMED = "malformed"
    TRAILING_BYTES = "trailing_bytes"
    NOT_CANONICAL = "not_canonical"
    # The bytes are a command, but not one that may be obeyed.
    NO_KEY = "no_key"
    KEY_MISMATCH = "key_mismatch"
    BAD_JOB_ID = "bad_job_id"
    BAD_QUEUE = "bad_queue"
    UNKNOWN_QUEUE = "unknown_queue"
    BAD_TASK = "bad_task"
    BAD_HEADERS = "bad_headers"
    BAD_CONTENT_TYPE = "bad_content_type"
    BAD_RETENTION = "bad_retention"
    BAD_LIMITS = "bad_limits"
    BAD_POLICY = "bad_policy"
    BAD_RECURRENCE = "bad_recurrence"
    BAD_ZONE = "bad_zone"
    BAD_EXPRESSION = "bad_expression"
    BAD_END = "bad_end"
    TOO_FREQUENT = "too_frequent"
    NO_SLOT = "no_slot"
    BAD_DELIVERY = "bad_delivery"
    TOPIC_NOT_ALLOWED = "topic_not_allowed"
    BAD_TOKEN = "bad_token"
    DUE_TOO_EARLY = "due_too_early"
    DUE_TOO_LATE = "due_too_late"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    EXPIRED = "expired"
    CONFLICT = "conflict"
    BAD_CHANGE = "bad_change"
    UNEXPECTED_RECORD = "unexpected_record"
    # What the caller gave cannot become a command; only clients meet these.
    BAD_DUE = "bad_due"
    BAD_PAYLOAD = "bad_payload"
    BAD_ON_CONFLICT = "bad_on_conflict"
    BAD_UNIQUE_BY = "bad_unique_by"


class DuewheelError(Exception):
    """The root of everything that Duewheel raises on purpose."""


class CallerError(DuewheelError):
    """What was asked for cannot be; asking the same again will not help."""


class RejectedJob(CallerError):
    """A job or command breaks a rule. Nothing was sent.

    Attributes:
        reason: fixed code of the rule that was broken.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BadConfiguration(CallerError):
    """A setting has a value that cannot work; the message names it and what is allowed."""


class EnvironmentFailure(DuewheelError):
    """The surroundings failed; the same call may work later."""


class BrokerUnavailable(EnvironmentFailure):
    """No broker answered within the configured time."""


class RegistryUnavailable(EnvironmentFailure):
    """The schema registry did not answer; what was to be read with its help must be read again later."""


class TopicMissing(EnvironmentFailure):
    """A topic that must exist does not; `duewheel topics apply` makes it."""


class StateFolderInUse(EnvironmentFailure):
    """Another process holds this state folder."""


class StoreDamaged(EnvironmentFailure):
    """The local store cannot be read; it is a cache and will be rebuilt from the changelog."""


class UndecodableRecord(DuewheelError):
    """A record from outside cannot be read.

    Attributes:
        reason: fixed code of the kind of damage.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class IllegalTransition(DuewheelError):
    """An event met a job in a phase for which the lifecycle does not list it. Nothing has changed."""


class BrokenInvariant(DuewheelError):
    """Something that cannot happen did. Please report it with the message."""
