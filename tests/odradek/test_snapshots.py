"""`snapshot` and `restore` of a broker."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

import odradek
import odradek.aio
from tests.kit.waiting import PATIENCE_S, eventually
from tools import configs

CONFIG = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
QUOTA = ["--entity-type", "clients", "--entity-name", "shop"]
ANY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
ACL = AclBinding(
    ResourceType.TOPIC,
    "orders",
    ResourcePatternType.LITERAL,
    "User:anna",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def produce(broker: odradek.Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key=value[0])
    assert producer.flush(PATIENCE_S) == 0


def transactional(broker: odradek.Broker) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "shop"})
    producer.init_transactions(PATIENCE_S)
    return producer


def commit(broker: odradek.Broker, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def values(broker: odradek.Broker, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    return [each.value for each in broker.records(topic, isolation=isolation)]


def seen(broker: odradek.Broker, output: Callable[[], Any]) -> dict[str, Any]:
    """Everything that clients and the control API see and that a start does not change."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in broker.topics()]
    described = {each.name: future.result(PATIENCE_S) for each, future in admin.describe_configs(resources).items()}
    output()
    assert configs.main(["--bootstrap-server", broker.bootstrap_servers, "--describe", *QUOTA]) == 0
    acls = admin.describe_acls(ANY_ACL).result(PATIENCE_S)
    users = admin.describe_user_scram_credentials().result(PATIENCE_S)
    topics = broker.describe_topics()
    for partition in itertools.chain.from_iterable(topic["partitions"] for topic in topics):
        del partition["leader_epoch"], partition["partition_epoch"]
    return {
        "topics": topics,
        "records": {name: broker.records(name) for name in broker.topics()},
        "uncommitted": {name: broker.records(name, isolation="read_uncommitted") for name in broker.topics()},
        "configs": {name: {key: entry.value for key, entry in found.items()} for name, found in described.items()},
        "groups": broker.groups(),
        "quota": output().out,
        "acls": [(each.name, each.principal, each.operation) for each in acls],
        "users": {name: [each.mechanism for each in found.scram_credential_infos] for name, found in users.items()},
    }


def fill(broker: odradek.Broker) -> None:
    """Some of everything that a snapshot holds."""
    broker.create_topic("orders", partitions=3, config={"retention.ms": 1_000_000_000, "segment.bytes": 1000})
    for number in range(20):
        broker.produce("orders", f"{number}" * 200, partition=number % 2)
    broker.create_topic("prices", config={"cleanup.policy": "compact"})
    produce(broker, "prices", "A1", "B1", "A2")
    commit(broker, "orders", 4)
    shop = transactional(broker)
    for value, end in (("void", shop.abort_transaction), ("paid", shop.commit_transaction)):
        shop.begin_transaction()
        shop.produce("payments", value)
        shop.flush(PATIENCE_S)
        end(PATIENCE_S)
    eventually("the end is visible", lambda: values(broker, "payments"), lambda found: found == [b"paid"])
    shop.begin_transaction()
    shop.produce("payments", "open")
    assert shop.flush(PATIENCE_S) == 0
    broker.create_user("anna", "secret")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_acls([ACL]).values():
        future.result(PATIENCE_S)
    quota = ["--bootstrap-server", broker.bootstrap_servers, "--alter", "--add-config", "producer_byte_rate=1000000"]
    assert configs.main([*quota, *QUOTA]) == 0


def test_a_restored_broker_is_as_it_was(broker: odradek.Broker, capsys: pytest.CaptureFixture[str]) -> None:
    fill(broker)
    before = seen(broker, capsys.readouterr)
    assert before["acls"]
    assert before["users"]
    assert "producer_byte_rate=1000000" in before["quota"]
    assert [each["offsets"] for each in before["groups"]] == [[{"topic": "orders", "partition": 0, "offset": 4}]]
    address = broker.bootstrap_servers
    snapshot = broker.snapshot()
    assert seen(broker, capsys.readouterr) == before
    for _ in range(2):
        broker.produce("orders", "later")
        broker.produce("orders", "later" * 100, partition=1)
        produce(broker, "prices", "A3", "C1")
        broker.compact("prices")
        commit(broker, "orders", 6)
        transactional(broker)  # aborts the open one
        broker.create_topic("new")
        broker.delete_topic("payments")
        broker.create_user("bert", "secret")
        assert seen(broker, capsys.readouterr) != before
        broker.restore(snapshot)
        assert broker.bootstrap_servers != address
        assert seen(broker, capsys.readouterr) == before
    broker.reset()
    assert broker.topics() == []
    broker.restore(snapshot)
    assert seen(broker, capsys.readouterr) == before
    shop = transactional(broker)
    shop.begin_transaction()
    shop.produce("payments", "next")
    shop.commit_transaction(PATIENCE_S)
    eventually("the end is visible", lambda: values(broker, "payments"), lambda found: found == [b"paid", b"next"])


def test_a_restored_broker_that_is_killed_comes_back(broker: odradek.Broker) -> None:
    broker.create_topic("orders").produce(["A1"])
    snapshot = broker.snapshot()
    broker.restore(snapshot)
    broker.produce("orders", "A2")
    for end in (broker.kill, broker.shut_down):
        end()
        broker.restart()
        broker.produce("orders", "A3")
    assert values(broker, "orders") == [b"A1", b"A2", b"A3", b"A3"]
    broker.restore(snapshot)
    assert values(broker, "orders") == [b"A1"]


