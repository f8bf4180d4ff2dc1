"""A controller of several brokers: controller elections, brokers that come and go, and their requests."""

from __future__ import annotations

import asyncio

import pytest

from cluster import znodes
from cluster.controller.commands import LeaderAndIsr, StopReplica, UpdateMetadata
from cluster.controller.topics import NewTopic
from cluster.metadata_image import PartitionImage
from cluster.replication.isr import IsrChange
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.kit.controller.controller_cluster import ControllerCluster, Member
from tests.kit.coordination_fixtures import in_loop
from tests.kit.waiting import turns

T0 = TopicPartition("t", 0)


def isr_change(cluster: ControllerCluster, leader: Member, isr: tuple[int, ...]) -> IsrChange:
    """The change that the leader would request in its current state."""
    known = leader.cache.image.topics["t"]
    partition = known.partitions[0]
    members = tuple((each, cluster.members[each].epoch) for each in isr)
    return IsrChange(T0, known.topic_id, partition.leader_epoch, partition.partition_epoch, members)


@in_loop
async def test_the_first_broker_is_the_controller_and_the_others_are_not() -> None:
    cluster = await ControllerCluster().start()
    assert [each.service.is_active for each in cluster.members.values()] == [True, False, False]
    for member in cluster.members.values():
        assert member.cache.image.controller_id == 1
        assert sorted(member.cache.image.brokers) == [1, 2, 3]


@in_loop
async def test_a_broker_without_the_office_refuses_what_only_the_controller_does() -> None:
    cluster = await ControllerCluster().start()
    service, epoch = cluster.members[2].service, cluster.members[2].epoch
    outcome = (await service.create_topics([NewTopic("t")]))["t"]
    assert isinstance(outcome, ApiError)
    assert outcome.error_code is ErrorCode.NOT_CONTROLLER
    for asked in (
        service.create_partitions("t", 2, None),
        service.delete_topics(["t"]),
        service.alter_partition(2, epoch, []),
        service.controlled_shutdown(2, epoch),
        service.allocate_producer_ids(2, epoch),
    ):
        with pytest.raises(ApiError) as raised:
            await asked
        assert raised.value.error_code is ErrorCode.NOT_CONTROLLER


@in_loop
async def test_a_topic_is_made_known_to_all_and_its_replicas_to_their_brokers() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (2, 3))
    await cluster.until("roles", lambda: cluster.members[2].role("t") and cluster.members[3].role("t"))
    assert cluster.members[1].role("t") is None
    assert cluster.told("t", 2, (2, 3))


@in_loop
async def test_when_the_controller_dies_another_broker_takes_over_with_a_higher_epoch() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    await cluster.members.pop(1).kill()
    await cluster.until("leaders", lambda: cluster.told("t", 2, (2, 3)))
    assert cluster.controller.cache.image.controller_epoch == 2
    assert {each.cache.image.controller_id for each in cluster.members.values()} == {cluster.controller.broker_id}
    assert (await cluster.partition("t"))[:3] == (2, (2, 3), 1)


@in_loop
async def test_a_dead_leader_is_followed_by_the_next_live_member_of_the_isr() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3, 2, 1))
    await cluster.members.pop(3).kill()
    await cluster.until("the new leader", lambda: cluster.told("t", 2, (2, 1)))
    for member in cluster.members.values():
        role = member.role("t")
        assert role is not None
        assert (role.leader, role.isr, role.leader_epoch) == (2, (2, 1), 1)
        assert sorted(member.cache.image.brokers) == [1, 2]


@in_loop
async def test_a_dead_follower_leaves_the_isr() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    await cluster.members.pop(3).kill()
    await cluster.until("the smaller ISR", lambda: cluster.told("t", 1, (1, 2)))


@in_loop
async def test_a_partition_without_live_replicas_waits_for_the_last_of_them() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3, 2))
    await cluster.members.pop(2).kill()
    await cluster.until("the smaller ISR", lambda: cluster.told("t", 3, (3,)))
    await cluster.members.pop(3).kill()
    await cluster.until("no leader", lambda: cluster.told("t", -1, (3,)))
    await cluster.start_broker(2)
    await turns()
    assert cluster.told("t", -1, (3,)), "it may lack committed records"
    await cluster.start_broker(3)
    await cluster.until("the leader is back", lambda: cluster.told("t", 3, (3,)))


@in_loop
async def test_a_broker_that_starts_is_told_all_its_replicas_at_once() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 3), (2, 1), (3, 2))
    await cluster.members.pop(3).kill()
    again = await cluster.start_broker(3)
    await cluster.until("roles", lambda: again.role("t", 0) and again.role("t", 2))
    first = next(each for each in again.inbox.commands if isinstance(each, LeaderAndIsr))
    assert first.is_full
    assert [(topic.topic, [each.partition for each in topic.partitions]) for topic in first.topics] == [("t", [0, 2])]
    assert cluster.everywhere(lambda member: len(member.cache.image.topics["t"].partitions) == 3)


