"""Followers learn at once of deleted records: deletions are answered when every live replica has applied them
(KIP-107).
"""

from __future__ import annotations

import asyncio

from broker.logs.log_maintenance import LogMaintenance
from broker.network.registry import RequestContext
from cluster.controller.commands import UpdateMetadata
from environment.system import SystemClock
from protocol.errors import ErrorCode
from protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse
from storage.directory.checkpoints import LOG_START_OFFSET_CHECKPOINT, parse_checkpoint
from storage.log_config import LogConfig
from tests.broker.replication.nodes import BROKERS, Nodes, on_nodes
from tests.kit.environment import InlineExecutor
from tests.kit.waiting import eventually_on_loop

COUNT = 10
LONG_MS = 600_000
"""So long that no timer fires in a test."""


async def with_records(nodes: Nodes) -> None:
    """Append COUNT records, and wait until all followers have them."""
    await nodes.tell(is_new=True)
    for number in range(COUNT):
        await nodes.acknowledged(1, nodes.append(1, b"%d" % number))


def delete(nodes: Nodes, offset: int, timeout_ms: int = LONG_MS) -> asyncio.Future[DeleteRecordsResponse]:
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[asked])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
    return nodes[1].offsets.delete_records(RequestContext(2, "admin", "here", "B"), request).future


async def outcome(answer: asyncio.Future[DeleteRecordsResponse]) -> tuple[int, ErrorCode]:
    """The low watermark and the error code of the single partition."""
    partition = (await answer).topics[0].partitions[0]
    return partition.low_watermark, ErrorCode(partition.error_code)


def starts(nodes: Nodes) -> list[int]:
    return [nodes[each].partition().log.log_start_offset for each in BROKERS]


def kept_starts(nodes: Nodes) -> list[int]:
    """The start offsets that the brokers would load after a kill."""
    path = f"/logs/{LOG_START_OFFSET_CHECKPOINT}"
    entries = [parse_checkpoint(path, nodes[each].disks.read_file(path)) for each in BROKERS]
    return [int(offset) for ((_, _, offset),) in entries]


@on_nodes(wait_max_ms=LONG_MS)
async def test_followers_hear_of_a_deletion_at_once_and_then_it_is_answered(nodes: Nodes) -> None:
    await with_records(nodes)
    assert await outcome(delete(nodes, 4)) == (4, ErrorCode.NONE)
    assert starts(nodes) == kept_starts(nodes) == [4, 4, 4]
    assert await outcome(delete(nodes, -1)) == (COUNT, ErrorCode.NONE)
    assert starts(nodes) == [COUNT] * 3
    assert await outcome(delete(nodes, 3)) == (COUNT, ErrorCode.NONE), "nothing is to be done"


@on_nodes(wait_max_ms=LONG_MS)
async def test_a_deletion_that_a_follower_does_not_hear_of_times_out(nodes: Nodes) -> None:
    await with_records(nodes)
    nodes.cut.add((3, 1))
    assert await outcome(delete(nodes, 4, timeout_ms=20)) == (0, ErrorCode.REQUEST_TIMED_OUT)
    assert starts(nodes)[0] == 4, "it is done all the same"
    nodes.cut.clear()
    assert await outcome(delete(nodes, 4)) == (4, ErrorCode.NONE)


@on_nodes(wait_max_ms=LONG_MS)
async def test_a_deletion_that_a_follower_cannot_keep_is_not_confirmed(nodes: Nodes) -> None:
    """The deletion would be undone if that follower died and then led."""
    await with_records(nodes)
    nodes[3].is_full = True
    assert await outcome(delete(nodes, 4, timeout_ms=50)) == (0, ErrorCode.REQUEST_TIMED_OUT)
    nodes[3].is_full = False
    assert await outcome(delete(nodes, 4)) == (4, ErrorCode.NONE)
    assert kept_starts(nodes) == [4, 4, 4]


@on_nodes(wait_max_ms=LONG_MS)
async def test_who_is_not_alive_is_not_waited_for(nodes: Nodes) -> None:
    await with_records(nodes)
    nodes.cut.add((3, 1))
    waiting = delete(nodes, 3)
    await eventually_on_loop("the second hears", lambda: nodes[2].partition().log.log_start_offset == 3)
    assert not waiting.done()
    live_brokers = {each: broker for each, broker in nodes.image().brokers.items() if each != 3}
    nodes[1].metadata.update_metadata(UpdateMetadata(1, 1, -1, live_brokers=live_brokers))
    assert await outcome(waiting) == (3, ErrorCode.NONE)
    assert await outcome(delete(nodes, 4)) == (4, ErrorCode.NONE)


@on_nodes(wait_max_ms=LONG_MS)
async def test_a_leader_that_resigns_answers_what_waits(nodes: Nodes) -> None:
    await with_records(nodes)
    nodes.cut.add((3, 1))
    waiting = delete(nodes, 4)
    await eventually_on_loop("it waits", lambda: nodes[1].replicas.delayed_deletions.size == 1)
    nodes.elect(2)
    await nodes.tell(1)
    assert await outcome(waiting) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@on_nodes(wait_max_ms=LONG_MS, config=LogConfig(segment_bytes=100, retention_bytes=250, retention_ms=-1))
async def test_followers_hear_at_once_of_a_log_start_that_retention_has_moved(nodes: Nodes) -> None:
    await with_records(nodes)
    leader = nodes[1]
    maintenance = LogMaintenance(
        leader.logs,
        leader.replicas.high_watermarks,
        SystemClock(),
        InlineExecutor(),
        leader.replicas.group_commit,
        leader.replicas.log_start_moved,
    )
    await maintenance.delete_old_segments()
    start = leader.partition().log.log_start_offset
    assert 0 < start < COUNT
    await eventually_on_loop("they have heard", lambda: starts(nodes) == [start] * 3)
