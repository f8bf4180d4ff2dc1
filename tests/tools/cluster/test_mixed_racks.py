"""Clusters where only some brokers have a rack: refusals and results of both controllers, and the output of both
tools.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from protocol.messages.metadata import MetadataRequest
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, CreateTopicsResponse
from protocol.wire.schema import Request
from tests.kit.controller.reassigning import ask_controller
from tests.kit.wire_client import WireClient
from tests.tools.cluster.mixed_brokers import APACHE, NOBODY, ODRADEK, Cluster
from tests.tools.tool_pair import Runner, lines_of

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

Topic = CreateTopicsRequest.CreatableTopic
Assigned = CreateTopicsRequest.CreatableReplicaAssignment
Growing = CreatePartitionsRequest.CreatePartitionsTopic
Added = CreatePartitionsRequest.CreatePartitionsAssignment


def creation(name: str, *replicas: int, validate_only: bool = False) -> CreateTopicsRequest:
    """Create a topic with two partitions anywhere, or with one on these replicas."""
    assignments = [Assigned(partition_index=0, broker_ids=list(replicas))] if replicas else []
    number = -1 if replicas else 2
    topic = Topic(
        name=name, num_partitions=number, replication_factor=-1 if replicas else 1, assignments=assignments, configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only)


def growth(name: str, *replicas: int, validate_only: bool = False) -> CreatePartitionsRequest:
    """Add a partition to a topic, anywhere or on these replicas."""
    assignments = [Added(broker_ids=list(replicas))] if replicas else None
    topic = Growing(name=name, count=2, assignments=assignments)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=30_000, validate_only=validate_only)


def requests(topic: str) -> list[tuple[Request, int]]:
    """Requests to the controller for a topic with one partition, with their versions."""
    return [
        (creation(f"{topic}-anywhere"), 7),
        (creation(f"{topic}-anywhere", validate_only=True), 7),
        (creation(f"{topic}-placed", APACHE), 7),
        (growth(f"{topic}-missing"), 3),
        (growth(topic), 3),
        (growth(topic, validate_only=True), 3),
        (growth(topic, ODRADEK, validate_only=True), 3),
        (growth(topic, ODRADEK), 3),
    ]


def answers(cluster: Cluster, topic: str) -> list[tuple[str, object]]:
    """Answers of the controller, without the name of the topic."""
    said: list[tuple[str, object]] = []
    for request, version in requests(topic):
        answer = ask_controller(cluster.addresses, request, version, 60)
        [result] = answer.topics if isinstance(answer, CreateTopicsResponse) else answer.results  # type: ignore[attr-defined]
        told = (type(request).__name__, result.name.replace(topic, "TOPIC"))
        said.append((" ".join(told), (result.error_code, result.error_message)))
    for address in cluster.addresses.split(","):
        host, port = address.split(":")
        wanted = [MetadataRequest.MetadataRequestTopic(name=f"{topic}-{port}")]
        with WireClient(host, int(port)) as client:
            answer = client.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True), 9)
        said.append(("created by itself", [each.error_code for each in answer.topics]))  # type: ignore[attr-defined]
    return said


def words_of(cluster: Cluster, runner: Runner, topic: str, scratch: Path) -> list[tuple[str, object]]:
    """Output of kafka-topics and kafka-reassign-partitions, without the name of the topic."""
    path = scratch / "topics.json"
    path.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    generate = f"reassign_partitions --generate --topics-to-move-json-file {path} --broker-list"
    said: list[tuple[str, object]] = []
    for line in (
        f"topics --create --topic {topic}-new --partitions 2 --replication-factor 1",
        f"topics --create --topic {topic}-new --replica-assignment {APACHE}",
        f"topics --alter --topic {topic} --partitions 3",
        f"topics --alter --topic {topic} --partitions 3 --replica-assignment {APACHE},{ODRADEK},{ODRADEK}",
        f"{generate} {APACHE},{ODRADEK}",
        f"{generate} {NOBODY}",
        f"{generate} {APACHE},{ODRADEK},{NOBODY}",
        f"{generate} {APACHE},{ODRADEK},{NOBODY} --disable-rack-aware",
    ):
        tool, *args = line.split()
        answer = runner.run(tool, ["--bootstrap-server", cluster.addresses, *args])
        # The proposal is random.
        lines = [re.sub(r'("replicas":\[)\d+', r"\1", each).replace(topic, "TOPIC") for each in lines_of(answer)]
        said.append((line.replace(topic, "TOPIC").replace(str(path), "FILE"), (answer.code, lines)))
    return said


def test_racks_that_only_some_brokers_have(cluster: Cluster, kafkas: Runner, ours: Runner, tmp_path: Path) -> None:
    said: dict[tuple[int, str], list[tuple[str, object]]] = {}
    for controller in (APACHE, ODRADEK):
        cluster.elect_controller(controller)
        for runner in (kafkas, ours):
            topic = f"{runner.side}{controller}"
            cluster.create_topic(topic, [APACHE])
            cluster.create_topic(f"{topic}t", [ODRADEK])
            with cluster.with_nobody("r"):
                said[controller, runner.side] = [
                    *answers(cluster, topic),
                    *words_of(cluster, runner, f"{topic}t", tmp_path),
                ]
    expected = said[APACHE, kafkas.side]
    differences = [
        f"{what}\n  Kafka: {theirs}\n  {who}: {mine}"
        for who, steps in said.items()
        for (what, theirs), (_, mine) in zip(expected, steps, strict=True)
        if theirs != mine
    ]
    assert not differences, "\n".join(differences)
