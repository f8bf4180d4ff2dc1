"""Transactions over three brokers in one process: each leads a partition, and coordinators are used over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.coordinators.coordinator_service import coordinator_partition
from broker.inter_broker.inter_broker_client import InterBrokerClient
from client import admin
from client.errors import DisconnectedError
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from environment.system import TcpNetwork
from protocol.errors import ErrorCode
from protocol.messages import RESPONSE_TYPES
from protocol.topic_partition import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from protocol.wire.schema import Request
from tests.kit.in_process_cluster import InProcessCluster
from tests.kit.transactions.requests import (
    add_offsets,
    commit_offsets,
    fetch_offset,
    find_coordinator,
    produce_in_transaction,
)
from tests.kit.transactions.transactional_producer import TransactionalProducer, read
from tests.kit.waiting import eventually_async, eventually_on_loop

AT = [TopicPartition("t", number) for number in range(3)]
"""Each partition is led by the broker of that number."""

ID = "payments"


class Connected:
    """A connection to one broker, reopened when the broker restarts."""

    def __init__(self, cluster: InProcessCluster, broker_id: int) -> None:
        def address() -> tuple[str, int] | None:
            if broker_id not in cluster.brokers:
                return None
            host, _, port = cluster.address(broker_id).rpartition(":")
            return host, int(port)

        self._client = InterBrokerClient(TcpNetwork(50), address, "test", 30_000)

    async def ask(self, request: Request, version: int) -> Any:
        return await self._client.ask(request, RESPONSE_TYPES[request.api_key], version)

    def close(self) -> None:
        self._client.close()


class Place:
    """The cluster, with connections to all brokers."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.wires = [Connected(cluster, broker_id) for broker_id in range(3)]

    async def coordinator_of(self, key: str, key_type: int) -> int:
        """The coordinator of a transactional id or a group, once it is elected."""
        request = find_coordinator(key)
        request.key_type = key_type

        async def found() -> int:
            response = await self.wires[next(iter(self.cluster.brokers))].ask(request, 4)
            return int(response.coordinators[0].node_id)

        return await eventually_async("a coordinator", found, lambda broker_id: broker_id >= 0)

    async def producer(self, transactional_id: str = ID) -> TransactionalProducer:
        """A new producer with a session."""
        coordinator = await self.coordinator_of(transactional_id, 1)
        producer = TransactionalProducer(self.wires[coordinator], transactional_id)
        producer.leaders |= dict(zip(AT, self.wires, strict=True))
        assert await producer.init() == ErrorCode.NONE
        return producer

    async def sees(self, at: TopicPartition, values: list[bytes]) -> None:
        """Wait until a read_committed consumer gets these."""
        wire = self.wires[at.partition]

        async def seen() -> list[bytes] | None:
            try:
                return await read(wire, at)
            except (AssertionError, DisconnectedError):
                return None  # it does not serve yet

        await eventually_async("the values", seen, lambda found: found == values)


def play(scenario: Callable[[Place], Awaitable[None]]) -> None:
    async def run() -> None:
        async with InProcessCluster(3, transaction_state_log_num_partitions="3") as cluster:
            await eventually_on_loop(
                "the brokers have heard of each other",
                lambda: all(
                    len(each.serving.coordination.metadata.image.brokers) == 3 for each in cluster.brokers.values()
                ),
                pause_s=0.005,
            )
            values = {"bootstrap.servers": cluster.bootstrap_servers}
            async with KafkaClient(ClientSettings.parse(values)) as client:
                assignment = {each.partition: [each.partition] for each in AT}
                await admin.create_topic(client, "t", assignment=assignment, configs={"retention.ms": "-1"})
            place = Place(cluster)
            try:
                await scenario(place)
            finally:
                for wire in place.wires:
                    wire.close()

    asyncio.run(run())


def test_a_transaction_over_all_brokers() -> None:
    async def scenario(place: Place) -> None:
        producer = await place.producer()
        for commit in (True, False, True):
            assert await producer.add(*AT) == [ErrorCode.NONE] * 3
            for at in AT:
                assert await producer.write(b"%d" % commit, at=at) == ErrorCode.NONE
            assert await producer.end(commit=commit) == ErrorCode.NONE
            await producer.settled()
        for at in AT:
            await place.sees(at, [b"1", b"1"])
            assert await read(place.wires[at.partition], at, committed=False) == [b"1", b"0", b"1"]

    play(scenario)


