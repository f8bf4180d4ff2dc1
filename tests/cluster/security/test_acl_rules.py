"""Decisions on access control lists: each of Kafka's rules alone, and all together against a naive model."""

from __future__ import annotations

import random

import pytest

from cluster.security.acl_rules import AclRules
from protocol.acl_types import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermissionType,
    EntryFilter,
    PatternType,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    code_of,
)
from tests.cluster.security.naive_acls import ASKED, HOSTS, NAMES, PRINCIPALS, TYPES, NaiveRules, draw_binding
from tests.kit.due import due

TOPIC = ResourceType.TOPIC
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
ALICE, HOME = "User:alice", "10.0.0.1"
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL


def entry(
    permission: AclPermissionType, operation: AclOperation, principal: str = ALICE, host: str = "*"
) -> AccessControlEntry:
    return AccessControlEntry(principal, host, operation, permission)


def rules(
    lists: dict[ResourcePattern, list[AccessControlEntry]], *super_users: str, allows_unmentioned: bool = False
) -> AclRules:
    made = AclRules(super_users, allows_unmentioned=allows_unmentioned)
    for pattern, found in lists.items():
        made.index.replace(pattern, found)
    return made


def literal(name: str) -> ResourcePattern:
    return ResourcePattern(TOPIC, name)


def prefixed(name: str) -> ResourcePattern:
    return ResourcePattern(TOPIC, name, PatternType.PREFIXED)


def test_nothing_is_allowed_that_nobody_allowed() -> None:
    assert not rules({}).allows(ALICE, HOME, READ, TOPIC, "t")
    assert rules({}, allows_unmentioned=True).allows(ALICE, HOME, READ, TOPIC, "t")
    of_another = {literal("t"): [entry(ALLOW, READ, "User:bob")]}
    assert not rules(of_another, allows_unmentioned=True).allows(ALICE, HOME, READ, TOPIC, "t")


def test_an_entry_is_about_its_resource_principal_host_and_operation() -> None:
    made = rules({literal("t"): [entry(ALLOW, READ, host=HOME)]})
    assert made.allows(ALICE, HOME, READ, TOPIC, "t")
    assert not made.allows(ALICE, HOME, READ, TOPIC, "tt")
    assert not made.allows(ALICE, HOME, READ, ResourceType.GROUP, "t")
    assert not made.allows(ALICE, "10.0.0.2", READ, TOPIC, "t")
    assert not made.allows("User:bob", HOME, READ, TOPIC, "t")
    assert not made.allows(ALICE, HOME, WRITE, TOPIC, "t")


@pytest.mark.parametrize("allowing", [literal("t-1"), literal("*"), prefixed("t-"), prefixed("t-1")])
@pytest.mark.parametrize("denying", [literal("t-1"), literal("*"), prefixed("t-"), prefixed("t-1")])
def test_a_denial_outweighs_whatever_allows(allowing: ResourcePattern, denying: ResourcePattern) -> None:
    lists: dict[ResourcePattern, list[AccessControlEntry]] = {allowing: [entry(ALLOW, ALL)]}
    assert rules(lists).allows(ALICE, HOME, READ, TOPIC, "t-1")
    lists.setdefault(denying, []).append(entry(DENY, READ, "User:*"))
    assert not rules(lists).allows(ALICE, HOME, READ, TOPIC, "t-1")
    assert rules(lists).allows(ALICE, HOME, WRITE, TOPIC, "t-1")
    assert rules(lists, ALICE).allows(ALICE, HOME, READ, TOPIC, "t-1")


def test_what_is_implied() -> None:
    for operation in (READ, WRITE, AclOperation.DELETE, AclOperation.ALTER):
        allowed = rules({literal("t"): [entry(ALLOW, operation)]})
        assert allowed.allows(ALICE, HOME, DESCRIBE, TOPIC, "t")
        assert not allowed.allows(ALICE, HOME, AclOperation.DESCRIBE_CONFIGS, TOPIC, "t")
        denied = rules({literal("t"): [entry(DENY, operation), entry(ALLOW, DESCRIBE)]})
        assert denied.allows(ALICE, HOME, DESCRIBE, TOPIC, "t")
    altering = rules({literal("t"): [entry(ALLOW, AclOperation.ALTER_CONFIGS)]})
    assert altering.allows(ALICE, HOME, AclOperation.DESCRIBE_CONFIGS, TOPIC, "t")
    assert not altering.allows(ALICE, HOME, DESCRIBE, TOPIC, "t")


