"""Dynamic configurations of a real broker: they take effect at once, and survive a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.metadata.dynamic_configs import DynamicConfigs
from broker.metadata.metadata_cache import MetadataCache
from cluster.controller.commands import CommandFence, TopicStates
from cluster.metadata_image import ConfigResource, MetadataImage
from protocol.errors import ErrorCode
from protocol.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.produce import ProduceRequest
from protocol.records.batch import build_values_batch
from tests.kit.broker_process import BrokerProcess
from tests.kit.environment import uuid_of
from tests.kit.waiting import turns
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import new_topic

TOPIC, BROKER = 2, 4
SET = 0


def connect(broker: BrokerProcess) -> WireClient:
    host, _, port = broker.address.rpartition(":")
    return WireClient(host, int(port))


def alter(client: WireClient, resource_type: int, name: str, key: str, value: str) -> None:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=SET, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=[change]
    )
    answer: Any = client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


def value_of(client: WireClient, resource_type: int, name: str, key: str) -> str | None:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=[key]
    )
    answer: Any = client.ask(DescribeConfigsRequest(resources=[asked]), 4)
    value: str | None = answer.results[0].configs[0].value
    return value


def produce(client: WireClient, size: int) -> ErrorCode:
    data = ProduceRequest.PartitionProduceData(index=0, records=build_values_batch([b"x" * size], 0))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    answer: Any = client.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 11)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def test_changes_take_effect_at_once_and_outlive_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        with connect(broker) as client:
            client.ask(new_topic("t"), 7)
            assert produce(client, 2000) is ErrorCode.NONE
            alter(client, BROKER, "", "message.max.bytes", "1000")
            assert produce(client, 2000) is ErrorCode.MESSAGE_TOO_LARGE
            alter(client, TOPIC, "t", "max.message.bytes", "5000")
            assert produce(client, 2000) is ErrorCode.NONE
            # Not 1: `start` opens a connection to wait for the port.
            alter(client, BROKER, "0", "max.connections.per.ip", "2")
            with connect(broker), connect(broker) as refused:
                assert refused.is_closed(within_s=60)
        broker.kill()
        broker.start()
        with connect(broker) as client:
            assert value_of(client, BROKER, "", "message.max.bytes") == "1000"
            assert value_of(client, BROKER, "0", "max.connections.per.ip") == "2"
            assert value_of(client, TOPIC, "t", "max.message.bytes") == "5000"
            assert produce(client, 6000) is ErrorCode.MESSAGE_TOO_LARGE
    finally:
        broker.kill()


class HeldTree:
    """The configurations in the tree; while `held`, a read is answered later, with the data from when it began."""

    def __init__(self) -> None:
        self.configs: dict[str, Mapping[str, str]] = {}
        self.held: asyncio.Future[None] | None = None

    async def config_changes(self, _watch: object, _last: str) -> list[tuple[str, ConfigResource | None]]:
        return []

    async def read_config(self, resource: ConfigResource) -> Mapping[str, str]:
        found = self.configs.get(resource[1], {})
        if self.held is not None:
            await self.held
        return found


def test_a_topic_that_is_made_again_while_its_configuration_is_read_gets_the_new_one() -> None:
    async def scenario() -> None:
        tree, metadata = HeldTree(), MetadataCache(CommandFence(), MetadataImage())
        membership: Any = SimpleNamespace(
            zk_client=tree, coordination=None, is_shared=True, on_session_change=lambda _ended, _began: None
        )
        configs = DynamicConfigs(membership, metadata)
        tree.configs["t"] = {"retention.ms": "1"}
        tree.held = held = asyncio.get_running_loop().create_future()
        first = asyncio.ensure_future(configs.read_before([TopicStates("t", uuid_of(1), ())]))
        await turns()
        tree.configs["t"] = {"retention.ms": "2"}
        second = asyncio.ensure_future(configs.read_before([TopicStates("t", uuid_of(2), ())]))
        await turns()
        tree.held = None
        held.set_result(None)
        await first
        await second
        assert metadata.image.config(TOPIC, "t") == {"retention.ms": "2"}
        await configs.close()

    asyncio.run(scenario())
