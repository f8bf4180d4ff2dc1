"""Apache Kafka and Odradek with an authorizer on one ZooKeeper: an ACL set anywhere soon applies at both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol.acl_types import AclOperation, AclPermissionType, PatternType, ResourceType
from protocol.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from security.authorization import ACL_AUTHORIZER
from tests.kit.apache_kafka import await_controller, java_server, zookeeper
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.tools.tool_pair import Answer, Runner, kafkas_runner, our_runner

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = 5
SOON_S = 1.0
SECURITY = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:ANONYMOUS"}
PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)


class Mixed(NamedTuple):
    """Addresses, and connections to both brokers: Apache's first."""

    zookeeper: str
    addresses: tuple[str, str]
    connections: tuple[WireClient, WireClient]

    def heard(self, told: set[str]) -> float:
        """Wait until both know exactly these ACLs; returns the delay in seconds."""
        started = time.monotonic()
        for connection in self.connections:
            eventually("the ACLs", lambda at=connection: known(at), lambda seen: seen == told, pause_s=0.01)
        return time.monotonic() - started


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    directory = tmp_path_factory.mktemp("mixed")
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(zookeeper(directory / "zookeeper"))
        address = f"127.0.0.1:{free_port()}"
        settings = {
            "broker.id": "0",
            "listeners": f"PLAINTEXT://{address}",
            "log.dirs": str(directory / "apache"),
            "zookeeper.connect": tree,
            # The other broker stops first, so no broker can take over.
            "controlled.shutdown.enable": "false",
            **SECURITY,
        }
        properties = directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        stack.enter_context(java_server("kafka.Kafka", properties, int(address.rpartition(":")[2])))
        await_controller(address)
        odradek = BrokerProcess(directory / "odradek", {"broker.id": "7", "zookeeper.connect": tree, **SECURITY})
        odradek.start()
        stack.callback(odradek.stop)
        addresses = address, odradek.address
        connections = [stack.enter_context(WireClient("127.0.0.1", int(each.rpartition(":")[2]))) for each in addresses]
        yield Mixed(tree, addresses, (connections[0], connections[1]))


@pytest.fixture(params=["kafkas", "ours"])
def tool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Answer]]:
    """kafka-acls, Kafka's and ours."""
    runner: Runner = kafkas_runner(tmp_path) if request.param == "kafkas" else our_runner()

    def run(*arguments: str) -> Answer:
        answer = runner.run("acls", list(arguments))
        assert answer.code == 0, answer
        return answer

    yield run
    runner.close()


def known(connection: WireClient) -> set[str]:
    """The ACLs that a broker enforces, abbreviated."""
    wanted = DescribeAclsRequest(**everything())
    answer: Any = connection.ask(wanted, 3)
    return {
        f"{PatternType(each.pattern_type).name} {each.resource_name} {one.principal}"
        for each in answer.resources
        for one in each.acls
    }


def everything() -> dict[str, Any]:
    return {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermissionType.ANY,
    }


def create(connection: WireClient, name: str, pattern: PatternType) -> None:
    creation = CreateAclsRequest.AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        resource_pattern_type=pattern,
        principal="User:alice",
        host="*",
        operation=AclOperation.READ,
        permission_type=AclPermissionType.ALLOW,
    )
    answer: Any = connection.ask(CreateAclsRequest(creations=[creation]), 3)
    assert answer.results[0].error_code == 0, answer


def clear(connection: WireClient) -> None:
    filters = [DeleteAclsRequest.DeleteAclsFilter(**everything())]
    answer: Any = connection.ask(DeleteAclsRequest(filters=filters), 3)
    assert answer.filter_results[0].error_code == 0, answer


@pytest.mark.parametrize("through", [0, 1], ids=["apache", "odradek"])
def test_what_one_broker_changes_counts_at_the_other(mixed: Mixed, through: int) -> None:
    times = []
    for number in range(ROUNDS):
        for pattern in PATTERNS:
            create(mixed.connections[through], f"t{number}", pattern)
            times.append(mixed.heard({f"{pattern.name} t{number} User:alice"}))
            clear(mixed.connections[through])
            times.append(mixed.heard(set()))
    assert min(times) < SOON_S, times


def test_both_change_the_same_pattern(mixed: Mixed) -> None:
    create(mixed.connections[0], "t", PatternType.LITERAL)
    mixed.heard({"LITERAL t User:alice"})
    create(mixed.connections[1], "u", PatternType.LITERAL)
    mixed.heard({"LITERAL t User:alice", "LITERAL u User:alice"})
    clear(mixed.connections[1])
    mixed.heard(set())


@pytest.mark.parametrize("at", [0, 1], ids=["apache", "odradek"])
def test_tools_at_either_broker(mixed: Mixed, at: int, tool: Callable[..., Answer]) -> None:
    server = ("--bootstrap-server", mixed.addresses[at])
    tool(*server, "--add", "--topic", "t", "--allow-principal", "User:bob")
    mixed.heard({"LITERAL t User:bob"})
    other = ("--bootstrap-server", mixed.addresses[1 - at])
    assert "principal=User:bob" in tool(*other, "--list").stdout
    tool(*other, "--remove", "--force", "--topic", "t")
    mixed.heard(set())


def test_kafkas_tool_behind_the_brokers_backs(mixed: Mixed, tmp_path: Path) -> None:
    """It writes to ZooKeeper directly."""
    runner = kafkas_runner(tmp_path)
    tree = ("--authorizer-properties", f"zookeeper.connect={mixed.zookeeper}")
    try:
        for number in range(3):
            added = [*tree, "--add", "--topic", f"t{number}", "--allow-principal", "User:bob"]
            assert runner.run("acls", added).code == 0
            mixed.heard({f"LITERAL t{number} User:bob"})
            create(mixed.connections[1], f"t{number}", PatternType.PREFIXED)
            listed = runner.run("acls", [*tree, "--list", "--topic", f"t{number}", "--resource-pattern-type", "any"])
            assert "principal=User:alice" in listed.stdout, listed
            assert runner.run("acls", [*tree, "--remove", "--force", "--topic", f"t{number}"]).code == 0
            mixed.heard({f"PREFIXED t{number} User:alice"})
            clear(mixed.connections[1])
            mixed.heard(set())
    finally:
        runner.close()
