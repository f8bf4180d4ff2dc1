"""Partitions move to other brokers: how the controller executes a reassignment, and what happens if a broker fails."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cluster import znodes
from cluster.controller.commands import LeaderAndIsr, StopReplica
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import turns
from zookeeper.coordination import Operation

T0 = TopicPartition("t", 0)


async def move(cluster: ControllerCluster, *target: int) -> None:
    outcome = await cluster.controller.service.alter_reassignments({T0: target})
    assert outcome == {T0: None}


def deleted(cluster: ControllerCluster, broker_id: int) -> bool:
    return any(
        stopped.topic_partition == T0 and stopped.delete_partition
        for command in cluster.members[broker_id].inbox.commands
        if isinstance(command, StopReplica)
        for stopped in command.partitions
    )


@in_loop
async def test_a_partition_moves_when_the_new_replicas_are_in_sync_and_not_before() -> None:
    cluster = await ControllerCluster().start(4)
    await cluster.create("t", (2, 3))
    await move(cluster, 3, 4)
    await cluster.until("all replicas know", lambda: all(cluster.members[each].role("t") for each in (2, 3, 4)))
    first = next(each for each in cluster.members[4].inbox.commands if isinstance(each, LeaderAndIsr) and each.topics)
    assert first.topics[0].is_new
    wanted = await cluster.assignment("t")
    assert wanted.partitions == {0: (3, 4, 2)}
    assert (wanted.adding_replicas, wanted.removing_replicas) == ({0: (4,)}, {0: (2,)})
    assert list(cluster.controller.service.reassignments()) == [T0]
    await turns()
    assert not deleted(cluster, 2)

    await cluster.join("t", 2, 3, 4)
    await cluster.until("another leader", lambda: cluster.told("t", 3, (3, 4)))
    await cluster.until("the old replica is deleted", lambda: deleted(cluster, 2))
    assert cluster.members[2].role("t") is None
    assert not cluster.controller.service.reassignments()
    done = await cluster.assignment("t")
    assert (done.partitions, done.adding_replicas, done.removing_replicas) == ({0: (3, 4)}, {}, {})
    assert cluster.everywhere(lambda each: each.cache.image.topics["t"].partitions[0].replicas == (3, 4))


@in_loop
async def test_a_cancelled_reassignment_goes_back_and_deletes_what_it_began() -> None:
    cluster = await ControllerCluster().start(3)
    await cluster.create("t", (1,))
    await move(cluster, 2, 3)
    await cluster.join("t", 1, 2)
    assert await cluster.controller.service.alter_reassignments({T0: None}) == {T0: None}
    await cluster.until("as before", lambda: cluster.told("t", 1, (1,)))
    await cluster.until("deleted", lambda: deleted(cluster, 2) and deleted(cluster, 3))
    assert (await cluster.assignment("t")).partitions == {0: (1,)}
    assert not deleted(cluster, 1)


@in_loop
async def test_the_only_holder_of_committed_records_is_not_dropped() -> None:
    cluster = await ControllerCluster().start(3)
    await cluster.create("t", (3,))
    await move(cluster, 2)
    await cluster.members.pop(3).kill()
    await cluster.until("no leader", lambda: cluster.told("t", -1, (3,)))
    outcome = await cluster.controller.service.alter_reassignments({T0: (1,)})
    assert outcome == {T0: None}, "broker 3 stays a replica until the new one is in sync"
    assert (await cluster.assignment("t")).partitions == {0: (1, 3)}


@in_loop
async def test_a_new_controller_goes_on_with_what_the_tree_says() -> None:
    cluster = await ControllerCluster().start(4)
    await cluster.create("t", (2, 3))
    await move(cluster, 3, 4)
    epoch = (await cluster.partition("t"))[2]
    await cluster.members.pop(1).kill()
    await cluster.until("a new controller", lambda: any(each.service.is_active for each in cluster.members.values()))
    await cluster.until("it knows", lambda: T0 in cluster.controller.service.reassignments())
    await cluster.until(
        "the replicas hear of it anew",
        lambda: all((role := cluster.members[each].role("t")) and role.leader_epoch > epoch for each in (2, 3, 4)),
    )
    await cluster.join("t", 2, 3, 4)
    await cluster.until("another leader", lambda: cluster.told("t", 3, (3, 4)))
    await cluster.until("the old replica is deleted", lambda: deleted(cluster, 2))


@in_loop
async def test_a_controller_that_dies_before_it_has_written_the_end_is_followed_by_one_that_does() -> None:
    monkeypatch = pytest.MonkeyPatch()
    cluster = await ControllerCluster().start(4)
    await cluster.create("t", (2, 3))
    await move(cluster, 3, 4)
    first = cluster.controller
    active = first.service._active
    assert active is not None
    term = active.reassignments._term
    transact = term.transact

    async def all_but_the_assignment(operations: Iterable[Operation]) -> None:
        await transact([each for each in operations if each.path != znodes.topic_path("t")])

    monkeypatch.setattr(term, "transact", all_but_the_assignment)
    await cluster.join("t", 2, 3, 4)
    await cluster.until("another leader", lambda: cluster.told("t", 3, (3, 4)))
    assert (await cluster.assignment("t")).removing_replicas == {0: (2,)}
    await cluster.members.pop(1).kill()
    await cluster.until("a new controller", lambda: any(each.service.is_active for each in cluster.members.values()))
    await cluster.until("it is over", lambda: not cluster.controller.service.reassignments())
    await turns()
    done = await cluster.assignment("t")
    assert (done.partitions, done.adding_replicas, done.removing_replicas) == ({0: (3, 4)}, {}, {})


@in_loop
async def test_what_cannot_be_done_is_refused_with_kafkas_errors() -> None:
    cluster = await ControllerCluster().start(3)
    await cluster.create("t", (1, 2))
    service = cluster.controller.service
    for target, error_code in (
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, -1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ):
        error = (await service.alter_reassignments({T0: target}))[T0]
        assert error is not None
        assert error.error_code is error_code
    for unknown in (TopicPartition("t", 7), TopicPartition("u", 0)):
        error = (await service.alter_reassignments({unknown: (1,)}))[unknown]
        assert error is not None
        assert error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await move(cluster, 3)
    with pytest.raises(ApiError) as raised:
        await service.create_partitions("t", 2, None)
    assert raised.value.error_code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    other = cluster.members[2].service
    with pytest.raises(ApiError) as raised:
        await other.alter_reassignments({T0: (1,)})
    assert raised.value.error_code is ErrorCode.NOT_CONTROLLER
    with pytest.raises(ApiError) as raised:
        other.reassignments()
    assert raised.value.error_code is ErrorCode.NOT_CONTROLLER
