"""Error responses of every served API and version, against those of Kafka's own classes."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.test_mode.error_answers import ERROR_FIELDS, error_response
from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import REQUEST_TYPES, RESPONSE_TYPES
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.log_dirs import DescribeLogDirsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import AlterUserScramCredentialsRequest
from protocol.records.batch import Record, build_batch
from protocol.value import Value
from protocol.wire.schema import Request, Response, Struct, fields_of
from protocol.wire.wire_types import ArrayOf, Blob, FieldSpec, RecordsBlob, StructOf, Text, Versions, WireType
from tests.broker.network.effect_requests import PARTITIONS, Trial, produce
from tests.broker.network.effects import CASES
from tests.docs.documents import served_apis
from tests.kit.environment import uuid_of
from tests.kit.jars import QUICK_START, java, kafka_classpath
from tests.protocol.values import OWN_TAG

MESSAGE: Final = "injected"
ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "PRODUCE FETCH LIST_OFFSETS OFFSET_FOR_LEADER_EPOCH DELETE_RECORDS "
    "DESCRIBE_PRODUCERS",
    ErrorCode.LEADER_NOT_AVAILABLE: "METADATA",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "OFFSET_COMMIT OFFSET_FETCH FIND_COORDINATOR JOIN_GROUP HEARTBEAT LEAVE_GROUP "
    "SYNC_GROUP DESCRIBE_GROUPS LIST_GROUPS DELETE_GROUPS OFFSET_DELETE",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "INIT_PRODUCER_ID ADD_PARTITIONS_TO_TXN ADD_OFFSETS_TO_TXN END_TXN "
    "TXN_OFFSET_COMMIT WRITE_TXN_MARKERS DESCRIBE_TRANSACTIONS LIST_TRANSACTIONS",
    ErrorCode.NOT_CONTROLLER: "CREATE_TOPICS DELETE_TOPICS CREATE_PARTITIONS ELECT_LEADERS "
    "ALTER_PARTITION_REASSIGNMENTS LIST_PARTITION_REASSIGNMENTS ALTER_PARTITION CONTROLLED_SHUTDOWN "
    "ALLOCATE_PRODUCER_IDS",
    ErrorCode.STALE_CONTROLLER_EPOCH: "LEADER_AND_ISR STOP_REPLICA UPDATE_METADATA",
    ErrorCode.SECURITY_DISABLED: "DESCRIBE_ACLS CREATE_ACLS DELETE_ACLS",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "CREATE_DELEGATION_TOKEN RENEW_DELEGATION_TOKEN EXPIRE_DELEGATION_TOKEN "
    "DESCRIBE_DELEGATION_TOKEN",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "SASL_HANDSHAKE",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "SASL_AUTHENTICATE",
    ErrorCode.KAFKA_STORAGE_ERROR: "ALTER_REPLICA_LOG_DIRS DESCRIBE_LOG_DIRS",
    ErrorCode.INVALID_CONFIG: "DESCRIBE_CONFIGS ALTER_CONFIGS INCREMENTAL_ALTER_CONFIGS ALTER_CLIENT_QUOTAS "
    "DESCRIBE_CLIENT_QUOTAS ALTER_USER_SCRAM_CREDENTIALS DESCRIBE_USER_SCRAM_CREDENTIALS",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "DESCRIBE_CLUSTER API_VERSIONS",
}
"""Errors that suit the APIs."""
ERROR_OF: Final = {ApiKey[name]: error for error, names in ERRORS.items() for name in names.split()}
VERSIONS: Final = [
    (mark.api_key, version) for mark in served_apis() for version in range(mark.min_version, mark.max_version + 1)
]
VALID: Final = {
    "operation": AclOperation.READ,
    "pattern_type_filter": PatternType.LITERAL,
    "permission_type": AclPermissionType.ALLOW,
    "resource_pattern_type": PatternType.LITERAL,
    "resource_type": ResourceType.TOPIC,
    "resource_type_filter": ResourceType.TOPIC,
}
"""Fields without which Kafka's classes refuse a request."""


class Difference(Value):
    """Fields, given by their paths, in which our error response differs from Kafka's on purpose."""

    api_key: ApiKey
    paths: str
    reason: str
    versions: str = "0+"


