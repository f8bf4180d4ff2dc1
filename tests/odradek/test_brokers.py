"""`odradek.Broker`: a real broker in a process of its own, with real clients."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

import odradek
from tests.kit.waiting import eventually


def produce(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value in values:
        producer.produce(topic, value, key=b"k", headers=[("h", b"1")])
    assert producer.flush(30) == 0


def is_refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_clients_and_the_api_see_the_same_records(broker: odradek.Broker) -> None:
    topic = broker.create_topic("flights", partitions=2, config={"retention.ms": 1000})
    produce(broker.bootstrap_servers, "flights", b"AA-1", b"AA-2")
    broker.produce("flights", "AA-3", key="k3", partition=1, headers=[("h", None)], timestamp=5)
    assert topic.produce([b"AA-4", None], partition=1) >= 1
    records = broker.records("flights")
    assert sorted(each.value or b"" for each in records) == [b"", b"AA-1", b"AA-2", b"AA-3", b"AA-4"]
    mine = next(each for each in records if each.value == b"AA-3")
    assert (mine.key, mine.partition, mine.timestamp, mine.headers) == (b"k3", 1, 5, (("h", None),))
    theirs = next(each for each in records if each.value == b"AA-1")
    assert (theirs.key, theirs.headers) == (b"k", (("h", b"1"),))
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["flights"])
    consumed = {message.value() for _ in records if (message := consumer.poll(30)) is not None}
    consumer.close()
    assert consumed == {None, b"AA-1", b"AA-2", b"AA-3", b"AA-4"}
    assert sum(topic.latest(each) for each in (0, 1)) == len(records)
    assert topic.earliest(0) == 0
    assert topic.records(1, first=topic.latest(1) - 1)[0].value is None


def test_aborted_transactions_are_left_out(broker: odradek.Broker) -> None:
    broker.create_topic("flights")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(30)
    for value, end in ((b"void", producer.abort_transaction), (b"kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce("flights", value)
        producer.flush(30)
        end(30)
    # A commit is answered before its marker is in the partition.
    kept = eventually("the end is visible", lambda: broker.records("flights"), bool)
    assert [each.value for each in kept] == [b"kept"]
    uncommitted = broker.records("flights", isolation="read_uncommitted")
    assert [each.value for each in uncommitted] == [b"void", b"kept"]


def test_errors_of_kafka(broker: odradek.Broker) -> None:
    broker.create_topic("flights")
    with pytest.raises(odradek.KafkaError, match="TOPIC_ALREADY_EXISTS: Topic 'flights' already exists") as refused:
        broker.create_topic("flights")
    assert refused.value.name == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(odradek.KafkaError, match=r"INVALID_CONFIG.*nonsense"):
        broker.create_topic("other", config={"nonsense": 1})
    with pytest.raises(odradek.KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: no topic 'missing'"):
        broker.records("missing")
    with pytest.raises(odradek.KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        broker.delete_topic("missing")
    with pytest.raises(odradek.OdradekError, match="no topic 'missing'; there are: flights"):
        broker.topic("missing").latest()
    with pytest.raises(odradek.OdradekError, match="isolation is not one of read_committed, read_unco"):
        broker.records("flights", isolation="loose")
    broker.delete_topic("flights")
    assert broker.topics() == []


def test_expected_records(broker: odradek.Broker) -> None:
    broker.create_topic("flights").produce(["before"])
    with broker.expect("flights", count=2) as got:
        produce(broker.bootstrap_servers, "flights", b"AA-1", b"AA-2")
    assert [each.value for each in got] == [b"AA-1", b"AA-2"]
    with broker.expect("new") as got:
        produce(broker.bootstrap_servers, "new", b"AA-3")
    assert got[0].topic == "new"
    missing = pytest.raises(odradek.ExpectationError, match=r"expected 1 records in flights within 0.05 s, got 0")
    with missing, broker.expect("flights", within=0.05):
        pass
    with pytest.raises(AssertionError, match=r"got 2: \[b'AA-4', b'AA-5'\]"), broker.expect("flights"):
        produce(broker.bootstrap_servers, "flights", b"AA-4", b"AA-5")


def test_a_reset_leaves_nothing_and_refuses_old_clients(broker: odradek.Broker) -> None:
    left_over = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.timeout.ms": 1000})
    left_over.produce("flights", b"AA-1")
    assert left_over.flush(30) == 0
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    broker.prepare_reset()
    broker.reset()
    assert is_refused(port)
    failures: list[str] = []
    left_over.produce("flights", b"AA-2", on_delivery=lambda error, _: failures.append(error.name()))
    assert left_over.flush(30) == 0
    assert failures == ["_MSG_TIMED_OUT"]
    assert broker.topics() == []
    listed = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=30)
    assert listed.topics == {}


def test_a_killed_broker_comes_back_with_its_records_and_address(broker: odradek.Broker) -> None:
    broker.create_topic("flights").produce(["AA-1"])
    address = broker.bootstrap_servers
    broker.kill()
    with pytest.raises(odradek.OdradekError, match="the broker does not answer GET /v1/topics"):
        broker.topics()
    broker.restart()
    assert broker.bootstrap_servers == address
    assert [each.value for each in broker.records("flights")] == [b"AA-1"]


def test_a_paused_broker_answers_after_it_resumes(broker: odradek.Broker) -> None:
    broker.create_topic("flights")
    broker.pause()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    broker.resume()
    assert list(admin.list_topics(timeout=30).topics) == ["flights"]


def test_configuration_of_the_broker() -> None:
    with odradek.Broker(config={"auto.create.topics.enable": False, "message.max.bytes": 1000}) as broker:
        broker.create_topic("flights")
        with pytest.raises(odradek.KafkaError, match="MESSAGE_TOO_LARGE"):
            broker.produce("flights", b"x" * 2000)
        with pytest.raises(odradek.OdradekError, match="the broker runs already"):
            broker.start()


def test_a_start_that_fails_says_why() -> None:
    with pytest.raises(odradek.OdradekError, match=r"many for configuration num\.io\.threads"):
        odradek.Broker(config={"num.io.threads": "many"}).start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(odradek.OdradekError, match=f"{port}.*[Aa]ddress already in use|in use.*{port}"):
            odradek.Broker(config={"listeners": f"PLAINTEXT://127.0.0.1:{port}"}).start()
    with pytest.raises(odradek.OdradekError, match=r"the broker does not run: call start\(\)"):
        odradek.Broker().topics()


def test_compaction_on_demand(broker: odradek.Broker) -> None:
    broker.create_topic("prices", config={"cleanup.policy": "compact"})
    for value in ("1", "2", "3"):
        broker.produce("prices", value, key="AA")
    broker.produce("prices", "4", key="BB")
    broker.compact("prices")
    assert [(each.offset, each.value) for each in broker.records("prices")] == [(2, b"3"), (3, b"4")]
    broker.produce("prices", "5", key="AA")
    broker.compact()
    assert [each.value for each in broker.records("prices")] == [b"4", b"5"]
    with pytest.raises(odradek.KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: no topic 'missing'"):
        broker.compact("missing")


def test_retention_on_demand(broker: odradek.Broker) -> None:
    topic = broker.create_topic("flights", config={"retention.bytes": 1000, "segment.bytes": 2000})
    for _ in range(5):
        topic.produce([b"x" * 1500])
    broker.apply_retention()
    assert topic.earliest() == 4
