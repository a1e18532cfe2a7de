"""A schema registry to test with."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from duewheel.adapters.avro.schemas import HEADER_BYTES


def framed(schema_id: int, single_object: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + single_object[HEADER_BYTES:]


class FakeRegistry:
    """A server that speaks the part of Confluent's API that is used.

    Attributes:
        answers: status and body by schema id; what is not here is answered as Confluent's registry answers an unknown id.
        asked: paths, in order.
        authorization: the header of the last request.
    """

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.authorization: str | None = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                registry.authorization = self.headers.get("Authorization")
                unknown = (404, b'{"error_code":40403,"message":"Schema not found"}')
                status, body = registry.answers.get(int(self.path.rpartition("/")[2]), unknown)
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def register(self, schema_id: int, schema: Any) -> None:
        self.answers[schema_id] = (200, json.dumps({"schema": json.dumps(schema, default=str)}).encode())

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
