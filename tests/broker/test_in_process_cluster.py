"""Three whole brokers in one process: their replication, and failovers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.network.registry import RequestContext
from client import admin
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.security_admin import alter_client_quotas
from client.settings import ClientSettings, ProducerSettings
from cluster.metadata_image import MetadataImage, PartitionImage
from cluster.replication.partition import Partition
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.in_process_cluster import InProcessCluster
from tests.kit.waiting import eventually_on_loop

T0 = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000
SETTINGS = {"controlled_shutdown_max_retries": "1", "controlled_shutdown_retry_backoff_ms": "1"}


def play(scenario: Callable[[InProcessCluster, KafkaClient], Awaitable[None]], **settings: str) -> None:
    """Run `scenario` with three brokers and the topic `t`, which has one partition with three replicas."""

    async def run() -> None:
        async with InProcessCluster(3, **SETTINGS, **settings) as cluster:
            await everybody_knows(cluster, lambda: all(len(image_of(cluster, each).brokers) == 3 for each in range(3)))
            values = {"bootstrap.servers": cluster.bootstrap_servers}
            async with KafkaClient(ClientSettings.parse(values)) as client:
                await admin.create_topic(client, "t", partitions=1, replication_factor=3)
                await scenario(cluster, client)

    asyncio.run(run())


def image_of(cluster: InProcessCluster, broker_id: int) -> MetadataImage:
    return cluster.brokers[broker_id].serving.coordination.metadata.image


def replica_of(cluster: InProcessCluster, broker_id: int) -> Partition:
    return cluster.brokers[broker_id].serving.logs.replicas.partition(T0)


def state_of(cluster: InProcessCluster) -> PartitionImage:
    """The partition's state at the first running broker."""
    return image_of(cluster, next(iter(cluster.brokers))).topics["t"].partitions[0]


async def everybody_knows(cluster: InProcessCluster, holds: Callable[[], bool]) -> None:
    await eventually_on_loop("the brokers have heard of it", holds, pause_s=0.005)


