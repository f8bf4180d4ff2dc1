"""Three brokers with generated ids and two listeners each: the addresses they advertise, and how they reach each
other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.waiting import eventually
from tests.kit.zookeeper import real_zookeeper

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(180)]

OUTSIDE_PORT = 9
"""A port without a listener: as behind a router, clients use an address that brokers cannot reach."""


def a_broker(directory: Path, number: int, zookeeper: str) -> tuple[BrokerProcess, str]:
    """A broker with the address of its listener OUTSIDE. Its `address` is INSIDE, for brokers and for this test."""
    address, strangers = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings = {
        "broker.id": "-1",
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": "4000",
        "listeners": f"OUTSIDE://{strangers},INSIDE://{address}",
        "advertised.listeners": f"INSIDE://{address},OUTSIDE://host-{number}.invalid:{OUTSIDE_PORT}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "default.replication.factor": "3",
        "min.insync.replicas": "3",
        "controlled.shutdown.retry.backoff.ms": "500",
    }
    broker = BrokerProcess(directory / str(number), settings)
    broker.address = address
    return broker, strangers


def metadata(address: str) -> ClusterMetadata:
    return AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=20)


def told(address: str) -> dict[int, str]:
    """The brokers in one broker's metadata."""
    return {broker.id: f"{broker.host}:{broker.port}" for broker in metadata(address).brokers.values()}


def in_sync(address: str) -> list[int]:
    return [len(each.isrs) for each in metadata(address).topics["t"].partitions.values()]


def test_each_listener_tells_of_its_own_and_brokers_use_theirs(tmp_path: Path) -> None:
    with real_zookeeper(tmp_path / "zookeeper") as zookeeper:
        made = [a_broker(tmp_path, number, f"{zookeeper.address}/listeners") for number in range(3)]
        brokers = [broker for broker, _ in made]
        try:
            for broker in brokers:
                broker.start()
            ids = {1001, 1002, 1003}
            for broker, strangers in made:
                eventually("all three", lambda at=broker.address: set(told(at)), lambda found: found == ids)
                inside = told(broker.address)
                assert set(inside.values()) == {each.address for each in brokers}
                number_of = {
                    id_: next(n for n, b in enumerate(brokers) if b.address == at) for id_, at in inside.items()
                }
                assert told(strangers) == {id_: f"host-{number_of[id_]}.invalid:{OUTSIDE_PORT}" for id_ in ids}
            own_ids = {number: id_ for id_, number in number_of.items()}

            # All replicas must have it, and fetch it through INSIDE.
            address = brokers[0].address
            admin = AdminClient({"bootstrap.servers": address})
            admin.create_topics([NewTopic("t", 3)])["t"].result(30)
            errors: list[object] = []
            producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0})
            for number in range(300):
                producer.produce(
                    "t", str(number), partition=number % 3, on_delivery=lambda error, _: errors.append(error)
                )
            assert producer.flush(60) == 0
            assert errors == [None] * 300

            # A restarted broker keeps its id.
            assert brokers[1].stop() == 0
            brokers[1].start()
            eventually("all are in sync", lambda: in_sync(address), lambda found: found == [3, 3, 3])
            assert told(address)[own_ids[1]] == brokers[1].address
            assert set(told(address)) == ids
        finally:
            for broker in brokers:
                broker.stop()
