"""The response of any API that refuses a request with one error, in the shape of the request's version.

As Kafka's `AbstractRequest.getErrorResponse`: a response with an error of its own carries it there. Otherwise each
element of the request (a partition, a group, a resource) gets the error, under its own names. A Fetch reports the error
of each partition, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from protocol.api_keys import ApiKey
from protocol.messages import RESPONSE_TYPES
from protocol.uuids import ZERO_UUID
from protocol.value import REQUIRED
from protocol.wire.schema import Request, Response, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, FieldSpec, Fixed, StructOf

ERROR_FIELDS: Final = frozenset({"error_code", "partition_error_code"})
_UNKNOWN: Final = -1
"""The value of offsets, ids and epochs that an error leaves open."""
_NAMES: Final = {
    "partition_index": ("partition_index", "partition", "index"),
    "partition": ("partition", "partition_index"),
    "index": ("index", "partition_index"),
    "name": ("name", "topic"),
    "topic": ("topic", "name"),
    "topic_name": ("topic_name", "topic", "name"),
    "user": ("user", "name"),
}
"""The names in requests of fields that identify an element, by their names in responses."""
_PER_ELEMENT: Final = frozenset({ApiKey.FETCH})
"""APIs whose clients look for errors in the elements, although the response has an error of its own."""


def error_response(request: Request, version: int, error_code: int, message: str | None = None) -> Response:
    """The response to `request` in which everything has failed with `error_code`."""
    response_type = RESPONSE_TYPES[request.api_key]
    return response_type(**_ErrorAnswer(request.api_key, version, error_code, message).values(response_type, request))


class _ErrorAnswer:
    """Builds structs of one response."""

    def __init__(self, api_key: ApiKey, version: int, error_code: int, message: str | None) -> None:
        self._api_key = api_key
        self._version = version
        self._error_code = error_code
        self._message = message

    def values(self, struct: type[Struct], source: Struct | None) -> dict[str, Any]:
        """The fields of a response's struct; `source` is the request, or the element that it answers."""
        specs = [spec for spec in fields_of(struct) if spec.versions.has(self._version)]
        has_error = self._api_key not in _PER_ELEMENT and any(spec.name in ERROR_FIELDS for spec in specs)
        values: dict[str, Any] = {}
        for spec in specs:
            if spec.name in ERROR_FIELDS:
                values[spec.name] = self._error_code if spec.name != "error_code" or has_error or source is None else 0
            elif spec.name == "error_message":
                values[spec.name] = self._message
            elif isinstance(spec.type, ArrayOf):
                values[spec.name] = self._array(spec, source, has_error=has_error)
            elif (found := _identity(spec.name, source)) is not None:
                values[spec.name] = found
            elif struct.declared_fields[spec.name].default is REQUIRED:
                values[spec.name] = _open_value(spec)
        return values

    def _array(self, spec: FieldSpec, source: Struct | None, *, has_error: bool) -> list[Any]:
        """The elements that mirror those of the request, if they carry the error."""
        assert isinstance(spec.type, ArrayOf)
        element = spec.type.element
        if not isinstance(element, StructOf) or source is None:
            return []
        if not has_error and _carries_errors(element.struct):
            return [self._element(element.struct, each) for each in _mirrored(spec.name, source)]
        same = getattr(source, spec.name, None) if _is_identity(element.struct) else None
        return [element.struct(**self.values(element.struct, each)) for each in same or []]

    def _element(self, struct: type[Struct], source: Any) -> Struct:
        if isinstance(source, Struct):
            values = self.values(struct, source)
        else:
            values = self.values(struct, None)
            values[_key_field(struct)] = source
        for spec in fields_of(struct):
            if spec.name in ERROR_FIELDS:
                values[spec.name] = self._error_code
        return struct(**values)


def _carries_errors(struct: type[Struct]) -> bool:
    """Whether a struct of a response, or one in its arrays, has an error code."""
    arrays = [spec.type.element for spec in fields_of(struct) if isinstance(spec.type, ArrayOf)]
    return any(spec.name in ERROR_FIELDS for spec in fields_of(struct)) or any(
        _carries_errors(element.struct) for element in arrays if isinstance(element, StructOf)
    )


def _is_identity(struct: type[Struct]) -> bool:
    """Whether a struct only names something: an entity of quotas has a type and a name."""
    return all(spec.name.startswith("entity_") for spec in fields_of(struct))


def _mirrored(name: str, source: Struct) -> Sequence[Any]:
    """The elements of a request that the array `name` of its response answers."""
    arrays = {
        each: value for each in source.declared_fields if isinstance(value := getattr(source, each), Iterable) and value
        and not isinstance(value, str | bytes | bytearray | memoryview)
    }  # fmt: skip
    if name == "results" and "dirs" in arrays:  # AlterReplicaLogDirs answers by topic
        return [topic for directory in arrays["dirs"] for topic in directory.topics]
    if name in arrays:
        return list(arrays[name])
    arrays.pop("forgotten_topics_data", None)
    # Two arrays hold what is done to one kind of thing: users to delete and to change.
    return [element for elements in arrays.values() for element in elements]


def _identity(name: str, source: Struct | None) -> Any:
    """The value of a field that identifies an element, taken from the request; None for another field."""
    if source is None:
        return None
    for candidate in _NAMES.get(name, (name,)):
        if candidate in source.declared_fields:
            value = getattr(source, candidate)
            return None if isinstance(value, list) else value
    return None


def _key_field(struct: type[Struct]) -> str:
    """The field that identifies an element whose request has only its name or number."""
    outcome = ERROR_FIELDS | {"error_message"}
    return next(spec.name for spec in fields_of(struct) if spec.name not in outcome)


def _open_value(spec: FieldSpec) -> Any:
    """The value of a required field that the error leaves open."""
    if isinstance(spec.type, Fixed):
        if spec.type.name in {"boolean", "bool"}:
            return False
        if spec.type.name == "uuid":
            return ZERO_UUID
        return 0 if spec.name == "throttle_time_ms" or not spec.type.code.islower() else _UNKNOWN
    if isinstance(spec.type, StructOf):
        return None
    nullable = getattr(spec.type, "nullable", False)
    return None if nullable else "" if type(spec.type).__name__ == "Text" else b""
