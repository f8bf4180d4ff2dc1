"""The declarations of the control API, one beside each handler: they check requests, and OpenAPI is made from them.

    @operation("POST", "topics", "Create a topic.", body={"name": text("..."), "partitions?": integer("...")})
    async def _create_topic(self, given: Given) -> object: ...

Schemas are JSON Schema, and only with the keywords that `checked` knows. A question mark ends the name of an optional
field. A handler gets the parameters and the fields of the body by name, checked and with their defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

from broker.test_mode.http_connection import HttpError, HttpRequest
from protocol.value import Value

F = TypeVar("F", bound=Callable[..., Any])
Schema = dict[str, Any]
Given = dict[str, Any]
Path = tuple[str | int, ...]
"""The fields and indexes that lead to a value."""
VERSION: Final = "v1"
"""The first part of each path."""

_SHOWN_CHARACTERS: Final = 200
"""How much of a wrong value its message shows."""
_MARK: Final = "__odradek_operation__"
_WORDS: Final = {
    "string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
_KINDS: Final[dict[type, str]] = {
    str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


# -- schemas -----------------------------------------------------------------------------------------------------------


def text(meaning: str, **more: Any) -> Schema:
    """A string."""
    return {"type": "string", "description": meaning, **more}


def integer(meaning: str, **more: Any) -> Schema:
    """An integer."""
    return {"type": "integer", "description": meaning, **more}


def number(meaning: str, **more: Any) -> Schema:
    """A number that may have a fraction."""
    return {"type": "number", "description": meaning, **more}


def boolean(meaning: str, **more: Any) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": meaning, **more}


def array(items: Schema, meaning: str = "", **more: Any) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **({"description": meaning} if meaning else {}), **more}


def mapping(values: Schema, meaning: str) -> Schema:
    """An object whose names are free."""
    return {"type": "object", "description": meaning, "additionalProperties": values}


def struct(fields: Mapping[str, Schema], name: str = "") -> Schema:
    """An object with these fields. The document has one with a `name` only once, among its components."""
    required = [each for each in fields if not each.endswith("?")]
    return {
        "type": "object",
        **({"title": name} if name else {}),
        "properties": {each.removesuffix("?"): schema for each, schema in fields.items()},
        **({"required": required} if required else {}),
    }


def optional(fields: Mapping[str, Schema]) -> dict[str, Schema]:
    """The same fields, none of them required."""
    return {f"{name}?": schema for name, schema in fields.items()}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {**schema, "type": [*_types(schema), "null"]}


def _types(schema: Schema) -> list[str]:
    types = schema["type"]
    return [types] if isinstance(types, str) else types


NOTHING: Final = struct({})


# -- checks ------------------------------------------------------------------------------------------------------------


def checked(value: Any, schema: Schema, path: Path = ()) -> Any:
    """The value with the defaults of missing fields; `path` leads to it, for messages. Raises HttpError 400."""
    if "type" not in schema:
        return value
    kind, types = _KINDS[type(value)], _types(schema)
    if kind not in types and not (kind == "integer" and "number" in types):
        raise _refused(f"{_name(path)} is not {' or '.join(_WORDS[each] for each in types)}: {_shown(value)}")
    if "enum" in schema and value not in schema["enum"]:
        raise _refused(f"{_name(path)} is not one of {', '.join(map(str, schema['enum']))}: {_shown(value)}")
    if kind == "object":
        return _checked_object(value, schema, path)
    if kind == "array":
        if not _is_within(len(value), schema.get("minItems"), schema.get("maxItems")):
            wanted = _range(schema.get("minItems"), schema.get("maxItems"))
            raise _refused(f"the length of {_name(path)} is not {wanted}: {len(value)}")
        items = schema.get("prefixItems", [schema["items"]] * len(value))
        pairs = enumerate(zip(value, items, strict=True))
        return [checked(each, item, (*path, index)) for index, (each, item) in pairs]
    if kind in {"integer", "number"} and not _is_within(value, schema.get("minimum"), schema.get("maximum")):
        raise _refused(f"{_name(path)} is not {_range(schema.get('minimum'), schema.get('maximum'))}: {value}")
    return value


def _checked_object(value: Mapping[str, Any], schema: Schema, path: Path) -> dict[str, Any]:
    if "properties" not in schema:
        values = schema.get("additionalProperties", {})
        return {each: checked(given, values, (*path, each)) for each, given in value.items()}
    fields, required = schema["properties"], schema.get("required", [])
    if value.keys() - fields.keys():
        refuse_unknown(value, fields, "field", f" of {_name(path)}" if path else "")
    for each in required:
        if each not in value:
            raise _refused(f"{_name((*path, each))} is missing; required: {', '.join(required)}")
    return {
        each: checked(value[each], field, (*path, each)) if each in value else field["default"]
        for each, field in fields.items()
        if each in value or "default" in field
    }


def refuse_unknown(given: Iterable[str], allowed: Iterable[str], kind: str, where: str = "") -> None:
    """Raise HttpError 400 for names that are not allowed."""
    unknown = [each for each in given if each not in allowed]
    if unknown:
        raise _refused(f"unknown {kind} {', '.join(unknown)}{where}; allowed: {', '.join(allowed) or 'none'}")


def _is_within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range(least: float | None, most: float | None) -> str:
    return f"at least {least}" if most is None else f"at most {most}" if least is None else f"from {least} to {most}"


def _name(path: Path) -> str:
    """The path as in `records[0].value`."""
    name = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    return name.removeprefix(".")


def _shown(value: Any) -> str:
    return json.dumps(value)[:_SHOWN_CHARACTERS]


def _refused(message: str) -> HttpError:
    return HttpError(HTTPStatus.BAD_REQUEST, message)


def _parsed(value: str, schema: Schema, name: str) -> Any:
    """The value of a parameter, which comes as text."""
    if "integer" not in _types(schema):
        return value
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise _refused(f"{name} is not an integer: {value}")
    return int(value)


# -- operations --------------------------------------------------------------------------------------------------------


class Operation(Value):
    """A kind of request. `path` has parameters in braces; the other ones of `parameters` are those of the query.

    `example` has parameters and fields of the body. A request with them succeeds after the examples of the operations
    declared before.
    """

    name: str
    method: str
    path: str
    summary: str
    parameters: dict[str, Schema]
    body: Schema | None
    answer: Schema
    example: Given

    @property
    def line(self) -> str:
        """The start of the request, such as `DELETE /v1/topics/{name}`."""
        return f"{self.method} /{VERSION}/{self.path}"

    @property
    def parameter_schema(self) -> Schema:
        """All parameters as the fields of one object."""
        return struct(self.parameters)

    def is_in_path(self, parameter: str) -> bool:
        """Whether the parameter is a part of the path, not of the query."""
        return f"{{{parameter}}}" in self.path

    def matched(self, method: str, segments: Sequence[str]) -> dict[str, str] | None:
        """The parameters of the path, or None for another request."""
        parts = self.path.split("/")
        if method != self.method or len(parts) != len(segments):
            return None
        pairs = list(zip(parts, segments, strict=True))
        if any(part != segment for part, segment in pairs if not part.startswith("{")):
            return None
        return {part[1:-1]: segment for part, segment in pairs if part.startswith("{")}

    def given(self, request: HttpRequest, in_path: Mapping[str, str]) -> Given:
        """The parameters and the fields of the body, checked, for the handler. Raises HttpError 400."""
        schema = self.parameter_schema
        fields = schema["properties"]
        refuse_unknown(request.query, [each for each in fields if not self.is_in_path(each)], "parameter")
        found = {**request.query, **in_path}
        parsed = {name: _parsed(value, fields[name], name) for name, value in found.items()}
        return {**checked(parsed, schema), **checked(request.body, NOTHING if self.body is None else self.body)}

    def described(self, components: dict[str, Schema]) -> Schema:
        """The operation in OpenAPI. Named schemas are added to `components`."""
        required = self.parameter_schema.get("required", [])
        parameters = [
            {
                "name": name,
                "in": "path" if self.is_in_path(name) else "query",
                "required": name in required,
                "description": schema["description"],
                "schema": {key: value for key, value in schema.items() if key != "description"},
                **({"example": self.example[name]} if name in self.example else {}),
            }
            for name, schema in self.parameter_schema["properties"].items()
        ]
        answer = {"schema": _referring(self.answer, components)}
        described: Schema = {
            "operationId": self.name,
            "summary": self.summary,
            **({"parameters": parameters} if parameters else {}),
            "responses": {
                "200": {"description": "It is done.", "content": {"application/json": answer}},
                **{status: {"$ref": f"#/components/responses/{status}"} for status in _REFUSALS},
            },
        }
        if self.body is not None:
            body = {name: value for name, value in self.example.items() if name in self.body["properties"]}
            content = {"schema": _referring(_closed(self.body), components), "example": body}
            described["requestBody"] = {"required": True, "content": {"application/json": content}}
        return described


def operation(
    method: str,
    path: str,
    summary: str,
    *,
    parameters: Mapping[str, Schema] | None = None,
    body: Mapping[str, Schema] | Schema | None = None,
    answer: Schema = NOTHING,
    example: Given | None = None,
) -> Callable[[F], F]:
    """Mark a method as the handler of a kind of request; see `Operation`. `body` is a struct, or its fields."""
    fields = None if body is None else dict(body) if "properties" in body else struct(body)

    def attach(function: F) -> F:
        name = function.__name__.strip("_")
        setattr(
            function,
            _MARK,
            Operation(name, method, path, summary, dict(parameters or {}), fields, answer, dict(example or {})),
        )
        return function

    return attach


def operations_of(handler_type: type) -> Iterator[tuple[str, Operation]]:
    """The name of each marked method of a class, with its operation, in the order of the class."""
    for name, member in vars(handler_type).items():
        mark = getattr(member, _MARK, None)
        if mark is not None:
            yield name, mark


class ControlApi:
    """The operations of some handlers."""

    def __init__(self, *handlers: object) -> None:
        self._handlers: list[tuple[Operation, Callable[[Given], Awaitable[object]]]] = [
            (mark, getattr(handler, name)) for handler in handlers for name, mark in operations_of(type(handler))
        ]

    async def handle(self, request: HttpRequest) -> object:
        """Check a request, and return the answer of its handler. Raises HttpError, or what the handler raises."""
        version, *segments = request.path
        for mark, handler in self._handlers if version == VERSION else ():
            in_path = mark.matched(request.method, segments)
            if in_path is not None:
                return await handler(mark.given(request, in_path))
        near = [mark.line for mark, _ in self._handlers if segments and mark.path.split("/")[0] == segments[0]]
        there = f"there is: {', '.join(near)}" if near else f"GET /{VERSION}/openapi.json has all requests"
        raise HttpError(HTTPStatus.NOT_FOUND, f"no {request.method} /{'/'.join(request.path)}; {there}")

    def document(self) -> dict[str, Any]:
        """The API in OpenAPI 3.1."""
        components: dict[str, Schema] = {"Error": _ERROR}
        paths: dict[str, dict[str, Schema]] = {}
        for mark, _ in self._handlers:
            methods = paths.setdefault(f"/{VERSION}/{mark.path}", {})
            methods[mark.method.lower()] = mark.described(components)
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        return {
            "openapi": "3.1.0",
            "info": {"title": "Control API of a broker under test", "version": VERSION},
            "servers": [{"url": "/"}],
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "responses": {
                    status: {"description": meaning, "content": error} for status, meaning in _REFUSALS.items()
                },
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }


_REFUSALS: Final = {
    "400": "The request is wrong.",
    "401": "The token is missing or wrong.",
    "409": "Kafka refused it.",
}
_ERROR: Final = struct(
    {
        "error": text("The reason."),
        "error_name?": text("Kafka's name of the error, such as TOPIC_ALREADY_EXISTS; only with status 409."),
    }
)


def _closed(schema: Any) -> Any:
    """The schema, with unknown fields forbidden in every object."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if isinstance(schema.get("properties"), dict) else closed


def _referring(schema: Any, components: dict[str, Schema]) -> Any:
    """The schema with references to its named parts, which are added to `components`."""
    if isinstance(schema, list):
        return [_referring(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    referring = {key: _referring(value, components) for key, value in schema.items()}
    name = schema.get("title")
    if not isinstance(name, str):
        return referring
    components[name] = referring
    return {"$ref": f"#/components/schemas/{name}"}
