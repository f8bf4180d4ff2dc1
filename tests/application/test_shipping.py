"""Every order is shipped exactly once: transactions that commit, abort, time out, are fenced or meet faults."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import Producer

import odradek
from tests.application.opened_shop import PRODUCER, OpenedShop, bills, orders, work
from tests.application.shop import PATIENCE_S, Fenced, Order, Shipping
from tests.kit.waiting import eventually


class Clumsy(Shipping):
    """Drops the order that comes `countdown`-th."""

    countdown = 1

    def pack(self, order: Order) -> bytes:
        self.countdown -= 1
        if self.countdown == 0:
            raise RuntimeError(f"dropped {order.order_id}")
        return super().pack(order)


def opened(kafka: odradek.Broker, shop: OpenedShop, count: int, *, partitions: int = 1) -> list[str]:
    """Create the topics, and place orders; returns their ids, sorted."""
    kafka.create_topic("orders", partitions=partitions)
    kafka.create_topic("shipments", partitions=partitions)
    placed = orders(count, customers=20)
    shop.plain_desk().place(*placed)
    return sorted(order.order_id for order in placed)


def work_off(shop: OpenedShop, shipping: Shipping, expected: list[str]) -> None:
    """Work until the orders are shipped, each once. A commit is answered before its marker is in the partitions."""
    work(shipping, until=lambda: len(shop.shipped()) >= len(expected))
    shipping.step(0.02)
    assert shop.shipped() == expected


def open_transaction(kafka: odradek.Broker, name: str, values: list[str], topic: str = "shipments") -> Producer:
    """A transaction with these records, not ended."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **PRODUCER, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=value)
    assert producer.flush(PATIENCE_S) == 0
    return producer


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(("count", "batch"), [(1, 1), (6, 1), (30, 7), (200, 100)])
def test_each_order_is_shipped_once(
    kafka: odradek.Broker, shop: OpenedShop, partitions: int, count: int, batch: int
) -> None:
    expected = opened(kafka, shop, count, partitions=partitions)
    work_off(shop, shop.shipping(batch=batch), expected)
    eventually("the offsets are committed", lambda: sum(kafka.lag("shipping").values()), lambda lag: lag == 0)


@pytest.mark.parametrize("dropped", [1, 2, 5])
def test_a_batch_with_a_dropped_parcel_is_shipped_whole_later(
    kafka: odradek.Broker, shop: OpenedShop, dropped: int
) -> None:
    expected = opened(kafka, shop, 5)
    shipping = shop.shipping(kind=Clumsy)
    assert isinstance(shipping, Clumsy)
    shipping.countdown = dropped
    with pytest.raises(RuntimeError, match=f"dropped A{dropped - 1}"):
        work(shipping, until=lambda: False)
    assert shop.shipped() == []
    assert kafka.lag("shipping") == {}
    work_off(shop, shipping, expected)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("ends", ["commit", "abort", "commit abort commit", "abort abort commit"])
