"""Followers replicate their leaders' records, whatever happens in between."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from broker.replication import replica_fetcher
from broker.replication.follower_session import Followed
from cluster.replication.partition import ACKS_ALL
from protocol.errors import ApiError, ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition
from storage.log_config import LogConfig
from tests.broker.replication.nodes import Nodes, on_nodes
from tests.kit.memory_disk import PowerCut
from tests.kit.memory_file_system import Fault
from tests.kit.waiting import eventually_async, eventually_on_loop, turns
from tests.storage.support import batch_of


async def all_have(nodes: Nodes, *values: bytes, number: int = 0) -> None:
    """Wait until every replica has exactly these records, and knows that they are committed."""
    wanted = list(values)

    def is_so() -> bool:
        parts = [nodes[each].partition(number) for each in (1, 2, 3)]
        return all(nodes[each].values(number) == wanted for each in (1, 2, 3)) and all(
            part.high_watermark == parts[0].log.log_end_offset for part in parts
        )

    await eventually_on_loop(f"all replicas have {wanted}", is_so, pause_s=0.001)


@on_nodes()
async def test_a_record_is_acknowledged_when_all_in_sync_have_it(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    last = nodes.append(1, b"a", b"b")
    assert await nodes.acknowledged(1, last) is ErrorCode.NONE
    assert [nodes[each].values() for each in (2, 3)] == [[b"a", b"b"]] * 2
    await all_have(nodes, b"a", b"b")


@on_nodes(wait_max_ms=60_000)
async def test_records_are_fetched_as_they_come_and_not_when_a_wait_is_over(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    for value in (b"a", b"b", b"c"):
        await turns()
        assert await nodes.acknowledged(1, nodes.append(1, value)) is ErrorCode.NONE


@on_nodes(partitions=40)
async def test_a_session_names_only_what_has_changed(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    for number in range(40):
        await nodes.acknowledged(1, nodes.append(1, b"a", number=number), number)
    await all_have(nodes, b"a", number=39)
    nodes.asked.clear()
    await nodes.acknowledged(1, nodes.append(1, b"b", number=7), 7)
    fetches = [request for _, request, _ in nodes.asked if isinstance(request, FetchRequest)]
    named = [part.partition for each in fetches for topic in each.topics for part in topic.partitions]
    assert set(named) <= {7, 39}
    assert all(each.session_epoch > 0 for each in fetches)


@on_nodes()
async def test_a_fetch_tells_who_asks_and_in_which_epochs(nodes: Nodes) -> None:
    """M3, M7."""
    nodes.elect(1)
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await eventually_on_loop("a second fetch", lambda: sum(asker == 2 for asker, _, _ in nodes.asked) > 1)
    asked = [request for asker, request, _ in nodes.asked if asker == 2 and isinstance(request, FetchRequest)]
    state = asked[0].replica_state
    assert state is not None
    assert (state.replica_id, state.replica_epoch) == (2, 52)
    parts = [part for each in asked for topic in each.topics for part in topic.partitions]
    assert {part.current_leader_epoch for part in parts} == {1}
    assert [part.last_fetched_epoch for part in parts[:2]] == [-1, 1]
    in_sync = nodes[1].partition().in_sync
    assert in_sync is not None
    assert in_sync.followers[2].broker_epoch == 52


@on_nodes()
async def test_topics_without_an_id_are_fetched_by_name(nodes: Nodes) -> None:
    from protocol.uuids import ZERO_UUID

    await nodes.tell(is_new=True, topic_id=ZERO_UUID)
    assert await nodes.acknowledged(1, nodes.append(1, b"a")) is ErrorCode.NONE
    assert {version for _, _, version in nodes.asked} == {12}


@on_nodes()
async def test_a_new_leader_is_followed_and_the_records_of_the_old_one_are_cut_off(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await all_have(nodes, b"a")
    nodes.cut |= {(2, 1), (3, 1)}
    last = nodes.append(1, b"lost")
    waiting = asyncio.ensure_future(nodes.acknowledged(1, last))
    await turns()
    nodes.elect(2, isr=(2, 3))
    await nodes.tell(2, 3)
    assert await nodes.acknowledged(2, nodes.append(2, b"b")) is ErrorCode.NONE
    assert not waiting.done()
    await nodes.tell(1)
    assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await all_have(nodes, b"a", b"b")
    await eventually_on_loop("broker 1 is in sync", lambda: nodes.states[0].isr == (2, 3, 1), pause_s=0.001)


@on_nodes(wait_max_ms=60_000)
async def test_a_partition_that_is_added_does_not_wait_for_the_fetch_that_is_under_way(nodes: Nodes) -> None:
    """The leader has nothing new for the earlier partitions, and delays that fetch."""
    nodes.states = {0: nodes.states[0]}
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await turns()
    nodes.states[1] = nodes.states[0].replace(partition=1)
    for each in (1, 2, 3):
        nodes[each].metadata._image = nodes.image()
    await nodes.tell(is_new=True)
    async with asyncio.timeout(30):
        assert await nodes.acknowledged(1, nodes.append(1, b"b", number=1), 1) is ErrorCode.NONE


@on_nodes()
async def test_a_lost_connection_is_made_again(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    nodes.cut |= {(2, 1), (3, 1)}
    nodes.append(1, b"b")
    await turns()
    nodes.cut.clear()
    await all_have(nodes, b"a", b"b")


@on_nodes()
async def test_a_leader_that_has_forgotten_the_session_gets_another(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    nodes[1].fetches._sessions._sessions.clear()
    assert await nodes.acknowledged(1, nodes.append(1, b"b")) is ErrorCode.NONE


@on_nodes()
async def test_a_follower_that_is_told_before_its_leader_waits(nodes: Nodes) -> None:
    """The leader answers NOT_LEADER_OR_FOLLOWER or UNKNOWN_LEADER_EPOCH, until it learns its role."""
    await nodes.tell(2, 3, is_new=True)
    await turns()
    await nodes.tell(1, is_new=True)
    assert await nodes.acknowledged(1, nodes.append(1, b"a")) is ErrorCode.NONE
    nodes.elect(1)
    await nodes.tell(2, 3)
    await turns()
    await nodes.tell(1)
    assert await nodes.acknowledged(1, nodes.append(1, b"b")) is ErrorCode.NONE


@on_nodes(partitions=2)
async def test_a_partition_that_fails_does_not_hold_up_the_others(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    directory = nodes[2].partition(0).log.path

    def is_full(operation: str, path: str) -> Fault | None:
        return Fault(errno.ENOSPC) if operation == "append" and path.startswith(directory) else None

    nodes[2].disks.inject = is_full
    nodes.append(1, b"b")
    assert await nodes.acknowledged(1, nodes.append(1, b"c", number=1), 1) is ErrorCode.NONE
    assert nodes[2].values(0) == [b"a"]
    nodes[2].disks.inject = lambda _operation, _path: None
    await all_have(nodes, b"a", b"b")


@on_nodes(partitions=2)
async def test_records_that_are_damaged_on_the_way_are_fetched_again(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await all_have(nodes, b"a")
    nodes.damages = 2
    nodes.append(1, b"b")
    await all_have(nodes, b"a", b"b")
    assert not nodes.damages


@on_nodes(config=LogConfig(flush_messages=1))
async def test_a_follower_confirms_no_more_than_it_has_flushed(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    last = nodes.append(1, b"a")
    assert await nodes.acknowledged(1, last) is ErrorCode.NONE
    assert min(nodes[each].partition().log.recovery_point for each in (1, 2, 3)) == 1


@on_nodes(config=LogConfig(flush_messages=1), wait_max_ms=10)
async def test_a_follower_that_has_flushed_knows_what_is_committed(nodes: Nodes) -> None:
    """The leader sends its high watermark with the records, and not again."""
    nodes.elect(1, isr=(1, 2))
    await nodes.tell(1, 2, is_new=True)
    assert await nodes.acknowledged(1, nodes.append(1, b"a")) is ErrorCode.NONE
    await nodes.tell(3, is_new=True)
    await all_have(nodes, b"a")


def survivors(nodes: Nodes, broker_id: int) -> list[bytes | None]:
    """The records of a broker that would survive a power cut now."""
    disk = nodes[broker_id].disks.copy()
    disk.cut_power(PowerCut.LOSE, lambda _count: 0)
    path = "/logs/t-0/00000000000000000000.log"
    data = memoryview(disk.read_file(path) if disk.exists(path) else b"")
    return [record.value for batch in read_batches(data) for record in batch.records()]


async def confirmed(nodes: Nodes, leader: int, follower: int, offset: int) -> None:
    """Wait until the leader knows that the follower has everything below `offset`."""

    def is_so() -> bool:
        in_sync = nodes[leader].partition().in_sync
        return in_sync is not None and in_sync.followers[follower].log_end_offset == offset

    await eventually_on_loop(f"{follower} has confirmed {offset}", is_so, pause_s=0.001)


@on_nodes(wait_max_ms=10)
async def test_an_error_before_a_fetch_does_not_end_the_fetcher(nodes: Nodes) -> None:
    planned, raised = Followed.flush_target.fget, []

    def flush_target(followed: Followed) -> int | None:
        if not raised:
            raised.append(followed)
            raise ValueError("planted")
        return planned(followed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Followed, "flush_target", property(flush_target))
        await nodes.tell(is_new=True)
        nodes.append(1, b"a")
        await all_have(nodes, b"a")
    assert raised


@on_nodes()
async def test_records_from_before_it_followed_are_confirmed_once_they_are_flushed(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await all_have(nodes, b"a")
    assert survivors(nodes, 1) == []
    for broker_id in (1, 2, 3):
        nodes[broker_id].config = nodes[broker_id].partition().log.config = LogConfig(flush_messages=1)
    nodes.elect(2)
    await nodes.tell()
    await confirmed(nodes, 2, 1, 1)
    assert survivors(nodes, 1) == [b"a"]


@on_nodes(config=LogConfig(flush_messages=1), wait_max_ms=10)
async def test_a_batch_that_begins_below_the_leaders_log_is_confirmed_once_it_is_flushed(nodes: Nodes) -> None:
    nodes.elect(1, isr=(1, 2))
    await nodes.tell(1, 2, is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a", b"b", b"c"))
    nodes[1].replicas.delete_records_before(TopicPartition("t", 0), 1)
    await nodes.tell(3, is_new=True)
    await confirmed(nodes, 1, 3, 3)
    assert survivors(nodes, 3) == [b"a", b"b", b"c"]
    await eventually_on_loop("it knows what is committed", lambda: nodes[3].partition().high_watermark == 3)


@on_nodes()
async def test_a_replica_that_is_stopped_is_not_fetched_for(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await nodes.stop_replica(2, delete=True)
    assert all(not len(fetcher) for fetcher in nodes[2].fetchers.fetchers)
    with pytest.raises(ApiError):
        nodes[2].partition()


@on_nodes()
async def test_a_role_changes_only_when_a_truncation_is_over(nodes: Nodes) -> None:
    """A leader elected during the truncation would append to a log that is being cut."""
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    await all_have(nodes, b"a")
    nodes.cut |= {(2, 1), (3, 1)}
    nodes.append(1, b"lost", acks=1)
    hold: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    class Held:
        async def run(self, function, /, *args):  # type: ignore[no-untyped-def]
            begun.set()
            await hold
            return function(*args)

    nodes.elect(2, isr=(2, 3))
    await nodes.tell(2, 3)
    for fetcher in nodes[1].fetchers.fetchers:
        fetcher._repairs._executor = Held()  # type: ignore[assignment]
    original = replica_fetcher.FollowerRepairs

    def held(leader_id: int, broker_id: int, clock: object, _executor: object) -> object:
        return original(leader_id, broker_id, clock, Held())  # type: ignore[arg-type]

    replica_fetcher.FollowerRepairs = held  # type: ignore[assignment,misc]
    try:
        await nodes.tell(1)
        await begun.wait()
    finally:
        replica_fetcher.FollowerRepairs = original  # type: ignore[misc]
    nodes.elect(1, isr=(1, 2, 3))
    telling = asyncio.ensure_future(nodes.tell(1))
    await turns()
    assert not telling.done()
    hold.set_result(None)
    await telling
    assert nodes[1].values() == [b"a"]
    nodes.append(1, b"b", acks=1)
    assert nodes[1].values() == [b"a", b"b"]


@on_nodes(lag_ms=100, wait_max_ms=10)
async def test_a_silent_follower_leaves_and_comes_back(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    await nodes.acknowledged(1, nodes.append(1, b"a"))
    nodes.cut.add((3, 1))
    waiting = asyncio.ensure_future(nodes.acknowledged(1, nodes.append(1, b"b")))

    async def isr() -> tuple[int, ...]:
        await nodes[1].replicas.check_lag()
        return nodes.states[0].isr

    await eventually_async("broker 3 leaves", isr, lambda isr: isr == (1, 2))
    assert await waiting is ErrorCode.NONE
    nodes.cut.clear()
    await eventually_on_loop("broker 3 is back", lambda: nodes.states[0].isr == (1, 2, 3), pause_s=0.001)
    assert nodes[3].values() == [b"a", b"b"]


@on_nodes()
async def test_changes_are_sent_again_until_they_are_decided(nodes: Nodes) -> None:
    nodes.states[0] = nodes.states[0].replace(isr=(1,))
    nodes.refusals += [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OPERATION_NOT_ATTEMPTED]
    await nodes.tell(is_new=True)
    await eventually_on_loop("both are in sync", lambda: set(nodes.states[0].isr) == {1, 2, 3}, pause_s=0.001)
    assert nodes.altered[0] is nodes.altered[1]
    assert nodes.altered[0] is not nodes.altered[2]


@on_nodes(partitions=6)
async def test_another_number_of_fetchers_goes_on_with_all_replicas(nodes: Nodes) -> None:
    """num.replica.fetchers is dynamic."""
    await nodes.tell(is_new=True)
    node = nodes[2]
    values = []
    for count in (1, 3, 2, 1):
        node.fetchers.resize(count, node.replicas.hosted.restart_fetchers)
        values.append(b"%d" % count)
        for number in range(6):
            assert await nodes.acknowledged(1, nodes.append(1, values[-1], number=number), number) is ErrorCode.NONE
        await eventually_on_loop(
            f"{count} fetchers", lambda count=count: len(node.fetchers.fetchers) == count, pause_s=0.001
        )
    for number in range(6):
        await all_have(nodes, *values, number=number)


@on_nodes()
async def test_consumers_are_refused_by_followers(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    with pytest.raises(ApiError) as refused:
        nodes[2].replicas.append(TopicPartition("t", 0), batch_of(b"a"), required_acks=ACKS_ALL)
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(ApiError) as refused:
        nodes[2].replicas.leader_of(TopicPartition("t", 0))
    assert refused.value.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@on_nodes(partitions=3)
async def test_high_watermarks_of_followers_are_for_the_checkpoint_too(nodes: Nodes) -> None:
    await nodes.tell(is_new=True)
    for number in range(3):
        await nodes.acknowledged(1, nodes.append(1, b"a", number=number), number)
        await all_have(nodes, b"a", number=number)
    assert set(nodes[2].replicas.high_watermarks().values()) == {1}


@on_nodes()
async def test_a_bug_does_not_end_a_fetcher(nodes: Nodes) -> None:
    bugs = [KeyError("bug")] * 3
    position = replica_fetcher.position

    def broken(*arguments: Any) -> Any:
        if bugs:
            raise bugs.pop()
        return position(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_fetcher, "position", broken)
        await nodes.tell(is_new=True)
        nodes.append(1, b"a")
        await all_have(nodes, b"a")
    assert not bugs
