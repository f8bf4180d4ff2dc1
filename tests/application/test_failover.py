"""The shop on three brokers that die, hang or are cut off, and that hand leaderships over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import odradek
from tests.application.opened_shop import OpenedShop, bills, orders, work
from tests.application.shop import PATIENCE_S, OrderRefused

pytestmark = pytest.mark.odradek(brokers=3)
ALL = {1, 2, 3}
LOSSES: dict[str, Callable[[odradek.Cluster, int], None]] = {
    "kill": odradek.Cluster.kill,
    "pause": odradek.Cluster.pause,
    "isolate": odradek.Cluster.isolate,
    "shutdown": odradek.Cluster.stop_broker,
}
IMPATIENT = {"request.timeout.ms": 1000, "socket.timeout.ms": 2000}
"""A leader that is cut off answers neither yes nor no."""


def coordinator(kafka: odradek.Cluster, api: str) -> int:
    """The broker that answered the last request of an API of coordinators."""
    broker_id: int = kafka.requests(api)[-1]["broker_id"]
    return broker_id


@pytest.mark.parametrize("how", LOSSES)
def test_orders_go_to_the_next_leader(kafka: odradek.Cluster, shop: OpenedShop, how: str) -> None:
    kafka.create_topic("orders", config={"min.insync.replicas": 2})
    desk = shop.desk(**IMPATIENT)
    desk.place(*orders(10))
    leader = kafka.await_leader("orders")
    LOSSES[how](kafka, leader)
    kafka.await_leader("orders", among=ALL - {leader}, within=PATIENCE_S)
    kafka.heal()  # a leader that is cut off does not know its successor, and clients may ask it
    desk.place(*orders(10, first=10))
    assert shop.stored() == orders(20)


def test_a_lost_broker_catches_up(kafka: odradek.Cluster, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    leader = kafka.await_leader("orders")
    kafka.kill(leader)
    kafka.await_leader("orders", among=ALL - {leader}, within=PATIENCE_S)
    desk.place(*orders(10))
    kafka.restart(leader)
    kafka.await_isr("orders", ALL, within=PATIENCE_S)
    kafka.move("orders", leader=leader, within=PATIENCE_S)
    desk.place(*orders(10, first=10))
    assert shop.stored() == orders(20)


def test_orders_are_refused_without_enough_replicas(kafka: odradek.Cluster, shop: OpenedShop) -> None:
    kafka.create_topic("orders", config={"min.insync.replicas": 3})
    leader = kafka.await_leader("orders")
    kafka.kill(min(ALL - {leader}))
    kafka.await_isr("orders", ALL - {min(ALL - {leader})}, within=PATIENCE_S)
    with pytest.raises(OrderRefused):
        shop.desk(**{"message.timeout.ms": 500}).place(*orders(1))
    kafka.restart(min(ALL - {leader}))
    kafka.await_isr("orders", ALL, within=PATIENCE_S)
    shop.desk().place(*orders(1, first=1))
    assert shop.stored() == orders(1, first=1)


@pytest.mark.parametrize("how", ["kill", "shutdown"])
def test_billing_survives_the_loss_of_its_coordinator(kafka: odradek.Cluster, shop: OpenedShop, how: str) -> None:
    kafka.create_topic("orders", partitions=3)
    desk, billing = shop.desk(), shop.billing()
    desk.place(*orders(10))
    work(billing, until=lambda: len(shop.ledger.bills) == 10)
    LOSSES[how](kafka, coordinator(kafka, "JoinGroup"))
    desk.place(*orders(10, first=10))
    work(billing, until=lambda: len(shop.ledger.bills) == 20)
    assert shop.ledger.bills == bills(orders(20))


def test_brokers_restart_in_turn(kafka: odradek.Cluster, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    for number, broker_id in enumerate(sorted(ALL)):
        desk.place(*orders(5, first=5 * number))
        kafka.restart(broker_id)
        kafka.await_isr("orders", ALL, within=PATIENCE_S)
    assert shop.stored() == orders(15)


def test_a_leader_moves_while_orders_come(kafka: odradek.Cluster, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    for number, broker_id in enumerate(sorted(ALL)):
        kafka.move("orders", leader=broker_id, within=PATIENCE_S)
        desk.place(*orders(5, first=5 * number))
    assert shop.stored() == orders(15)


def test_a_new_broker_takes_over(kafka: odradek.Cluster, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    desk = shop.desk()
    desk.place(*orders(5))
    added = kafka.add_broker()
    kafka.move("orders", leader=added, within=PATIENCE_S)
    desk.place(*orders(5, first=5))
    assert shop.stored() == orders(10)


def test_an_error_of_one_broker_is_survived(kafka: odradek.Cluster, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    leader = kafka.await_leader("orders")
    fault = kafka.broker(leader).fail("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", topic="orders", times=3)
    shop.desk().place(*orders(3))
    assert fault.hits == 3
    assert shop.stored() == orders(3)
