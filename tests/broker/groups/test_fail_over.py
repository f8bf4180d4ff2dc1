"""Groups follow the leadership of their partition of __consumer_offsets, without losing acknowledged commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from client.errors import DisconnectedError
from client.kafka_client import KafkaClient
from protocol.errors import ApiError, ErrorCode
from protocol.messages.group_offsets import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchResponse
from protocol.messages.groups import HeartbeatResponse, JoinGroupResponse, SyncGroupResponse
from protocol.topic_partition import CONSUMER_OFFSETS
from tests.broker.test_in_process_cluster import image_of, play
from tests.kit.group_requests import commit, fetch_groups, heartbeat, join, sync
from tests.kit.in_process_cluster import InProcessCluster
from tests.kit.waiting import eventually_async, eventually_on_loop

GROUP = "g"
MORE = 20
"""How many more commits of each committer prove that they continue."""
MOVING = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def play_with_groups(scenario: Callable[[InProcessCluster, KafkaClient], Awaitable[None]]) -> None:
    """Run `scenario` with three brokers that keep all groups in one partition with three replicas."""
    play(
        scenario,
        offsets_topic_num_partitions="1",
        offsets_topic_replication_factor="3",
        min_insync_replicas="2",
    )


def coordinator(cluster: InProcessCluster, but: int = -1) -> int | None:
    """The broker that leads the partition of the groups, once all brokers agree."""
    leaders = {
        topic.partitions[0].leader if (topic := image_of(cluster, each).topics.get(CONSUMER_OFFSETS)) else -1
        for each in cluster.brokers
    }
    (leader,) = leaders if len(leaders) == 1 else (-1,)
    return None if leader in (-1, but) else leader


async def ask_to_commit(client: KafkaClient, broker_id: int, request: OffsetCommitRequest) -> ErrorCode:
    try:
        answer = await (await client.node_connection(broker_id)).ask(request, OffsetCommitResponse)
    except DisconnectedError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode(answer.topics[0].partitions[0].error_code)


class Committer:
    """A group without members that commits 1, 2, 3, ... to its current coordinator."""

    def __init__(self, cluster: InProcessCluster, client: KafkaClient, group: str) -> None:
        self._cluster = cluster
        self._client = client
        self.group = group
        self.acknowledged = self.tried = 0
        self.refusals: dict[ErrorCode, None] = {}
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            broker_id = coordinator(self._cluster)
            if broker_id is None:
                await asyncio.sleep(0.001)
                continue
            self.tried += 1
            error = await ask_to_commit(self._client, broker_id, commit(self.group, [("t", 0, self.tried)]))
            if error is ErrorCode.NONE:
                self.acknowledged = self.tried
            else:
                self.refusals[error] = None
                await asyncio.sleep(0.001)


async def committed(client: KafkaClient, broker_id: int, group: str) -> int | ErrorCode:
    request = fetch_groups({group: {"t": [0]}})
    answer = (await client.ask_node(broker_id, "fetch", request, OffsetFetchResponse)).groups[0]
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return answer.topics[0].partitions[0].committed_offset


async def first_coordinator(cluster: InProcessCluster, client: KafkaClient) -> int:
    async def found() -> int:
        try:
            return await client.find_coordinator(GROUP)
        except ApiError:
            return -1

    broker_id = await eventually_async("a coordinator", found, lambda each: each >= 0, pause_s=0.01)
    await eventually_on_loop("all know it", lambda: coordinator(cluster) is not None, pause_s=0.005)
    return broker_id


async def goes_on(committers: list[Committer]) -> None:
    goals = [each.acknowledged + MORE for each in committers]
    await eventually_on_loop(
        "commits go on",
        lambda: all(each.acknowledged >= goal for each, goal in zip(committers, goals, strict=True)),
        pause_s=0.005,
    )


def test_no_acknowledged_commit_is_lost_when_coordinators_stop_or_are_deposed() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        await first_coordinator(cluster, client)
        committers = [Committer(cluster, client, f"g{number}") for number in range(3)]
        tasks = [asyncio.create_task(each.run()) for each in committers]
        await goes_on(committers)
        for what in ("its session expires", "it stops"):
            before = coordinator(cluster)
            assert before is not None
            if what == "it stops":
                await cluster.stop(before)
            else:
                await cluster.expire_session(before)
            await eventually_on_loop(
                "another one", lambda but=before: coordinator(cluster, but) is not None, pause_s=0.005
            )
            await goes_on(committers)
        for each in committers:
            each.is_stopping = True
        await asyncio.gather(*tasks)
        leader = coordinator(cluster)
        assert leader is not None
        for each in committers:
            offset = await committed(client, leader, each.group)
            assert not isinstance(offset, ErrorCode)
            assert each.acknowledged <= offset <= each.tried
            assert not [error for error in each.refusals if error not in MOVING], each.refusals

    play_with_groups(scenario)


@contextmanager
def held_loading() -> Iterator[asyncio.Event]:
    """Stop coordinators from loading until the event is set."""
    may_load = asyncio.Event()
    load = ReplicatedCoordinatorLog.load

    async def wait_and_load(self: ReplicatedCoordinatorLog, *given: object) -> None:
        await may_load.wait()
        await load(self, *given)  # type: ignore[arg-type]

    with mock.patch.object(ReplicatedCoordinatorLog, "load", wait_and_load):
        yield may_load


def test_a_new_coordinator_loads_first_and_the_old_one_is_none_any_more() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        old = await first_coordinator(cluster, client)

        async def joined() -> JoinGroupResponse:
            return await client.ask_node(old, "join", join(GROUP, "", session_ms=60_000), JoinGroupResponse)

        refused = await eventually_async(
            "a member id", joined, lambda answer: answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, pause_s=0.01
        )
        member = refused.member_id
        answer = await client.ask_node(old, "join", join(GROUP, member, session_ms=60_000), JoinGroupResponse)
        generation = answer.generation_id
        synced = sync(GROUP, member, generation, {member: b""})
        assert not (await client.ask_node(old, "sync", synced, SyncGroupResponse)).error_code
        mine = commit(GROUP, [("t", 0, 7)], member, generation)
        assert await ask_to_commit(client, old, mine) is ErrorCode.NONE

        with held_loading() as may_load:
            await cluster.expire_session(old)
            await eventually_on_loop("another one", lambda: coordinator(cluster, old) is not None, pause_s=0.005)
            new = coordinator(cluster)
            assert new is not None
            later = commit(GROUP, [("t", 0, 8)], member, generation)
            assert await ask_to_commit(client, new, later) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await committed(client, new, GROUP) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await ask_to_commit(client, old, later) is ErrorCode.NOT_COORDINATOR, "a zombie"
            may_load.set()

            async def is_loaded() -> object:
                return await committed(client, new, GROUP)

            assert await eventually_async("it is loaded", is_loaded, lambda each: not isinstance(each, ErrorCode)) == 7
        assert await ask_to_commit(client, new, later) is ErrorCode.NONE
        beat = await client.ask_node(new, "beat", heartbeat(GROUP, member, generation), HeartbeatResponse)
        assert beat.error_code == ErrorCode.NONE, "the generation goes on"
        for late in (
            commit(GROUP, [("t", 0, 1)], member, generation - 1),
            commit(GROUP, [("t", 0, 1)], "somebody", generation),
        ):
            refusal = await ask_to_commit(client, new, late)
            assert refusal in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        assert await committed(client, new, GROUP) == 8

    play_with_groups(scenario)
