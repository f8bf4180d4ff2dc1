"""Markers are acknowledged once they cannot be lost any more."""

from __future__ import annotations

import asyncio
from unittest.mock import sentinel

from broker.transactions.marker_writer import Marker, MarkerWriter
from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.broker.replication.nodes import Nodes, on_nodes
from tests.kit.environment import ManualClock
from tests.kit.waiting import eventually_on_loop

AT = TopicPartition("t", 0)
PRODUCER = 7


def _writer(nodes: Nodes, timeout_ms: int) -> MarkerWriter:
    """The leader's marker writer, without a group coordinator."""
    return MarkerWriter(nodes[1].replicas, sentinel.no_groups, ManualClock(), timeout_ms)


MARKER = Marker(PRODUCER, 0, is_commit=True, coordinator_epoch=0, partitions=[AT])


@on_nodes()
async def test_a_marker_is_answered_once_all_in_sync_have_it(nodes: Nodes) -> None:
    nodes.cut |= {(2, 1), (3, 1)}
    await nodes.tell(is_new=True)
    writing = asyncio.ensure_future(_writer(nodes, 30_000).write([MARKER]))
    await asyncio.sleep(0)
    assert nodes[1].partition().log.log_end_offset == 1
    nodes.cut -= {(2, 1)}
    await eventually_on_loop("one has it", lambda: nodes[2].partition().log.log_end_offset == 1)
    assert not writing.done(), "one in sync does not have it"
    nodes.cut.clear()
    assert await writing == {(PRODUCER, AT): ErrorCode.NONE}
    assert nodes[1].partition().high_watermark == 1


@on_nodes()
async def test_a_marker_that_others_do_not_get_is_not_known_to_be_written(nodes: Nodes) -> None:
    nodes.cut |= {(2, 1), (3, 1)}
    await nodes.tell(is_new=True)
    assert await _writer(nodes, 50).write([MARKER]) == {(PRODUCER, AT): ErrorCode.REQUEST_TIMED_OUT}
