"""Requests to the controller over real connections, which follow the controller as it moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from broker.handlers.cluster_requests import ClusterRequestHandlers
from broker.inter_broker.inter_broker_client import InterBrokerClient
from broker.inter_broker.remote_controller import ControllerRouter, RemoteController, controller_address
from broker.metadata.metadata_cache import MetadataCache
from client.environment import LoopNetwork
from client.errors import DisconnectedError
from cluster.controller.commands import CommandFence
from cluster.controller.topics import NewTopic, TopicPlan
from cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from cluster.replication.isr import IsrChange
from cluster.znodes import Endpoint, ProducerIdBlock
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_requests import AlterPartitionRequest, AlterPartitionResponse
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID, Uuid
from tests.broker.inter_broker.command_server import served
from tests.broker.inter_broker.commands import image
from tests.kit.controller.controller_fixtures import context
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import ManualClock, uuid_of

ID, UNKNOWN_ID = uuid_of(11), uuid_of(12)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME, CONTROLLER = 1, 2
TOPIC = TopicImage("t", ID, (image(0), image(1)))


class FakeController:
    """A ControllerApi that records its requests. `refusals` apply to one request each."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refusals: list[ApiError] = []
        self.altered: dict[TopicPartition, PartitionImage | ErrorCode] = {}
        self.names: dict[Uuid, str] = {}

    def _note(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.refusals:
            raise self.refusals.pop(0)

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]:
        self._note(broker_id, broker_epoch, [said(change) for change in changes])
        return self.altered

    async def topic_names(self, topic_ids: Collection[Uuid]) -> Mapping[Uuid, str]:
        return {each: self.names[each] for each in topic_ids if each in self.names}

    async def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicPlan | ApiError]:
        self.asked.append((list(new_topics), validate_only))
        if self.refusals:
            return dict.fromkeys((topic.name for topic in new_topics), self.refusals.pop(0))
        return {topic.name: TopicPlan(topic.name, ((ME,),), {}) for topic in new_topics}

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
        self._note(broker_id, broker_epoch)
        return [T0, T1]

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        self._note(broker_id, broker_epoch)
        return ProducerIdBlock(broker_id, 5000, 5999)


def said(change: IsrChange) -> tuple[Any, ...]:
    """All fields of a change."""
    return (
        change.topic_partition, change.topic_id, change.leader_epoch, change.partition_epoch, change.new_isr,
        change.leader_recovery_state,
    )  # fmt: skip


def change(topic_partition: TopicPartition = T0, topic_id: Uuid = ID, **others: Any) -> IsrChange:
    """Request an ISR of broker 1 alone."""
    values: dict[str, Any] = {"leader_epoch": 5, "partition_epoch": 3, "new_isr": ((ME, 50),), **others}
    return IsrChange(topic_partition=topic_partition, topic_id=topic_id, **values)


class Pair(NamedTuple):
    """The controller, and the channel to it."""

    controller: FakeController
    remote: RemoteController
    metadata: MetadataCache
    client: InterBrokerClient


def metadata_of(port: int, controller_id: int = CONTROLLER) -> MetadataCache:
    """Broker 1's metadata: broker 2 is alive, and the topic `t` exists."""
    endpoint = Endpoint("INSIDE", "127.0.0.1", port, "PLAINTEXT")
    known = MetadataImage(
        controller_id=controller_id, brokers={CONTROLLER: BrokerImage(CONTROLLER, 60, {"INSIDE": endpoint})}
    )
    return MetadataCache(CommandFence(), known.with_topics([TOPIC]))


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    """Broker 1 and a controller on another broker."""
    controller = FakeController()
    handlers = ClusterRequestHandlers(controller, lambda: MetadataImage().with_topics([TOPIC]), ManualClock())
    async with served(handlers) as port:
        metadata = metadata_of(port)
        client = InterBrokerClient(
            LoopNetwork(), lambda: controller_address(metadata.image, "INSIDE"), "1", request_timeout_ms=60_000
        )
        yield Pair(controller, RemoteController(client, metadata, 60_000), metadata, client)
        client.close()


