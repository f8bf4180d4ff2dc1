"""A schema registry for tests, over HTTP: schemas by id and by version, in Confluent's JSON."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro


class Registry:
    """A server on 127.0.0.1. It counts requests; `failure` is a status for all answers."""

    def __init__(self, *, port: int = 0, user_and_password: str | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self.failure: int | None = None
        self._answers: dict[str, dict[str, Any]] = {}
        self._authorization = user_and_password and f"Basic {base64.b64encode(user_and_password.encode()).decode()}"
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, answer = registry._answer(self.path, self.headers["Authorization"])
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Do nothing: it would interrupt the tests' output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def _answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.asked[path] += 1
        if self.failure is not None:
            return self.failure, {"error_code": self.failure * 100 + 1, "message": "Error in the backend datastore"}
        if authorization != self._authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if path in self._answers:
            return 200, self._answers[path]
        if path.startswith(("/schemas/ids/", "/subjects/")):
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def add(
        self, schema_id: int, schema: object, kind: str = "AVRO", references: tuple[dict[str, Any], ...] = ()
    ) -> None:
        """Register `schema` under an id. Like Confluent's registry, omit the type of Avro schemas."""
        answer: dict[str, Any] = {"schema": json.dumps(schema)}
        answer |= {"schemaType": kind} if kind != "AVRO" else {}
        answer |= {"references": list(references)} if references else {}
        self._answers[f"/schemas/ids/{schema_id}"] = answer

    def forget(self, schema_id: int) -> None:
        """Unregister this id."""
        del self._answers[f"/schemas/ids/{schema_id}"]

    def add_version(self, subject: str, version: int, schema: object, kind: str = "AVRO") -> dict[str, Any]:
        """Register a version of a subject; returns a reference to it for other schemas, without the name."""
        self._answers[f"/subjects/{subject}/versions/{version}"] = {"schema": json.dumps(schema), "schemaType": kind}
        return {"subject": subject, "version": version}

    def close(self) -> None:
        """Stop answering, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def framed(schema_id: int, payload: bytes) -> bytes:
    """A value as Confluent's serializers write it."""
    return struct.pack(">bi", 0, schema_id) + payload


def avro(schema_id: int, schema: dict[str, Any], record: object) -> bytes:
    """A framed Avro value."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return framed(schema_id, stream.getvalue())
