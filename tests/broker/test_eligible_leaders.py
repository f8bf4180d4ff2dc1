"""A partition whose last in-sync replica is gone is led by an eligible one (KIP-966), in whole brokers.

Kafka's controllers on ZooKeeper leave such a partition without a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from client import admin
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from protocol.config_resources import ConfigResourceType
from tests.broker.test_in_process_cluster import (
    SETTINGS,
    T0,
    everybody_knows,
    image_of,
    produce,
    replica_of,
    state_of,
    values_in,
)
from tests.kit.in_process_cluster import InProcessCluster

COUNT = 20


@contextlib.asynccontextmanager
async def last_replica(**settings: str) -> AsyncIterator[tuple[InProcessCluster, KafkaClient]]:
    """Broker 0 leads, alone in the ISR, with the same records as broker 1; broker 1 has stopped, and 2 runs without a
    replica.

    min.insync.replicas is 2.
    """
    async with InProcessCluster(3, **SETTINGS, min_insync_replicas="2", **settings) as cluster:
        await everybody_knows(cluster, lambda: all(len(image_of(cluster, each).brokers) == 3 for each in range(3)))
        async with KafkaClient(ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})) as client:
            await admin.create_topic(client, "t", assignment={0: (0, 1)})
            await produce(cluster, client, range(COUNT))
            await cluster.stop(1)
            await everybody_knows(cluster, lambda: replica_of(cluster, 0).image.isr == (0,))
            yield cluster, client


async def is_led_by(cluster: InProcessCluster, leader: int) -> None:
    await everybody_knows(cluster, lambda: all(told_leader(cluster, each) == leader for each in cluster.brokers))


def told_leader(cluster: InProcessCluster, broker_id: int) -> int | None:
    partition = image_of(cluster, broker_id).partition(T0)
    return None if partition is None else partition.leader


async def both_have_all(cluster: InProcessCluster) -> None:
    await everybody_knows(cluster, lambda: sorted(state_of(cluster).isr) == [0, 1])
    for broker_id in (0, 1):
        assert values_in(replica_of(cluster, broker_id))[:COUNT] == list(range(COUNT))


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_who_left_the_isr_last_leads(enabled: str) -> None:
    async def run() -> None:
        async with last_replica(eligible_leader_replicas_enable=enabled) as (cluster, client):
            await cluster.stop(0)
            await is_led_by(cluster, -1)
            await cluster.start(1)
            if enabled == "true":
                await is_led_by(cluster, 1)
                assert values_in(replica_of(cluster, 1)) == list(range(COUNT))
            else:
                await everybody_knows(cluster, lambda: len(image_of(cluster, 1).brokers) == 2)
                assert told_leader(cluster, 2) == -1
            await cluster.start(0)
            await both_have_all(cluster)
            await produce(cluster, client, range(COUNT, COUNT + 5))

    asyncio.run(run())


def test_who_did_not_stop_cleanly_has_to_wait_for_the_other() -> None:
    async def run() -> None:
        async with last_replica(eligible_leader_replicas_enable="true") as (cluster, _client):
            await cluster.stop(0)
            cluster.disk(1).remove("/data/.kafka_cleanshutdown")  # as if it had been killed
            await cluster.start(1)
            await everybody_knows(cluster, lambda: len(image_of(cluster, 1).brokers) == 2)
            assert told_leader(cluster, 2) == -1
            await cluster.start(0)
            await is_led_by(cluster, 0)
            await both_have_all(cluster)

    asyncio.run(run())


def test_a_last_replica_that_did_not_stop_cleanly_is_not_trusted() -> None:
    """The data loss that KIP-966 prevents."""

    async def run() -> None:
        async with last_replica(eligible_leader_replicas_enable="true") as (cluster, _client):
            await cluster.stop(0)
            disk = cluster.disk(0)
            disk.remove("/data/.kafka_cleanshutdown")
            disk.write_file("/data/t-0/00000000000000000000.log", b"")
            disk.remove("/data/replication-offset-checkpoint")  # the high watermark is lost, too
            disk.remove("/data/recovery-point-offset-checkpoint")
            await cluster.start(0)
            await everybody_knows(cluster, lambda: state_of(cluster).isr == (1,))
            assert told_leader(cluster, 2) == -1
            await cluster.start(1)
            await is_led_by(cluster, 1)
            await both_have_all(cluster)

    asyncio.run(run())


def test_a_smaller_limit_lets_the_last_replica_go_on() -> None:
    async def run() -> None:
        async with last_replica(eligible_leader_replicas_enable="true") as (cluster, client):
            waiting = asyncio.ensure_future(produce(cluster, client, range(COUNT, COUNT + 5)))
            change = admin.ConfigChange("min.insync.replicas", "1")
            await admin.alter_configs(client, ConfigResourceType.TOPIC, "t", [change])
            await everybody_knows(cluster, lambda: replica_of(cluster, 0).image.eligible is None)
            await waiting
            assert values_in(replica_of(cluster, 0)) == list(range(COUNT + 5))
            await cluster.stop(0)
            await cluster.start(1)
            await everybody_knows(cluster, lambda: len(image_of(cluster, 1).brokers) == 2)
            assert told_leader(cluster, 2) == -1

    asyncio.run(run())
