"""Brokers with TLS and SASL under test, and the settings that they give to client libraries."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

import odradek
from tests.kit.waiting import PATIENCE_S

KAFKA_PYTHON = """
import json, sys
from kafka import KafkaProducer
producer = KafkaProducer(**json.loads(sys.argv[1]))
producer.send("orders", b"kafka-python").get(60)
producer.close()
"""
KINDS = [(True, None), (False, "PLAIN"), (True, "SCRAM-SHA-512"), (False, "SCRAM-SHA-256")]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def broker(request: pytest.FixtureRequest) -> Iterator[odradek.Broker]:
    tls, sasl = request.param
    with odradek.Broker(tls=tls, sasl=sasl) as running:
        running.reset()
        yield running


def test_clients_take_the_settings(broker: odradek.Broker) -> None:
    with broker.expect("orders", count=3) as got:
        librdkafka = Producer(broker.client_config("confluent"))
        librdkafka.produce("orders", b"confluent")
        assert librdkafka.flush(60) == 0
        settings = json.dumps(broker.client_config("kafka-python"))
        subprocess.run([sys.executable, "-c", KAFKA_PYTHON, settings], timeout=90, check=True)

        async def send() -> None:
            async with AIOKafkaProducer(**broker.client_config("aiokafka")) as producer:
                await producer.send_and_wait("orders", b"aiokafka")

        asyncio.run(send())
    assert {each.value for each in got} == {b"confluent", b"kafka-python", b"aiokafka"}


def test_other_libraries_get_theirs(broker: odradek.Broker) -> None:
    java = broker.client_config("java")
    assert java["bootstrap.servers"] == broker.bootstrap_servers
    assert broker.client_config("spark") == {f"kafka.{name}": value for name, value in java.items()}
    kafkajs = json.loads(json.dumps(broker.client_config("kafkajs")))
    assert kafkajs["brokers"] == [broker.bootstrap_servers]
    assert ("ssl" in kafkajs) == ("SSL" in java["security.protocol"])
    assert ("sasl" in kafkajs) == ("SASL" in java["security.protocol"])


def refused(settings: dict[str, Any]) -> bool:
    try:
        AdminClient({**settings, "log_level": 0}).list_topics(timeout=1)
    except KafkaException:
        return True
    return False


def test_other_clients_are_refused(broker: odradek.Broker) -> None:
    settings = broker.client_config("confluent")
    assert refused({"bootstrap.servers": broker.bootstrap_servers})
    if "sasl.password" in settings:
        assert refused({**settings, "sasl.password": "another"})
    if "ssl.ca.location" in settings:
        assert refused({name: value for name, value in settings.items() if name != "ssl.ca.location"})
    assert not refused(settings)


def test_users_and_acls() -> None:
    config = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    with odradek.Broker(config=config, sasl="SCRAM-SHA-256") as broker:
        broker.create_topic("orders")
        broker.create_user("shop", "secret", mechanism="SCRAM-SHA-256")
        settings = {**broker.client_config("confluent"), "sasl.username": "shop", "sasl.password": "secret"}
        outcomes: list[str] = []
        shop = Producer({**settings, "message.timeout.ms": 60_000})
        shop.produce("orders", b"A1", on_delivery=lambda error, _: outcomes.append(error.name()))
        assert shop.flush(70) == 0
        assert outcomes == ["TOPIC_AUTHORIZATION_FAILED"]
        admin = Producer(broker.client_config("confluent"))
        admin.produce("orders", b"A2")
        assert admin.flush(60) == 0
        assert [each.value for each in broker.records("orders")] == [b"A2"]


def sent(settings: dict[str, Any], value: bytes) -> str | None:
    """Produce one record; returns the name of the error."""
    outcomes: list[str | None] = []
    client = Producer({**settings, "enable.idempotence": True, "message.timeout.ms": 60_000, "log_level": 0})
    client.produce("orders", value, on_delivery=lambda error, _: outcomes.append(error and error.name()))
    assert client.flush(70) == 0
    return outcomes[0]


@pytest.mark.parametrize(("tls", "sasl"), [(True, "SCRAM-SHA-512"), (False, "PLAIN")])
def test_a_cluster_with_security(tls: bool, sasl: str) -> None:
    config = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    with odradek.Cluster(config=config, tls=tls, sasl=sasl) as cluster:
        cluster.create_topic("orders", replication_factor=3)
        settings = cluster.client_config("confluent")
        assert sent(settings, b"A1") is None
        assert refused({"bootstrap.servers": cluster.bootstrap_servers})
        leader = cluster.await_leader("orders")
        cluster.kill(leader)
        cluster.await_leader("orders", among=set(cluster.brokers) - {leader}, within=PATIENCE_S)
        assert sent(settings, b"A2") is None
        cluster.restart(leader)
        cluster.await_isr("orders", cluster.brokers, within=PATIENCE_S)
        cluster.partition({leader}, set(cluster.brokers) - {leader})
        cluster.await_isr("orders", set(cluster.brokers) - {leader}, within=PATIENCE_S)
        assert [each.value for each in cluster.records("orders")] == [b"A1", b"A2"]
        if sasl != "PLAIN":
            cluster.create_user("shop", "secret")
            shop = {**settings, "sasl.username": "shop", "sasl.password": "secret"}
            assert sent(shop, b"A3") == "TOPIC_AUTHORIZATION_FAILED"


def test_unknown_names() -> None:
    with pytest.raises(odradek.OdradekError, match="unknown SASL mechanism 'GSSAPI'; there are: PLAIN, SCRAM-SHA-256"):
        odradek.Broker(sasl="GSSAPI")
    with odradek.Broker() as broker:
        with pytest.raises(odradek.OdradekError, match="unknown client library 'sarama'; there are: aiokafka, conflu"):
            broker.client_config("sarama")
        with pytest.raises(odradek.OdradekError, match="mechanism is not one of SCRAM-SHA-256, SCRAM-SHA-512: "):
            broker.create_user("shop", "secret", mechanism="PLAIN")
