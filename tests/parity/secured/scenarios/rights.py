"""Every API for a client without rights, in all versions, and with each right alone and with others.

The requests are those of `tests.broker.network.effects`. Topic "t" and the groups "g" and "m" exist, topic "n" does
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.acl_types import CLUSTER_NAME, AclOperation, ResourceType
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, EncodeError
from tests.broker.network.effect_requests import Trial, commit, join, sync
from tests.broker.network.effects import CASES, Case
from tests.broker.security.test_guards import OTHER_FORMS
from tests.parity.secured.subject import Right, SecuredSubject, acl, secured_scenario_for_each

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID

UNCOMPARED = frozenset({ApiKey.API_VERSIONS})
"""It is allowed for everyone, and other scenarios compare it."""
ONCE = frozenset({"JOIN_GROUP", "LIST_GROUPS", "METADATA-old"})
"""Requests to send only once: a second member would wait for the first one, Kafka forgets other scenarios' groups when
a topic is deleted, and reports a new topic before it has a leader.
"""


@dataclass
class Names(Trial):
    """The names of one scenario."""

    subject: Any = None

    @property
    def t(self) -> str:
        return str(self.subject.name("t"))

    @property
    def n(self) -> str:
        return str(self.subject.name("n"))

    @property
    def g(self) -> str:
        return str(self.subject.name("g"))

    @property
    def m(self) -> str:
        return str(self.subject.name("m"))


def built(b: SecuredSubject) -> Names:
    """Create the resources that the requests name."""
    names = Names(1, subject=b)
    b.producer_id()
    b.produce(b.topic("t"), b"one", b"two")
    for group in (names.g, names.m):
        b.coordinator(group)
    b.quietly(commit(names.g, (names.t,), 1), 2)
    joined: Any = b.quietly(join(names.m), 3)
    names.member_id, names.generation_id = joined.member_id, joined.generation_id
    b.quietly(sync(names), 3)
    return names


def rights(names: Names) -> list[Right]:
    """The rights that could matter to a request."""
    found = [Right(TOPIC, names.t, each) for each in AclOperation if AclOperation.READ <= each <= AclOperation.ALTER]
    found += [
        Right(TOPIC, names.t, each)
        for each in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
    ]
    found += [Right(TOPIC, names.n, each) for each in (AclOperation.DESCRIBE, AclOperation.CREATE, AclOperation.WRITE)]
    found += [
        Right(GROUP, group, each)
        for group in (names.g, names.m)
        for each in (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.DELETE)
    ]
    found += [Right(TRANSACTION, "nobody", each) for each in (AclOperation.DESCRIBE, AclOperation.WRITE)]
    found += [
        Right(CLUSTER, CLUSTER_NAME, each)
        for each in (
            AclOperation.DESCRIBE,
            AclOperation.CREATE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.ALTER,
        )
    ]
    return found


COMPARED = {str(case): case for case in (*CASES, *OTHER_FORMS) if case.api_key not in UNCOMPARED}


@secured_scenario_for_each(COMPARED)
def without(b: SecuredSubject, case: Case) -> None:
    names = built(b)
    for version in b.range_of(case.api_key):
        try:
            case.build(names).to_bytes(version)
        except (EncodeError, ApiError):
            continue  # that version has a different form
        b.as_user("alice", case.build(names), version)


@secured_scenario_for_each(COMPARED)
def each_alone(b: SecuredSubject, case: Case) -> None:
    names = built(b)
    given = rights(names)
    b.grant(*(acl(*right, principal=f"User:one{number}") for number, right in enumerate(given)))
    for number, right in enumerate(given):
        label = f"with {right.operation.name} on {right.name}"
        b.as_user(f"one{number}", case.build(names), case.version, label)


@secured_scenario_for_each({name: case for name, case in COMPARED.items() if name not in ONCE})
def more_and_more(b: SecuredSubject, case: Case) -> None:
    names = built(b)
    given = rights(names)
    b.grant(*(acl(*right, principal=f"User:all{user}") for user in range(len(given)) for right in given[: user + 1]))
    for number, right in enumerate(given):
        label = f"now with {right.operation.name} on {right.name}"
        b.as_user(f"all{number}", case.build(names), case.version, label)
