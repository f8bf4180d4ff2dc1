"""A broker process over a tree with damaged nodes: it starts, serves the rest, and uses repaired nodes again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from broker.metadata.topic_configs import log_config_of
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.config_resources import ConfigResourceType
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.zookeeper import served_tree

GARBAGE = b"gar{bage \xff"
CONFIGS = ("topics/h", "brokers/0", "brokers/<default>", "brokers/x", "users/u", "clients/c", "ips/1.2.3.4")


@contextmanager
def tree(directory: Path) -> Iterator[KazooClient]:
    with served_tree(directory) as server:
        client = KazooClient(server.address)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()


def create(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    (created,) = admin.create_topics([NewTopic(name, 2, 1)]).values()
    created.result(30)


def produce(address: str, topic: str, value: bytes) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for partition in (0, 1):
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None, None]


def leaders(address: str) -> dict[str, list[bool]]:
    """Whether each partition of each topic has a leader."""
    topics = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=10).topics
    return {name: [each.leader >= 0 for each in topic.partitions.values()] for name, topic in topics.items()}


def led(address: str) -> set[str]:
    """The topics whose partitions all have leaders."""
    return {name for name, each in leaders(address).items() if all(each)}


def values(address: str, topic: str) -> list[bytes | None]:
    settings = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer(settings | {"enable.partition.eof": False})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def has_all() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) == 2

    try:
        eventually(f"the records of {topic}", has_all, pause_s=0)
    finally:
        consumer.close()
    return found


def test_the_rest_is_served_and_what_is_mended_is_taken_back(tmp_path: Path) -> None:
    with tree(tmp_path / "tree") as zookeeper:
        hosts = "{}:{}".format(*zookeeper.hosts[0])
        broker = BrokerProcess(tmp_path / "broker", {"zookeeper.connect": hosts})
        try:
            broker.start()
            for name in ("h", "p", "q"):
                create(broker.address, name)
                produce(broker.address, name, name.encode())
            assert broker.stop() == 0
            paths = ["/brokers/topics/p", "/brokers/topics/q/partitions/0/state"]
            whole = {path: zookeeper.get(path)[0] for path in paths}
            epoch = int(zookeeper.get("/controller_epoch")[0])
            for path in (*paths, *(f"/config/{each}" for each in CONFIGS), "/brokers/topics/g", "/brokers/ids/7"):
                zookeeper.ensure_path(path)
                zookeeper.set(path, GARBAGE)
            broker.start()
            produce(broker.address, "h", b"more")
            create(broker.address, "new")
            produce(broker.address, "new", b"new")
            assert leaders(broker.address) == {"h": [True, True], "new": [True, True], "q": [False, True]}
            with pytest.raises(KafkaException, match="already exists"):
                create(broker.address, "g")
            for path, data in whole.items():
                zookeeper.set(path, data)
            eventually("all have leaders", lambda: led(broker.address) >= {"h", "new", "p", "q"})
            for name in ("p", "q"):
                assert values(broker.address, name) == [name.encode()] * 2
            assert int(zookeeper.get("/controller_epoch")[0]) == epoch + 1
            assert broker.stop() == 0
        finally:
            broker.kill()
    said = broker.output.read_text()
    assert "Traceback" not in said
    assert not list((tmp_path / "broker" / "data").glob("*-stray"))
    for path in (*paths, *(f"/config/{each}" for each in CONFIGS), "/brokers/topics/g", "/brokers/ids/7"):
        assert said.count(f"{path} cannot be understood") == 1, path


def test_values_that_cannot_be_used_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka does not start with them. The intended retention limit may have been longer."""
    overrides = {"retention.ms": "soon", "retention.bytes": "7", "max.message.bytes": "-5", "segment.ms": "99"}
    image = MetadataImage(configs={(int(ConfigResourceType.TOPIC), "t"): overrides})
    config = log_config_of(BrokerConfig.of({"log.dirs": "/d", "message.max.bytes": "1000"}), image, "t")
    assert (config.retention_ms, config.retention_bytes) == (-1, 7)
    assert (config.max_message_bytes, config.segment_ms) == (1000, 99)
    named = [each.split(":")[0] for each in caplog.messages]
    assert named == [f"Configuration {name} of topic t is ignored" for name in ("retention.ms", "max.message.bytes")]