@in_loop
async def test_a_bounced_broker_went_and_came_back() -> None:
    """Its old and its new registration are seen at once: its leaderships must be sent again all the same."""
    cluster = await ControllerCluster().start()
    await cluster.create("s", (3,))
    await cluster.create("t", (3, 1))
    controller = cluster.controller.service
    async with controller._changes._turn:
        await cluster.members.pop(3).kill()
        started = asyncio.ensure_future(cluster.start_broker(3))
        await turns()
        assert await started
    await cluster.until("leaders", lambda: cluster.told("s", 3, (3,)) and cluster.told("t", 1, (1,)))
    assert (await cluster.partition("s"))[2] == 2
    assert cluster.members[1].cache.image.brokers[3].epoch == cluster.members[3].epoch


@in_loop
async def test_a_broker_that_does_not_answer_holds_nobody_back() -> None:
    cluster = await ControllerCluster().start()
    cluster.members[3].reachable.clear()
    await cluster.create("t", (1, 2, 3))
    await cluster.create("u", (2, 3))
    assert cluster.told("u", 2, (2, 3))
    assert cluster.members[3].role("t") is None
    cluster.members[3].reachable.set()
    await cluster.until("it catches up", lambda: cluster.members[3].role("u"))
    commands = [each for each in cluster.members[3].inbox.commands if isinstance(each, LeaderAndIsr)]
    assert [topic.topic for each in commands for topic in each.topics] == ["t", "u"]


@in_loop
async def test_the_sender_to_a_dead_broker_ends() -> None:
    cluster = await ControllerCluster().start()
    cluster.members[3].reachable.clear()
    await cluster.create("t", (1, 2, 3))
    await cluster.members.pop(3).kill()
    await cluster.until("it left the ISR", lambda: cluster.told("t", 1, (1, 2)))
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert "controller-to-broker-2" in names
    assert "controller-to-broker-3" not in names


@in_loop
async def test_a_zombies_write_fails() -> None:
    """M9: another controller was elected while this one was paused."""
    cluster = await ControllerCluster().start()
    zombie = cluster.members[1].service
    async with zombie._changes._turn:
        writing = asyncio.ensure_future(zombie.create_topics([NewTopic("t", 1, 3)]))
        await turns()
        await cluster.members[2].membership.coordination.delete(znodes.CONTROLLER)
        await cluster.until("another controller", lambda: cluster.members[2].service.is_active)
    outcome = (await writing)["t"]
    assert isinstance(outcome, ApiError)
    assert outcome.error_code is ErrorCode.NOT_CONTROLLER
    assert await cluster.members[2].membership.coordination.exists("/brokers/topics/t") is None
    assert not zombie.is_active
    await cluster.create("t", (1, 2, 3))


@in_loop
async def test_commands_of_a_deposed_controller_are_refused() -> None:
    cluster = await ControllerCluster().start()
    old = cluster.members[1]
    stale = UpdateMetadata(1, 1, cluster.members[3].epoch, live_brokers=dict(old.cache.image.brokers))
    await old.membership.coordination.delete(znodes.CONTROLLER)
    await cluster.until("a new epoch", lambda: cluster.everywhere(lambda each: each.cache.image.controller_epoch == 2))
    with pytest.raises(ApiError) as raised:
        await cluster.members[3].inbox.update_metadata(stale)
    assert raised.value.error_code is ErrorCode.STALE_CONTROLLER_EPOCH


# -- AlterPartition ----------------------------------------------------------------------------------------------------


@in_loop
async def test_a_leader_changes_the_isr_and_all_clients_hear_of_it() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (2, 3, 1))
    leader = cluster.members[2]
    before = len([each for each in leader.inbox.commands if isinstance(each, LeaderAndIsr)])
    change = isr_change(cluster, leader, (2, 3))
    result = (await cluster.controller.service.alter_partition(2, leader.epoch, [change]))[T0]
    assert isinstance(result, PartitionImage)
    assert (result.isr, result.leader_epoch, result.partition_epoch) == ((2, 3), 0, 1)
    assert await cluster.partition("t") == (2, (2, 3), 0, 1)
    await cluster.until("clients know", lambda: cluster.told("t", 2, (2, 3)))
    assert len([each for each in leader.inbox.commands if isinstance(each, LeaderAndIsr)]) == before
    again = (await cluster.controller.service.alter_partition(2, leader.epoch, [change]))[T0]
    assert again == result, "M11: the answer was lost, and the leader asks again"
    other = change.replace(new_isr=change.new_isr[:1])
    assert (await cluster.controller.service.alter_partition(2, leader.epoch, [other])) == {
        T0: ErrorCode.INVALID_UPDATE_VERSION
    }


