"""The same operations on a few topics in Apache Kafka's ZooKeeper and in our tree: the nodes and payloads are equal."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from cluster import znodes
from cluster.controller.topics import NewTopic
from protocol.config_resources import ConfigResourceType
from protocol.messages.configs import IncrementalAlterConfigsRequest
from protocol.messages.producer_ids import InitProducerIdRequest
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.controller.controller_fixtures import Cluster
from tests.kit.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

MASKED = {"topic_id": "<id>", "timestamp": "<time>", "port": "<port>", "endpoints": "<endpoints>", "host": "<host>"}
SET = 0


def live_with_kafka(address: str) -> None:
    """Create, configure, grow and delete over the wire."""
    host, port = address.split(":")
    with WireClient(host, int(port)) as client:
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key, value=each) for key, each in config.items()
                ],
            )
            for name, partitions, config in (
                ("plain", 2, {}),
                ("configured", 1, {"retention.ms": "1000", "cleanup.policy": "compact"}),
                ("doomed", 3, {}),
            )
        ]
        created = client.ask(CreateTopicsRequest(topics=topics), 5)
        assert isinstance(created, CreateTopicsResponse)
        assert [topic.error_message for topic in created.topics] == [None] * 3
        client.ask(
            CreatePartitionsRequest(
                topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="plain", count=4, assignments=None)],
                timeout_ms=10_000,
                validate_only=False,
            ),
            1,
        )
        client.ask(DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=10_000), 3)
        for resource_type, name, key, value in (
            (ConfigResourceType.TOPIC, "plain", "retention.ms", "5000"),
            (ConfigResourceType.BROKER, "", "log.cleaner.threads", "2"),
        ):
            change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=SET, value=value)
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource_type, resource_name=name, configs=[change]
            )
            client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 0)
        client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 0)


async def live_with_us() -> dict[str, bytes | None]:
    """The same operations through our controller."""
    cluster = await Cluster().start()
    service = cluster.service
    await service.create_topics(
        [
            NewTopic("plain", 2, 1),
            NewTopic("configured", 1, 1, config={"retention.ms": "1000", "cleanup.policy": "compact"}),
            NewTopic("doomed", 3, 1),
        ]
    )
    await service.create_partitions("plain", 4, None)
    await service.delete_topics(["doomed"])
    await cluster.configs.alter_configs({(ConfigResourceType.TOPIC, "plain"): {"retention.ms": "5000"}})
    await cluster.configs.alter_configs({(ConfigResourceType.BROKER, ""): {"log.cleaner.threads": "2"}})
    await cluster.allocate_producer_ids()
    return await cluster.tree()


def dump(address: str) -> dict[str, bytes | None]:
    client = KazooClient(hosts=address)
    client.start()
    nodes: dict[str, bytes | None] = {}
    unread = ["/"]
    try:
        while unread:
            path = unread.pop()
            try:
                nodes[path] = client.get(path)[0]
                children = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
            except NoNodeError:  # Kafka is still deleting a topic
                nodes.pop(path, None)
                continue
            unread.extend(child for child in children if child != "/zookeeper")
    finally:
        client.stop()
        client.close()
    return nodes


def plain(path: str, data: bytes | None) -> Any:
    """The payload without the parts that differ between clusters."""
    if not data or path == "/controller_epoch":
        return data or None
    value = json.loads(data)
    if path == "/cluster/id":
        value["id"] = "<id>"
    return {key: MASKED.get(key, each) for key, each in value.items()}


def plain_nodes(nodes: Mapping[str, bytes | None]) -> dict[str, Any]:
    return {path: plain(path, data) for path, data in nodes.items()}


def test_the_same_nodes_and_payloads(tmp_path: Path) -> None:
    ours = asyncio.run(live_with_us())
    kafka = ApacheKafka(tmp_path)
    kafka.start()
    try:
        live_with_kafka(kafka.address)
        # Its controller continues after its answers: then it deletes a topic and reserves producer ids.
        deadline = time.monotonic() + 60
        while plain_nodes(theirs := dump(kafka.zookeeper_address)) != plain_nodes(ours) and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        kafka.stop()
    assert sorted(ours) == sorted(theirs)
    assert plain_nodes(ours) == plain_nodes(theirs)
    read_and_write_back(theirs)


def read_and_write_back(nodes: dict[str, bytes | None]) -> None:
    """Our codecs reproduce Kafka's bytes."""
    broker = nodes[znodes.broker_path(0)]
    assert znodes.BrokerRegistration.decode(0, broker).encode() == broker
    for topic in ("plain", "configured"):
        assignment = nodes[znodes.topic_path(topic)]
        assert znodes.TopicAssignment.decode(topic, assignment).encode() == assignment
        state = nodes[znodes.partition_state_path(topic, 0)]
        assert znodes.PartitionState.decode(topic, 0, state).encode() == state
        config = nodes[znodes.config_path("topics", topic)]
        assert sorted(znodes.decode_config("", config)) == sorted(json.loads(config or b"")["config"])
    cluster_id = nodes[znodes.CLUSTER_ID]
    assert znodes.encode_cluster_id(znodes.decode_cluster_id(cluster_id)) == cluster_id
    assert nodes[znodes.FEATURE] == znodes.encode_feature()
    block = nodes[znodes.PRODUCER_ID_BLOCK]
    assert block is not None
    assert znodes.ProducerIdBlock.decode(block).encode() == block