def test_the_broker_goes_on_with_its_own_files(broker: odradek.Broker) -> None:
    topic = broker.create_topic("orders", config={"segment.bytes": 1000, "retention.bytes": 1000})
    for number in range(10):
        topic.produce([f"{number}" * 400])
    snapshot = broker.snapshot()
    kept = values(broker, "orders")
    topic.produce(["after"])
    broker.apply_retention()
    broker.kill()
    broker.restart()
    assert 0 < len(values(broker, "orders")) < 10
    assert values(broker, "orders")[-1] == b"after"
    broker.restore(snapshot)
    assert values(broker, "orders") == kept


@pytest.fixture
def writer(broker: odradek.Broker) -> Iterator[list[int]]:
    """Numbers that a producer has appended to `orders`, while the test runs."""
    broker.create_topic("orders", config={"segment.bytes": 20_000})
    acknowledged: list[int] = []
    ends = threading.Event()

    def write() -> None:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 2000,
                "log_level": 0,
            }
        )

        def delivered(error: object, message: Any) -> None:
            if error is None:
                acknowledged.append(int(message.value()))

        for number in itertools.count():
            if ends.is_set():
                break
            producer.produce("orders", str(number), on_delivery=delivered)
            producer.poll(0.001)
        producer.purge()
        producer.flush(PATIENCE_S)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        yield acknowledged
        ends.set()
        writing.result()


def test_a_snapshot_has_all_that_was_acknowledged(broker: odradek.Broker, writer: list[int]) -> None:
    for at_least in (100, 1000):
        eventually("there are records", lambda: len(writer), lambda count, least=at_least: count > least)
        acknowledged = writer[-1]
        snapshot = broker.snapshot()
        later = len(writer) + 100
        eventually("the broker goes on", lambda: len(writer), lambda count, later=later: count > later)
    broker.restore(snapshot)
    found = [int(value or b"") for value in values(broker, "orders")]
    assert found == list(range(len(found)))
    assert acknowledged < len(found)


def test_the_clock_is_as_far_ahead_as_it_was(broker: odradek.Broker) -> None:
    broker.clock.advance(hours=2)
    moved = broker.snapshot()
    broker.clock.freeze()
    stood_ms = broker.clock.now_ms()
    frozen = broker.snapshot()
    broker.reset()
    assert abs(broker.clock.now() - datetime.now(UTC)) < timedelta(hours=1)
    broker.restore(moved)
    ahead = broker.clock.now() - datetime.now(UTC)
    assert timedelta(hours=1) < ahead < timedelta(hours=3)
    before_ms = broker.clock.now_ms()
    eventually("time goes on", broker.clock.now_ms, lambda now_ms: now_ms > before_ms)
    broker.restore(frozen)
    assert broker.clock.now_ms() == pytest.approx(stood_ms, abs=1)
    broker.clock.advance(1)
    assert broker.clock.now_ms() == pytest.approx(stood_ms + 1000, abs=1)


def test_the_members_of_a_group_are_still_there(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"})
    consumer.subscribe(["orders"])

    def is_assigned() -> bool:
        consumer.poll(0.05)
        group = broker.group("billing")
        return group is not None and group["state"] == "Stable"

    eventually("the group is stable", is_assigned)
    before = broker.group("billing")
    snapshot = broker.snapshot()
    broker.restore(snapshot)
    assert broker.group("billing") == before
    broker.clock.advance(minutes=10, silent_clients=True)
    assert broker.group("billing") is None
    consumer.close()


def test_what_cannot_be_copied_or_restored(broker: odradek.Broker) -> None:
    snapshot, gone = broker.snapshot(), broker.snapshot()
    broker.create_topic("orders")
    stops = (broker.pause, broker.resume, "paused: resume"), (broker.kill, broker.restart, "ended: restart")
    for end, begin, state in stops:
        end()
        with pytest.raises(odradek.OdradekError, match=f"the broker has {state} it before you take a snapshot"):
            broker.snapshot()
        begin()
    with pytest.raises(odradek.OdradekError, match=r"the broker does not run: call start\(\)"):
        odradek.Broker(config=CONFIG).restore(snapshot)
    refused = pytest.raises(odradek.OdradekError, match=r"is of a broker with .*Authorizer.*, and this is .*num.part")
    with odradek.Broker(config={"num.partitions": 3}) as other, refused:
        other.restore(snapshot)
    shutil.rmtree(gone._directory)
    with pytest.raises(odradek.OdradekError, match="the files of the snapshot are gone"):
        broker.restore(gone)
    assert broker.topics() == ["orders"]
    with odradek.Broker(config=CONFIG) as alike:
        alike.restore(snapshot)
        assert alike.topics() == []
    refused = pytest.raises(odradek.OdradekError, match=r"remove log\.dirs from the config: a snapshot does not copy")
    with odradek.Broker(config={"log.dirs": str(gone._directory)}) as own, refused:
        own.snapshot()


def test_one_restore_at_a_time(broker: odradek.Broker) -> None:
    snapshot = broker.snapshot()
    together = threading.Barrier(4)

    def restore(_: int) -> str:
        together.wait(PATIENCE_S)
        try:
            broker.restore(snapshot)
        except odradek.OdradekError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as threads:
        said = set(threads.map(restore, range(4)))
    busy = "restore during another reset, snapshot or restore of this broker: wait for its end"
    assert said == {"", busy}
    assert broker.topics() == []
