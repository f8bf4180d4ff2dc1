"""ACLs set through one broker apply on all of them, also when another kind of broker writes the change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.security.acl_tree import Entries
from cluster.security.acl_znodes import encode_acls, encode_change
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
)
from security.authorization import ACL_AUTHORIZER
from tests.kit.in_process_cluster import InProcessCluster
from tests.kit.waiting import eventually_on_loop

ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
BOB = ALICE._replace(principal="User:bob")
TOPIC = ResourcePattern(ResourceType.TOPIC, "t")
PREFIX = ResourcePattern(ResourceType.GROUP, "g-", PatternType.PREFIXED)


def play(scenario: Callable[[InProcessCluster], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = {"authorizer_class_name": ACL_AUTHORIZER, "super_users": "User:ANONYMOUS"}
        async with InProcessCluster(2, controlled_shutdown_max_retries="1", **settings) as cluster:
            await scenario(cluster)

    asyncio.run(run())


def known(cluster: InProcessCluster, broker_id: int) -> set[AclBinding]:
    authorizer = cluster.brokers[broker_id].serving.member.authorizer
    assert authorizer is not None
    return set(authorizer.find(AclFilter()))


async def heard(cluster: InProcessCluster, bindings: set[AclBinding]) -> None:
    await eventually_on_loop(
        "both brokers know the ACLs",
        lambda: all(known(cluster, each) == bindings for each in cluster.brokers),
        pause_s=0.005,
    )


async def create(cluster: InProcessCluster, broker_id: int, *bindings: AclBinding) -> None:
    authorizer = cluster.brokers[broker_id].serving.member.authorizer
    assert authorizer is not None
    assert await authorizer.create(bindings) == [None for _ in bindings]


def test_changes_of_one_broker_count_at_the_other() -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        both = {AclBinding(TOPIC, ALICE), AclBinding(PREFIX, ALICE)}
        await create(cluster, 0, *both)
        assert known(cluster, 0) == both
        await heard(cluster, both)
        authorizer = cluster.brokers[1].serving.member.authorizer
        assert authorizer is not None
        await authorizer.delete([AclFilter(ResourceFilter(ResourceType.TOPIC, "t", PatternType.LITERAL))])
        await heard(cluster, {AclBinding(PREFIX, ALICE)})

    play(scenario)


def test_both_change_the_same_pattern_at_once() -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        entries = [ALICE._replace(principal=f"User:{number}") for number in range(8)]
        bindings = [AclBinding(TOPIC, entry) for entry in entries]
        await asyncio.gather(*(create(cluster, number % 2, each) for number, each in enumerate(bindings)))
        await heard(cluster, set(bindings))

    play(scenario)


def test_nobody_overwrites_what_another_has_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        await create(cluster, 0, AclBinding(TOPIC, ALICE))
        session = cluster.ensemble.session()
        await session.connect()
        authorizer = cluster.brokers[0].serving.member.authorizer
        assert authorizer is not None
        read, reads = authorizer._tree.read, []

        async def read_before_another_writes(pattern: ResourcePattern) -> tuple[Entries, int | None]:
            found = await read(pattern)
            if not reads:
                reads.append(pattern)
                await session.set("/kafka-acl/Topic/t", encode_acls([ALICE, BOB]))
            return found

        monkeypatch.setattr(authorizer._tree, "read", read_before_another_writes)
        carol = ALICE._replace(principal="User:carol")
        await create(cluster, 0, AclBinding(TOPIC, carol))
        await heard(cluster, {AclBinding(TOPIC, each) for each in (ALICE, BOB, carol)})
        await session.close()

    play(scenario)


def test_what_kafka_writes_is_heeded() -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        session = cluster.ensemble.session()
        await session.connect()
        await session.create("/kafka-acl/Topic/t", encode_acls([BOB]))
        await session.create("/kafka-acl-changes/acl_changes_", encode_change(TOPIC), sequential=True)
        await heard(cluster, {AclBinding(TOPIC, BOB)})
        await session.delete("/kafka-acl/Topic/t")
        # A notice that cannot be parsed could affect any resource.
        await session.create("/kafka-acl-extended-changes/acl_changes_", b"?", sequential=True)
        await heard(cluster, set())
        await session.create("/kafka-acl/Topic/t", encode_acls([BOB]))
        await session.create("/kafka-acl-changes/acl_changes_", encode_change(TOPIC), sequential=True)
        await heard(cluster, {AclBinding(TOPIC, BOB)})
        await session.set("/kafka-acl/Topic/t", b"{")
        await session.create("/kafka-acl/Topic/u", encode_acls([BOB]))
        for pattern in (TOPIC, TOPIC._replace(name="u")):
            await session.create("/kafka-acl-changes/acl_changes_", encode_change(pattern), sequential=True)
        # A node that cannot be parsed keeps its previous ACLs: it may deny.
        await heard(cluster, {AclBinding(TOPIC, BOB), AclBinding(TOPIC._replace(name="u"), BOB)})
        await session.close()

    play(scenario)


def test_lists_that_can_never_be_read_deny_everything() -> None:
    """Kafka treats such a node as empty, which removes its denials."""
    other = TOPIC._replace(name="u")
    denied = AccessControlEntry("User:*", "*", AclOperation.ALL, AclPermissionType.DENY)

    async def scenario(cluster: InProcessCluster) -> None:
        session = cluster.ensemble.session()
        await session.connect()
        await session.create("/kafka-acl/Topic/t", b"{")
        await session.create("/kafka-acl/Topic/u", encode_acls([ALICE]))
        for broker_id in (0, 1):
            await cluster.expire_session(broker_id)  # a new session reads everything, like a start
        await heard(cluster, {AclBinding(TOPIC, denied), AclBinding(other, ALICE)})
        await session.set("/kafka-acl/Topic/t", encode_acls([ALICE]))
        await session.create("/kafka-acl-changes/acl_changes_", encode_change(TOPIC), sequential=True)
        await heard(cluster, {AclBinding(TOPIC, ALICE), AclBinding(other, ALICE)})
        await session.close()

    play(scenario)


@pytest.mark.parametrize("broker_id", [0, 1])
def test_a_new_session_reads_everything(broker_id: int) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        await create(cluster, 0, AclBinding(TOPIC, ALICE))
        await heard(cluster, {AclBinding(TOPIC, ALICE)})
        await cluster.expire_session(broker_id)
        await create(cluster, 1 - broker_id, AclBinding(PREFIX, ALICE))
        await heard(cluster, {AclBinding(TOPIC, ALICE), AclBinding(PREFIX, ALICE)})

    play(scenario)


@pytest.mark.parametrize("removed", range(4))
def test_what_is_left_of_a_pattern_goes_on_to_deny(removed: int) -> None:
    """CVE-2024-27309: at once, in a new session and after a restart, whichever of the pattern's ACLs was removed."""
    entries = [ALICE, BOB, *(each._replace(permission=AclPermissionType.DENY) for each in (ALICE, BOB))]

    async def scenario(cluster: InProcessCluster) -> None:
        bindings = [AclBinding(TOPIC, each) for each in entries]
        await create(cluster, 0, *bindings)
        await heard(cluster, set(bindings))
        authorizer = cluster.brokers[0].serving.member.authorizer
        assert authorizer is not None
        gone = bindings.pop(removed)
        await authorizer.delete([AclFilter(ResourceFilter(*gone.pattern), EntryFilter(*gone.entry))])
        await heard(cluster, set(bindings))
        await cluster.expire_session(1)
        await create(cluster, 0, AclBinding(PREFIX, ALICE))
        await heard(cluster, {*bindings, AclBinding(PREFIX, ALICE)})
        await cluster.stop(0)
        await cluster.start(0)
        await heard(cluster, {*bindings, AclBinding(PREFIX, ALICE)})

    play(scenario)


def test_they_outlive_a_restart() -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        await create(cluster, 0, AclBinding(TOPIC, ALICE), AclBinding(PREFIX, BOB))
        await cluster.stop(1)
        await cluster.start(1)
        assert known(cluster, 1) == {AclBinding(TOPIC, ALICE), AclBinding(PREFIX, BOB)}

    play(scenario)
