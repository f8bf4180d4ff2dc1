"""AlterPartitionReassignments and ListPartitionReassignments, from a client's view."""

from __future__ import annotations

from broker.handlers.reassignments import ReassignmentHandlers
from protocol.errors import ErrorCode
from protocol.messages.reassignments import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.controller.controller_fixtures import context
from tests.kit.coordination_fixtures import in_loop


def alter(name: str, targets: dict[int, list[int] | None]) -> AlterPartitionReassignmentsRequest:
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition
    partitions = [partition(partition_index=number, replicas=replicas) for number, replicas in targets.items()]
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name=name, partitions=partitions)
    return AlterPartitionReassignmentsRequest(topics=[topic])


def listing(name: str, *partitions: int) -> ListPartitionReassignmentsRequest:
    topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    return ListPartitionReassignmentsRequest(topics=[topic(name=name, partition_indexes=list(partitions))])


@in_loop
async def test_each_partition_is_answered_and_those_on_the_move_are_listed() -> None:
    cluster = await ControllerCluster().start(3)
    await cluster.create("t", (1,), (2,))
    handlers = ReassignmentHandlers(cluster.controller.service)
    response = await handlers.alter_partition_reassignments(context(0), alter("t", {0: [3], 1: None, 7: [1]}))
    response.to_bytes(0)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, "")
    assert [
        (each.partition_index, each.error_code, each.error_message) for each in response.responses[0].partitions
    ] == [
        (0, ErrorCode.NONE, None),
        (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."),
    ]
    for request in (ListPartitionReassignmentsRequest(topics=None), listing("t", 0, 1, 7)):
        listed = handlers.list_partition_reassignments(context(0), request)
        listed.to_bytes(0)
        (topic,) = listed.topics
        (moving,) = topic.partitions
        assert (topic.name, moving.partition_index) == ("t", 0)
        assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == ([3, 1], [3], [1])
    assert handlers.list_partition_reassignments(context(0), listing("t", 1)).topics == []
    assert handlers.list_partition_reassignments(context(0), listing("missing", 0)).topics == []


@in_loop
async def test_only_the_controller_answers() -> None:
    cluster = await ControllerCluster().start(2)
    handlers = ReassignmentHandlers(cluster.members[2].service)
    altered = await handlers.alter_partition_reassignments(context(0), alter("t", {0: [2]}))
    assert (altered.error_code, altered.responses) == (ErrorCode.NOT_CONTROLLER, [])
    listed = handlers.list_partition_reassignments(context(0), ListPartitionReassignmentsRequest(topics=None))
    assert (listed.error_code, listed.topics) == (ErrorCode.NOT_CONTROLLER, [])
