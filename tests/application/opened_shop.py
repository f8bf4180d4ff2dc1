"""The shop of a test: its services on the broker of the test, with settings for tests that take moments."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import odradek
from tests.application.shop import PATIENCE_S, Billing, CustomerTable, Ledger, Order, OrderDesk, Shipping

CLIENT: dict[str, Any] = {
    "client.id": "shop",
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
    "socket.nagle.disable": True,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "topic.metadata.refresh.interval.ms": 500,
}
"""Attempts come fast, as nobody else waits for this broker."""
PRODUCER: dict[str, Any] = {**CLIENT, "linger.ms": 0}
CONSUMER: dict[str, Any] = {
    **CLIENT,
    "fetch.error.backoff.ms": 10,
    "fetch.wait.max.ms": 50,
    "heartbeat.interval.ms": 50,
}
AIO: dict[str, Any] = {"client_id": "shop", "retry_backoff_ms": 10, "metadata_max_age_ms": 500}
AIO_CONSUMER: dict[str, Any] = {**AIO, "fetch_max_wait_ms": 50, "heartbeat_interval_ms": 50}


class Service(Protocol):
    """Something that works step by step."""

    def step(self, wait_s: float) -> int:
        """Work for a moment."""


def orders(count: int, *, customers: int = 5, first: int = 0) -> list[Order]:
    """Orders that all differ."""
    return [Order(f"A{n}", f"customer-{n % customers}", 100 + n) for n in range(first, first + count)]


def bills(placed: list[Order]) -> dict[str, int]:
    """The ledger when these orders are billed."""
    return {order.order_id: order.cents for order in placed}


def work(*services: Service, until: Callable[[], object]) -> None:
    """Let services work in turn until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        for service in services:
            service.step(0.02)
        assert time.monotonic() < deadline, "the services have not reached what the test waits for"


class OpenedShop:
    """The services of a shop; `settings` of a service add to those above."""

    def __init__(self, kafka: odradek.Broker | odradek.Cluster) -> None:
        self.kafka = kafka
        self.ledger = Ledger()

    def _settings(self, base: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.kafka.bootstrap_servers, **base, **settings}

    def desk(self, **settings: Any) -> OrderDesk:
        """An order desk."""
        return OrderDesk(self._settings(PRODUCER, settings))

    def plain_desk(self) -> OrderDesk:
        """A desk that opens at once: librdkafka takes half a second to get the id of an idempotent producer."""
        return self.desk(**{"enable.idempotence": False})

    def billing(self, *, batch: int = 100, **settings: Any) -> Billing:
        """A member of the group billing; it writes to `ledger`."""
        producer = self._settings(PRODUCER, {})
        return Billing(self._settings(CONSUMER, settings), producer, self.ledger, batch=batch)

    def shipping(
        self, *, kind: type[Shipping] = Shipping, name: str = "shipping-1", batch: int = 100, **settings: Any
    ) -> Shipping:
        """A member of the group shipping; the settings are those of its producer."""
        consumer = self._settings(CONSUMER, {})
        return kind(consumer, self._settings(PRODUCER, settings), name=name, batch=batch)

    def customers(self, **settings: Any) -> CustomerTable:
        """The table of customers; the settings are those of its reader."""
        return CustomerTable(self._settings(CONSUMER, settings), self._settings(PRODUCER, {}))

    def aio(self, base: dict[str, Any] = AIO) -> dict[str, Any]:
        """The settings for clients of aiokafka."""
        return {"bootstrap_servers": self.kafka.bootstrap_servers, **base}

    def stored(self) -> list[Order]:
        """The orders in the topic, by partition and offset."""
        return [Order.decode(each.value) for each in self.kafka.records("orders")]

    def shipped(self) -> list[str]:
        """The ids of the shipped orders that committed transactions left, sorted."""
        return sorted((each.key or b"").decode() for each in self.kafka.records("shipments"))
