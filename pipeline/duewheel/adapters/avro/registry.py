"""Asks a schema registry what a value was written with.

Writers that use Confluent's serializers put a zero byte and four bytes of schema id before the body, and keep the schema in a registry:

    00 | id, big-endian | body

The registry speaks HTTP: GET /schemas/ids/7 answers {"schema": "…"}. An id never changes its meaning, so what was found is kept; what was
not found is asked for again after a while, since a writer may register just before it publishes.

Two failures must not be confused. An id that the registry does not know makes a bad record, which goes to the dead letters. A registry
that does not answer says nothing about the record: it is an `EnvironmentFailure`, and the record must be read again later.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any, Final

from duewheel.adapters.avro.admission import Inadmissible, admit
from duewheel.adapters.avro.schemas import Schema
from duewheel.core.errors import BadConfiguration, Reason, RegistryUnavailable, UndecodableRecord
from duewheel.ports import Clock

# Whoever asks is the loop that fires timers, so a registry that is away must not hold it up: 2 s at most, and then not again for 5.
TIMEOUT_S: Final = 2.0
AWAY_MS: Final = 5_000
# The longest of ours has 3,000 bytes.
ANSWER_BYTES_MAX: Final = 256_000
SCHEMAS_MAX: Final = 1_000
ABSENT_MS: Final = 10_000


class Registry:
    """A registry that speaks Confluent's API: Confluent's own, Apicurio (under /apis/ccompat/v7), Karapace, Redpanda.

    Args:
        url: where it is; may carry a user and password for basic authentication.
        clock: says when to ask again for what was absent.
        timeout_s: how long one request may wait for each answer of the network.

    Raises:
        BadConfiguration: the URL is none.
    """

    def __init__(self, url: str, clock: Clock, timeout_s: float = TIMEOUT_S) -> None:
        self._base, self._headers = _parse(url)
        self._clock = clock
        self._timeout_s = timeout_s
        self._found: dict[int, Schema] = {}
        self._absent: dict[int, tuple[int, str]] = {}
        self._away: tuple[int, str] | None = None

    def schema(self, schema_id: int) -> Schema:
        """The schema that is registered under `schema_id`.

        Raises:
            UndecodableRecord: there is none, or one that is of no use.
            RegistryUnavailable: it did not answer, or refused us.
        """
        schema = self._found.get(schema_id)
        if schema is not None:
            return schema
        now_ms = self._clock.steady_ms()
        if self._away is not None and now_ms - self._away[0] < AWAY_MS:
            raise RegistryUnavailable(self._away[1])
        asked_ms, message = self._absent.get(schema_id, (0, ""))
        if not message or now_ms - asked_ms >= ABSENT_MS:
            try:
                schema = self._ask(schema_id)
            except Inadmissible as error:
                message = f"schema id {schema_id} in {self._base}: {error}"
            except RegistryUnavailable as error:
                self._away = (self._clock.steady_ms(), str(error))
                raise
            else:
                _keep(self._found, schema_id, schema)
                return schema
            _keep(self._absent, schema_id, (now_ms, message))
        raise UndecodableRecord(Reason.UNKNOWN_SCHEMA, message)

    def _ask(self, schema_id: int) -> Schema:
        request = urllib.request.Request(f"{self._base}/schemas/ids/{schema_id}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                body = response.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise Inadmissible("it is not registered there") from None
                raise self._unavailable(f"answered {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:  # refused, timed out, unknown host, TLS; cut short, or not HTTP
            raise self._unavailable(f"cannot be reached: {getattr(error, 'reason', error)}") from error
        if len(body) > ANSWER_BYTES_MAX:
            raise Inadmissible(f"its answer has more than {ANSWER_BYTES_MAX:,} bytes")
        return admit(self._schema_text(body))

    def _schema_text(self, body: bytes) -> str:
        try:
            answer: Any = json.loads(body)
            text, kind, references = answer["schema"], answer.get("schemaType", "AVRO"), answer.get("references")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._unavailable(f"answered something else than a schema: {body[:80]!r}") from error
        if kind != "AVRO" or not isinstance(text, str):
            raise Inadmissible(f"it is of type {str(kind)[:50]!r}, not AVRO")
        if references:
            raise Inadmissible("it refers to other subjects; register it whole")
        return text

    def _unavailable(self, what: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"the schema registry {self._base} {what}; the records wait until it answers")


def _keep(memory: dict[int, Any], schema_id: int, what: Any) -> None:
    if len(memory) >= SCHEMAS_MAX:
        del memory[next(iter(memory))]  # the oldest
    memory[schema_id] = what


def _parse(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its user, and the headers that every request carries."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadConfiguration(f"the schema registry {url.rpartition('@')[2]!r} is no URL; give one such as http://registry:8081")
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if parts.username is not None:
        credentials = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}", headers
