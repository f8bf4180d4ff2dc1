"""A partition without in-sync replicas gets a leader when its topic is changed to allow unclean elections."""

from __future__ import annotations

import asyncio

from client import admin
from client.kafka_client import KafkaClient
from client.settings import ClientSettings
from protocol.config_resources import ConfigResourceType
from tests.broker.test_in_process_cluster import (
    SETTINGS,
    everybody_knows,
    image_of,
    produce,
    replica_of,
    values_in,
)
from tests.kit.in_process_cluster import InProcessCluster

KEY = "unclean.leader.election.enable"
COMMON, LOST = 10, 5
"""The number of records that both replicas have, and of those that only the in-sync one has."""


def test_a_topic_that_comes_to_allow_them_is_led_again() -> None:
    async def run() -> None:
        async with InProcessCluster(3, **SETTINGS) as cluster:
            await everybody_knows(cluster, lambda: all(len(image_of(cluster, each).brokers) == 3 for each in range(3)))
            values = {"bootstrap.servers": cluster.bootstrap_servers}
            async with KafkaClient(ClientSettings.parse(values)) as client:
                await admin.create_topic(client, "t", assignment={0: (0, 1)})
                await produce(cluster, client, range(COMMON))
                await cluster.stop(1)
                await everybody_knows(cluster, lambda: image_of(cluster, 0).topics["t"].partitions[0].isr == (0,))
                await produce(cluster, client, range(COMMON, COMMON + LOST))
                await cluster.stop(0)
                await cluster.start(1)
                await everybody_knows(cluster, lambda: "t" in image_of(cluster, 1).topics)
                for broker_id in (1, 2):
                    state = image_of(cluster, broker_id).topics["t"].partitions[0]
                    assert (state.leader, state.isr) == (-1, (0,))
                change = admin.ConfigChange(KEY, "true")
                await admin.alter_configs(client, ConfigResourceType.TOPIC, "t", [change])
                await everybody_knows(cluster, lambda: replica_of(cluster, 1).is_leader)
                counts = [each.serving.member.unclean_elections.count for each in cluster.brokers.values()]
                assert sorted(counts) == [0, 1], "of the controller"
                await cluster.start(0)
                await everybody_knows(
                    cluster, lambda: sorted(image_of(cluster, 2).topics["t"].partitions[0].isr) == [0, 1]
                )
                await produce(cluster, client, range(100, 102))
                for broker_id in (0, 1):
                    assert values_in(replica_of(cluster, broker_id)) == [*range(COMMON), 100, 101]

    asyncio.run(run())
