"""Elections that clients request, on the controller of several brokers."""

from __future__ import annotations

import pytest

from broker.controller.controller_term import UncleanElections
from cluster.metadata_image import PartitionImage
from cluster.replication.isr import IsrChange
from protocol.errors import ApiError, ErrorCode
from protocol.messages.reassignments import ElectionType
from protocol.topic_partition import TopicPartition
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.coordination_fixtures import in_loop

T0 = TopicPartition("t", 0)


async def moved_away() -> ControllerCluster:
    """A partition whose preferred leader, broker 3, has come back; broker 2 leads it and is the only one in sync."""
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3, 2))
    await cluster.members.pop(3).kill()
    await cluster.until("another leader", lambda: cluster.told("t", 2, (2,)))
    await cluster.start_broker(3)
    await cluster.until("it is back", lambda: cluster.all_know([1, 2, 3]))
    return cluster


async def join_isr(cluster: ControllerCluster) -> None:
    """The leader adds broker 3 to the ISR again."""
    leader = cluster.members[2]
    topic = leader.cache.image.topics["t"]
    partition = topic.partitions[0]
    members = tuple((each, cluster.members[each].epoch) for each in (2, 3))
    change = IsrChange(T0, topic.topic_id, partition.leader_epoch, partition.partition_epoch, members)
    await cluster.controller.service.alter_partition(2, leader.epoch, [change])
    await cluster.until("in sync", lambda: cluster.told("t", 2, (2, 3)))


@in_loop
async def test_the_preferred_replica_leads_again_once_it_is_in_sync() -> None:
    cluster = await moved_away()
    service = cluster.controller.service
    refused = (await service.elect_leaders([T0], ElectionType.PREFERRED))[T0]
    assert isinstance(refused, ApiError)
    assert refused.error_code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    await join_isr(cluster)
    epoch = (await cluster.partition("t"))[2]
    assert await service.elect_leaders([T0], ElectionType.PREFERRED) == {T0: 3}
    assert cluster.controller.cache.image.topics["t"].partitions[0].leader == 3, "known when it returns"
    assert (await cluster.partition("t"))[:3] == (3, (2, 3), epoch + 1)
    await cluster.until("all were told", lambda: cluster.told("t", 3, (2, 3)))
    role = cluster.members[3].role("t")
    assert role is not None
    assert (role.leader, role.leader_epoch) == (3, epoch + 1)


@in_loop
async def test_only_the_controller_elects() -> None:
    cluster = await moved_away()
    with pytest.raises(ApiError) as raised:
        await cluster.members[2].service.elect_leaders([T0], ElectionType.PREFERRED)
    assert raised.value.error_code is ErrorCode.NOT_CONTROLLER


@in_loop
async def test_nobody_leads_without_the_in_sync_replicas_until_an_unclean_election_is_asked_for() -> None:
    """M12."""
    cluster = await moved_away()
    epoch = (await cluster.partition("t"))[2]
    await cluster.members.pop(2).kill()
    await cluster.until("nobody leads", lambda: cluster.told("t", -1, (2,)))
    service = cluster.controller.service
    refused = (await service.elect_leaders([T0], ElectionType.PREFERRED))[T0]
    assert isinstance(refused, ApiError)
    assert refused.error_code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await service.elect_leaders([T0], ElectionType.UNCLEAN) == {T0: 3}
    await cluster.until("all were told", lambda: cluster.told("t", 3, (3,)))
    assert (await cluster.partition("t"))[2] == epoch + 2


def test_unclean_elections_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    rule = UncleanElections(lambda topic: topic == "t")
    assert (rule.allows("t"), rule.allows("u")) == (True, False)
    rule.elected("t", PartitionImage(0, -1, 3, (2, 3), (2,), 8, 4), 3)
    assert rule.count == 1
    assert "broker 3 leads partition t-0, although it is not in the ISR [2]" in caplog.text