def test_what_is_taken_back_counts_no_more() -> None:
    made = rules({prefixed("t"): [entry(ALLOW, READ)], prefixed("u"): [entry(ALLOW, READ)]})
    assert made.allows(ALICE, HOME, READ, TOPIC, "t1")
    made.index.replace(prefixed("t"), ())
    made.changed()
    assert not made.allows(ALICE, HOME, READ, TOPIC, "t1")
    assert made.allows(ALICE, HOME, READ, TOPIC, "u1")
    made.index.replace(prefixed("u"), ())
    made.changed()
    assert not made.allows_somewhere(ALICE, HOME, READ, TOPIC)
    assert len(made.index) == 0


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (ResourceFilter(), ["t", "*", "t-", "g"]),
        (ResourceFilter(TOPIC), ["t", "*", "t-"]),
        (ResourceFilter(TOPIC, "t", PatternType.LITERAL), ["t"]),
        (ResourceFilter(TOPIC, "t", PatternType.ANY), ["t"]),
        (ResourceFilter(TOPIC, "t-1", PatternType.MATCH), ["*", "t-"]),
        (ResourceFilter(TOPIC, "t", PatternType.MATCH), ["t", "*"]),
        (ResourceFilter(TOPIC, None, PatternType.PREFIXED), ["t-"]),
        (ResourceFilter(TOPIC, None, PatternType.MATCH), ["t", "*", "t-"]),
        (ResourceFilter(ResourceType.UNKNOWN), []),
        (ResourceFilter(TOPIC, "t-", PatternType.LITERAL), []),
    ],
)
def test_filters_of_resources(wanted: ResourceFilter, found: list[str]) -> None:
    group = ResourcePattern(ResourceType.GROUP, "g")
    patterns = [literal("t"), literal("*"), prefixed("t-"), group]
    made = rules({pattern: [entry(ALLOW, READ)] for pattern in patterns})
    assert [each.pattern.name for each in made.index.find(AclFilter(wanted))] == found


def test_filters_of_entries() -> None:
    made = rules({literal("t"): [entry(ALLOW, READ), entry(DENY, WRITE, "User:bob", HOME)]})

    def found(wanted: EntryFilter) -> list[AccessControlEntry]:
        return [each.entry for each in made.index.find(AclFilter(entry=wanted))]

    for wanted in (
        EntryFilter(principal=ALICE),
        EntryFilter(host="*"),
        EntryFilter(operation=READ),
        EntryFilter(permission=ALLOW),
    ):
        assert found(wanted) == [entry(ALLOW, READ)]
    assert found(EntryFilter(operation=code_of(AclOperation, 99))) == []


def decide(seed: int, decisions: int) -> int:
    """Change the lists at random, and ask random questions, this many times; returns how often the answer was yes."""
    draw = random.Random(seed)
    super_users = draw.choice([(), ("User:bob",)])
    unmentioned = draw.random() < 0.3
    fast, naive = (
        AclRules(super_users, allows_unmentioned=unmentioned),
        NaiveRules(super_users, allows_unmentioned=unmentioned),
    )
    allowed = 0
    for _ in range(decisions // 10):
        binding: AclBinding = draw_binding(draw)
        if len(naive.bindings) > 12 or draw.random() < 0.3:
            for gone in draw.sample(list(naive.bindings), min(3, len(naive.bindings))):
                del naive.bindings[gone]
                change(fast, naive, gone.pattern)
        naive.bindings[binding] = None
        change(fast, naive, binding.pattern)
        for number in range(10):
            principal, host = draw.choice(PRINCIPALS[:3]), draw.choice(HOSTS[:2])
            asked = (principal, host, draw.choice(ASKED), draw.choice(TYPES))
            if number == 0:
                assert fast.allows_somewhere(*asked) == naive.allows_somewhere(*asked), (seed, naive.bindings, asked)
            else:
                name = draw.choice(NAMES)
                decision = fast.allows(*asked, name)
                allowed += decision
                assert decision == naive.allows(*asked, name), (seed, naive.bindings, asked, name)
    return allowed


def change(fast: AclRules, naive: NaiveRules, pattern: ResourcePattern) -> None:
    """Update the index with the pattern's current entries."""
    fast.index.replace(pattern, [each.entry for each in naive.bindings if each.pattern == pattern])
    fast.changed()


def test_decisions_are_those_of_the_naive_model() -> None:
    allowed = sum(decide(seed, 1000) for seed in range(20))
    assert 4000 < allowed < 16_000, "too one-sided to say much"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_decisions_are_those_of_the_naive_model() -> None:
    for seed in due(range(1000, 2000)):
        decide(seed, 1000)
