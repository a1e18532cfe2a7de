"""Records to bytes and back: what the rest of Duewheel uses of Avro.

`encode` and `decode` do the work, fast; `strict` is the rule that `decode` keeps; `schemas` says what there is to read and write. The
functions here are a `ports.Codec`; an instance of `Codec` is one too, and can read with the help of a schema registry.
"""

from __future__ import annotations

from typing import Final

from duewheel.adapters.avro.decode import Decoder
from duewheel.adapters.avro.encode import (
    encode_cancel,
    encode_dead_letter,
    encode_definition,
    encode_dispatch,
    encode_outcome,
    encode_progress,
    encode_schedule,
    encode_state,
    splice_definition,
    splice_dispatch,
)
from duewheel.adapters.avro.strict import Reader

__all__ = [
    "Codec",
    "current_command",
    "decode_command",
    "decode_dead_letter",
    "decode_definition",
    "decode_dispatch",
    "decode_outcome",
    "decode_progress",
    "decode_state",
    "encode_cancel",
    "encode_dead_letter",
    "encode_definition",
    "encode_dispatch",
    "encode_outcome",
    "encode_progress",
    "encode_schedule",
    "encode_state",
    "peek_definition",
    "splice_definition",
    "splice_dispatch",
]


class Codec(Decoder):
    """All of it in one object, with a reader of one's own."""

    encode_schedule = staticmethod(encode_schedule)
    encode_cancel = staticmethod(encode_cancel)
    encode_definition = staticmethod(encode_definition)
    encode_state = staticmethod(encode_state)
    encode_progress = staticmethod(encode_progress)
    encode_dispatch = staticmethod(encode_dispatch)
    encode_outcome = staticmethod(encode_outcome)
    encode_dead_letter = staticmethod(encode_dead_letter)
    splice_definition = staticmethod(splice_definition)
    splice_dispatch = staticmethod(splice_dispatch)


_CODEC: Final = Codec(Reader())

decode_command = _CODEC.decode_command
current_command = _CODEC.current_command
decode_definition = _CODEC.decode_definition
decode_state = _CODEC.decode_state
decode_progress = _CODEC.decode_progress
decode_dispatch = _CODEC.decode_dispatch
decode_outcome = _CODEC.decode_outcome
decode_dead_letter = _CODEC.decode_dead_letter
peek_definition = _CODEC.peek_definition
