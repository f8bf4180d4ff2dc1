"""Topics in a real process: kill -9, a lost journal, a directory that another cluster wrote."""

from __future__ import annotations

from pathlib import Path

from protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsResponse
from protocol.uuids import Uuid
from tests.broker.metadata.test_dynamic_configs import TOPIC, value_of
from tests.kit.broker_process import BrokerProcess
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import delete_topics


def client_of(broker: BrokerProcess) -> WireClient:
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


def create(client: WireClient, names: list[str], partitions: int) -> None:
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    response = client.ask(CreateTopicsRequest(topics=topics), 5)
    assert isinstance(response, CreateTopicsResponse)
    assert [topic.error_message for topic in response.topics] == [None] * len(names)


def topics_of(broker: BrokerProcess) -> dict[str | None, tuple[Uuid, list[tuple[int, int]]]]:
    """By name: the id, and leader and error of every partition."""
    with client_of(broker) as client:
        response = client.ask(MetadataRequest(topics=None), 12)
        assert isinstance(response, MetadataResponse)
        return {
            topic.name: (topic.topic_id, [(each.leader_id, each.error_code) for each in topic.partitions])
            for topic in response.topics
        }


def cluster_id_of(broker: BrokerProcess) -> str:
    with client_of(broker) as client:
        response = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
        assert isinstance(response, DescribeClusterResponse)
        return response.cluster_id


def test_every_acknowledged_change_survives_kill_9(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        with client_of(broker) as client:
            create(client, [f"t{number}" for number in range(10)], 3)
            client.ask(delete_topics("t0", "t1"), 3)
            create(client, ["t0"], 1)
            grown = CreatePartitionsRequest.CreatePartitionsTopic(name="t2", count=5, assignments=None)
            client.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=False), 1)
        before, cluster_id = topics_of(broker), cluster_id_of(broker)
        assert {name: len(partitions) for name, (_, partitions) in before.items()} == {
            "t0": 1, "t2": 5, **{f"t{number}": 3 for number in range(3, 10)}
        }  # fmt: skip
        broker.kill()
        broker.start()
        assert topics_of(broker) == before
        assert cluster_id_of(broker) == cluster_id
    finally:
        broker.kill()


def test_topics_are_adopted_when_the_journal_is_lost(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        with client_of(broker) as client:
            create(client, ["kept", "kept-too"], 3)
        before, cluster_id = topics_of(broker), cluster_id_of(broker)
        broker.kill()
        (journal,) = tmp_path.rglob("odradek-coordination.journal")
        journal.unlink()
        broker.start()
        assert topics_of(broker) == before
        assert cluster_id_of(broker) == cluster_id
        with client_of(broker) as client:
            assert [value_of(client, TOPIC, "kept", f"retention.{unit}") for unit in ("ms", "bytes")] == ["-1", "-1"]
    finally:
        broker.kill()
