"""A follower's session reads only changes: the leader has the same state of its followers, and answers the same, as if
it read everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.network.registry import RequestContext, Waiting
from broker.replication.delayed_operations import Purgatory
from broker.replication.follower_fetch import ALL_ARE_READ_EVERY_MS
from broker.replication.follower_session import FollowerSession
from cluster.replication.follower import FetchPosition
from cluster.replication.partition import Partition
from environment.contract import Clock
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.topic_partition import TopicPartition
from tests.broker.replication.nodes import ID, Nodes, on_nodes

LAG_MS = 1000
PARTITIONS = range(4)
FOLLOWERS = (2, 3)
LEADER = 1


class HandClock(Clock):
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def now_ms(self) -> int:
        return self.ms


class Follower:
    """The fetches of one follower. It has as many records as it got from the answers."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.epoch = 50 + broker_id
        self.session = FollowerSession(1 << 20)
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.leader_epochs = dict.fromkeys(PARTITIONS, 0)
        self.left_out: dict[int, None] = {}
        self.fetch: asyncio.Future[FetchResponse] | None = None


class Side:
    """A leader and its followers, which read all partitions in each fetch unless they are `lazy`."""

    def __init__(self, *, lazy: bool) -> None:
        self.lazy = lazy
        self.nodes = Nodes(partitions=len(PARTITIONS), lag_ms=LAG_MS)
        self.node = self.nodes[LEADER]
        self.clock = HandClock()
        self.node.replicas._clock = self.node.replicas.hosted._clock = self.clock  # type: ignore[assignment]
        self.node.fetches._clock = self.clock  # its slices must not end by the time that a busy machine takes
        self.followers = {each: Follower(each) for each in FOLLOWERS}
        self.epochs: dict[int, list[int]] = {number: [] for number in PARTITIONS}
        """The leader epoch of each record."""
        self.told: list[Any] = []
        """Every answer."""

    async def act(self, action: str, broker_id: int, number: int, amount: int) -> None:
        follower = self.followers[broker_id]
        if action == "append":
            self.nodes.append(LEADER, b"x", number=number, acks=1)
            self.epochs[number].append(self.nodes.states[number].leader_epoch)
        elif action == "fetch":
            self.fetch(follower, max_wait_ms=60_000 if amount > 2 else 0)
        elif action == "time":
            self.clock.ms += amount * LAG_MS // 5
        elif action == "lag":
            await self.node.replicas.check_lag()
        elif action == "elect":
            self.nodes.elect(LEADER, number)
            await self.nodes.tell(LEADER)
        elif action == "hear":
            follower.leader_epochs[number] = self.nodes.states[number].leader_epoch
        elif action == "leave out":
            if follower.left_out.pop(number, "") == "":
                follower.left_out[number] = None
        elif action == "reset":
            follower.session.reset()
            if follower.fetch is not None:
                follower.fetch.cancel()
                follower.fetch = None
        elif action == "register":
            follower.epoch += 1
        for _ in range(12):
            await asyncio.sleep(0)
        for each in self.followers.values():
            if each.fetch is not None and each.fetch.done():
                done, each.fetch = each.fetch, None
                self.accept(each, done.result(), amount)

    def fetch(self, follower: Follower, max_wait_ms: int) -> None:
        if follower.fetch is not None:
            return
        session = follower.session
        for number in PARTITIONS:
            key, end, epoch = TopicPartition("t", number), follower.ends[number], follower.leader_epochs[number]
            if number in follower.left_out:
                session.drop(key)
            else:
                session.ask(key, ID, FetchPosition(epoch, end, self.epochs[number][end - 1] if end else -1, 0))
        request, version = session.request()
        request.replica_state = FetchRequest.ReplicaState(replica_id=follower.broker_id, replica_epoch=follower.epoch)
        request.max_wait_ms, request.min_bytes, request.max_bytes = max_wait_ms, 1, 1 << 20
        answer = self.node.fetches.fetch(RequestContext(version, "follower", "here", "B"), request)
        if isinstance(answer, Waiting):
            follower.fetch = answer.future  # type: ignore[assignment]
        else:
            self.accept(follower, answer, 4)
        if not self.lazy:
            for each in self.node.fetches._sessions._sessions.values():
                each.watch = None

    def accept(self, follower: Follower, response: FetchResponse, most: int) -> None:
        told = []
        for key, _, data in list(follower.session.accept(response)):
            told.append((key, data.error_code, data.high_watermark, data.log_start_offset, len(data.records or b"")))
            if data.records:
                end = self.partition(key.partition).log.log_end_offset
                follower.ends[key.partition] = min(follower.ends[key.partition] + most, end)
        self.told.append((follower.broker_id, response.error_code, sorted(told)))

    def partition(self, number: int) -> Partition:
        return self.node.partition(number)

    def known(self) -> Mapping[int, object]:
        """The leader's complete state."""
        return {number: self.known_of(self.partition(number)) for number in PARTITIONS}

    def known_of(self, partition: Partition) -> object:
        in_sync = partition.in_sync
        assert in_sync is not None
        progress = [
            (
                each.log_end_offset,
                each.caught_up_ms,
                each.last_fetch_ms if each._session is None else max(each.last_fetch_ms, each._session.last_ms),
                each.last_fetch_leader_end_offset,
                each.broker_epoch,
                each.is_awaited,
            )
            for each in in_sync.followers.values()
        ]
        return progress, partition.high_watermark, partition.image.isr, in_sync.pending is None


