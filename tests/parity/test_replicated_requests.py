"""Requests whose answers depend on other replicas, to Apache Kafka and this broker: acks=all and DeleteRecords while a
follower does not fetch, and the known leader at a broker that does not lead.

Each leads a topic with the follower, and both follow it in a third one.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.topics import DeleteRecordsRequest
from protocol.records.batch import build_values_batch
from tests.kit.apache_kafka import java_server, zookeeper
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(180)]

APACHE, ODRADEK, FOLLOWER = 0, 1, 2
LEADERS = {"t-apache": APACHE, "t-odradek": ODRADEK}
LED_ELSEWHERE = "t-elsewhere"
NEW_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID


def produced(address: str, topic: str, *, acks: int, timeout_ms: int, version: int) -> dict[str, Any]:
    """The leader's answer to a batch of three records."""
    host, _, port = address.rpartition(":")
    data = ProduceRequest.PartitionProduceData(index=0, records=build_values_batch([b"x"] * 3, 0))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)
    with WireClient(host, int(port)) as client:
        answer: Any = client.ask(request, version)
    partition = answer.responses[0].partition_responses[0]
    fields = ("error_code", "base_offset", "log_append_time_ms", "log_start_offset", "error_message")
    return {field: getattr(partition, field) for field in fields}


def deleted(address: str, topic: str, *, offset: int, timeout_ms: int) -> tuple[int, int]:
    """Error code and low watermark of the leader's answer to DeleteRecords."""
    host, _, port = address.rpartition(":")
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[asked])]
    with WireClient(host, int(port)) as client:
        answer: Any = client.ask(DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms), 2)
    partition = answer.topics[0].partitions[0]
    return partition.error_code, partition.low_watermark


def refused_produce(address: str, topic: str, version: int) -> list[Any]:
    """Produce at a broker that does not lead; returns its error code and its hint at the leader."""
    host, _, port = address.rpartition(":")
    data = ProduceRequest.PartitionProduceData(index=0, records=build_values_batch([b"x"], 0))
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    with WireClient(host, int(port)) as client:
        answer: Any = client.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics), version)
    partition = answer.responses[0].partition_responses[0]
    return [partition.error_code, partition.current_leader, answer.node_endpoints]


def refused_fetch(address: str, topic: str, version: int, epoch: int = -1) -> list[Any]:
    """Like `refused_produce`, for a consumer."""
    host, _, port = address.rpartition(":")
    asked = FetchRequest.FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=1_000
    )
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[asked])]
    with WireClient(host, int(port)) as client:
        if version > 12:
            metadata: Any = client.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), 12)
            topics[0].topic_id = metadata.topics[0].topic_id
        answer: Any = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), version)
    partition = answer.responses[0].partitions[0]
    return [partition.error_code, partition.current_leader, answer.node_endpoints]


def test_answers_that_depend_on_other_replicas(tmp_path: Path) -> None:
    with zookeeper(tmp_path / "zookeeper") as service:
        common = {"zookeeper.connect": service, "zookeeper.session.timeout.ms": "40000"}
        brokers = {
            number: BrokerProcess(
                tmp_path / str(number),
                {"broker.id": str(number), "controlled.shutdown.enable": "false", **common},
            )
            for number in (ODRADEK, FOLLOWER)
        }
        address = f"127.0.0.1:{free_port()}"
        settings = {
            "broker.id": str(APACHE),
            "listeners": f"PLAINTEXT://{address}",
            "log.dirs": str(tmp_path / "apache"),
            "controlled.shutdown.enable": "false",
            **common,
        }
        properties = tmp_path / "apache.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        addresses = {APACHE: address, ODRADEK: brokers[ODRADEK].address}
        try:
            for broker in brokers.values():
                broker.start()
            with java_server("kafka.Kafka", properties, int(address.rpartition(":")[2])):
                answers = with_a_follower_that_pauses(addresses, brokers[FOLLOWER])
                hints = leaders_elsewhere(addresses)
                again = sent_again_below_min_isr(addresses, brokers[FOLLOWER])
        finally:
            for broker in brokers.values():
                broker.kill()
    assert answers["t-odradek"] == answers["t-apache"]
    assert hints[ODRADEK] == hints[APACHE]
    assert hints[APACHE][0][:1] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert answers["t-apache"].pop() == {"deleted": [(ErrorCode.REQUEST_TIMED_OUT, 0), (ErrorCode.NONE, 2)]}
    late = [(each["error_code"], each["base_offset"]) for each in answers["t-apache"][1:]]
    # A known difference (docs/compatibility.md).
    assert again == {APACHE: ErrorCode.NOT_ENOUGH_REPLICAS, ODRADEK: ErrorCode.NONE}
    assert late == [(ErrorCode.REQUEST_TIMED_OUT, 3), (ErrorCode.REQUEST_TIMED_OUT, 6), (ErrorCode.NONE, 9)]