NOT_READ: Final = "clients read nothing but the error, so the fields are left at their defaults"
OWN_MESSAGE: Final = "Kafka answers with the message of the error code, whatever happened"
NO_MESSAGE: Final = "Kafka leaves the message out, although the response has a field for it"
KNOWN: Final = (
    Difference(ApiKey.FETCH, "error_code", "clients look for an error of a partition in the partition", "7+"),
    Difference(ApiKey.FETCH, "responses", "Kafka leaves the partitions out, see above", "13+"),
    Difference(ApiKey.FETCH, "responses.partitions.records", "librdkafka does not accept null (KAFKA-18646)", "4-12"),
    Difference(ApiKey.LIST_PARTITION_REASSIGNMENTS, "topics", "Kafka answers as if every partition were reassigned"),
    Difference(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "results", "Kafka adds the error of users without a name"),
    Difference(ApiKey.DESCRIBE_TRANSACTIONS, "transaction_states.producer_epoch", "Kafka answers 0, a valid epoch"),
    Difference(
        ApiKey.CREATE_DELEGATION_TOKEN,
        "principal_type principal_name issue_timestamp_ms expiry_timestamp_ms max_timestamp_ms "
        "token_requester_principal_type token_requester_principal_name",
        NOT_READ,
    ),
    Difference(ApiKey.FIND_COORDINATOR, "error_message coordinators.error_message", OWN_MESSAGE),
    Difference(ApiKey.DESCRIBE_CONFIGS, "results.error_message", OWN_MESSAGE),
    Difference(ApiKey.ALTER_CLIENT_QUOTAS, "entries.error_message", OWN_MESSAGE),
    Difference(ApiKey.DELETE_TOPICS, "responses.error_message", NO_MESSAGE),
    Difference(ApiKey.DESCRIBE_PRODUCERS, "topics.partitions.error_message", NO_MESSAGE),
)


def filled(struct: type[Struct], version: int, number: int = 0) -> Any:
    """A struct with two elements in every array and a value in every other field, different by `number`."""
    return struct(
        **{spec.name: spec.default() if spec.is_array_default() else spec.default for spec in fields_of(struct)}
        | {
            spec.name: _filled_value(spec.type, version, number, spec)
            for spec in fields_of(struct)
            if spec.versions.has(version) and spec.tag != OWN_TAG
        }
    )


def _filled_value(wire_type: WireType, version: int, number: int, spec: FieldSpec) -> Any:
    match wire_type:
        case ArrayOf(element=element):
            return [_filled_value(element, version, each, spec) for each in range(2)]
        case StructOf(struct=struct):
            return filled(struct, version, number)
        case Text():
            return f"{spec.name} {number}"
        case Blob():
            return b"%d" % number
        case RecordsBlob():
            return build_batch([Record(0, 0, None, b"v", [])])
        case _ if spec.name in VALID:
            return VALID[spec.name]
        case _ if wire_type.name == "uuid":
            return uuid_of(number + 1)
        case _:
            return type(wire_type.zero)(number + 1)


def requests(api_key: ApiKey, version: int) -> list[Request]:
    """A request with two of everything, and those of `CASES` that the version carries whole."""
    request_type = REQUEST_TYPES[api_key]
    found = [request_type.decode(filled(request_type, version).to_bytes(version), version)]
    for case in CASES:
        if case.api_key is api_key:
            request = case.build(Trial(1, "member", 1))
            try:
                decoded = request_type.decode(request.to_bytes(version), version)
            except ApiError:
                decoded = None
            if decoded == request:
                found.append(decoded)
            assert decoded == request or case.version != version
    return found


def error_codes(value: object) -> Iterator[int]:
    """The error codes anywhere in a response."""
    if isinstance(value, list):
        for each in value:
            yield from error_codes(each)
    elif isinstance(value, Struct):
        for name in value.declared_fields:
            if name in ERROR_FIELDS:
                yield getattr(value, name)
            else:
                yield from error_codes(getattr(value, name))


UNABLE: Final[dict[str, tuple[Request, int]]] = {
    "Produce without acks": (produce(("t",), PARTITIONS, b"v", acks=0), 9),
    "Produce of no partition": (produce((), (), b"v"), 9),
    "Metadata of all topics": (MetadataRequest(topics=None), 12),
} | {f"DescribeLogDirs v{version}": (DescribeLogDirsRequest(topics=None), version) for version in range(3)}
"""Requests that have no response with an error. DescribeLogDirs has errors of directories, which no request names."""
CARRYING: Final = [
    (request, version)
    for api_key, version in VERSIONS
    if f"DescribeLogDirs v{version}" not in UNABLE or api_key is not ApiKey.DESCRIBE_LOG_DIRS
    for request in requests(api_key, version)
]


