"""A log that recovery truncated below its high watermark does not lead while another ISR member may have the rest (trap
M22).

Three whole brokers, on disks that lose the end of a file while the brokers are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from client import admin
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from cluster.znodes import PartitionState
from protocol.config_resources import ConfigResourceType
from storage.directory.checkpoints import HIGH_WATERMARK_CHECKPOINT, read_offset_checkpoint
from tests.broker.test_in_process_cluster import (
    T0,
    everybody_knows,
    image_of,
    produce,
    replica_of,
    state_of,
    values_in,
)
from tests.kit.in_process_cluster import InProcessCluster
from tests.simulation.cluster.cluster_mutants import CLUSTER_MUTANTS

ALL = (0, 1, 2)
COUNT = 20
LEFT_BYTES = 500
"""The size of a truncated replica's log: it keeps some of the records."""


@contextlib.asynccontextmanager
async def stopped_cluster(replicas: tuple[int, ...] = ALL, **settings: str) -> AsyncIterator[InProcessCluster]:
    """Brokers that have COUNT records and died without notice; the log of broker 0 is truncated."""
    async with InProcessCluster(3, controlled_shutdown_enable="false", **settings) as cluster:
        await everybody_knows(cluster, lambda: all(len(image_of(cluster, each).brokers) == 3 for each in ALL))
        async with KafkaClient(ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})) as client:
            await admin.create_topic(client, "t", assignment={0: replicas})
            await produce(cluster, client, range(COUNT))
        await everybody_knows(
            cluster, lambda: all(replica_of(cluster, each).high_watermark == COUNT for each in replicas)
        )
        for broker_id in ALL:
            await cluster.stop(broker_id)
        # As if all had died at the same moment: no broker noticed another's death.
        await cluster.set_state("t", 0, lambda state: state_before(state, replicas))
        cut_log(cluster)
        yield cluster


def state_before(state: PartitionState, isr: tuple[int, ...]) -> PartitionState:
    return state.replace(leader=isr[0], leader_epoch=state.leader_epoch + 1, isr=isr)


def cut_log(cluster: InProcessCluster) -> None:
    """Simulate a power cut on broker 0 that lost the end of the log, and the checkpoint that it was flushed."""
    disk = cluster.disk(0)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        disk.remove(f"/data/{name}")
    path = "/data/t-0/00000000000000000000.log"
    data = disk.read_file(path)
    assert len(data) > LEFT_BYTES
    disk.write_file(path, data[:LEFT_BYTES])


def checkpointed(cluster: InProcessCluster, broker_id: int) -> int:
    """The high watermark on the disk."""
    return read_offset_checkpoint(cluster.disk(broker_id), f"/data/{HIGH_WATERMARK_CHECKPOINT}")[T0]


async def all_in_sync(cluster: InProcessCluster) -> None:
    await everybody_knows(
        cluster,
        lambda: all(sorted(image_of(cluster, each).topics["t"].partitions[0].isr) == list(ALL) for each in ALL),
    )


def leads(cluster: InProcessCluster, leader: int) -> Callable[[], bool]:
    def holds() -> bool:
        told = state_of(cluster).leader if "t" in image_of(cluster, next(iter(cluster.brokers))).topics else -1
        replica = cluster.brokers[leader].serving.logs.replicas.hosted.partitions.get(T0)
        return told == leader and replica is not None and replica.is_leader

    return holds


def test_a_cut_log_waits_for_another_member_of_the_isr() -> None:
    async def run() -> None:
        async with stopped_cluster() as cluster:
            await cluster.start(0)
            replica = replica_of(cluster, 0)
            assert replica.log.log_end_offset < COUNT
            assert not replica.is_leader
            assert (state_of(cluster).leader, sorted(state_of(cluster).isr)) == (-1, list(ALL))
            await cluster.stop(0)  # a clean stop does not repair it
            assert checkpointed(cluster, 0) == COUNT
            await cluster.start(0)
            assert not replica_of(cluster, 0).is_leader
            await cluster.start(1)
            await everybody_knows(cluster, leads(cluster, 1))
            await cluster.start(2)
            await all_in_sync(cluster)
            for broker_id in ALL:
                assert values_in(replica_of(cluster, broker_id)) == list(range(COUNT))
            member = cluster.brokers[0].serving.member
            assert not cluster.brokers[0].serving.logs.log_manager.checkpoints.truncated_below
            await member.publish_truncated_replicas(cluster.brokers[0].serving.logs.log_manager)
            assert not (await member.membership.zk_client.live_brokers(lambda _event: None))[0].truncated_replicas

    asyncio.run(run())


def test_a_cut_log_of_a_broker_that_is_not_the_controller() -> None:
    async def run() -> None:
        async with stopped_cluster((0, 1)) as cluster:
            await cluster.start(2)
            await cluster.start(0)
            hosted = cluster.brokers[0].serving.logs.replicas.hosted
            await everybody_knows(cluster, lambda: T0 in hosted.partitions)
            assert (state_of(cluster).leader, replica_of(cluster, 0).is_leader) == (-1, False)
            await cluster.start(1)
            await everybody_knows(cluster, leads(cluster, 1))
            await everybody_knows(cluster, lambda: sorted(state_of(cluster).isr) == [0, 1])
            assert values_in(replica_of(cluster, 0)) == list(range(COUNT))

    asyncio.run(run())


@pytest.mark.parametrize("first", [0, 2], ids=["the controller", "another broker"])
def test_the_only_member_of_the_isr_leads_all_the_same(first: int) -> None:
    async def run() -> None:
        async with stopped_cluster() as cluster:
            await cluster.set_state("t", 0, lambda state: state.replace(isr=(0,)))
            await cluster.start(first)
            if first:
                await cluster.start(0)
            await everybody_knows(cluster, leads(cluster, 0))
            assert 0 < replica_of(cluster, 0).log.log_end_offset < COUNT

    asyncio.run(run())


def test_a_cut_log_leads_once_unclean_elections_are_allowed() -> None:
    async def run() -> None:
        async with stopped_cluster() as cluster:
            await cluster.start(0)
            assert not replica_of(cluster, 0).is_leader
            async with KafkaClient(ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})) as client:
                change = admin.ConfigChange("unclean.leader.election.enable", "true")
                await admin.alter_configs(client, ConfigResourceType.TOPIC, "t", [change])
            await everybody_knows(cluster, leads(cluster, 0))

    asyncio.run(run())


def test_the_records_are_lost_where_cut_logs_are_trusted() -> None:
    """The mutant of M22: without the rule the tests above fail."""

    async def run() -> None:
        async with stopped_cluster() as cluster:
            for broker_id in ALL:
                await cluster.start(broker_id)
            await all_in_sync(cluster)
            assert values_in(replica_of(cluster, 2)) != list(range(COUNT))

    with CLUSTER_MUTANTS["cut-logs-trusted"]():
        asyncio.run(run())