def test_leaders_ask_the_coordinator_elsewhere() -> None:
    async def scenario(place: Place) -> None:
        producer = await place.producer()
        await producer.add(AT[0])
        for at in AT[1:]:
            assert await producer.write(b"1", at=at) == ErrorCode.TRANSACTION_ABORTABLE
            assert await producer.write(b"1", at=at, version=10) == ErrorCode.INVALID_TXN_STATE
        producer.epoch -= 1
        for at in AT:
            assert await producer.write(b"1", at=at) == ErrorCode.INVALID_PRODUCER_EPOCH
        for at in AT:
            assert await read(place.wires[at.partition], at, committed=False) == []

    play(scenario)


def test_requests_that_wait_for_a_coordinator_elsewhere_stay_in_order() -> None:
    async def scenario(place: Place) -> None:
        producer = await place.producer()
        await producer.add(*AT)
        for at in AT:
            requests = [
                produce_in_transaction(*producer.identity, sequence, [b"%d" % sequence], at) for sequence in range(5)
            ]
            answers = await asyncio.gather(*(place.wires[at.partition].ask(each, 11) for each in requests))
            told = [each.responses[0].partition_responses[0] for each in answers]
            assert [(each.error_code, each.base_offset) for each in told] == [(0, offset) for offset in range(5)]
        await producer.end(commit=True)
        for at in AT:
            await place.sees(at, [b"0", b"1", b"2", b"3", b"4"])

    play(scenario)


def test_a_leader_that_cannot_ask_has_the_producer_try_again() -> None:
    async def scenario(place: Place) -> None:
        producer = await place.producer()
        await producer.add(*AT)
        coordinator = await place.coordinator_of(ID, 1)
        await place.cluster.stop(coordinator)
        leaders = [at for at in AT if at.partition != coordinator]

        async def written() -> list[int]:
            return [await producer.write(b"1", at=at) for at in leaders]

        codes = await eventually_async(
            "a coordinator that takes over", written, lambda codes: ErrorCode.NOT_ENOUGH_REPLICAS not in codes
        )
        assert codes == [ErrorCode.NONE] * 2

    play(scenario)


def test_offsets_of_a_group_on_another_broker() -> None:
    async def scenario(place: Place) -> None:
        producer = await place.producer()
        groups = {}
        for number in range(20):
            groups.setdefault(coordinator_partition(f"g{number}", 3), f"g{number}")
        for group_id in groups.values():
            coordinator = place.wires[await place.coordinator_of(group_id, 0)]
            response = await producer.ask(add_offsets(*producer.identity, group_id), 4)
            assert response.error_code == ErrorCode.NONE
            response = await coordinator.ask(commit_offsets(*producer.identity, group_id, AT[0], 7), 4)
            assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
        await producer.end(commit=True)
        for group_id in groups.values():
            coordinator = place.wires[await place.coordinator_of(group_id, 0)]

            async def committed(wire: Connected = coordinator, group_id: str = group_id) -> tuple[int, int]:
                response = await wire.ask(fetch_offset(group_id, AT[0], require_stable=True), 8)
                found = response.groups[0].topics[0].partitions[0]
                return found.committed_offset, found.error_code

            await eventually_async("the offset", committed, lambda found: found == (7, ErrorCode.NONE))

    play(scenario)


def test_a_coordinator_that_takes_over_writes_the_markers() -> None:
    """A partition's leader is away when the transaction ends, and the coordinator is away when that leader returns."""

    async def scenario(place: Place) -> None:
        producer = await place.producer()
        coordinator = await place.coordinator_of(ID, 1)
        absent = next(at for at in AT if at.partition != coordinator)
        await producer.add(*AT)
        for at in AT:
            assert await producer.write(b"1", at=at) == ErrorCode.NONE
        await place.cluster.stop(absent.partition)
        assert await producer.end(commit=True) == ErrorCode.NONE
        third = next(at for at in AT if at not in {absent, AT[coordinator]})
        await place.sees(third, [b"1"])
        await place.cluster.stop(coordinator)
        await place.cluster.start(absent.partition)
        await place.sees(absent, [b"1"])
        successor = await place.coordinator_of(ID, 1)
        assert successor != coordinator
        await place.cluster.start(coordinator)
        await place.sees(AT[coordinator], [b"1"])
        producer.wire = place.wires[successor]
        assert await producer.settled() == "CompleteCommit"

    play(scenario)


def test_the_topics_of_coordinators_are_kafkas() -> None:
    async def scenario(place: Place) -> None:
        await place.producer()
        image = place.cluster.brokers[0].serving.coordination.metadata.image
        topic = image.topics[TRANSACTION_STATE]
        assert [len(each.replicas) for each in topic.partitions] == [3, 3, 3]
        assert image.config(2, TRANSACTION_STATE) == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "2",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }
        assert CONSUMER_OFFSETS not in image.topics

    play(scenario)
