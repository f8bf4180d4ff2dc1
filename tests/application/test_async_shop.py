"""The shop on an event loop, with aiokafka and the fixture `akafka`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

import odradek.aio
from tests.application.async_shop import AsyncBilling, AsyncOrderDesk, AsyncShipping
from tests.application.opened_shop import AIO_CONSUMER, OpenedShop, bills, orders
from tests.application.shop import PATIENCE_S, Order, OrderRefused
from tests.kit.waiting import eventually_async


async def work(*services: AsyncBilling | AsyncShipping, until: Callable[[], object]) -> None:
    """Let services work in turn until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        for service in services:
            await service.step(0.02)
        assert time.monotonic() < deadline, "the services have not reached what the test waits for"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop."""
    asyncio.run(main())


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("count", [1, 30])
def test_orders_placed_at_once(akafka: odradek.aio.Broker, shop: OpenedShop, partitions: int, count: int) -> None:
    async def main() -> None:
        await akafka.create_topic("orders", partitions=partitions)
        async with AsyncOrderDesk(shop.aio()) as desk, akafka.expect("orders", count=count) as got:
            await asyncio.gather(*map(desk.place, orders(count)))
        assert {Order.decode(each.value) for each in got} == set(orders(count))

    run(main)


@pytest.mark.parametrize(
    "error", ["KAFKA_STORAGE_ERROR", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"]
)
def test_a_passing_error_is_survived(akafka: odradek.aio.Broker, shop: OpenedShop, error: str) -> None:
    async def main() -> None:
        await akafka.create_topic("orders")
        fault = await akafka.fail("Produce", error, topic="orders", times=2)
        async with AsyncOrderDesk(shop.aio()) as desk:
            for order in orders(3):
                await desk.place(order)
        assert await fault.hits() == 2

    run(main)
    assert shop.stored() == orders(3)


@pytest.mark.parametrize("error", ["INVALID_REQUIRED_ACKS", "MESSAGE_TOO_LARGE", "TOPIC_AUTHORIZATION_FAILED"])
def test_a_refused_order_is_named(akafka: odradek.aio.Broker, shop: OpenedShop, error: str) -> None:
    async def main() -> None:
        await akafka.create_topic("orders")
        await akafka.fail("Produce", error, topic="orders")
        async with AsyncOrderDesk(shop.aio()) as desk:
            with pytest.raises(OrderRefused, match="order A0 was refused"):
                await desk.place(orders(1)[0])

    run(main)
    assert shop.stored() == []


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("count", [1, 50])
def test_every_order_is_billed(akafka: odradek.aio.Broker, shop: OpenedShop, partitions: int, count: int) -> None:
    async def main() -> None:
        await akafka.create_topic("orders", partitions=partitions)
        async with AsyncOrderDesk(shop.aio()) as desk, AsyncBilling(shop.aio(AIO_CONSUMER), shop.ledger) as billing:
            await asyncio.gather(*map(desk.place, orders(count)))
            await work(billing, until=lambda: len(shop.ledger.bills) == count)
        await akafka.await_lag("billing")

    run(main)
    assert (shop.ledger.bills, shop.ledger.repeated) == (bills(orders(count)), 0)


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("JoinGroup", "UNKNOWN_MEMBER_ID"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("ListOffsets", "NOT_LEADER_OR_FOLLOWER"),
        ("Fetch", "NOT_LEADER_OR_FOLLOWER"),
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_orders_are_billed_despite_an_error(akafka: odradek.aio.Broker, shop: OpenedShop, api: str, error: str) -> None:
    async def main() -> None:
        topic = await akafka.create_topic("orders")
        await topic.produce([order.encode() for order in orders(5)])
        fault = await akafka.fail(api, error)
        async with AsyncBilling(shop.aio(AIO_CONSUMER), shop.ledger) as billing:
            await work(billing, until=lambda: len(shop.ledger.bills) == 5)
        assert await fault.hits() == 1

    run(main)
    assert shop.ledger.bills == bills(orders(5))


@pytest.mark.parametrize("members", [2, 3])
def test_members_share_the_partitions(akafka: odradek.aio.Broker, shop: OpenedShop, members: int) -> None:
    async def main() -> None:
        await akafka.create_topic("orders", partitions=members)
        async with AsyncExitStack() as stack:
            services = [AsyncBilling(shop.aio(AIO_CONSUMER), shop.ledger) for _ in range(members)]
            await asyncio.gather(*map(stack.enter_async_context, services))
            await eventually_async("each member has a partition", shares, lambda held: held == [1] * members)
            for partition in range(members):
                lot = [order.encode() for order in orders(4, first=4 * partition)]
                await akafka.topic("orders").produce(lot, partition=partition)
            await work(*services, until=lambda: len(shop.ledger.bills) == 4 * members)

    async def shares() -> list[int]:
        group = await akafka.group("billing")
        return [] if group is None else [len(each["partitions"]) for each in group["members"]]

    run(main)
    assert (shop.ledger.bills, shop.ledger.repeated) == (bills(orders(4 * members)), 0)


class Clumsy(AsyncShipping):
    """Drops some parcels."""

    drops = 0

    def pack(self, order: Order) -> bytes:
        if self.drops:
            self.drops -= 1
            raise RuntimeError(f"dropped {order.order_id}")
        return super().pack(order)


@pytest.mark.parametrize("drops", [0, 1, 2])
def test_each_order_is_shipped_once(akafka: odradek.aio.Broker, shop: OpenedShop, drops: int) -> None:
    async def main() -> None:
        await akafka.create_topic("shipments")
        topic = await akafka.create_topic("orders")
        await topic.produce([order.encode() for order in orders(6)])
        async with Clumsy(shop.aio(AIO_CONSUMER), shop.aio()) as shipping:
            shipping.drops = drops
            for _ in range(drops):
                with pytest.raises(RuntimeError, match="dropped A0"):
                    await work(shipping, until=lambda: False)
            await work(shipping, until=shop.shipped)
        await akafka.await_committed("shipping", "orders", 6)

    run(main)
    assert shop.shipped() == sorted(order.order_id for order in orders(6))


@pytest.mark.parametrize("hours", [1, 48])
def test_time_jumps_while_a_loop_runs(akafka: odradek.aio.Broker, shop: OpenedShop, hours: int) -> None:
    async def main() -> None:
        await akafka.create_topic("orders", config={"retention.ms": -1})
        async with AsyncOrderDesk(shop.aio()) as desk, AsyncBilling(shop.aio(AIO_CONSUMER), shop.ledger) as billing:
            await desk.place(orders(1)[0])
            await work(billing, until=lambda: shop.ledger.bills)
            await akafka.clock.advance(hours=hours)
            await desk.place(orders(1, first=1)[0])
            await work(billing, until=lambda: len(shop.ledger.bills) == 2)

    run(main)
    assert shop.ledger.repeated == 0