@in_loop
async def test_only_the_registered_life_of_a_broker_changes_isrs() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (2, 3, 1))
    leader = cluster.members[2]
    change = isr_change(cluster, leader, (2, 3))
    for broker_id, epoch, refusal in (
        (2, leader.epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
        (9, leader.epoch, ErrorCode.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(ApiError) as raised:
            await cluster.controller.service.alter_partition(broker_id, epoch, [change])
        assert raised.value.error_code is refusal
    assert (await cluster.partition("t"))[1] == (2, 3, 1)


# -- controlled shutdown -----------------------------------------------------------------------------------------------


@in_loop
async def test_leaders_move_while_their_broker_still_serves() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("s", (3,))
    await cluster.create("t", (3, 2), (2, 3))
    stopping = cluster.members[3]
    assert await cluster.controller.service.controlled_shutdown(3, stopping.epoch) == []
    await cluster.until("leaders", lambda: cluster.told("t", 2, (2,)) and cluster.told("t", 2, (2,), 1))
    assert cluster.told("s", 3, (3,)), "nobody else has it"
    moved = stopping.inbox.roles[TopicPartition("t", 0)]
    assert (moved.leader, moved.leader_epoch) == (2, 1)
    stopped = [each for each in stopping.inbox.commands if isinstance(each, StopReplica)]
    assert [each.topic_partition for command in stopped for each in command.partitions] == [TopicPartition("t", 1)]
    assert not any(each.delete_partition for command in stopped for each in command.partitions)
    await cluster.create("u", (3, 1))
    assert cluster.told("u", 1, (1,)), "it is given nothing more to lead"


@in_loop
async def test_a_broker_hears_what_it_still_leads() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3, 2))
    stopping = cluster.members[3]
    change = isr_change(cluster, stopping, (3,))
    await cluster.controller.service.alter_partition(3, stopping.epoch, [change])
    assert await cluster.controller.service.controlled_shutdown(3, stopping.epoch) == [T0]
    for broker_id, epoch, refusal in (
        (3, stopping.epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
        (9, 5, ErrorCode.BROKER_NOT_AVAILABLE),
    ):
        with pytest.raises(ApiError) as raised:
            await cluster.controller.service.controlled_shutdown(broker_id, epoch)
        assert raised.value.error_code is refusal


# -- directories, configurations, producer ids -------------------------------------------------------------------------


@in_loop
async def test_a_replica_that_another_broker_cannot_use_is_replaced_as_leader() -> None:
    cluster = await ControllerCluster().start()
    cluster.members[3].inbox.lost.add(T0)
    await cluster.create("t", (3, 2))
    await cluster.until("the next leader", lambda: cluster.told("t", 2, (2,)))
    image = cluster.members[1].cache.image.partition(T0)
    assert image is not None
    assert image.offline_replicas == (3,)


@in_loop
async def test_a_broker_reports_that_it_lost_a_disk() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3, 2))
    cluster.members[3].inbox.lost.add(T0)
    await cluster.members[3].service.log_directory_failed()
    await cluster.until("the next leader", lambda: cluster.told("t", 2, (2,)))
    await cluster.until(
        "the event is done with", lambda: not cluster.ensemble._queue.tree.children(znodes.LOG_DIR_EVENTS)[0]
    )


@in_loop
async def test_configurations_are_altered_at_any_broker_and_heeded_by_all() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2))
    assert await cluster.members[3].configs.alter_configs({(2, "t"): {"retention.ms": "5"}}) == {}
    assert cluster.members[3].cache.image.config(2, "t") == {"retention.ms": "5"}
    await cluster.until(
        "all heed it", lambda: cluster.everywhere(lambda each: each.cache.image.config(2, "t") == {"retention.ms": "5"})
    )


@in_loop
async def test_the_configuration_of_a_new_topic_is_known_to_all() -> None:
    cluster = await ControllerCluster().start()
    await cluster.controller.service.create_topics([NewTopic("t", 1, 3, config={"retention.ms": "7"})])
    await cluster.until(
        "all know it", lambda: cluster.everywhere(lambda each: each.cache.image.config(2, "t") == {"retention.ms": "7"})
    )


@in_loop
async def test_each_broker_gets_producer_ids_of_its_own() -> None:
    cluster = await ControllerCluster().start()
    service = cluster.controller.service
    blocks = [await service.allocate_producer_ids(each.broker_id, each.epoch) for each in cluster.members.values()]
    assert [(block.broker_id, block.first) for block in blocks] == [(1, 0), (2, 1000), (3, 2000)]
    with pytest.raises(ApiError) as raised:
        await service.allocate_producer_ids(2, 1)
    assert raised.value.error_code is ErrorCode.STALE_BROKER_EPOCH