@pytest.mark.parametrize("api_key", ERROR_OF, ids=lambda api_key: api_key.name)
def test_every_version_carries_the_error(api_key: ApiKey) -> None:
    for request, version in CARRYING:
        if request.api_key is api_key:
            response = error_response(request, version, ERROR_OF[api_key], MESSAGE)
            assert type(response).decode(response.to_bytes(version), version) == response
            assert ERROR_OF[api_key] in error_codes(response)


def test_every_served_version_is_tested() -> None:
    assert {(request.api_key, version) for request, version in [*CARRYING, *UNABLE.values()]} == set(VERSIONS)


@pytest.mark.parametrize(("request_", "version"), UNABLE.values(), ids=UNABLE)
def test_a_request_whose_response_cannot_carry_an_error(request_: Request, version: int) -> None:
    with pytest.raises(ValueError, match=request_.api_key.name):
        error_response(request_, version, ERROR_OF[request_.api_key])


def fetched(error: ErrorCode, *, partitions: bool = True) -> FetchResponse:
    request = filled(FetchRequest, 13)
    if not partitions:
        request.topics = []
    response = error_response(request, 13, error)
    assert isinstance(response, FetchResponse)
    return response


def test_a_fetch_fails_where_clients_look_for_the_error() -> None:
    partitions = fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert partitions.error_code == 0
    assert set(error_codes(partitions.responses)) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    for session in (
        fetched(ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        fetched(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, partitions=False),
        fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER, partitions=False),
    ):
        assert session.error_code != 0
        assert session.responses == []


def test_a_user_with_two_mechanisms_has_one_result() -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="u", mechanism=1)],
        upsertions=[
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name="u", mechanism=2, iterations=4096, salt=b"", salted_password=b""
            )
        ],
    )
    response: Any = error_response(request, 0, ErrorCode.NOT_CONTROLLER)
    assert [result.user for result in response.results] == ["u"]


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The paths of fields that differ, with both values. Elements are compared in any order, as Kafka's are in that of
    a hash map. An element has the path of its array.
    """
    if isinstance(ours, Struct) and isinstance(theirs, Struct):
        for name in ours.declared_fields:
            yield from differences(getattr(ours, name), getattr(theirs, name), f"{path}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for each, other in zip(sorted(ours, key=repr), sorted(theirs, key=repr), strict=True):
            yield from differences(each, other, path)
    elif ours != theirs:
        yield path, f"ours {ours!r}, theirs {theirs!r}"


def answers_of_kafka(tasks: list[tuple[Request, int]]) -> list[Response | str]:
    """Kafka's responses; where it has none, the line of `ErrorResponses.java` instead."""
    program = Path(__file__).with_name("java") / "ErrorResponses.java"
    lines = [
        json.dumps(
            {
                "api_key": request.api_key,
                "version": version,
                "request": base64.b64encode(request.to_bytes(version)).decode(),
                "error_code": ERROR_OF[request.api_key],
                "message": MESSAGE,
            }
        )
        for request, version in tasks
    ]
    done = subprocess.run(
        java(*QUICK_START, "-cp", kafka_classpath(), str(program)),
        input="\n".join(lines) + "\n", capture_output=True, text=True, encoding="utf-8", timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        line
        if line == "null" or line.startswith("!")
        else RESPONSE_TYPES[request.api_key].decode(base64.b64decode(line), version)
        for (request, version), line in zip(tasks, done.stdout.splitlines(), strict=True)
    ]


@pytest.mark.java
def test_kafka_answers_the_same() -> None:
    known = {(each.api_key, path): Versions.parse(each.versions) for each in KNOWN for path in each.paths.split()}
    met = set()
    unexpected = []
    for (request, version), theirs in zip(CARRYING, answers_of_kafka(CARRYING), strict=True):
        ours = error_response(request, version, ERROR_OF[request.api_key], MESSAGE)
        for path, values in differences(ours, theirs):
            where = (request.api_key, path)
            met.add(where)
            if where not in known or not known[where].has(version):
                unexpected.append(f"{request.api_key.name} v{version} {path}: {values}")
    assert not unexpected, "\n".join(unexpected)
    assert met == known.keys()


@pytest.mark.java
def test_kafka_has_no_error_where_we_have_none() -> None:
    for answer in answers_of_kafka(list(UNABLE.values())):
        assert answer == "null" or set(error_codes(answer)) <= {0}
