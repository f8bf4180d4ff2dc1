"""Dynamic configurations of a real broker: they take effect at once, and outlive a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
)
from protocol.records.batch import build_values_batch
from tests.kit.broker_process import BrokerProcess
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
            # Not 1: `start` looks for the port with a connection of its own.
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
