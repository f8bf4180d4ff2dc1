"""Group requests to brokers that are not the coordinator. Partition p of the offsets topic is led by broker p."""

from __future__ import annotations

from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.parity.cluster.subject import ClusterSubject, cluster_scenario

NO_MEMBER = ""


def coordinator(b: ClusterSubject, group: str) -> int:
    """The group's coordinator, once it says so itself."""
    b.offsets_topic()
    found = b.quietly(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators[0]
    assert found.error_code == 0, found
    with b.at(found.node_id):
        b.until(lambda: b.quietly(DescribeGroupsRequest(groups=[group]), 5).groups[0].error_code == 0)
    return int(found.node_id)


def elsewhere(b: ClusterSubject, group: str) -> int:
    """A broker that is not the group's coordinator."""
    return (coordinator(b, group) + 1) % 3


def commit(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    """A commit of a consumer without membership."""
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="m"
    )
    named = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])
    return OffsetCommitRequest(group_id=group, topics=[named])


def committed(group: str, topic: str) -> OffsetFetchRequest:
    """The group's committed offset."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    return OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])])


@cluster_scenario
def offsets_committed_at_the_coordinator(b: ClusterSubject) -> None:
    topic, group = b.replicated("t", (0, 1)), b.name("g")
    with b.at(coordinator(b, group)):
        b.ask(commit(group, topic, 7), 8)
        b.ask(committed(group, topic), 8)


@cluster_scenario
def offsets_elsewhere(b: ClusterSubject) -> None:
    topic, group = b.replicated("t", (0, 1)), b.name("g")
    with b.at(elsewhere(b, group)):
        for version in (2, 8):
            b.ask(commit(group, topic, 7), version)
        b.ask(committed(group, topic), 8)
        for version in (1, 7):
            wanted = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
            b.ask(OffsetFetchRequest(group_id=group, topics=[wanted]), version)


@cluster_scenario
def membership_elsewhere(b: ClusterSubject) -> None:
    group = b.name("g")
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, member_id=NO_MEMBER,
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip
    with b.at(elsewhere(b, group)):
        for version in (0, 4, 9):
            b.ask(join, version)
        for version in (0, 5):
            b.ask(
                SyncGroupRequest(group_id=group, generation_id=1, member_id="m", assignments=[]),
                version,
            )
        for version in (0, 4):
            b.ask(HeartbeatRequest(group_id=group, generation_id=1, member_id="m"), version)
        b.ask(LeaveGroupRequest(group_id=group, member_id="m"), 2)
        b.ask(LeaveGroupRequest(group_id=group, members=[LeaveGroupRequest.MemberIdentity(member_id="m")]), 5)


@cluster_scenario
def descriptions_elsewhere(b: ClusterSubject) -> None:
    group = b.name("g")
    with b.at(elsewhere(b, group)):
        for version in (0, 5):
            b.ask(DescribeGroupsRequest(groups=[group]), version)
        b.ask(DeleteGroupsRequest(groups_names=[group]), 2)


@cluster_scenario
def a_group_is_listed_by_its_coordinator_alone(b: ClusterSubject) -> None:
    topic, group = b.replicated("t", (0, 1)), b.name("g")
    where = coordinator(b, group)
    with b.at(where):
        b.quietly(commit(group, topic, 1), 8)
    for broker_id in b.live:
        with b.at(broker_id):
            listed = b.quietly(ListGroupsRequest(), 4)
            b.note("listed", [each.group_id for each in listed.groups if each.group_id == group])
