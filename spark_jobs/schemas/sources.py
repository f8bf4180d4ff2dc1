"""Sources of schemas by id: the files of a directory, or a registry's HTTP API."""

from __future__ import annotations

import base64
import dataclasses
import functools
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

AVRO, JSON_SCHEMA = "avro", "json-schema"
_SUFFIXES = {".avsc": AVRO, ".json": JSON_SCHEMA}
_REGISTRY_KINDS = {"AVRO": AVRO, "JSON": JSON_SCHEMA}
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"

ATTEMPTS = 3
"""How many requests a registry gets that does not answer, or answers that it is unavailable."""

PAUSE_S = 0.5
"""The first pause between them; each further pause is twice as long."""


class UnknownSchemaError(LookupError):
    """The schema does not exist; the text names the id and the source."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """A schema as stored. `references` are the schemas that its text names, by the names in the text.

    `kind` is `AVRO`, `JSON_SCHEMA` or any other type of a registry.
    """

    kind: str
    text: str
    references: tuple[tuple[str, Schema], ...] = ()


@dataclasses.dataclass(frozen=True)
class SchemaFiles:
    """The files `ID.avsc` (Avro) and `ID.json` (JSON Schema) of a directory, read once."""

    directory: str
    by_id: tuple[tuple[int, Schema], ...]

    @classmethod
    def read(cls, directory: str) -> SchemaFiles:
        """Read the directory; raises OSError, or ValueError if it has zero schemas, or two with one id."""
        by_id: dict[int, Schema] = {}
        for path in sorted(Path(directory).iterdir()):
            if path.suffix not in _SUFFIXES or not path.stem.isdecimal():
                continue
            if int(path.stem) in by_id:
                raise ValueError(f"--schemas {directory}: two files for the id {int(path.stem)}")
            by_id[int(path.stem)] = Schema(_SUFFIXES[path.suffix], path.read_text(encoding="utf-8"))
        if not by_id:
            raise ValueError(f"--schemas {directory}: no file ID.avsc or ID.json")
        return cls(directory, tuple(by_id.items()))

    @functools.cached_property
    def _found(self) -> dict[int, Schema]:
        return dict(self.by_id)

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id; raises UnknownSchemaError."""
        try:
            return self._found[schema_id]
        except KeyError:
            raise UnknownSchemaError(f"schema id {schema_id}: not in {self.directory}") from None


@dataclasses.dataclass(frozen=True)
class SchemaRegistry:
    """A registry with Confluent's HTTP API (as in Karapace, Apicurio and Redpanda)."""

    url: str
    authorization: str | None = dataclasses.field(default=None, repr=False)
    timeout_s: float = 10.0

    @classmethod
    def at(cls, url: str, user_and_password: str | None = None) -> SchemaRegistry:
        """The registry at `url`, with basic authentication by `USER:PASSWORD` or by the credentials in the URL.

        Raises ValueError if it is not an HTTP URL. Messages show the URL without a password.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("--registry: must be a URL like http://127.0.0.1:8081")
        user, at, place = parts.netloc.rpartition("@")
        if at and user_and_password is None:
            user_and_password = urllib.parse.unquote(user)
        authorization = None
        if user_and_password is not None:
            authorization = f"Basic {base64.b64encode(user_and_password.encode()).decode()}"
        return cls(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", authorization)

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id; raises UnknownSchemaError, or OSError if the registry cannot say."""
        try:
            return self._schema(f"/schemas/ids/{schema_id}")
        except UnknownSchemaError as failure:
            raise UnknownSchemaError(f"schema id {schema_id}: {failure}") from None

    def _schema(self, path: str) -> Schema:
        found = self._get(path)
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise OSError(f"schema registry {self.url}: no schema in its answer to {path}")
        kind = found.get("schemaType") or "AVRO"
        references = [
            (
                str(named["name"]),
                self._schema(f"/subjects/{urllib.parse.quote(named['subject'], safe='')}/versions/{named['version']}"),
            )
            for named in found.get("references") or []
        ]
        return Schema(_REGISTRY_KINDS.get(kind, kind), found["schema"], tuple(references))

    def _get(self, path: str) -> Any:
        """The JSON at `path`."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._ask(path)
            except (OSError, http.client.HTTPException, ValueError) as failure:
                final = (
                    isinstance(failure, urllib.error.HTTPError) and failure.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
                )
                if final or attempt == ATTEMPTS:
                    raise OSError(f"schema registry {self.url}: {_told(failure)} (GET {path})") from None
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError

    def _ask(self, path: str) -> Any:
        headers = {"Accept": _ACCEPT}
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        request = urllib.request.Request(f"{self.url}{path}", headers=headers)  # noqa: S310 - `at` accepts only HTTP
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as failure:
            with failure:
                if failure.code == http.HTTPStatus.NOT_FOUND and _is_registry_answer(failure.read()):
                    raise UnknownSchemaError(f"the registry {self.url} does not have it") from None
            raise


def _is_registry_answer(body: bytes) -> bool:
    """Whether a 404 concerns a schema, a subject or a version. With a wrong URL, every id would look unknown."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("error_code") in range(40401, 40500)


def _told(failure: Exception) -> str:
    if isinstance(failure, urllib.error.HTTPError):
        wrong = (
            " and no word about a schema: is this the registry's address?"
            if failure.code == http.HTTPStatus.NOT_FOUND
            else ""
        )
        return f"answers {failure.code} {failure.reason}{wrong}"
    if isinstance(failure, urllib.error.URLError):
        return f"cannot be reached: {failure.reason}"
    if isinstance(failure, TimeoutError):
        return "does not answer in time"
    return f"its answer cannot be read: {failure or type(failure).__name__}"