ACTIONS = (*["append"] * 3, *["fetch"] * 8, *["time"] * 3, "lag", "elect", "hear", "leave out", "reset", "register")
STEP = st.tuples(st.sampled_from(ACTIONS), st.sampled_from(FOLLOWERS), st.sampled_from(PARTITIONS), st.integers(0, 4))


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=20, max_size=80))
def test_the_leader_knows_and_tells_what_it_would_if_it_read_everything(steps: list[tuple[str, int, int, int]]) -> None:
    async def run() -> None:
        sides = Side(lazy=True), Side(lazy=False)
        for side in sides:
            await side.nodes.tell(LEADER, is_new=True)
        for step in steps:
            for side in sides:
                await side.act(*step)
            lazy, eager = sides
            assert lazy.known() == eager.known()
            assert lazy.told == eager.told
        for side in sides:
            await side.nodes.close()

    asyncio.run(run())


def watched(purgatory: Purgatory) -> int:
    return sum(map(len, purgatory._watchers.values()))


async def settled_side() -> Side:
    """A leader with a follower that has caught up and knows it."""
    side = Side(lazy=True)
    await side.nodes.tell(LEADER, is_new=True)
    for _ in range(4):
        for each in FOLLOWERS:
            await side.act("fetch", each, 0, 0)
    return side


def reads_of(side: Side) -> dict[int, int]:
    """The reads of each partition from now on."""
    reads = dict.fromkeys(PARTITIONS, 0)

    class Counting(Partition):
        __slots__ = ()

        def read(self, *args: Any, **named: Any) -> Any:
            reads[self.topic_partition.partition] += 1
            return super().read(*args, **named)

    for number in PARTITIONS:
        side.partition(number).__class__ = Counting
    return reads


def test_a_fetch_reads_only_what_changed_until_all_are_read_again() -> None:
    async def run() -> None:
        side = await settled_side()
        reads = reads_of(side)
        for _ in range(5):
            await side.act("fetch", 2, 0, 0)
        assert reads == {0: 0, 1: 0, 2: 0, 3: 0}
        await side.act("append", 2, 1, 0)
        for _ in range(5):
            for each in FOLLOWERS:
                await side.act("fetch", each, 0, 1)
        assert reads[1] > 0
        assert side.partition(1).high_watermark == 1
        before = dict(reads)
        assert (before[0], before[2], before[3]) == (0, 0, 0)
        await side.act("fetch", 2, 0, 0)
        assert reads == before, "settled again"
        side.clock.ms += ALL_ARE_READ_EVERY_MS
        await side.act("fetch", 2, 0, 0)
        assert all(reads[number] == before[number] + 1 for number in PARTITIONS)
        await side.nodes.close()

    asyncio.run(run())


def test_a_fetch_that_waits_hears_of_a_partition_that_it_did_not_read() -> None:
    async def run() -> None:
        side = await settled_side()
        await side.act("fetch", 2, 0, 4)
        assert side.followers[2].fetch is not None
        assert side.node.replicas.follower_fetches.size == 1
        await side.act("append", 2, 3, 4)
        assert side.followers[2].ends[3] == 1
        assert side.node.replicas.follower_fetches.size == 0
        await side.nodes.close()

    asyncio.run(run())


def test_a_session_that_is_over_watches_nothing() -> None:
    async def run() -> None:
        side = await settled_side()
        purgatory = side.node.replicas.follower_fetches
        assert watched(purgatory) == len(PARTITIONS) * len(FOLLOWERS)
        await side.act("leave out", 2, 1, 0)
        await side.act("fetch", 2, 0, 0)
        assert watched(purgatory) == len(PARTITIONS) * len(FOLLOWERS) - 1
        await side.act("reset", 2, 0, 0)
        await side.act("fetch", 2, 0, 0)
        assert watched(purgatory) == len(PARTITIONS)
        await side.nodes.close()

    asyncio.run(run())


@on_nodes(wait_max_ms=60_000)
async def test_followers_that_have_everything_are_woken_by_each_append(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    for value in (b"a", b"b", b"c"):
        async with asyncio.timeout(30):
            await nodes.acknowledged(1, nodes.append(1, value))
    assert nodes[1].partition().high_watermark == 3