def test_isolation_levels(kafka: odradek.Broker, shop: OpenedShop, isolation: str, ends: str) -> None:
    kafka.create_topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **PRODUCER, "transactional.id": "marketplace"})
    producer.init_transactions(PATIENCE_S)
    visible: list[Order] = []
    for number, end in enumerate(ends.split()):
        lot = orders(3, first=3 * number)
        producer.begin_transaction()
        for order in lot:
            producer.produce("orders", order.encode(), key=order.customer)
        producer.flush(PATIENCE_S)
        if end == "commit":
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        if end == "commit" or isolation == "read_uncommitted":
            visible += lot
    last = orders(1, first=100)
    shop.plain_desk().place(*last)
    work(shop.billing(**{"isolation.level": isolation}), until=lambda: "A100" in shop.ledger.bills)
    assert shop.ledger.bills == bills(visible + last)


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("InitProducerId", "CONCURRENT_TRANSACTIONS"),
        ("InitProducerId", "NOT_COORDINATOR"),
        ("AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS"),
        ("AddPartitionsToTxn", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("AddPartitionsToTxn", "COORDINATOR_NOT_AVAILABLE"),
        ("AddPartitionsToTxn", "NOT_COORDINATOR"),
        ("AddOffsetsToTxn", "CONCURRENT_TRANSACTIONS"),
        ("AddOffsetsToTxn", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("AddOffsetsToTxn", "NOT_COORDINATOR"),
        ("EndTxn", "CONCURRENT_TRANSACTIONS"),
        ("EndTxn", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("EndTxn", "COORDINATOR_NOT_AVAILABLE"),
        ("EndTxn", "NOT_COORDINATOR"),
    ],
)
def test_an_error_of_the_coordinator_is_survived(kafka: odradek.Broker, shop: OpenedShop, api: str, error: str) -> None:
    expected = opened(kafka, shop, 4)
    fault = kafka.fail(api, error, transactional_id="shipping-1")
    work_off(shop, shop.shipping(), expected)
    assert fault.hits == 1


@pytest.mark.parametrize("error", ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"])
def test_an_error_of_the_offsets_is_survived(kafka: odradek.Broker, shop: OpenedShop, error: str) -> None:
    expected = opened(kafka, shop, 4)
    fault = kafka.fail("TxnOffsetCommit", error, group="shipping", times=2)
    work_off(shop, shop.shipping(), expected)
    assert fault.hits == 2
    assert kafka.lag("shipping") == {("orders", 0): 0}


@pytest.mark.parametrize(
    "error", ["KAFKA_STORAGE_ERROR", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"]
)
def test_an_error_of_a_shipment_is_survived(kafka: odradek.Broker, shop: OpenedShop, error: str) -> None:
    expected = opened(kafka, shop, 10)
    fault = kafka.fail("Produce", error, topic="shipments", times=2)
    work_off(shop, shop.shipping(), expected)
    assert fault.hits == 2


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED"),
        ("AddOffsetsToTxn", "GROUP_AUTHORIZATION_FAILED"),
        ("Produce", "INVALID_RECORD"),
        ("Produce", "MESSAGE_TOO_LARGE"),
        ("TxnOffsetCommit", "FENCED_INSTANCE_ID"),
        ("TxnOffsetCommit", "ILLEGAL_GENERATION"),
        ("TxnOffsetCommit", "UNKNOWN_MEMBER_ID"),
    ],
)
def test_an_error_that_aborts_ships_in_the_next_transaction(
    kafka: odradek.Broker, shop: OpenedShop, api: str, error: str
) -> None:
    expected = opened(kafka, shop, 4)
    kafka.fail(api, error, **({"topic": "shipments"} if api == "Produce" else {}))
    shipping = shop.shipping()
    work_off(shop, shipping, expected)
    ends = [each["request"]["committed"] for each in kafka.requests("EndTxn") if not each["errors"]]
    assert ends[-1]
    assert Counter(shop.shipped()) == Counter(expected)


@pytest.mark.parametrize("shipped_before", [0, 3])
def test_a_second_service_of_the_name_fences_the_first(
    kafka: odradek.Broker, shop: OpenedShop, shipped_before: int
) -> None:
    expected = opened(kafka, shop, shipped_before)
    old = shop.shipping()
    if shipped_before:
        work_off(shop, old, expected)
    usurper = open_transaction(kafka, "shipping-1", ["lost"])
    shop.plain_desk().place(*orders(4, first=50))
    with pytest.raises(Fenced):
        work(old, until=lambda: False)
    old.close()
    del usurper
    work_off(shop, shop.shipping(), sorted([*expected, "A50", "A51", "A52", "A53"]))


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("EndTxn", "INVALID_PRODUCER_EPOCH"),
        ("EndTxn", "PRODUCER_FENCED"),
        ("AddPartitionsToTxn", "PRODUCER_FENCED"),
        ("EndTxn", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_an_error_that_ends_the_service_leaves_its_work_to_the_next(
    kafka: odradek.Broker, shop: OpenedShop, api: str, error: str
) -> None:
    expected = opened(kafka, shop, 4)
    kafka.fail(api, error, transactional_id="shipping-1")
    ended = shop.shipping()
    with pytest.raises(Fenced):
        work(ended, until=lambda: False)
    ended.close()
    assert shop.shipped() == []
    work_off(shop, shop.shipping(), expected)


@pytest.mark.parametrize("left", [1, 10])
def test_the_successor_aborts_what_a_crash_left_open(kafka: odradek.Broker, shop: OpenedShop, left: int) -> None:
    expected = opened(kafka, shop, 3)
    crashed = open_transaction(kafka, "shipping-1", [f"lost-{n}" for n in range(left)])
    del crashed
    assert shop.shipped() == []
    assert len(kafka.records("shipments", isolation="read_uncommitted")) == left
    work_off(shop, shop.shipping(), expected)
    assert len(kafka.records("shipments", isolation="read_uncommitted")) == left + 3


@pytest.mark.parametrize(("seconds", "is_aborted"), [(30, False), (90, True), (7200, True)])
def test_an_open_transaction_times_out(kafka: odradek.Broker, shop: OpenedShop, seconds: int, is_aborted: bool) -> None:
    opened(kafka, shop, 0)
    left = open_transaction(kafka, "other", ["lost"])
    kafka.produce("shipments", "plain", key="plain")
    assert shop.shipped() == []  # the open transaction holds back what follows
    kafka.clock.advance(seconds)
    if is_aborted:
        assert eventually("the abort is written", shop.shipped) == ["plain"]
    else:
        left.commit_transaction(PATIENCE_S)
        assert eventually("the commit is written", shop.shipped) == ["lost", "plain"]


@pytest.mark.parametrize("how", ["kill", "shut_down"])
@pytest.mark.parametrize("when", ["open", "committed"])
def test_a_transaction_over_a_restart_of_the_broker(
    kafka: odradek.Broker, shop: OpenedShop, how: str, when: str
) -> None:
    expected = opened(kafka, shop, 4)
    if when == "open":
        producer = open_transaction(kafka, "other", ["a", "b"])
        getattr(kafka, how)()
        kafka.restart()
        assert shop.shipped() == []
        producer.commit_transaction(PATIENCE_S)
        assert eventually("the commit is written", shop.shipped) == ["a", "b"]
    else:
        shipping = shop.shipping()
        work_off(shop, shipping, expected)
        getattr(kafka, how)()
        kafka.restart()
        shop.plain_desk().place(*orders(1, first=77))
        work_off(shop, shipping, sorted([*expected, "A77"]))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
)
def test_a_closed_connection_ships_nothing_twice(
    kafka: odradek.Broker, shop: OpenedShop, api: str, after: bool
) -> None:
    expected = opened(kafka, shop, 4)
    fault = kafka.close_connection(api, after=after)
    work_off(shop, shop.shipping(), expected)
    assert fault.hits == 1


@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit"])
def test_a_slow_coordinator_is_waited_for(kafka: odradek.Broker, shop: OpenedShop, api: str) -> None:
    expected = opened(kafka, shop, 4)
    fault = kafka.delay(api, 0.1)
    work_off(shop, shop.shipping(), expected)
    assert fault.hits == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_errors_ship_each_order_once(kafka: odradek.Broker, shop: OpenedShop, seed: int) -> None:
    expected = opened(kafka, shop, 20, partitions=2)
    for api, error, after in (
        ("Produce", "REQUEST_TIMED_OUT", True),
        ("AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS", False),
        ("EndTxn", "COORDINATOR_NOT_AVAILABLE", True),
        ("TxnOffsetCommit", "ILLEGAL_GENERATION", False),
    ):
        kafka.fail(api, error, times=None, after=after, probability=0.25, seed=seed, optional=True)
    work_off(shop, shop.shipping(batch=5), expected)


@pytest.mark.parametrize("partitions", [2, 3])
def test_two_services_share_the_orders(kafka: odradek.Broker, shop: OpenedShop, partitions: int) -> None:
    expected = opened(kafka, shop, 30, partitions=partitions)
    both = [shop.shipping(name=name, batch=4) for name in ("shipping-1", "shipping-2")]
    work(*both, until=lambda: len(shop.shipped()) >= len(expected))
    assert shop.shipped() == expected
