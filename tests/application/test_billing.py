"""Every order is billed, and none is charged twice: groups, commits, faults, restarts and time."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException

import odradek
from tests.application.opened_shop import OpenedShop, bills, orders, work
from tests.application.shop import Billing


def lag(kafka: odradek.Broker) -> int:
    """The lag of the group billing over all partitions."""
    return sum(kafka.lag("billing").values())


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("count", [1, 10, 200])
def test_every_order_is_billed_and_committed(
    kafka: odradek.Broker, shop: OpenedShop, partitions: int, count: int
) -> None:
    kafka.create_topic("orders", partitions=partitions)
    placed = orders(count, customers=20)
    shop.plain_desk().place(*placed)
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == count)
    assert (shop.ledger.bills, shop.ledger.repeated) == (bills(placed), 0)
    kafka.await_lag("billing")


@pytest.mark.parametrize("batch", [1, 7])
def test_each_batch_is_committed(kafka: odradek.Broker, shop: OpenedShop, batch: int) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(21))
    billing = shop.billing(batch=batch)
    work(billing, until=lambda: shop.ledger.bills)
    kafka.await_committed("billing", "orders", len(shop.ledger.bills))
    assert lag(kafka) == 21 - len(shop.ledger.bills)
    work(billing, until=lambda: len(shop.ledger.bills) == 21)
    kafka.await_lag("billing")


@pytest.mark.parametrize(("partitions", "members"), [(2, 2), (4, 3)])
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_the_partitions(
    kafka: odradek.Broker, shop: OpenedShop, partitions: int, members: int, strategy: str
) -> None:
    kafka.create_topic("orders", partitions=partitions)
    services = [shop.billing(**{"partition.assignment.strategy": strategy}) for _ in range(members)]

    def shares() -> list[int]:
        group = kafka.group("billing")
        stable = group is not None and group["state"] == "Stable"
        return [len(each["partitions"]) for each in group["members"]] if group is not None and stable else []

    work(*services, until=lambda: len(shares()) == members and min(shares()) >= 1 and sum(shares()) == partitions)
    placed = orders(40, customers=20)
    shop.plain_desk().place(*placed)
    work(*services, until=lambda: len(shop.ledger.bills) == 40)
    assert shop.ledger.bills == bills(placed)
    kafka.await_lag("billing")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_who_leaves_hands_the_partitions_over(kafka: odradek.Broker, shop: OpenedShop, strategy: str) -> None:
    kafka.create_topic("orders", partitions=3)
    stays, leaves = (shop.billing(**{"partition.assignment.strategy": strategy}) for _ in range(2))
    shop.plain_desk().place(*orders(20, customers=10))
    work(stays, leaves, until=lambda: len(shop.ledger.bills) == 20)
    leaves.close()
    shop.plain_desk().place(*orders(20, customers=10, first=20))
    work(stays, until=lambda: len(shop.ledger.bills) == 40)
    assert shop.ledger.bills == bills(orders(40, customers=10))


@pytest.mark.parametrize("billed", [0, 1, 15])
def test_a_service_goes_on_where_the_last_one_ended(kafka: odradek.Broker, shop: OpenedShop, billed: int) -> None:
    kafka.create_topic("orders")
    desk = shop.plain_desk()
    desk.place(*orders(billed))
    first = shop.billing()
    work(first, until=lambda: len(shop.ledger.bills) == billed and kafka.group("billing") is not None)
    first.close()
    desk.place(*orders(5, first=billed))
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == billed + 5)
    assert shop.ledger.repeated == 0


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_the_successor_of_a_crashed_service_waits_for_its_session(
    kafka: odradek.Broker, shop: OpenedShop, static: bool
) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(3))
    settings = {"group.instance.id": "one"} if static else {}
    crashed = shop.billing(**settings)
    work(crashed, until=lambda: len(shop.ledger.bills) == 3)
    group = kafka.await_assigned("billing")
    del crashed  # without close(): it does not leave the group
    group_now = kafka.group("billing")
    assert group_now is not None
    assert group_now["members"][0]["member_id"] == group["members"][0]["member_id"]
    if not static:
        kafka.clock.advance(60, silent_clients=True)
    shop.plain_desk().place(*orders(3, first=3))
    work(shop.billing(**settings), until=lambda: len(shop.ledger.bills) == 6)
    assert shop.ledger.repeated == 0
    kafka.await_lag("billing")


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("FindCoordinator", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("JoinGroup", "COORDINATOR_NOT_AVAILABLE"),
        ("JoinGroup", "NOT_COORDINATOR"),
        ("JoinGroup", "UNKNOWN_MEMBER_ID"),
        ("JoinGroup", "REBALANCE_IN_PROGRESS"),
        ("SyncGroup", "COORDINATOR_NOT_AVAILABLE"),
        ("SyncGroup", "ILLEGAL_GENERATION"),
        ("SyncGroup", "NOT_COORDINATOR"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_a_service_joins_despite_an_error(kafka: odradek.Broker, shop: OpenedShop, api: str, error: str) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(3))
    fault = kafka.fail(api, error, group="billing")
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 3)
    assert fault.hits == 1
    assert shop.ledger.bills == bills(orders(3))


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("ListOffsets", "KAFKA_STORAGE_ERROR"),
        ("ListOffsets", "LEADER_NOT_AVAILABLE"),
        ("ListOffsets", "NOT_LEADER_OR_FOLLOWER"),
        ("ListOffsets", "OFFSET_NOT_AVAILABLE"),
        ("Fetch", "FENCED_LEADER_EPOCH"),
        ("Fetch", "KAFKA_STORAGE_ERROR"),
        ("Fetch", "NOT_LEADER_OR_FOLLOWER"),
        ("Fetch", "OFFSET_NOT_AVAILABLE"),
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("Fetch", "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_orders_are_read_despite_an_error(kafka: odradek.Broker, shop: OpenedShop, api: str, error: str) -> None:
    kafka.create_topic("orders", partitions=2)
    shop.plain_desk().place(*orders(10))
    fault = kafka.fail(api, error, topic="orders", times=2)
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 10)
    assert fault.hits == 2
    assert (shop.ledger.bills, shop.ledger.repeated) == (bills(orders(10)), 0)


@pytest.mark.parametrize(
    "error",
    ["COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "REQUEST_TIMED_OUT"],
)
def test_a_commit_is_tried_again(kafka: odradek.Broker, shop: OpenedShop, error: str) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(3))
    fault = kafka.fail("OffsetCommit", error, group="billing", times=2)
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 3)
    assert fault.hits == 2
    assert lag(kafka) == 0
    assert shop.ledger.repeated == 0


def test_a_commit_of_a_lost_partition_is_left_to_the_next_owner(kafka: odradek.Broker, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(4))
    kafka.fail("OffsetCommit", "ILLEGAL_GENERATION", group="billing")
    billing = shop.billing()
    work(billing, until=lambda: len(shop.ledger.bills) == 4)
    billing.close()
    work(shop.billing(), until=lambda: shop.ledger.repeated == 4)
    assert shop.ledger.bills == bills(orders(4))
    kafka.await_lag("billing")


@pytest.mark.parametrize("error", ["COORDINATOR_NOT_AVAILABLE", "ILLEGAL_GENERATION", "NOT_COORDINATOR"])
def test_an_error_of_a_heartbeat_stops_nothing(kafka: odradek.Broker, shop: OpenedShop, error: str) -> None:
    kafka.create_topic("orders")
    desk, billing = shop.plain_desk(), shop.billing()
    desk.place(*orders(2))
    work(billing, until=lambda: len(shop.ledger.bills) == 2)
    fault = kafka.fail("Heartbeat", error, group="billing")
    work(billing, until=lambda: fault.hits)
    desk.place(*orders(2, first=2))
    work(billing, until=lambda: len(shop.ledger.bills) == 4)
    assert shop.ledger.bills == bills(orders(4))
    kafka.await_lag("billing")


@pytest.mark.parametrize("api", ["FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch", "Fetch", "OffsetCommit"])
def test_a_closed_connection_is_survived(kafka: odradek.Broker, shop: OpenedShop, api: str) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(3))
    fault = kafka.close_connection(api)
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 3 and sum(kafka.lag("billing").values()) == 0)
    assert fault.hits == 1
    assert shop.ledger.bills == bills(orders(3))


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Fetch", "OffsetCommit"])
def test_a_slow_broker_is_waited_for(kafka: odradek.Broker, shop: OpenedShop, api: str) -> None:
    kafka.create_topic("orders")
    shop.plain_desk().place(*orders(3))
    fault = kafka.delay(api, 0.1)
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 3)
    assert fault.hits == 1
    assert (lag(kafka), shop.ledger.repeated) == (0, 0)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "the record is empty"),
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "an order has order_id, customer and cents"),
        ('{"order_id": "A1"}', "an order has order_id, customer and cents"),
        ('{"order_id": "A1", "customer": "ann", "cents": -1}', "cents is not a number from 0 on: -1"),
        ('{"order_id": "A1", "customer": "ann", "cents": "many"}', "cents is not a number from 0 on: 'many'"),
        (b"\xff\xfe\xfd", "codec can't decode"),
    ],
    ids=["null", "empty", "half", "list", "incomplete", "negative", "text", "no text"],
)
def test_what_is_no_order_is_set_aside(
    kafka: odradek.Broker, shop: OpenedShop, raw: str | bytes | None, reason: str
) -> None:
    kafka.create_topic("orders")
    kafka.create_topic("orders.rejected")
    desk = shop.plain_desk()
    desk.place(*orders(1))
    kafka.produce("orders", raw, key="bad")
    desk.place(*orders(1, first=1))
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 2)
    (rejected,) = kafka.records("orders.rejected")
    assert rejected.value == (raw.encode() if isinstance(raw, str) else raw)
    assert rejected.key == b"bad"
    ((name, said),) = rejected.headers
    assert name == "reason"
    assert reason in (said or b"").decode()
    kafka.await_lag("billing")


def test_a_rejected_order_is_not_committed_before_it_is_set_aside(kafka: odradek.Broker, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    kafka.create_topic("orders.rejected")
    kafka.produce("orders", "{", key="bad")
    fault = kafka.fail("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", topic="orders.rejected", times=3)
    work(shop.billing(), until=lambda: kafka.lag("billing") == {("orders", 0): 0})
    assert fault.hits == 3
    assert len(kafka.records("orders.rejected")) == 1


@pytest.mark.parametrize("how", ["kill", "shut_down"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_billing_goes_on_after_a_restart_of_the_broker(
    kafka: odradek.Broker, shop: OpenedShop, how: str, partitions: int
) -> None:
    kafka.create_topic("orders", partitions=partitions)
    desk, billing = shop.plain_desk(), shop.billing()
    desk.place(*orders(10))
    work(billing, until=lambda: len(shop.ledger.bills) == 10)
    getattr(kafka, how)()
    kafka.restart()
    assert lag(kafka) == 0
    desk.place(*orders(10, first=10))
    work(billing, until=lambda: len(shop.ledger.bills) == 20)
    assert (shop.ledger.bills, shop.ledger.repeated) == (bills(orders(20)), 0)


def test_a_paused_broker_is_waited_for(kafka: odradek.Broker, shop: OpenedShop) -> None:
    kafka.create_topic("orders")
    desk, billing = shop.plain_desk(), shop.billing()
    desk.place(*orders(1))
    work(billing, until=lambda: shop.ledger.bills)
    kafka.pause()
    assert billing.step(0.1) == 0
    kafka.resume()
    desk.place(*orders(1, first=1))
    work(billing, until=lambda: len(shop.ledger.bills) == 2)
    assert shop.ledger.repeated == 0


@pytest.mark.parametrize("hours", [1, 25, 24 * 30])
def test_members_stay_when_time_jumps(kafka: odradek.Broker, shop: OpenedShop, hours: int) -> None:
    kafka.create_topic("orders", config={"retention.ms": -1})
    desk, billing = shop.plain_desk(), shop.billing()
    desk.place(*orders(2))
    work(billing, until=lambda: len(shop.ledger.bills) == 2)
    before = kafka.await_assigned("billing")
    kafka.clock.advance(hours=hours)
    after = kafka.group("billing")
    assert after is not None
    assert [each["member_id"] for each in after["members"]] == [each["member_id"] for each in before["members"]]
    desk.place(*orders(2, first=2))
    work(billing, until=lambda: len(shop.ledger.bills) == 4)
    assert shop.ledger.repeated == 0


@pytest.mark.parametrize(("days", "repeated"), [(6, 0), (9, 5)])
def test_commits_of_a_group_that_is_away_too_long_expire(
    kafka: odradek.Broker, shop: OpenedShop, days: int, repeated: int
) -> None:
    kafka.create_topic("orders", config={"retention.ms": -1})
    desk, billing = shop.plain_desk(), shop.billing()
    desk.place(*orders(5))
    work(billing, until=lambda: len(shop.ledger.bills) == 5)
    billing.close()
    kafka.clock.advance(days=days)
    assert bool(kafka.lag("billing")) == (repeated == 0)
    desk.place(*orders(1, first=5))
    work(shop.billing(), until=lambda: len(shop.ledger.bills) == 6)
    assert shop.ledger.repeated == repeated


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_orders_that_expired_before_they_were_billed(kafka: odradek.Broker, shop: OpenedShop, reset: str) -> None:
    topic = kafka.create_topic("orders", config={"retention.ms": 3_600_000})
    desk, billing = shop.plain_desk(), shop.billing()
    desk.place(*orders(2))
    work(billing, until=lambda: len(shop.ledger.bills) == 2)
    billing.close()
    desk.place(*orders(3, first=2))
    kafka.clock.advance(hours=2)
    assert topic.earliest() == 5
    fresh = orders(2, first=5)
    late: Billing = shop.billing(**{"auto.offset.reset": reset})
    if reset == "error":
        with pytest.raises(KafkaException, match="_AUTO_OFFSET_RESET"):
            work(late, until=lambda: False)
        return
    if reset == "earliest":
        desk.place(*fresh)
    else:
        work(late, until=lambda: any(each["errors"] for each in kafka.requests("Fetch")) and _is_at_end(kafka))
        desk.place(*fresh)
    work(late, until=lambda: len(shop.ledger.bills) == 4)
    assert shop.ledger.bills == bills(orders(2) + fresh)


def _is_at_end(kafka: odradek.Broker) -> bool:
    """Whether the last Fetch asked for the offset after the last record."""
    last = kafka.requests("Fetch")[-1]["request"]["topics"]
    return bool(last) and last[0]["partitions"][0]["fetch_offset"] == 5


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_both_isolation_levels_see_plain_orders(kafka: odradek.Broker, shop: OpenedShop, isolation: str) -> None:
    kafka.create_topic("orders", partitions=3)
    placed = orders(30)
    shop.plain_desk().place(*placed)
    work(shop.billing(**{"isolation.level": isolation}), until=lambda: len(shop.ledger.bills) == 30)
    assert shop.ledger.bills == bills(placed)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_do_not_take_orders_from_each_other(kafka: odradek.Broker, groups: int) -> None:
    kafka.create_topic("orders", partitions=2)
    offices = [OpenedShop(kafka) for _ in range(groups)]
    offices[0].plain_desk().place(*orders(12))
    services = [office.billing(**{"group.id": f"billing-{n}"}) for n, office in enumerate(offices)]
    work(*services, until=lambda: all(len(office.ledger.bills) == 12 for office in offices))
    assert [each["group_id"] for each in kafka.groups()] == [f"billing-{n}" for n in range(groups)]