def with_a_follower_that_pauses(addresses: dict[int, str], follower: BrokerProcess) -> dict[str, list[dict[str, Any]]]:
    """The answers to batches before and after the follower stops fetching, by topic."""
    admin = AdminClient({"bootstrap.servers": ",".join(addresses.values()), "log_level": 0})
    everybody = {*addresses, FOLLOWER}
    eventually("all brokers", lambda: set(admin.list_topics(timeout=5).brokers) == everybody, not_yet=(KafkaException,))
    for topic, leader in LEADERS.items():
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[[leader, FOLLOWER]])])[topic].result()
    answers: dict[str, list[dict[str, Any]]] = {}
    for topic, leader in LEADERS.items():
        first = eventually(
            f"the leader of {topic}",
            lambda at=addresses[leader], to=topic: produced(at, to, acks=-1, timeout_ms=30_000, version=11),
            lambda answer: answer["error_code"] != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        answers[topic] = [first]

    def ask(acks: int, timeout_ms: int, version: int) -> None:
        for topic, leader in LEADERS.items():
            wanted = {"acks": acks, "timeout_ms": timeout_ms, "version": version}
            answers[topic].append(produced(addresses[leader], topic, **wanted))

    deletions: dict[str, list[tuple[int, int]]] = {topic: [] for topic in LEADERS}

    def delete(offset: int, timeout_ms: int) -> None:
        for topic, leader in LEADERS.items():
            deletions[topic].append(deleted(addresses[leader], topic, offset=offset, timeout_ms=timeout_ms))

    follower.send_signal(signal.SIGSTOP)
    try:
        ask(-1, 300, 11)
        ask(-1, 0, 7)
        ask(1, 300, 11)
        delete(2, 300)
    finally:
        follower.send_signal(signal.SIGCONT)
    delete(2, 30_000)
    for topic in LEADERS:
        answers[topic].append({"deleted": deletions[topic]})
    return answers


def sent_again_below_min_isr(addresses: dict[int, str], follower: BrokerProcess) -> dict[int, ErrorCode]:
    """The answers to a committed batch that is resent when its leader alone is in sync. Stops the follower."""
    admin = AdminClient({"bootstrap.servers": ",".join(addresses.values()), "log_level": 0})
    config = {"min.insync.replicas": "2"}

    def send(leader: int, sequence: int) -> ErrorCode:
        batch = build_values_batch([b"x"], 0, producer_id=7_000, producer_epoch=0, base_sequence=sequence)
        data = ProduceRequest.PartitionProduceData(index=0, records=batch)
        topics = [ProduceRequest.TopicProduceData(name=f"min-isr-{leader}", partition_data=[data])]
        host, _, port = addresses[leader].rpartition(":")
        with WireClient(host, int(port)) as client:
            answer: Any = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 9)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    for leader in addresses:
        topic = NewTopic(f"min-isr-{leader}", 1, replica_assignment=[[leader, FOLLOWER]], config=config)
        admin.create_topics([topic])[topic.topic].result()
    for leader in addresses:
        eventually("a batch", lambda at=leader: send(at, 0), lambda answer: answer is ErrorCode.NONE)
    follower.stop()
    refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    for leader in addresses:
        eventually("a leader alone", lambda at=leader: send(at, 1), lambda answer: answer is refusal)
    return {leader: send(leader, 0) for leader in addresses}


def leaders_elsewhere(addresses: dict[int, str]) -> dict[int, list[list[Any]]]:
    """The answers of both brokers about a partition that neither leads."""
    admin = AdminClient({"bootstrap.servers": ",".join(addresses.values()), "log_level": 0})
    topic, replicas = LED_ELSEWHERE, [FOLLOWER, APACHE, ODRADEK]
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])])[topic].result()
    answers: dict[int, list[list[Any]]] = {}
    for broker, address in addresses.items():
        eventually(
            "the topic is known",
            lambda at=address: refused_produce(at, topic, 11),
            lambda answer: answer[0] not in NEW_TOPIC and answer[2],
        )
        answers[broker] = [
            refused_produce(address, topic, 11),
            refused_produce(address, topic, 9),
            refused_fetch(address, topic, 17),
            refused_fetch(address, topic, 15),
            refused_fetch(address, topic, 17, epoch=9),
        ]
    return answers
