"""acks=all that is not reached in time, asked of Apache Kafka and of this broker.

Each leads a topic with a follower that does not fetch.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.messages import ProduceRequest
from protocol.records.batch import build_values_batch
from tests.kit.apache_kafka import java_server, zookeeper
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(180)]

APACHE, ODRADEK, FOLLOWER = 0, 1, 2
LEADERS = {"t-apache": APACHE, "t-odradek": ODRADEK}


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


def test_a_batch_that_is_not_replicated_in_time_is_answered_with_its_offset(tmp_path: Path) -> None:
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
        finally:
            for broker in brokers.values():
                broker.kill()
    assert answers["t-odradek"] == answers["t-apache"]
    late = [(each["error_code"], each["base_offset"]) for each in answers["t-apache"][1:]]
    assert late == [(ErrorCode.REQUEST_TIMED_OUT, 3), (ErrorCode.REQUEST_TIMED_OUT, 6), (ErrorCode.NONE, 9)]


def with_a_follower_that_pauses(addresses: dict[int, str], follower: BrokerProcess) -> dict[str, list[dict[str, Any]]]:
    """The answers to batches before and after the follower ceases to fetch, by topic."""
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

    follower.send_signal(signal.SIGSTOP)
    try:
        ask(-1, 300, 11)
        ask(-1, 0, 7)
        ask(1, 300, 11)
    finally:
        follower.send_signal(signal.SIGCONT)
    return answers
