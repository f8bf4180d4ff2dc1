"""A broker process whose tree is in a real ZooKeeper: it runs, or reports in one line why it cannot."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cluster import znodes
from tests.kit.broker_process import BrokerProcess
from tests.kit.zookeeper import new_session, real_zookeeper, something_else
from tests.kit.zookeeper_process import ZookeeperProcess
from zookeeper.coordination import NoNodeError

pytestmark = [pytest.mark.java]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    with real_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def connect(server: ZookeeperProcess) -> str:
    """zookeeper.connect for a new cluster."""
    return f"{server.address}/{secrets.token_hex(8)}"


def broker(directory: Path, connect: str, **settings: str) -> BrokerProcess:
    overrides = {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": "4000"}
    return BrokerProcess(directory, overrides | {name.replace("_", "."): value for name, value in settings.items()})


@contextmanager
def running(process: BrokerProcess) -> Iterator[BrokerProcess]:
    process.start()
    try:
        yield process
    finally:
        process.stop()


def last_words(process: BrokerProcess) -> str:
    """Why a broker did not start: its only line above INFO."""
    with process.output.open("ab") as output:
        assert process.spawn(output).wait(60) == 1
    lines = [line for line in process.output.read_text().splitlines() if " INFO " not in line]
    assert len(lines) == 1, lines
    assert lines[0].endswith("(kafka.Kafka)")
    return lines[0]


def nodes(connect: str, *paths: str) -> list[bytes | None]:
    """The data of nodes below the chroot, or None for a missing one."""

    async def read() -> list[bytes | None]:
        session = new_session(connect)
        await session.connect()
        found: list[bytes | None] = []
        for path in paths:
            try:
                found.append((await session.get(path))[0] or b"")
            except NoNodeError:
                found.append(None)
        await session.close()
        return found

    return asyncio.run(read())


def test_topics_and_records_outlive_the_broker(connect: str, tmp_path: Path) -> None:
    process = broker(tmp_path, connect)
    with running(process):
        admin = AdminClient({"bootstrap.servers": process.address})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": process.address})
        for number in range(100):
            producer.produce("orders", f"record {number}", partition=number % 2)
        assert producer.flush(30) == 0
    registration, assignment = nodes(connect, znodes.broker_path(0), znodes.topic_path("orders"))
    assert registration is None
    assert znodes.TopicAssignment.decode("orders", assignment).partitions == {0: (0,), 1: (0,)}
    with running(process):
        consumer = Consumer(
            {"bootstrap.servers": process.address, "group.id": "readers", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        read: dict[bytes | None, None] = {}
        while len(read) < 100:
            message = consumer.poll(30)
            assert message is not None
            read[message.value()] = None
        consumer.close()
        assert nodes(connect, znodes.broker_path(0))[0] is not None


def test_generated_ids_are_different_and_stay(connect: str, tmp_path: Path) -> None:
    ids = []
    for number in range(2):
        with running(broker(tmp_path / str(number), connect, broker_id="-1")) as process:
            metadata = AdminClient({"bootstrap.servers": process.address}).list_topics(timeout=30)
            ids += list(metadata.brokers)
    assert ids == [1001, 1002]
    with running(broker(tmp_path / "0", connect, broker_id="-1")) as process:
        assert list(AdminClient({"bootstrap.servers": process.address}).list_topics(timeout=30).brokers) == [1001]


def test_logs_of_another_cluster_are_refused(server: ZookeeperProcess, connect: str, tmp_path: Path) -> None:
    with running(broker(tmp_path / "a", connect)):
        pass
    with running(broker(tmp_path / "b", f"{connect}b")):
        pass
    assert "Invalid cluster.id in: meta.properties" in last_words(broker(tmp_path / "b", connect))
    elsewhere = broker(tmp_path / "a", f"{server.address}/{secrets.token_hex(8)}")
    assert "zookeeper.connect names a place where no cluster is yet" in last_words(elsewhere)


def test_no_certificates_to_trust(tmp_path: Path) -> None:
    settings = {
        "zookeeper.connect": "localhost:2181",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.truststore.location": "/nowhere.pem",
    }
    assert (
        "Invalid value /nowhere.pem for configuration zookeeper.ssl.truststore.location: it cannot be "
        "read: No such file or directory" in last_words(BrokerProcess(tmp_path, settings))
    )


def test_no_zookeeper_is_said_in_time(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        words = last_words(broker(tmp_path, f"{address}/kafka", zookeeper_connection_timeout_ms="500"))
    assert f"No ZooKeeper answered at {address} within 500 ms" in words
    assert "Connection refused" in words


def test_something_else_than_zookeeper_is_told(tmp_path: Path) -> None:
    with something_else() as address:
        words = last_words(broker(tmp_path, address, zookeeper_connection_timeout_ms="500"))
    assert f"No ZooKeeper answered at {address}" in words
    assert "what answers there is not a ZooKeeper" in words


def test_an_old_protocol_version_needs_that_no_other_broker_is_there(tmp_path: Path, connect: str) -> None:
    with running(broker(tmp_path / "0", connect, inter_broker_protocol_version="2.4")) as first:
        assert "No other broker is there that would need it" in first.output.read_text()
        words = last_words(broker(tmp_path / "1", connect, broker_id="1", inter_broker_protocol_version="2.4"))
    assert "inter.broker.protocol.version=2.4 is older than what this broker speaks with others" in words
    assert "(other brokers: 0)" in words