@in_loop
async def test_isr_changes_arrive_and_are_answered_partition_by_partition() -> None:
    async with connected() as there:
        there.controller.altered = {
            T0: PartitionImage(0, ME, 5, (1, 2), (ME,), 4, 7, leader_recovery_state=1),
            T1: ErrorCode.INVALID_UPDATE_VERSION,
        }
        changes = [change(leader_recovery_state=1), change(T1, new_isr=((ME, 50), (CONTROLLER, -1)))]
        answer = await there.remote.alter_partition(ME, 50, changes)
        assert there.controller.asked == [(ME, 50, [said(each) for each in changes])]
        assert answer == there.controller.altered


@in_loop
async def test_topics_without_an_id_are_named() -> None:
    async with connected() as there:
        there.controller.altered = {T0: image(0)}
        old = change(topic_id=ZERO_UUID)
        assert await there.remote.alter_partition(ME, 50, [old]) == {T0: image(0)}
        (_, _, ((asked, topic_id, *_, new_isr, _),)) = there.controller.asked[0]
        assert (asked, topic_id, new_isr) == (T0, ID, ((ME, -1),))


@in_loop
async def test_a_topic_that_the_controller_does_not_know_is_an_error_of_its_partitions() -> None:
    async with connected() as there:
        there.controller.altered, there.controller.names = {T0: image(0)}, {ID: "t"}
        unknown = change(TopicPartition("u", 3), UNKNOWN_ID)
        answer = await there.remote.alter_partition(ME, 50, [unknown, change(), change(T1)])
        assert answer == {
            TopicPartition("u", 3): ErrorCode.UNKNOWN_TOPIC_ID,
            T0: image(0),
            T1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


@in_loop
async def test_a_controller_knows_topics_before_it_has_told_its_own_broker() -> None:
    """Otherwise the leader would take UNKNOWN_TOPIC_ID for final, and wait for a new role in vain."""
    controller = FakeController()
    controller.altered, controller.names = {T0: image(0)}, {ID: "t"}
    data = AlterPartitionRequest.PartitionData(partition_index=0, leader_epoch=5, partition_epoch=3)
    data.new_isr_with_epochs = [AlterPartitionRequest.BrokerState(broker_id=ME)]
    topic = AlterPartitionRequest.TopicData(topic_id=ID, partitions=[data])
    request = AlterPartitionRequest(broker_id=ME, broker_epoch=50, topics=[topic])
    answered = await ClusterRequestHandlers(controller, MetadataImage, ManualClock()).alter_partition(
        context(3), request
    )
    assert [each.error_code for each in answered.topics[0].partitions] == [ErrorCode.NONE]
    assert controller.asked == [(ME, 50, [said(change(new_isr=((ME, -1),)))])]


@pytest.mark.parametrize("version", range(4))
@in_loop
async def test_alter_partition_is_served_in_every_version(version: int) -> None:
    controller = FakeController()
    controller.altered = {T0: image(0).replace(leader_recovery_state=1 if version else 0)}
    handlers = ClusterRequestHandlers(controller, lambda: MetadataImage().with_topics([TOPIC]), ManualClock())
    data = AlterPartitionRequest.PartitionData(
        partition_index=0, leader_epoch=5, partition_epoch=3, new_isr=[1, 2] if version < 3 else []
    )
    if version == 3:
        data.new_isr_with_epochs = [AlterPartitionRequest.BrokerState(broker_id=each) for each in (1, 2)]
    topic = AlterPartitionRequest.TopicData(topic_name="t", topic_id=ID, partitions=[data])
    request = AlterPartitionRequest(broker_id=ME, broker_epoch=50, topics=[topic])
    asked = AlterPartitionRequest.decode(request.to_bytes(version), version)
    answered = await handlers.alter_partition(context(version), asked)
    response = AlterPartitionResponse.decode(answered.to_bytes(version), version)
    assert controller.asked == [(ME, 50, [said(change(new_isr=((1, -1), (2, -1))))])]
    (altered,) = response.topics[0].partitions
    assert (altered.error_code, altered.leader_id, altered.leader_epoch, altered.isr) == (0, 1, 5, [1, 2])
    assert (altered.partition_epoch, altered.leader_recovery_state) == (3, 1 if version else 0)


@in_loop
async def test_the_other_requests_are_answered() -> None:
    async with connected() as there:
        assert await there.remote.allocate_producer_ids(ME, 50) == ProducerIdBlock(ME, 5000, 5999)
        assert await there.remote.controlled_shutdown(ME, 50) == [T0, T1]
        assert there.controller.asked == [(ME, 50), (ME, 50)]


@in_loop
async def test_a_refusal_is_raised() -> None:
    async with connected() as there:
        stale = ApiError(ErrorCode.STALE_BROKER_EPOCH, "old")
        there.controller.refusals = [stale, stale, stale]
        for call in (
            there.remote.alter_partition(ME, 50, [change()]),
            there.remote.controlled_shutdown(ME, 50),
            there.remote.allocate_producer_ids(ME, 50),
        ):
            with pytest.raises(ApiError) as raised:
                await call
            assert raised.value.error_code is ErrorCode.STALE_BROKER_EPOCH


# -- the router


def router_of(
    local: FakeController, remote: Any, metadata: MetadataCache, timeout_ms: int = 60_000
) -> ControllerRouter:
    return ControllerRouter(ME, local, remote, metadata, retry_timeout_ms=timeout_ms, retry_backoff_ms=1)


@in_loop
async def test_the_controller_is_asked_wherever_it_is() -> None:
    here, there = FakeController(), FakeController()
    await router_of(here, there, metadata_of(1, ME)).allocate_producer_ids(ME, 50)
    assert (len(here.asked), len(there.asked)) == (1, 0)
    await router_of(here, there, metadata_of(1, CONTROLLER)).allocate_producer_ids(ME, 50)
    assert (len(here.asked), len(there.asked)) == (1, 1)


@in_loop
async def test_a_controller_that_moves_is_followed() -> None:
    here, there, metadata = FakeController(), FakeController(), metadata_of(1, CONTROLLER)
    there.refusals = [ApiError(ErrorCode.NOT_CONTROLLER)] * 3
    await router_of(here, there, metadata).alter_partition(ME, 50, [])
    assert (len(here.asked), len(there.asked)) == (0, 4)
    here.refusals = [ApiError(ErrorCode.NOT_CONTROLLER)]
    created = await router_of(there, here, metadata).create_topics([NewTopic("new")])
    assert created["new"] == TopicPlan("new", ((ME,),), {})
    assert len(here.asked) == 2


@in_loop
async def test_a_lost_connection_is_tried_again() -> None:
    class Lost(FakeController):
        losses = 3

        async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Sequence[TopicPartition]:
            if self.losses:
                self.losses -= 1
                raise DisconnectedError("lost")
            return await super().controlled_shutdown(broker_id, broker_epoch)

    assert await router_of(FakeController(), Lost(), metadata_of(1)).controlled_shutdown(ME, 50) == [T0, T1]


@in_loop
async def test_without_a_controller_the_patience_ends() -> None:
    async with served(ClusterRequestHandlers(FakeController(), MetadataImage, ManualClock())) as port:
        pass
    metadata = metadata_of(port, controller_id=-1)
    client = InterBrokerClient(LoopNetwork(), lambda: controller_address(metadata.image, "INSIDE"), "1", 60_000)
    router = router_of(FakeController(), RemoteController(client, metadata, 60_000), metadata, timeout_ms=20)
    with pytest.raises(ApiError, match="address is not known") as raised:
        await router.allocate_producer_ids(ME, 50)
    assert raised.value.error_code is ErrorCode.REQUEST_TIMED_OUT


@in_loop
async def test_any_other_refusal_is_the_answer() -> None:
    here = FakeController()
    here.refusals = [ApiError(ErrorCode.STALE_BROKER_EPOCH)]
    with pytest.raises(ApiError) as raised:
        await router_of(here, FakeController(), metadata_of(1, ME)).alter_partition(ME, 50, [])
    assert raised.value.error_code is ErrorCode.STALE_BROKER_EPOCH
    assert len(here.asked) == 1
