"""Decisions of our rules and of Kafka's AclAuthorizer, which reads the ACLs that our broker wrote to ZooKeeper."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from protocol.acl_types import (
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from protocol.messages.security import CreateAclsRequest, DescribeAclsRequest
from security.authorization import ACL_AUTHORIZER
from tests.kit.apache_kafka import zookeeper
from tests.kit.broker_process import BrokerProcess
from tests.kit.wire_client import WireClient
from tests.parity.secured.decisions import QUESTIONS, Tree, compare, drawn_acls, kafkas_answers, run

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TREES = 2
DECISIONS = 1500


def written(connection: WireClient, bindings: list[AclBinding]) -> None:
    """Make the broker write ACLs."""
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.pattern_type,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for pattern, entry in bindings
    ]
    answer: Any = connection.ask(CreateAclsRequest(creations=creations), 3)
    assert not any(each.error_code for each in answer.results)


def known(connection: WireClient) -> dict[ResourcePattern, list[AccessControlEntry]]:
    """The lists that the broker enforces."""
    everything = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=AclPermissionType.ANY,
    )
    answer: Any = connection.ask(everything, 3)
    return {
        ResourcePattern(ResourceType(each.resource_type), each.resource_name, PatternType(each.pattern_type)): [
            AccessControlEntry(
                one.principal, one.host, AclOperation(one.operation), AclPermissionType(one.permission_type)
            )
            for one in each.acls
        ]
        for each in answer.resources
    }


def test_decisions_are_those_of_kafka(tmp_path: Path) -> None:
    draw = random.Random(13)
    trees: list[Tree] = []
    lists = []
    with zookeeper(tmp_path / "zookeeper") as address:
        for number in range(TREES):
            tree, bindings = f"{address}/tree-{number}", drawn_acls(draw)
            settings = {
                "zookeeper.connect": tree,
                "authorizer.class.name": ACL_AUTHORIZER,
                "super.users": "User:ANONYMOUS",
            }
            broker = BrokerProcess(tmp_path / f"broker-{number}", settings)
            broker.start()
            host, _, port = broker.address.rpartition(":")
            with WireClient(host, int(port)) as connection:
                written(connection, bindings)
                found = known(connection)
            broker.stop()
            assert {AclBinding(pattern, entry) for pattern in found for entry in found[pattern]} == set(bindings)
            for allows_unmentioned in (False, True):
                questions = tuple(draw.sample(QUESTIONS, DECISIONS))
                trees.append(Tree(tree, tuple(bindings), allows_unmentioned, questions))
                lists.append(found)
        answers = kafkas_answers(trees, 200)
    counts = [
        compare(tree, found, answers[at * DECISIONS : (at + 1) * DECISIONS])
        for at, (tree, found) in enumerate(zip(trees, lists, strict=True))
    ]
    assert len(answers) / 4 < sum(counts) < len(answers) * 3 / 4, "too one-sided to say much"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_decisions_are_those_of_kafka(tmp_path: Path) -> None:
    """`python -m tests.parity.secured.decisions` compares a million."""
    count = 50_000
    _, allowed = run(count, 7, tmp_path / "zookeeper")
    assert count / 4 < allowed < count * 3 / 4, "too one-sided to say much"
