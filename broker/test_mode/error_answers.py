"""The response of any API that refuses a request with one error, in the shape of the request's version.

As Kafka's `AbstractRequest.getErrorResponse`: a struct of the response with an error code of its own carries the error
and nothing else. Above it, arrays of the response have an element for each one of the request, with the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import RESPONSE_TYPES
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.produce import ProduceRequest
from protocol.wire.schema import Request, Response, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, FieldSpec, StructOf, Text

ERROR_FIELDS: Final = frozenset({"error_code", "partition_error_code"})
"""The fields that carry the error."""
_SOURCES: Final[dict[ApiKey, dict[str, str]]] = {
    ApiKey.PRODUCE: {"responses": "topic_data", "partition_responses": "partition_data"},
    ApiKey.FETCH: {"responses": "topics"},
    ApiKey.LEADER_AND_ISR: {
        "topics": "topic_states",
        "partition_errors": "ungrouped_partition_states topic_states.partition_states partition_states",
    },
    ApiKey.STOP_REPLICA: {
        "partition_errors": "ungrouped_partitions topics.partition_indexes topic_states.partition_states"
    },
    ApiKey.OFFSET_FETCH: {"partitions": "partition_indexes"},
    ApiKey.FIND_COORDINATOR: {"coordinators": "coordinator_keys"},
    ApiKey.DELETE_TOPICS: {"responses": "topics topic_names"},
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "results_by_topic_v3_and_below": "v3_and_below_topics",
        "results_by_partition": "partitions",
    },
    ApiKey.WRITE_TXN_MARKERS: {"partitions": "partition_indexes"},
    ApiKey.CREATE_ACLS: {"results": "creations"},
    ApiKey.DELETE_ACLS: {"filter_results": "filters"},
    ApiKey.DESCRIBE_CONFIGS: {"results": "resources"},
    ApiKey.ALTER_CONFIGS: {"responses": "resources"},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"responses": "resources"},
    ApiKey.ALTER_REPLICA_LOG_DIRS: {"results": "dirs.topics"},
    ApiKey.CREATE_PARTITIONS: {"results": "topics"},
    ApiKey.DELETE_GROUPS: {"results": "groups_names"},
    ApiKey.ELECT_LEADERS: {"replica_election_results": "topic_partitions", "partition_result": "partitions"},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {"responses": "topics"},
    ApiKey.DESCRIBE_PRODUCERS: {"partitions": "partition_indexes"},
    ApiKey.DESCRIBE_TRANSACTIONS: {"transaction_states": "transactional_ids"},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"results": "deletions upsertions"},
}
"""Arrays of responses with the arrays of requests that they answer, if the names differ; `a.b` is an inner array."""
_EVERYWHERE: Final = frozenset((
    ApiKey.FETCH, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ALTER_CLIENT_QUOTAS,
))  # fmt: skip
"""APIs that answer the elements below an error code, too."""
_IDENTITIES: Final = frozenset((
    "entity_name", "entity_type", "group_id", "index", "key", "name", "partition", "partition_id", "partition_index",
    "producer_id", "resource_name", "resource_type", "topic", "topic_id", "topic_name", "transactional_id", "user",
))  # fmt: skip
"""The fields that identify an element of a response."""
_ITSELF: Final = ""
"""The field of an element that has none: the name of a topic, the number of a partition."""
_OTHER_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "partition_index": ("partition", _ITSELF),
    "producer_id": (),
    "topic_name": ("name",),
    "user": ("name",),
}
"""The names in some requests of fields that identify an element; if missing here, it may be the element itself."""
_UNKNOWN: Final[dict[str, Any]] = {
    "base_offset": -1,
    "committed_offset": -1,
    "high_watermark": -1,
    "low_watermark": -1,
    "metadata": "",
    "node_id": -1,
    "port": -1,
    "producer_epoch": -1,
    "records": b"",
}
"""The values of fields that an error leaves open, where they are not the defaults."""
_SESSION_ERRORS: Final = frozenset((
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
))  # fmt: skip


def error_response(request: Request, version: int, error_code: int, message: str | None = None) -> Response:
    """The response that fails everything in `request` with `error_code`.

    The error of a Fetch is that of its partitions, where clients look for it, unless it concerns the session or the
    request names no partition. A Metadata response names no brokers, as Kafka's: clients ignore it and ask again.

    Raises ValueError, with the name of the API, if no response can carry the error: the producer wants no response, the
    version has no error code, or the request names nothing that could fail (a Metadata of all topics).
    """
    api_key = request.api_key
    if isinstance(request, ProduceRequest) and request.acks == 0:
        raise ValueError(f"{api_key.name} with acks=0 has no response")
    refusal = _Refusal(api_key, version, error_code, message)
    response = refusal.response(request)
    if not refusal.is_carried:
        raise ValueError(f"a response to this {api_key.name} v{version} cannot carry an error")
    if isinstance(response, FetchResponse):
        if version >= 7 and error_code in _SESSION_ERRORS:
            response.responses = []
        elif response.responses:
            response.error_code = 0
        assert isinstance(request, FetchRequest)
        response.session_id = request.session_id
    return response


class _Refusal:
    """Builds one response. `is_carried` says whether the error is in it."""

    def __init__(self, api_key: ApiKey, version: int, error_code: int, message: str | None) -> None:
        self.is_carried = False
        self._api_key = api_key
        self._version = version
        self._error_code = error_code
        self._message = message
        self._sources = _SOURCES.get(api_key, {})

    def response(self, request: Request) -> Response:
        response_type = RESPONSE_TYPES[self._api_key]
        return response_type(**self._values(response_type, _values_of(request), is_element=False))

    def _values(self, struct: type[Struct], source: dict[str, Any], *, is_element: bool = True) -> dict[str, Any]:
        """The fields of `struct`; `source` has the fields of the request, or of its element."""
        specs = [spec for spec in fields_of(struct) if spec.versions.has(self._version)]
        goes_deeper = self._api_key in _EVERYWHERE or not any(spec.name in ERROR_FIELDS for spec in specs)
        values: dict[str, Any] = {}
        for spec in specs:
            if spec.name in ERROR_FIELDS:
                values[spec.name] = self._error_code
                self.is_carried = True
            elif spec.name == "error_message":
                values[spec.name] = self._message
            elif isinstance(spec.type, ArrayOf) and isinstance(spec.type.element, StructOf) and goes_deeper:
                element = spec.type.element.struct
                values[spec.name] = [
                    element(**self._values(element, each)) for each in self._answered(spec.name, source)
                ]
            else:
                values[spec.name] = self._value(spec, source if is_element else {})
        return values

    def _value(self, spec: FieldSpec, source: dict[str, Any]) -> Any:
        """The value of the element that `source` is; otherwise one that says nothing."""
        default = spec.default() if spec.is_array_default() else spec.default
        value = _UNKNOWN.get(spec.name, default)
        if spec.name in _IDENTITIES:
            names = (spec.name, *_OTHER_NAMES.get(spec.name, (_ITSELF,)))
            value = next((source[name] for name in names if name in source), value)
        # Some versions allow null only in the request, or only from a later version on.
        return "" if value is None and isinstance(spec.type, Text) and not spec.nullable_in(self._version) else value

    def _answered(self, array: str, source: dict[str, Any]) -> list[dict[str, Any]]:
        """The elements of the request that the response's `array` answers."""
        found = [each for path in self._sources.get(array, array).split() for each in _elements(path, source)]
        if self._api_key is ApiKey.ALTER_USER_SCRAM_CREDENTIALS:  # a user may have several mechanisms
            return list({each["name"]: each for each in found}.values())
        return found


def _elements(path: str, source: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The fields of each element of an array. Those of the outer array's element win."""
    head, _, rest = path.partition(".")
    for each in source.get(head) or ():
        values = _values_of(each)
        if rest:
            yield from (inner | values for inner in _elements(rest, values))
        else:
            yield values


def _values_of(element: Any) -> dict[str, Any]:
    if isinstance(element, Struct):
        return {name: getattr(element, name) for name in element.declared_fields}
    return {_ITSELF: element}
