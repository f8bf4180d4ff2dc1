"""Faults on demand, met by real clients."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import odradek


def producer(broker: odradek.Broker, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "shop", "linger.ms": 0, **settings})


def produced(client: Producer, topic: str, value: bytes) -> str | None:
    """Produce one record; returns the name of the error."""
    outcomes: list[str | None] = []
    client.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error and error.name()))
    assert client.flush(60) == 0
    return outcomes[0]


def consumer(broker: odradek.Broker, group: str = "billing") -> Consumer:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})


def next_message(client: Consumer) -> Message:
    message = client.poll(60)
    assert message is not None
    assert message.error() is None, message.error()
    return message


def test_a_retried_produce_is_stored_once(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    fault = broker.fail("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", topic="orders", times=2)
    assert produced(producer(broker, **{"enable.idempotence": True}), "orders", b"A2") is None
    assert fault.hits == 2
    assert [each.value for each in broker.records("orders")] == [b"A2"]
    tape = broker.requests(api="Produce", client_id="shop")
    assert [each["errors"] for each in tape] == [["NOT_ENOUGH_REPLICAS_AFTER_APPEND"]] * 2 + [[]]
    assert tape[0]["request"]["topic_data"][0]["name"] == "orders"


def test_without_idempotence_a_retry_doubles_the_record(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    broker.fail("Produce", "REQUEST_TIMED_OUT", topic="orders", after=True)
    assert produced(producer(broker), "orders", b"A2") is None
    assert [each.value for each in broker.records("orders")] == [b"A2", b"A2"]


def test_a_refused_produce_has_no_effect(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    broker.fail("Produce", "INVALID_RECORD", topic="orders", message="no such order")
    assert produced(producer(broker), "orders", b"A2") == "INVALID_RECORD"
    assert broker.records("orders") == []


def test_other_partitions_of_a_request_are_served(broker: odradek.Broker) -> None:
    broker.create_topic("orders", partitions=2)
    fault = broker.fail("Produce", "INVALID_RECORD", topic="orders", partition=1)
    client = producer(broker, **{"linger.ms": 500})
    outcomes: dict[int, str | None] = {}
    for partition in (0, 1):
        client.produce(
            "orders",
            b"A2",
            partition=partition,
            on_delivery=lambda error, message: outcomes.update({message.partition(): error and error.name()}),
        )
    assert client.flush(60) == 0
    assert outcomes == {0: None, 1: "INVALID_RECORD"}
    assert fault.hits == 1
    assert len(broker.records("orders")) == 1


def test_a_fetch_fails_within_its_session(broker: odradek.Broker) -> None:
    broker.create_topic("orders").produce(["A1"])
    client = consumer(broker)
    client.assign([TopicPartition("orders", 0, 0)])
    assert next_message(client).value() == b"A1"
    fault = broker.fail("Fetch", "KAFKA_STORAGE_ERROR", topic="orders", times=3)
    broker.topic("orders").produce(["A2"])
    assert next_message(client).value() == b"A2"  # a Fetch waited for it before the fault was set
    broker.topic("orders").produce(["A3"])
    assert next_message(client).value() == b"A3"
    assert fault.hits == 3
    client.close()
    errors = [error for each in broker.requests(api="Fetch") for error in each["errors"]]
    assert errors == ["KAFKA_STORAGE_ERROR"] * 3


def test_errors_of_groups_and_metadata(broker: odradek.Broker) -> None:
    broker.create_topic("orders", partitions=3).produce(["A1"])
    faults = [
        broker.fail("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", group="billing"),
        broker.fail("SyncGroup", "REBALANCE_IN_PROGRESS", group="billing"),
        broker.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", group="billing"),
        broker.fail("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS", group="billing"),
    ]
    client = consumer(broker)
    client.subscribe(["orders"])
    assert next_message(client).value() == b"A1"
    group = broker.await_assigned("billing")
    (member,) = group["members"]
    assert [each["partition"] for each in member["partitions"]] == [0, 1, 2]
    broker.fail("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", group="billing", topic="orders")
    client.commit(asynchronous=False)
    broker.await_committed("billing", "orders", 1)
    broker.await_lag("billing")
    client.close()
    assert [each.hits >= 1 for each in faults] == [True] * len(faults)
    broker.check_faults()


def test_metadata_fails_for_one_topic(broker: odradek.Broker) -> None:
    for name in ("orders", "invoices"):
        broker.create_topic(name)
    fault = broker.fail("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic="orders", times=None)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_topics("orders", timeout=60)
    error = listed.topics["orders"].error
    assert (error and error.name(), len(listed.brokers), fault.hits > 0) == ("TOPIC_AUTHORIZATION_FAILED", 1, True)
    fault.remove()
    assert admin.list_topics("orders", timeout=60).topics["orders"].error is None


def test_delays_hangs_closed_connections_and_throttles(broker: odradek.Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    delay = broker.delay("CreateTopics", 0.2)
    admin.create_topics([NewTopic("a", 1)])["a"].result(60)
    assert broker.requests(api="CreateTopics")[0]["duration_ms"] >= 200
    close = broker.close_connection("Produce", topic="a")
    assert produced(producer(broker), "a", b"A0") is None
    throttle = broker.throttle("Produce", 0.05, topic="a")
    assert produced(producer(broker), "a", b"A1") is None
    hang = broker.hang("Produce", topic="a")
    impatient = producer(broker, **{"request.timeout.ms": 300, "socket.timeout.ms": 1000})
    assert produced(impatient, "a", b"A2") is None
    assert [each.hits for each in (delay, close, throttle, hang)] == [1, 1, 1, 1]
    assert broker.requests(api="Produce")[2]["response"]["throttle_time_ms"] == 50
    assert [each.value for each in broker.records("a")] == [b"A0", b"A1", b"A2"]


def test_times_skip_and_probability(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    client = producer(broker, retries=0)
    broker.fail("Produce", "INVALID_RECORD", skip=1, times=2)
    refused = "INVALID_RECORD"
    assert [produced(client, "orders", b"x") for _ in range(5)] == [None, refused, refused, None, None]
    broker.clear_faults()
    outcomes = []
    for _ in range(2):
        fault = broker.fail("Produce", "INVALID_RECORD", times=None, probability=0.5, seed=7)
        outcomes.append([produced(client, "orders", b"x") for _ in range(10)])
        assert fault.hits == sum(each is not None for each in outcomes[-1])
        fault.remove()
    assert outcomes[0] == outcomes[1]
    assert set(outcomes[0]) == {None, "INVALID_RECORD"}
    assert broker.faults() == []


def test_a_fault_that_hit_nothing_names_the_nearest_request(broker: odradek.Broker) -> None:
    broker.create_topic("orders")
    broker.fail("Produce", "INVALID_RECORD", topic="invoices", client_id="shop")
    broker.fail("Heartbeat", "REBALANCE_IN_PROGRESS")
    broker.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", optional=True)
    assert produced(producer(broker), "orders", b"x") is None
    with pytest.raises(odradek.ExpectationError) as unused:
        broker.check_faults()
    first, second = str(unused.value).splitlines()
    assert "'error INVALID_RECORD' for Produce {'topic': 'invoices', 'client_id': 'shop'} hit nothing" in first
    assert "of 'shop': topic is ['orders']" in first
    assert "for Heartbeat" in second
    assert "no request of this API came" in second


@pytest.mark.parametrize(
    ("api", "error", "options", "message"),
    [
        ("Produze", "INVALID_RECORD", {}, r"unknown API 'Produze'; there are: AddOffsetsToTxn, .*, Produce,"),
        ("Produce", "INVALID", {}, r"unknown error 'INVALID'; Kafka's names are such as NOT_LEADER_OR_FOLLOWER"),
        ("Produce", "INVALID_RECORD", {"topik": "a"}, r"unknown field topik; allowed: api, action, error, "),
        ("Produce", "INVALID_RECORD", {"times": -1}, r"times is not at least 0: -1"),
        ("Produce", "INVALID_RECORD", {"probability": 2}, r"probability is not from 0 to 1: 2"),
    ],
)
def test_a_wrong_fault_is_named(
    broker: odradek.Broker, api: str, error: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(odradek.OdradekError, match=message):
        broker.fail(api, error, **options)
    with pytest.raises(odradek.OdradekError, match="no fault has the id 77"):
        odradek.Fault(broker._control, 77).remove()
