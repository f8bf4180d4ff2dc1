"""Decisions of our rules and of Kafka's AclAuthorizer, which reads the ACLs that our broker wrote to ZooKeeper."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.security.acl_rules import AclRules
from config.security.authorization import ACL_AUTHORIZER
from protocol.acl_types import (
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from protocol.messages import CreateAclsRequest, DescribeAclsRequest
from tests.cluster.security.naive_acls import ASKED, HOSTS, NAMES, PRINCIPALS, draw_binding
from tests.kit.apache_kafka import zookeeper
from tests.kit.broker_process import BrokerProcess
from tests.kit.jars import QUICK_START, java, kafka_classpath
from tests.kit.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("java") / "AclDecisions.java"
TYPES = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN,
    ResourceType.USER,
)  # fmt: skip
"""Each has ACLs of its own: a world for itself."""
MOST_OF_A_TYPE = 12
TREES = 2
DECISIONS = 1500
SUPER_USERS = "User:carol;User:d:e"
ASKING = (*PRINCIPALS[:3], "User:carol", "User:d:e", "User:*")


class Question(NamedTuple):
    """May a principal do it, with a resource or without a name with any of its type?"""

    principal: str
    host: str
    operation: AclOperation
    resource_type: ResourceType
    name: str | None

    def line(self) -> str:
        kind, _, user = self.principal.partition(":")
        resource = [] if self.name is None else [self.name]
        return "\t".join([kind, user, self.host, self.operation.name, self.resource_type.name, *resource])


def drawn_acls(draw: random.Random) -> list[AclBinding]:
    """ACLs of every type, of some few."""
    bindings = {}
    for number, resource_type in enumerate(TYPES):
        for _ in range(number * MOST_OF_A_TYPE // (len(TYPES) - 1)):
            pattern, entry = draw_binding(draw)
            bindings[AclBinding(pattern._replace(resource_type=resource_type), entry)] = None
    return list(bindings)


def drawn_question(draw: random.Random) -> Question:
    name = None if draw.random() < 0.1 else draw.choice(NAMES)
    return Question(draw.choice(ASKING), draw.choice(HOSTS[:2]), draw.choice(ASKED), draw.choice(TYPES), name)


def written(connection: WireClient, bindings: list[AclBinding]) -> None:
    """Have the broker write ACLs."""
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
    """The lists that the broker decides by."""
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


def kafkas_answers(tree: str, questions: list[Question], *, allows_unmentioned: bool) -> list[bool]:
    """The decisions of Kafka's class."""
    command = java(
        *QUICK_START, "-cp", kafka_classpath(), str(PROGRAM), tree, SUPER_USERS, str(allows_unmentioned).lower()
    )
    asked = "".join(f"{question.line()}\n" for question in questions)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=200, check=False)
    answers = [line for line in done.stdout.splitlines() if line in {"ALLOWED", "DENIED"}]
    assert len(answers) == len(questions), done.stderr[-3000:]
    return [answer == "ALLOWED" for answer in answers]


def our_answers(rules: AclRules, questions: list[Question]) -> list[bool]:
    return [
        rules.allows_somewhere(each.principal, each.host, each.operation, each.resource_type)
        if each.name is None
        else rules.allows(each.principal, each.host, each.operation, each.resource_type, each.name)
        for each in questions
    ]


def test_decisions_are_those_of_kafka(tmp_path: Path) -> None:
    draw = random.Random(13)
    allowed = 0
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
                lists = known(connection)
            broker.stop()
            assert {AclBinding(pattern, entry) for pattern in lists for entry in lists[pattern]} == set(bindings)
            for allows_unmentioned in (False, True):
                rules = AclRules(SUPER_USERS.split(";"), allows_unmentioned=allows_unmentioned)
                rules.index.replace_all(lists)
                questions = [drawn_question(draw) for _ in range(DECISIONS)]
                expected = kafkas_answers(tree, questions, allows_unmentioned=allows_unmentioned)
                actual = our_answers(rules, questions)
                different = [
                    (question, theirs)
                    for question, theirs, mine in zip(questions, expected, actual, strict=True)
                    if theirs != mine
                ]
                assert not different, (bindings, different[:5])
                allowed += sum(actual)
    count = TREES * 2 * DECISIONS
    assert count / 4 < allowed < count * 3 / 4, "too one-sided to say much"
