"""`odradek.Broker`: a real broker in a process of its own, with real clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

import odradek
from tests.kit.waiting import PATIENCE_S, eventually
from tests.kit.wire_requests import framed, new_topic, request_bytes


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
    with pytest.raises(odradek.OdradekError, match="isolation is not read_committed or read_uncommitted: loose"):
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


# -- the same address after a reset ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept() -> Iterator[odradek.Broker]:
    with odradek.Broker(keep_address=True) as broker:
        yield broker


class ConfluentApp:
    """An application that is started once, on confluent-kafka: it sends and receives `orders`."""

    def __init__(self, servers: str) -> None:
        quiet = {"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 100}
        self._producer = Producer({**quiet, "enable.idempotence": True})
        settings = {"group.id": "app", "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 200}
        self._consumer = Consumer({**quiet, **settings})
        self._consumer.subscribe(["orders"])

    def send(self, value: bytes) -> None:
        self._producer.produce("orders", value)
        assert self._producer.flush(PATIENCE_S) == 0

    def receive(self) -> bytes | None:
        message = self._consumer.poll(0.1)
        return None if message is None or message.error() else message.value()

    def close(self) -> None:
        self._consumer.close()


class AiokafkaApp:
    """The same on aiokafka."""

    def __init__(self, servers: str) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._start({"bootstrap_servers": servers, "metadata_max_age_ms": 200}))

    async def _start(self, quick: dict[str, Any]) -> None:
        self._producer = AIOKafkaProducer(**quick, enable_idempotence=True)
        self._consumer = AIOKafkaConsumer("orders", **quick, group_id="app", auto_offset_reset="earliest")
        await self._producer.start()
        await self._consumer.start()

    def send(self, value: bytes) -> None:
        self._runner.run(asyncio.wait_for(self._producer.send_and_wait("orders", value), PATIENCE_S))

    def receive(self) -> bytes | None:
        polled = self._runner.run(self._consumer.getmany(timeout_ms=100, max_records=1))
        return next((record.value for records in polled.values() for record in records), None)

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.run(self._consumer.stop())
        self._runner.close()


def await_received(app: ConfluentApp | AiokafkaApp, values: list[bytes]) -> None:
    received: set[bytes | None] = set()

    def receive() -> set[bytes | None]:
        received.add(app.receive())
        return received

    eventually("all are received", receive, lambda found: found.issuperset(values))


def cluster_id(broker: odradek.Broker) -> str:
    found: str = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=60).cluster_id
    return found


@pytest.mark.parametrize("app_type", [ConfluentApp, AiokafkaApp])
def test_clients_go_on_after_a_reset_that_keeps_the_address(
    kept: odradek.Broker, app_type: type[ConfluentApp | AiokafkaApp]
) -> None:
    kept.reset()
    app = app_type(kept.bootstrap_servers)
    clusters, topic_ids = set(), set()
    for number in range(3):
        if number:
            address = kept.bootstrap_servers
            kept.prepare_reset()
            kept.reset()
            assert kept.bootstrap_servers == address
            assert kept.topics() in ([], ["orders"])  # the application asks for its topic, which creates it
        # A consumer keeps its offset. It begins again if that is beyond the end of the new log.
        values = [b"%d-%d" % (number, each) for each in range(5 - 2 * number)]
        for value in values:
            app.send(value)
        await_received(app, values)
        # A client of the test may get the producer id that the application has, unless the broker skips it.
        produce(kept.bootstrap_servers, "others", *values)
        assert [each.value for each in kept.records("orders")] == values
        assert [each.value for each in kept.records("others")] == values
        clusters.add(cluster_id(kept))
        topic_ids.add(next(each["topic_id"] for each in kept.describe_topics() if each["name"] == "orders"))
    assert len(clusters) == len(topic_ids) == 3
    app.close()


def test_nothing_sent_before_a_reset_takes_effect_after_it(kept: odradek.Broker) -> None:
    kept.reset()
    host, _, port = kept.bootstrap_servers.partition(":")
    frame = framed(request_bytes(new_topic("late"), 4))
    with socket.create_connection((host, int(port))) as served:
        served.sendall(framed(request_bytes(new_topic("early"), 4)))
        assert served.recv(4)
        kept.pause()
        served.sendall(frame)
        # The kernel accepts this connection, and keeps what is sent.
        with socket.create_connection((host, int(port))) as queued:
            queued.sendall(frame)
            kept.prepare_reset()
            kept.reset()
            for connection in (served, queued):
                connection.settimeout(60)
                with suppress(ConnectionResetError):
                    while connection.recv(1000):
                        pass
    with socket.create_connection((host, int(port))) as new:
        new.sendall(framed(request_bytes(new_topic("new"), 4)))
        assert new.recv(4)
    assert kept.topics() == ["new"]


def test_a_kept_address_of_a_broker_that_ends(kept: odradek.Broker) -> None:
    kept.reset()
    kept.create_topic("flights").produce(["AA-1"])
    address = kept.bootstrap_servers
    port = int(address.rpartition(":")[2])
    snapshot = kept.snapshot()
    kept.kill()
    assert is_refused(port)
    kept.restart()
    assert kept.bootstrap_servers == address
    assert [each.value for each in kept.records("flights")] == [b"AA-1"]
    kept.reset()
    assert kept.topics() == []
    kept.restore(snapshot)
    assert kept.bootstrap_servers == address
    listed = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60)
    assert list(listed.topics) == ["flights"]
    with pytest.raises(odradek.OdradekError, match="keep_address chooses a port, and so does the key listeners"):
        odradek.Broker(keep_address=True, config={"listeners": "PLAINTEXT://127.0.0.1:0"})
