"""The same shop with aiokafka, for programs that run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from tests.application.shop import ORDERS, PATIENCE_S, SHIPMENTS, Ledger, Order, OrderRefused

Settings = Mapping[str, Any]
"""Settings of aiokafka."""
Batch = Mapping[TopicPartition, Sequence[ConsumerRecord]]


class AsyncOrderDesk:
    """Takes orders, from many tasks at once. Each is stored once."""

    def __init__(self, settings: Settings) -> None:
        self._producer = AIOKafkaProducer(enable_idempotence=True, **settings)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def place(self, order: Order) -> None:
        """Return when it is stored. Raises OrderRefused."""
        sending = self._producer.send_and_wait(ORDERS, order.encode(), key=order.customer.encode())
        try:
            await asyncio.wait_for(sending, PATIENCE_S)
        except KafkaError as error:
            raise OrderRefused(order, type(error).__name__) from error


def _consumer(group: str, settings: Settings) -> AIOKafkaConsumer:
    given = {"enable_auto_commit": False, "auto_offset_reset": "earliest", **settings}
    return AIOKafkaConsumer(ORDERS, group_id=group, **given)


def _next_offsets(batch: Batch) -> dict[TopicPartition, int]:
    return {partition: records[-1].offset + 1 for partition, records in batch.items() if records}


class AsyncBilling:
    """Bills each order at least once."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._consumer = _consumer("billing", settings)
        self._ledger = ledger

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def step(self, wait_s: float = 0.1) -> int:
        """Bill the next orders, and commit; returns their number."""
        batch = await self._consumer.getmany(timeout_ms=round(wait_s * 1000))
        for records in batch.values():
            for record in records:
                self._ledger.bill(Order.decode(record.value))
        if batch:
            # Who has the partitions after an error bills again what is not committed.
            with suppress(CommitFailedError, IllegalStateError):
                await self._consumer.commit(_next_offsets(batch))
        return sum(map(len, batch.values()))


class AsyncShipping:
    """Ships each order exactly once."""

    def __init__(self, settings: Settings, producer_settings: Settings, *, name: str = "shipping-1") -> None:
        self._producer = AIOKafkaProducer(transactional_id=name, **producer_settings)
        self._consumer = _consumer("shipping", {"isolation_level": "read_committed", **settings})

    async def __aenter__(self) -> Self:
        await self._producer.start()
        try:
            await self._consumer.start()
        except BaseException:
            await self._producer.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()
        await self._producer.stop()

    async def step(self, wait_s: float = 0.1) -> int:
        """Ship the next orders; returns their number. Raises what `pack` raises, and ships nothing then."""
        batch = await self._consumer.getmany(timeout_ms=round(wait_s * 1000))
        if not batch:
            return 0
        try:
            async with self._producer.transaction():
                for records in batch.values():
                    for record in records:
                        order = Order.decode(record.value)
                        await self._producer.send(SHIPMENTS, self.pack(order), key=order.order_id.encode())
                await self._producer.send_offsets_to_transaction(_next_offsets(batch), "shipping")
        except BaseException:
            for partition, records in batch.items():
                self._consumer.seek(partition, records[0].offset)
            raise
        return sum(map(len, batch.values()))

    def pack(self, order: Order) -> bytes:
        """The shipment of an order."""
        return f"parcel for {order.customer}".encode()