async def produce(cluster: InProcessCluster, client: KafkaClient, values: range) -> None:
    settings = ProducerSettings.parse({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    async with Producer(client, settings, lambda: NOW_MS) as producer:
        for value in values:
            await (await producer.send("t", b"%d" % value, partition=0))


def values_in(replica: Partition) -> list[int]:
    found = replica.log.read(0, 1 << 20, replica.log.log_end_offset, True)
    assert found.file is not None
    data = memoryview(found.file.pread(found.position, found.size))
    return [int(record.value) for batch in read_batches(data) for record in batch.records()]


def test_acknowledged_records_are_on_all_in_sync_replicas() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        await produce(cluster, client, range(20))
        for broker_id in cluster.brokers:
            replica = replica_of(cluster, broker_id)
            assert values_in(replica) == list(range(20))
            assert replica.is_leader == (state_of(cluster).leader == broker_id)

    play(scenario)


def test_the_preferred_replica_leads_again_once_it_is_in_sync() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        preferred = state_of(cluster).leader
        await cluster.stop(preferred)
        await everybody_knows(cluster, lambda: state_of(cluster).leader not in {-1, preferred})
        await cluster.start(preferred)
        await everybody_knows(cluster, lambda: state_of(cluster).leader == preferred)
        await produce(cluster, client, range(3))
        assert values_in(replica_of(cluster, preferred)) == list(range(3))

    play(scenario, leader_imbalance_check_interval_seconds="1")


@pytest.mark.parametrize("what", ["stopped", "its session expired"])
def test_another_replica_leads_and_the_first_comes_back_in_sync(what: str) -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        await produce(cluster, client, range(10))
        before = state_of(cluster)
        if what == "stopped":
            await cluster.stop(before.leader)
        else:
            await cluster.expire_session(before.leader)
        await everybody_knows(cluster, lambda: state_of(cluster).leader not in {-1, before.leader})
        await produce(cluster, client, range(10, 20))
        if what == "stopped":
            await cluster.start(before.leader)
        await everybody_knows(
            cluster, lambda: all(len(image_of(cluster, each).topics["t"].partitions[0].isr) == 3 for each in range(3))
        )
        assert state_of(cluster).leader_epoch > before.leader_epoch
        for broker_id in cluster.brokers:
            assert values_in(replica_of(cluster, broker_id)) == list(range(20))

    play(scenario)


def test_a_log_has_the_configuration_of_its_topic_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = LogManager.get_or_create

    def record(logs: LogManager, replica: TopicPartition, topic_id: Uuid, config: LogConfig, *rest, **named):  # type: ignore[no-untyped-def]
        if replica.topic == "u":
            made.append(config.retention_ms)
        return make(logs, replica, topic_id, config, *rest, **named)

    monkeypatch.setattr(LogManager, "get_or_create", record)

    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        configs = {"retention.ms": "7654321"}
        await admin.create_topic(client, "u", partitions=2, replication_factor=3, configs=configs)
        await everybody_knows(cluster, lambda: len(made) == 6)
        assert made == [7_654_321] * 6

    play(scenario)


def test_a_partition_moves_under_load_and_nothing_is_lost() -> None:
    async def run() -> None:
        async with InProcessCluster(4, **SETTINGS) as cluster:
            await everybody_knows(cluster, lambda: all(len(image_of(cluster, each).brokers) == 4 for each in range(4)))
            values = {"bootstrap.servers": cluster.bootstrap_servers}
            async with KafkaClient(ClientSettings.parse(values)) as client:
                await admin.create_topic(client, "t", partitions=1, replication_factor=2)
                origin = state_of(cluster).replicas
                target = tuple(each for each in range(4) if each not in origin)
                acknowledged: list[int] = []
                moved = asyncio.Event()

                async def load() -> None:
                    while not moved.is_set():
                        await produce(cluster, client, range(len(acknowledged), len(acknowledged) + 1))
                        acknowledged.append(len(acknowledged))

                loading = asyncio.create_task(load())
                await everybody_knows(cluster, lambda: len(acknowledged) >= 20)
                controller = cluster.brokers[image_of(cluster, 0).controller_id].serving.member.controller
                assert await controller.alter_reassignments({T0: target}) == {T0: None}
                await everybody_knows(
                    cluster,
                    lambda: all(
                        image_of(cluster, each).topics["t"].partitions[0].replicas == target for each in range(4)
                    ),
                )
                count = len(acknowledged)
                await everybody_knows(cluster, lambda: len(acknowledged) >= count + 20)
                moved.set()
                await loading
                assert not controller.reassignments()
                assert set(state_of(cluster).isr) == set(target)
                for broker_id in target:
                    # A produce that was resent after the leader moved may have been appended twice.
                    assert list(dict.fromkeys(values_in(replica_of(cluster, broker_id)))) == acknowledged
                for broker_id in origin:
                    replicas = cluster.brokers[broker_id].serving.logs.replicas.hosted.partitions
                    await everybody_knows(cluster, lambda here=replicas: T0 not in here)
            for broker_id in (3, 2, 1):  # the controller last: each hands over its leaderships
                await cluster.stop(broker_id)

    asyncio.run(run())


def test_a_quota_that_one_broker_sets_counts_at_all() -> None:
    async def scenario(cluster: InProcessCluster, client: KafkaClient) -> None:
        def limits() -> list[float]:
            """The limits of bytes fetched at once, at each broker."""
            context = RequestContext(0, "app", "127.0.0.1", "PLAINTEXT")
            return [cluster.brokers[each].serving.quotas.max_fetch_bytes(context) for each in range(3)]

        await alter_client_quotas(client, {"user": "ANONYMOUS", "client-id": "app"}, {"consumer_byte_rate": 1000.0})
        await eventually_on_loop("all brokers know it", lambda: limits() == [10_000.0] * 3, pause_s=0.01)
        await alter_client_quotas(client, {"user": "ANONYMOUS", "client-id": "app"}, {"consumer_byte_rate": None})
        await eventually_on_loop("it is gone everywhere", lambda: limits() == [float("inf")] * 3, pause_s=0.01)

    play(scenario)
