"""Throttled replicas stay within their limit (KIP-73)."""

from __future__ import annotations

import pytest

from broker.replication.replication_quota import ReplicationQuota, throttled_partitions
from config.broker_keys import FOLLOWER_RATE, LEADER_RATE
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.topic_partition import TopicPartition
from tests.broker.replication.nodes import Nodes, on_nodes
from tests.kit.environment import ManualClock
from tests.kit.waiting import eventually_on_loop, turns

T0 = TopicPartition("t", 0)
VALUE = b"v" * 10_000
ROUNDS = 20
"""How many fetches prove that no data arrives."""


def quota_of(clock: ManualClock, bytes_per_second: int) -> ReplicationQuota:
    quota = ReplicationQuota(clock, samples=3, sample_s=2)
    quota.bytes_per_second = bytes_per_second
    return quota


def test_the_rate_is_that_of_the_window() -> None:
    clock = ManualClock()
    quota = quota_of(clock, 100)
    assert quota.rate == 0
    quota.record(150)
    assert quota.rate == 75, "at least one sample's length counts"
    quota.record(50)
    assert quota.rate == 100
    assert not quota.is_exceeded, "the limit itself is not above it"
    quota.record(2)
    assert quota.is_exceeded
    clock.ms += 4_000
    assert quota.rate == pytest.approx(202 / 4)
    quota.record(98)
    assert quota.rate == pytest.approx(300 / 4)
    clock.ms += 1_999
    assert quota.rate == pytest.approx(300 / 5.999)
    clock.ms += 1
    assert quota.rate == pytest.approx(98 / 2), "the first sample has left the window"
    clock.ms += 60_000
    assert quota.rate == 0


@pytest.mark.parametrize(
    ("text", "throttled"),
    [("*", None), ("0:1,3:1,4:2", {0, 3}), ("0:11", set()), (" 7:1 , 8:1", {7, 8}), ("x:1,0:,:1", set())],
)
def test_replicas_that_a_topic_names(text: str, throttled: set[int] | None) -> None:
    assert throttled_partitions(text, 1) == throttled


def test_without_a_limit_nothing_is_exceeded() -> None:
    quota = ReplicationQuota(ManualClock(), 11, 1)
    quota.record(1 << 62)
    assert not quota.is_exceeded


async def out_of_sync(nodes: Nodes) -> None:
    """Broker 3 is out of sync and empty; the others have 30 batches of 10 kB."""
    nodes.cut = {(3, 1)}
    nodes.states = {0: nodes.states[0].replace(isr=(1, 2))}
    await nodes.tell(is_new=True)
    for _ in range(30):
        assert await nodes.acknowledged(1, nodes.append(1, VALUE)) is ErrorCode.NONE
    nodes.cut = set()


async def fetches_of(nodes: Nodes, broker_id: int, count: int) -> None:
    """Wait until that broker has sent some more fetches."""

    def sent() -> int:
        return sum(asker == broker_id and isinstance(request, FetchRequest) for asker, request, _ in nodes.asked)

    before = sent()
    await eventually_on_loop(f"{count} fetches", lambda: sent() >= before + count, pause_s=0.001)


@on_nodes(wait_max_ms=5)
async def test_a_leader_leaves_throttled_followers_out_that_are_not_in_sync(nodes: Nodes) -> None:
    nodes.limits[LEADER_RATE] = 100_000
    nodes.configure(leader_replication_throttled_replicas="0:1")
    quota = nodes[1].quotas.leader
    await out_of_sync(nodes)
    assert quota.is_exceeded, "what those in sync get is counted, but never held back"
    assert len(nodes[2].values()) == 30
    await fetches_of(nodes, 3, ROUNDS)
    assert nodes[3].values() == []
    nodes.append(1, b"new")
    await eventually_on_loop("broker 2 gets it", lambda: len(nodes[2].values()) == 31)
    nodes.quota_clock.ms += 4_000
    await eventually_on_loop("broker 3 catches up", lambda: nodes[3].values() == nodes[1].values())
    assert nodes[1].partition().image.isr == (1, 2)


@on_nodes(wait_max_ms=5)
async def test_what_is_not_throttled_passes_an_exceeded_quota(nodes: Nodes) -> None:
    nodes.limits[LEADER_RATE] = 1
    nodes.configure(leader_replication_throttled_replicas="0:2,5:1")
    nodes[1].quotas.leader.record(1 << 30)
    await out_of_sync(nodes)
    await eventually_on_loop("broker 3 catches up", lambda: nodes[3].values() == nodes[1].values())


@on_nodes(wait_max_ms=5)
async def test_a_throttled_follower_does_not_ask_while_its_quota_is_exceeded(nodes: Nodes) -> None:
    nodes.limits[FOLLOWER_RATE] = 100_000
    nodes.configure(follower_replication_throttled_replicas="*")
    quota = nodes[3].quotas.follower
    quota.record(500_000)
    await out_of_sync(nodes)
    await turns(500)
    assert nodes[3].values() == []
    assert not [asker for asker, _, _ in nodes.asked if asker == 3]
    nodes.quota_clock.ms += 6_000
    await eventually_on_loop("broker 3 catches up", lambda: nodes[3].values() == nodes[1].values(), pause_s=0.001)
    assert quota.rate == pytest.approx(800_000 / 6, rel=0.05), "what came is counted"


@on_nodes(wait_max_ms=5)
async def test_a_throttle_that_is_taken_away_holds_nothing_back(nodes: Nodes) -> None:
    nodes.limits[FOLLOWER_RATE] = 1
    nodes.configure(follower_replication_throttled_replicas="*")
    nodes[3].quotas.follower.record(1 << 30)
    await out_of_sync(nodes)
    await turns(500)
    assert nodes[3].values() == []
    nodes.configure()
    await eventually_on_loop("broker 3 catches up", lambda: nodes[3].values() == nodes[1].values(), pause_s=0.001)


@on_nodes(wait_max_ms=5)
async def test_a_follower_that_has_everything_is_not_held_back(nodes: Nodes) -> None:
    nodes.limits[FOLLOWER_RATE] = 1
    nodes.configure(follower_replication_throttled_replicas="0:2,0:3")
    await nodes.tell(is_new=True)
    for _ in range(5):
        assert await nodes.acknowledged(1, nodes.append(1, VALUE)) is ErrorCode.NONE
    assert nodes[3].quotas.follower.is_exceeded
