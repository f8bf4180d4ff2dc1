"""Orders are stored once, in their sequence, whatever the broker answers."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

import odradek
from tests.application.opened_shop import OpenedShop, orders
from tests.application.shop import Order, OrderRefused


@pytest.mark.parametrize(
    "order",
    [
        Order("A1", "ann", 100),
        Order("A2", "", 100),
        Order("A3", "Ærøskøbing", 0),
        Order("A4", "顧客", 10**15),
        Order("A5", "🛒", 1),
        Order("A6", 'says "quote"\n\ttwice', 1),
        Order("A" * 10_000, "ann", 1),
        Order("A8", "c" * 10_000, 1),
    ],
    ids=["plain", "nobody", "latin", "chinese", "emoji", "quoted", "long id", "long name"],
)
def test_an_order_is_stored_as_it_was_placed(kafka: odradek.Broker, shop: OpenedShop, order: Order) -> None:
    kafka.create_topic("orders")
    with kafka.expect("orders") as got:
        shop.desk().place(order)
    assert Order.decode(got[0].value) == order
    assert (got[0].key or b"").decode() == order.customer


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_orders_of_a_customer_keep_their_sequence(
    kafka: odradek.Broker, shop: OpenedShop, partitions: int, codec: str
) -> None:
    kafka.create_topic("orders", partitions=partitions)
    placed = orders(60, customers=7)
    shop.desk(**{"compression.type": codec, "linger.ms": 5}).place(*placed)
    records = kafka.records("orders")
    assert len(records) == len(placed)
    for customer in {order.customer for order in placed}:
        own = [each for each in records if each.key == customer.encode()]
        assert len({each.partition for each in own}) == 1
        assert [Order.decode(each.value) for each in own] == [each for each in placed if each.customer == customer]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "error",
    [
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_OR_FOLLOWER",
        "REQUEST_TIMED_OUT",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ],
)
def test_a_passing_error_is_survived(kafka: odradek.Broker, shop: OpenedShop, error: str, times: int) -> None:
    kafka.create_topic("orders")
    fault = kafka.fail("Produce", error, topic="orders", times=times)
    placed = orders(3)
    shop.desk().place(*placed)
    assert fault.hits == times
    assert shop.stored() == placed


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR"])
def test_an_error_after_the_append_stores_nothing_twice(
    kafka: odradek.Broker, shop: OpenedShop, error: str, count: int
) -> None:
    kafka.create_topic("orders")
    kafka.fail("Produce", error, topic="orders", after=True, times=2)
    placed = orders(count)
    shop.desk().place(*placed)
    assert shop.stored() == placed


@pytest.mark.parametrize(
    "error",
    [
        "INVALID_RECORD",
        "INVALID_REQUIRED_ACKS",
        "MESSAGE_TOO_LARGE",
        "POLICY_VIOLATION",
        "INVALID_TIMESTAMP",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    ],
)
def test_a_refused_order_is_named_and_the_next_one_is_taken(
    kafka: odradek.Broker, shop: OpenedShop, error: str
) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    first, second, third = orders(3)
    desk.place(first)
    kafka.fail("Produce", error, topic="orders")
    with pytest.raises(OrderRefused, match="order A1 was refused") as refused:
        desk.place(second)
    assert refused.value.order == second
    desk.place(third)
    assert shop.stored() == [first, third]


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_a_partition_that_refuses_leaves_the_others_alone(
    kafka: odradek.Broker, shop: OpenedShop, refusing: int
) -> None:
    kafka.create_topic("orders", partitions=3)
    placed = orders(30, customers=15)
    kafka.fail("Produce", "INVALID_RECORD", topic="orders", partition=refusing, times=None)
    with pytest.raises(OrderRefused):
        shop.desk(**{"enable.idempotence": False}).place(*placed)
    stored = {partition: kafka.records("orders", partition) for partition in range(3)}
    assert stored.pop(refusing) == []
    assert all(stored.values())


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("InitProducerId", "COORDINATOR_NOT_AVAILABLE"),
        ("InitProducerId", "NOT_COORDINATOR"),
        ("Metadata", "LEADER_NOT_AVAILABLE"),
        ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("Metadata", "INVALID_REPLICATION_FACTOR"),
    ],
)
def test_a_desk_opens_despite_an_error(kafka: odradek.Broker, shop: OpenedShop, api: str, error: str) -> None:
    kafka.create_topic("orders")
    selectors: dict[str, Any] = {"topic": "orders"} if api == "Metadata" else {}
    fault = kafka.fail(api, error, **selectors)
    shop.desk().place(*orders(2))
    assert fault.hits == 1
    assert shop.stored() == orders(2)


@pytest.mark.parametrize("api", ["ApiVersions", "InitProducerId", "Metadata", "Produce"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_closed_connection_is_survived(kafka: odradek.Broker, shop: OpenedShop, api: str, times: int) -> None:
    kafka.create_topic("orders")
    fault = kafka.close_connection(api, times=times)
    shop.desk().place(*orders(2))
    assert fault.hits == times
    assert shop.stored() == orders(2)


def test_a_connection_that_closes_after_the_append_stores_nothing_twice(
    kafka: odradek.Broker, shop: OpenedShop
) -> None:
    kafka.create_topic("orders")
    kafka.close_connection("Produce", topic="orders", after=True)
    shop.desk().place(*orders(10))
    assert shop.stored() == orders(10)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_answer_that_never_comes_is_survived(kafka: odradek.Broker, shop: OpenedShop, after: bool) -> None:
    kafka.create_topic("orders")
    fault = kafka.hang("Produce", topic="orders", after=after)
    shop.desk(**{"request.timeout.ms": 100, "socket.timeout.ms": 300}).place(*orders(2))
    assert fault.hits == 1
    assert shop.stored() == orders(2)


@pytest.mark.parametrize("action", ["delay", "throttle"])
@pytest.mark.parametrize("api", ["Produce", "Metadata"])
def test_a_slow_broker_is_waited_for(kafka: odradek.Broker, shop: OpenedShop, action: str, api: str) -> None:
    kafka.create_topic("orders")
    fault = getattr(kafka, action)(api, 0.05, times=2)
    desk = shop.desk()
    desk.place(*orders(1))
    desk.place(*orders(1, first=1))
    assert fault.hits >= 1
    assert shop.stored() == orders(2)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_errors_lose_and_double_nothing(kafka: odradek.Broker, shop: OpenedShop, seed: int) -> None:
    kafka.create_topic("orders")
    for error, after in (("NOT_ENOUGH_REPLICAS", False), ("REQUEST_TIMED_OUT", True)):
        kafka.fail("Produce", error, times=None, after=after, probability=0.3, seed=seed, optional=True)
    desk = shop.desk()
    placed = orders(24)
    for begin in range(0, 24, 4):
        desk.place(*placed[begin : begin + 4])
    assert shop.stored() == placed


@pytest.mark.parametrize("how", ["kill", "shut_down"])
def test_stored_orders_survive_a_restart(kafka: odradek.Broker, shop: OpenedShop, how: str) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    placed = orders(40)
    desk.place(*placed[:30])
    getattr(kafka, how)()
    kafka.restart()
    assert shop.stored() == placed[:30]
    desk.place(*placed[30:])
    assert shop.stored() == placed


@pytest.mark.parametrize(("lose", "bring_back"), [("kill", "restart"), ("pause", "resume")])
def test_an_order_waits_for_a_lost_broker(kafka: odradek.Broker, shop: OpenedShop, lose: str, bring_back: str) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    desk.place(*orders(1))
    getattr(kafka, lose)()
    placing = threading.Thread(target=desk.place, args=orders(2, first=1))
    placing.start()
    getattr(kafka, bring_back)()
    placing.join()
    assert shop.stored() == orders(3)


@pytest.mark.parametrize(("size", "is_taken"), [(10, True), (800, True), (1200, False), (50_000, False)])
def test_an_order_larger_than_the_topic_allows_is_refused(
    kafka: odradek.Broker, shop: OpenedShop, size: int, is_taken: bool
) -> None:
    kafka.create_topic("orders", config={"max.message.bytes": 1000})
    desk = shop.desk()
    order = Order("A" * size, "ann", 1)
    if is_taken:
        desk.place(order)
    else:
        with pytest.raises(OrderRefused, match="MSG_SIZE_TOO_LARGE"):
            desk.place(order)
    desk.place(Order("B1", "ann", 1))
    assert shop.stored() == [order] * is_taken + [Order("B1", "ann", 1)]


@pytest.mark.parametrize("hours", [1, 30, 24 * 400])
def test_the_broker_stamps_orders_with_its_time(kafka: odradek.Broker, shop: OpenedShop, hours: int) -> None:
    kafka.create_topic("orders", config={"message.timestamp.type": "LogAppendTime", "retention.ms": -1})
    desk = shop.desk()
    desk.place(*orders(1))
    kafka.clock.advance(hours=hours)
    desk.place(*orders(1, first=1))
    first, second = (each.timestamp for each in kafka.records("orders"))
    assert timedelta(milliseconds=second - first) >= timedelta(hours=hours)
    assert second <= kafka.clock.now_ms()


@pytest.mark.parametrize(
    ("kept_hours", "passed_hours", "is_left"),
    [(24, 1, True), (24, 20, True), (24, 49, False), (1, 3, False), (-1, 24 * 3650, True)],
)
def test_orders_are_kept_as_long_as_the_topic_says(
    kafka: odradek.Broker, shop: OpenedShop, kept_hours: int, passed_hours: int, is_left: bool
) -> None:
    retention_ms = -1 if kept_hours < 0 else kept_hours * 3_600_000
    topic = kafka.create_topic("orders", config={"retention.ms": retention_ms})
    shop.desk().place(*orders(5))
    kafka.clock.advance(hours=passed_hours)
    assert shop.stored() == (orders(5) if is_left else [])
    assert topic.latest() == 5


@pytest.mark.parametrize("desks", [2, 4])
def test_several_desks_take_orders_at_once(kafka: odradek.Broker, shop: OpenedShop, desks: int) -> None:
    kafka.create_topic("orders", partitions=2)
    lots = [orders(15, first=100 * number) for number in range(desks)]
    placing = [threading.Thread(target=shop.desk().place, args=lot) for lot in lots]
    for thread in placing:
        thread.start()
    for thread in placing:
        thread.join()
    assert sorted(each.cents for each in shop.stored()) == sorted(each.cents for lot in lots for each in lot)


@pytest.mark.odradek(config={"auto.create.topics.enable": "false"})
def test_an_order_for_a_missing_topic_is_refused(kafka: odradek.Broker, shop: OpenedShop) -> None:
    with pytest.raises(OrderRefused, match="UNKNOWN_TOPIC"):
        shop.desk(**{"topic.metadata.propagation.max.ms": 100}).place(*orders(1))
    assert kafka.topics() == []


@pytest.mark.parametrize("security", ["tls", "sasl"])
def test_orders_over_a_secured_connection(security: str) -> None:
    options: dict[str, Any] = {"tls": True} if security == "tls" else {"sasl": "PLAIN"}
    with odradek.Broker(**options) as broker:
        broker.create_topic("orders")
        shop = OpenedShop(broker)
        shop.desk(**broker.client_config("confluent")).place(*orders(3))
        assert shop.stored() == orders(3)
