"""Records that are refused, and the dead letters they become.

A refusal must never be the next failure: what anybody may write around a record (its key, its headers, of any size and any bytes) is cut
to what a dead letter has room for.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Final, NamedTuple, Protocol, TypeAlias

from duewheel.core.errors import RejectedJob, UndecodableRecord
from duewheel.core.limits import ERROR_MESSAGE_CHARS_MAX, FOREIGN_HEADERS_BYTES_MAX, FOREIGN_KEY_BYTES_MAX, RECORD_BYTES_MAX
from duewheel.core.model import DeadLetter

Headers: TypeAlias = list[tuple[str, bytes | None]]

_HEADER_OVERHEAD_BYTES: Final = 8  # lengths and array blocks, at most

# record.headers(), so called that Python looks at the answer. For a name that is not UTF-8 confluent-kafka answers with an exception and a
# broken list at once. A call that the interpreter has specialized does not notice, and touching the list ends the process; so does asking
# a second time.
_ask_headers: Final = methodcaller("headers")


class Refusable(Protocol):
    """What is asked of a consumed record."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...


class Refusal(NamedTuple):
    """A record that is not obeyed. Its Kafka headers were asked for once, since that cannot be done again."""

    record: Refusable
    error: UndecodableRecord | RejectedJob
    headers: Headers

    def letter(self, now_ms: int) -> DeadLetter:
        """What is kept: the value whole, and of key and headers what there is room for."""
        record, key, value = self.record, self.record.key(), self.record.value()
        return {
            "reason": self.error.reason,
            "message": str(self.error)[:ERROR_MESSAGE_CHARS_MAX],
            "topic": record.topic(),
            "partition": record.partition(),
            "offset": record.offset(),
            "at_ms": now_ms,
            "key": None if key is None else key[:FOREIGN_KEY_BYTES_MAX],
            "value": None if value is None else value[:RECORD_BYTES_MAX],
            "headers": [{"name": name, "value": content} for name, content in self.headers],
        }


def refuse(record: Refusable, error: UndecodableRecord | RejectedJob) -> Refusal:
    """The refusal of `record`, for `error`. Asks for its headers: do it once."""
    return Refusal(record, error, portable_headers(record)[0])


def portable_headers(record: Refusable) -> tuple[Headers, bool]:
    """The record's Kafka headers as far as there is room for them elsewhere, and whether these are all. Ask once."""
    try:
        headers: Headers = _ask_headers(record) or []
    except (UnicodeDecodeError, SystemError):
        return [], False
    kept: Headers = []
    left_bytes = FOREIGN_HEADERS_BYTES_MAX
    for name, content in headers:
        left_bytes -= len(name.encode()) + len(content or b"") + _HEADER_OVERHEAD_BYTES
        if left_bytes < 0:
            return kept, False
        kept.append((name, content))
    return kept, True
