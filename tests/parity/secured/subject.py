"""A broker with an authorizer from a scenario's view: the scenario's own connection has all rights, users have those
granted.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from protocol.wire.schema import Request
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.parity.subject import Subject, Target
from tests.parity.transcript import Mask, Plain

USERS = ("alice", *(f"{kind}{number}" for kind in ("one", "all") for number in range(30)))
"""The users; each name is also the password."""
ALICE = "User:alice"
OLDEST = {ApiKey.FETCH: 4, ApiKey.OFFSET_COMMIT: 1, ApiKey.OFFSET_FETCH: 1}
"""The first version to compare, for APIs with older versions in Kafka."""

_LOGGED_REFUSAL = re.compile(r"\] INFO (Principal = .+) \(kafka\.authorizer\.logger\)\n")

Creation = CreateAclsRequest.AclCreation
SecuredScenario = Callable[["SecuredSubject"], None]
Row = TypeVar("Row")


class SecuredTarget(NamedTuple):
    """A running broker. Clients of `address` are super users; users connect to `sasl_address`."""

    address: str
    sasl_address: str
    data_directory: str = ""
    output: str = ""
    """The file with the broker's output."""


class Right(NamedTuple):
    """A resource and an operation on it."""

    resource_type: ResourceType
    name: str
    operation: AclOperation


class _SecuredMask(Mask):
    """To refused clients, Kafka reveals how it represents the request in memory. Ids of delegation tokens are
    random.
    """

    def plain(self, value: Any, name: str = "") -> Plain:
        if name in {"token_id", "hmac", "max_timestamp", "max_timestamp_ms"} and value not in ("", b"", -1):
            return f"<{name}>"
        return super().plain(value, name)

    def text(self, value: str, name: str = "") -> str:
        told = re.sub(r"Request Request\(.*\) is not authorized\.", "Cluster authorization failed.", value)
        return super().text(re.sub(r"DelegationToken:LITERAL:\S+", "DelegationToken:LITERAL:<id>", told), name)


class SecuredSubject(Subject):
    """One broker in one scenario. Its ACLs are removed afterwards."""

    def __init__(self, target: SecuredTarget, scenario: str) -> None:
        super().__init__(Target(target.address, target.data_directory), scenario)
        ports = [int(each.rpartition(":")[2]) for each in (target.address, target.sasl_address)]
        self.mask = _SecuredMask(*ports, data_directories=[target.data_directory])
        self._sasl_port = ports[1]
        self._output = Path(target.output)
        answer: Any = self.quietly(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        self._users: dict[str, WireClient] = {}

    def _authenticated(self, user: str) -> WireClient:
        connection = WireClient(self.host, self._sasl_port, "parity")
        connection.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        proof = f"\0{user}\0{user}".encode()
        answer: Any = connection.ask(SaslAuthenticateRequest(auth_bytes=proof), 2)
        assert answer.error_code == ErrorCode.NONE, answer
        return connection

    def close(self) -> None:
        everything = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=ResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=None,
            host_filter=None,
            operation=AclOperation.ANY,
            permission_type=AclPermissionType.ANY,
        )
        self.quietly(DeleteAclsRequest(filters=[everything]), 3)
        for connection in self._users.values():
            connection.close()
        super().close()

    def connection_of(self, user: str) -> WireClient:
        """The user's connection."""
        if user not in self._users:
            self._users[user] = self._authenticated(user)
        return self._users[user]

    def as_user(self, user: str, request: Request, version: int, label: str = "") -> Any:
        """Send a request as this user, and note the answer or the closed connection, and the refusals that the broker
        logged.
        """
        name = f"{type(request).__name__.removesuffix('Request')} v{version} {label}".rstrip()
        connection = self.connection_of(user)
        said = self._output.stat().st_size
        try:
            response = connection.ask(request, version)
        except ConnectionClosed:
            self._users.pop(user).close()
            response = None
        self.note(name, "<connection closed>" if response is None else response)
        self.note(f"{name} log", self._logged_refusals(said))
        return response

    def _logged_refusals(self, since: int) -> list[str]:
        """Lines of the authorizer's log, sorted: Kafka checks the resources of a request in a different order."""
        with self._output.open("rb") as output:
            output.seek(since)
            return sorted(_LOGGED_REFUSAL.findall(output.read().decode()))

    def range_of(self, api_key: ApiKey) -> range:
        """The existing versions of an API."""
        oldest, newest = self.versions[api_key]
        return range(OLDEST.get(api_key, oldest), newest + 1)

    def grant(self, *creations: Creation) -> None:
        """Create these ACLs, and wait until they apply. Raises AssertionError if they are refused."""
        answer: Any = self.quietly(CreateAclsRequest(creations=list(creations)), 3)
        assert not any(each.error_code for each in answer.results), answer


def acl(resource_type: ResourceType, name: str, operation: AclOperation, **fields: Any) -> Creation:
    """A literal ACL that allows alice something, except for `fields`."""
    values: dict[str, Any] = {
        "resource_type": resource_type,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": ALICE,
        "host": "*",
        "operation": operation,
        "permission_type": AclPermissionType.ALLOW,
    }
    return Creation(**{**values, **fields})


_SCENARIOS: dict[str, SecuredScenario] = {}


def secured_scenario(function: SecuredScenario) -> SecuredScenario:
    """Register a scenario under `<file>.<function>`."""
    _SCENARIOS[f"{function.__module__.rpartition('.')[2]}.{function.__name__}"] = function
    return function


def secured_scenario_for_each(rows: Mapping[str, Row]) -> Callable[[Callable[[SecuredSubject, Row], None]], None]:
    """Register a scenario for each of `rows` under `<file>.<function>.<row's name>`; it is given the row."""

    def register(function: Callable[[SecuredSubject, Row], None]) -> None:
        for name, row in rows.items():
            file = function.__module__.rpartition(".")[2]
            _SCENARIOS[f"{file}.{function.__name__}.{name}"] = lambda subject, row=row: function(subject, row)

    return register


def secured_scenarios() -> dict[str, SecuredScenario]:
    """All scenarios by name, in the order of their files."""
    for path in sorted((Path(__file__).parent / "scenarios").glob("*.py")):
        importlib.import_module(f"tests.parity.secured.scenarios.{path.stem}")
    return _SCENARIOS
