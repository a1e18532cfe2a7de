"""Records to bytes and back: what the rest of Duewheel uses of Avro.

`encode` and `decode` do the work, fast; `strict` is the rule that `decode` keeps; `schemas` says what there is to read and write. The
functions here are a `ports.Codec`; an instance of `Codec` is one too, and can read with the help of a schema registry.
"""

from __future__ import annotations

from typing import Final

from duewheel.adapters.avro import encode
from duewheel.adapters.avro.decode import Decoder
from duewheel.adapters.avro.encode import (
    encode_cancel,
    encode_change,
    encode_dead_letter,
    encode_dead_run,
    encode_dead_run_closed,
    encode_definition,
    encode_dispatch,
    encode_drop,
    encode_outcome,
    encode_progress,
    encode_redrive,
    encode_schedule,
    encode_state,
    encode_stop,
    splice_definition,
    splice_dispatch,
    splice_schedule,
)
from duewheel.adapters.avro.schemas import CURRENT
from duewheel.adapters.avro.strict import Reader
from duewheel.core.model import State

__all__ = [
    "Codec",
    "current_command",
    "decode_command",
    "decode_content",
    "decode_dead_letter",
    "decode_dead_letter_topic",
    "decode_dead_run",
    "decode_dead_run_closed",
    "decode_definition",
    "decode_dispatch",
    "decode_outcome",
    "decode_progress",
    "decode_state",
    "decode_stop",
    "encode_cancel",
    "encode_change",
    "encode_dead_letter",
    "encode_dead_run",
    "encode_dead_run_closed",
    "encode_definition",
    "encode_dispatch",
    "encode_drop",
    "encode_outcome",
    "encode_progress",
    "encode_redrive",
    "encode_schedule",
    "encode_state",
    "encode_stop",
    "peek_definition",
    "revise_schedule",
    "splice_dead_run",
    "splice_definition",
    "splice_dispatch",
    "splice_schedule",
]

_DEFINITION: Final = CURRENT["Definition"].header


class Codec(Decoder):
    """All of it in one object, with a reader of one's own."""

    encode_cancel = staticmethod(encode_cancel)
    encode_change = staticmethod(encode_change)
    encode_dead_letter = staticmethod(encode_dead_letter)
    encode_dead_run = staticmethod(encode_dead_run)
    encode_dead_run_closed = staticmethod(encode_dead_run_closed)
    encode_definition = staticmethod(encode_definition)
    encode_dispatch = staticmethod(encode_dispatch)
    encode_drop = staticmethod(encode_drop)
    encode_outcome = staticmethod(encode_outcome)
    encode_progress = staticmethod(encode_progress)
    encode_redrive = staticmethod(encode_redrive)
    encode_schedule = staticmethod(encode_schedule)
    encode_state = staticmethod(encode_state)
    encode_stop = staticmethod(encode_stop)
    splice_definition = staticmethod(splice_definition)
    splice_dispatch = staticmethod(splice_dispatch)
    splice_schedule = staticmethod(splice_schedule)

    def splice_dead_run(
        self, job_id: str, token: int, timer_partition: int, died_ms: int, reason: str, state: State, definition: bytes
    ) -> bytes:
        """The DeadRun around `definition`, an encoded Definition of whichever version.

        Raises:
            UndecodableRecord: the definition is of another version, and damaged.
        """
        if not definition.startswith(_DEFINITION):
            definition = encode_definition(self.decode_definition(definition))
        return encode.splice_dead_run(job_id, token, timer_partition, died_ms, reason, state, definition)


_CODEC: Final = Codec(Reader())

decode_command = _CODEC.decode_command
decode_content = _CODEC.decode_content
decode_dead_letter = _CODEC.decode_dead_letter
decode_dead_letter_topic = _CODEC.decode_dead_letter_topic
decode_dead_run = _CODEC.decode_dead_run
decode_dead_run_closed = _CODEC.decode_dead_run_closed
decode_definition = _CODEC.decode_definition
decode_dispatch = _CODEC.decode_dispatch
decode_outcome = _CODEC.decode_outcome
decode_progress = _CODEC.decode_progress
decode_state = _CODEC.decode_state
decode_stop = _CODEC.decode_stop
current_command = _CODEC.current_command
peek_definition = _CODEC.peek_definition
revise_schedule = _CODEC.revise_schedule
splice_dead_run = _CODEC.splice_dead_run
