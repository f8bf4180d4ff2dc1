"""A small shop on Kafka, as a user of confluent-kafka writes one: it knows its clients, and nothing of its tests.

`OrderDesk` takes orders, `Billing` bills them at least once, `Shipping` ships them exactly once, and `CustomerTable` is
a compacted topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

ORDERS = "orders"
REJECTED = "orders.rejected"
SHIPMENTS = "shipments"
CUSTOMERS = "customers"
PATIENCE_S = 60.0

Settings = Mapping[str, Any]
"""Settings of librdkafka."""
_PASSING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
}
"""Errors of a commit that another attempt may not have."""
_LOST = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
}
"""Errors of a commit that say that another member has the partitions now, or will."""


class OrderRefused(Exception):
    """An order was not stored; `reason` is Kafka's name of the error."""

    def __init__(self, order: Order, reason: str) -> None:
        super().__init__(f"order {order.order_id} was refused: {reason}")
        self.order = order
        self.reason = reason


class Fenced(Exception):
    """Another process ships under the same name; this one must end."""


@dataclass(frozen=True)
class Order:
    """An order."""

    order_id: str
    customer: str
    cents: int

    def encode(self) -> bytes:
        """The order as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, raw: bytes | None) -> Order:
        """Parse JSON. Raises ValueError with the reason."""
        if raw is None:
            raise ValueError("the record is empty")
        fields = json.loads(raw)
        if not isinstance(fields, dict) or set(fields) != {"order_id", "customer", "cents"}:
            raise ValueError("an order has order_id, customer and cents")
        if not isinstance(fields["cents"], int) or fields["cents"] < 0:
            raise ValueError(f"cents is not a number from 0 on: {fields['cents']!r}")
        return cls(**fields)


class OrderDesk:
    """Takes orders. Each is stored once, and those of a customer in their sequence."""

    def __init__(self, settings: Settings) -> None:
        # With more requests in flight, librdkafka may begin a new epoch after a refused sequence, and then store again
        # what a lost answer left in doubt.
        self._producer = Producer({"enable.idempotence": True, "max.in.flight.requests.per.connection": 1, **settings})

    def place(self, *orders: Order) -> None:
        """Return when all are stored. Raises OrderRefused for the first that is not; others may be stored."""
        refused: list[OrderRefused] = []
        for order in orders:

            def delivered(error: KafkaError | None, _message: Message, order: Order = order) -> None:
                if error is not None:
                    refused.append(OrderRefused(order, error.name()))

            try:
                self._producer.produce(ORDERS, order.encode(), key=order.customer, on_delivery=delivered)
            except KafkaException as error:
                refused.append(OrderRefused(order, error.args[0].name()))
        if self._producer.flush(PATIENCE_S):
            raise TimeoutError(f"orders are not stored after {PATIENCE_S} s")
        if refused:
            raise refused[0]


class Ledger:
    """The bills, which outlive the service."""

    def __init__(self) -> None:
        self.bills: dict[str, int] = {}
        self.repeated = 0
        """How often an order was billed that had its bill."""

    def bill(self, order: Order) -> None:
        """Write a bill; a second one for the same order changes nothing."""
        self.repeated += order.order_id in self.bills
        self.bills[order.order_id] = order.cents


class Intake:
    """A consumer of orders in a group."""

    def __init__(self, settings: Settings) -> None:
        self.consumer = Consumer({"enable.auto.commit": False, "auto.offset.reset": "earliest", **settings})
        self.consumer.subscribe([ORDERS])

    def next(self, most: int, wait_s: float) -> list[Message]:
        """Up to `most` orders, as soon as there is one. Raises KafkaException for an error that does not pass."""
        first = self.consumer.poll(wait_s)
        if first is None:
            return []
        messages = [first, *self.consumer.consume(most - 1, 0)] if most > 1 else [first]
        for message in messages:
            error = message.error()
            if error is not None and (error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET):
                raise KafkaException(error)
        return [message for message in messages if message.error() is None]

    def rewind(self, messages: Iterable[Message]) -> None:
        """Read these again, unless another member has their partition now."""
        for (topic, partition), offset in _offsets(messages, min).items():
            try:
                self.consumer.seek(TopicPartition(topic, partition, offset))
            except KafkaException as error:
                if error.args[0].code() not in {KafkaError._STATE, KafkaError._UNKNOWN_PARTITION}:
                    raise


def _offsets(messages: Iterable[Message], choose: Callable[[Iterable[int]], int]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], list[int]] = {}
    for message in messages:
        found.setdefault((message.topic(), message.partition()), []).append(message.offset())
    return {partition: choose(offsets) for partition, offsets in found.items()}


def _next_offsets(messages: Iterable[Message]) -> list[TopicPartition]:
    """The offsets to commit when these are done."""
    return [TopicPartition(topic, partition, last + 1) for (topic, partition), last in _offsets(messages, max).items()]


class Billing:
    """Bills each order at least once: it commits when the bills are in the ledger."""

    def __init__(self, settings: Settings, producer_settings: Settings, ledger: Ledger, *, batch: int = 100) -> None:
        self._intake = Intake({"group.id": "billing", **settings})
        self._producer_settings = producer_settings
        self._ledger = ledger
        self._batch = batch

    def step(self, wait_s: float = 0.1) -> int:
        """Bill the next orders, and reject malformed ones. Returns the number of both."""
        messages = self._intake.next(self._batch, wait_s)
        for message in messages:
            try:
                self._ledger.bill(Order.decode(message.value()))
            except ValueError as error:
                self._reject(message, str(error))
        if messages:
            self._commit(_next_offsets(messages))
        return len(messages)

    def close(self) -> None:
        """Leave the group."""
        self._intake.consumer.close()

    def _commit(self, offsets: list[TopicPartition]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                done = self._intake.consumer.commit(offsets=offsets, asynchronous=False)
                errors = [each.error for each in done if each.error is not None]
            except KafkaException as error:
                errors = [error.args[0]]
            if not errors or errors[0].code() in _LOST:
                return  # lost: who has the partitions then bills again what is not committed
            if errors[0].code() not in _PASSING or time.monotonic() > deadline:
                raise KafkaException(errors[0])

    def _reject(self, message: Message, reason: str) -> None:
        producer = Producer({"enable.idempotence": True, **self._producer_settings})
        producer.produce(REJECTED, message.value(), key=message.key(), headers={"reason": reason.encode()})
        if producer.flush(PATIENCE_S):
            raise TimeoutError(f"a rejected order is not stored after {PATIENCE_S} s")


class Shipping:
    """Ships each order exactly once: the shipments and the offsets of their orders are one transaction."""

    def __init__(
        self, settings: Settings, producer_settings: Settings, *, name: str = "shipping-1", batch: int = 100
    ) -> None:
        # By default, librdkafka returns to the bootstrap servers when all connections have broken. Then it sends no
        # more offsets of transactions.
        recovery = {"metadata.recovery.strategy": "none"}
        self._producer = Producer({"transactional.id": name, **recovery, **producer_settings})
        _until_done(self._producer.init_transactions, PATIENCE_S)
        self._intake = Intake({"group.id": "shipping", "isolation.level": "read_committed", **settings})
        self._batch = batch

    def step(self, wait_s: float = 0.1) -> int:
        """Ship the next orders; returns their number. It is 0 after a transaction that failed: they come again.

        Raises Fenced, and what `pack` raises.
        """
        messages = self._intake.next(self._batch, wait_s)
        if not messages:
            return 0
        try:
            self._producer.begin_transaction()
            for message in messages:
                order = Order.decode(message.value())
                self._producer.produce(SHIPMENTS, self.pack(order), key=order.order_id)
            consumer = self._intake.consumer
            offsets, group = _next_offsets(messages), consumer.consumer_group_metadata()
            _until_done(self._producer.send_offsets_to_transaction, offsets, group, PATIENCE_S)
            _until_done(self._producer.commit_transaction, PATIENCE_S)
        except KafkaException as error:
            if error.args[0].fatal():
                raise Fenced(str(error)) from error
            self._undo(messages)
            return 0
        except Exception:
            self._undo(messages)
            raise
        return len(messages)

    def pack(self, order: Order) -> bytes:
        """The shipment of an order."""
        return f"parcel for {order.customer}".encode()

    def close(self) -> None:
        """Leave the group."""
        self._intake.consumer.close()

    def _undo(self, messages: list[Message]) -> None:
        try:
            _until_done(self._producer.abort_transaction, PATIENCE_S)
        except KafkaException as error:
            if error.args[0].fatal():
                raise Fenced(str(error)) from error
            raise
        self._intake.rewind(messages)


def _until_done(call: Callable[..., Any], *args: Any) -> None:
    """Call a method of transactions, again if librdkafka says that this may help."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call(*args)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class CustomerTable:
    """A table of customers by their names; Kafka compacts its topic."""

    def __init__(self, settings: Settings, producer_settings: Settings) -> None:
        self._settings = settings
        self._producer = Producer({"max.in.flight.requests.per.connection": 1, **producer_settings})

    def put(self, rows: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Write rows; None removes one. Raises KafkaException if one is not stored."""
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        for customer, fields in rows.items():
            value = None if fields is None else json.dumps(fields).encode()
            self._producer.produce(CUSTOMERS, value, key=customer, on_delivery=delivered)
        if self._producer.flush(PATIENCE_S):
            raise TimeoutError(f"customers are not stored after {PATIENCE_S} s")
        if failed:
            raise KafkaException(failed[0])

    def load(self) -> dict[str, dict[str, Any]]:
        """Read the whole table, with at least all that was stored before the call."""
        consumer = Consumer(
            {
                "group.id": "customers",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                **self._settings,
            }
        )
        try:
            return self._load(consumer)
        finally:
            consumer.close()

    def _load(self, consumer: Consumer) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_S
        unread: set[int] = set()
        while not unread:
            unread = set(consumer.list_topics(CUSTOMERS, PATIENCE_S).topics[CUSTOMERS].partitions)
        consumer.assign([TopicPartition(CUSTOMERS, each, OFFSET_BEGINNING) for each in unread])
        table: dict[str, dict[str, Any]] = {}
        while unread:
            message = consumer.poll(1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {unread} of the customers are not read after {PATIENCE_S} s")
            if message is None:
                continue
            error = message.error()
            if error is None:
                customer = message.key().decode()
                table.pop(customer, None)
                if message.value() is not None:
                    table[customer] = json.loads(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif error.fatal():
                raise KafkaException(error)
        return table
