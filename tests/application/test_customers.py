"""The table of customers: the last row of each counts, before and after compaction, and over faults and restarts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

import odradek
from tests.application.opened_shop import PRODUCER, OpenedShop
from tests.application.shop import PATIENCE_S

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
Table = dict[str, dict[str, Any]]


def changed(shop: OpenedShop, seed: int, count: int) -> Table:
    """Put and remove random rows; returns the table as it should be."""
    chance = random.Random(seed)
    customers = shop.customers()
    expected: Table = {}
    for number in range(count):
        name = f"customer-{chance.randrange(8)}"
        if chance.random() < 0.25:
            customers.put({name: None})
            expected.pop(name, None)
        else:
            customers.put({name: {"city": number}})
            expected[name] = {"city": number}
    return expected


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_last_row_counts(kafka: odradek.Broker, shop: OpenedShop, partitions: int, seed: int) -> None:
    kafka.create_topic("customers", partitions=partitions, config=COMPACTED)
    expected = changed(shop, seed, 40)
    assert shop.customers().load() == expected


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_compaction_changes_no_row(kafka: odradek.Broker, shop: OpenedShop, partitions: int, seed: int) -> None:
    kafka.create_topic("customers", partitions=partitions, config=COMPACTED)
    expected = changed(shop, seed, 40)
    kafka.compact("customers")
    keys = [each.key for each in kafka.records("customers")]
    assert len(keys) == len(set(keys)) < 40
    assert shop.customers().load() == expected
    shop.customers().put({"new": {"city": "Berlin"}})
    assert shop.customers().load() == expected | {"new": {"city": "Berlin"}}


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"city": ""},
        {"city": "Ærøskøbing", "name": "顧客"},
        {"note": "x" * 100_000},
        {"addresses": [{"street": "a", "number": n} for n in range(50)]},
        {"is_regular": None, "discount": 0.125},
    ],
    ids=["empty", "blank", "unicode", "large", "nested", "nulls"],
)
def test_a_row_is_read_as_it_was_put(kafka: odradek.Broker, shop: OpenedShop, row: dict[str, Any]) -> None:
    kafka.create_topic("customers", config=COMPACTED)
    shop.customers().put({"ann": {"city": "old"}, "bob": {}})
    shop.customers().put({"ann": row})
    kafka.compact("customers")
    assert shop.customers().load() == {"ann": row, "bob": {}}


@pytest.mark.parametrize(("hours", "is_left"), [(1, True), (50, False)])
def test_a_tombstone_is_left_as_long_as_the_topic_says(
    kafka: odradek.Broker, shop: OpenedShop, hours: int, is_left: bool
) -> None:
    kafka.create_topic("customers", config=COMPACTED | {"delete.retention.ms": 86_400_000})
    customers = shop.customers()
    customers.put({"ann": {"city": "Bonn"}})
    customers.put({"ann": None})
    kafka.compact("customers")
    kafka.clock.advance(hours=hours)
    customers.put({"bob": {}})
    kafka.compact("customers")
    assert (b"ann" in [each.key for each in kafka.records("customers")]) == is_left
    assert customers.load() == {"bob": {}}


@pytest.mark.parametrize(("minutes", "rows"), [(30, 4), (90, 2)])
def test_rows_are_compacted_after_their_lag(kafka: odradek.Broker, shop: OpenedShop, minutes: int, rows: int) -> None:
    lag = {"min.compaction.lag.ms": 3_600_000, "segment.ms": 60_000, "message.timestamp.type": "LogAppendTime"}
    kafka.create_topic("customers", config=COMPACTED | lag)
    customers = shop.customers()
    for city in ("Bonn", "Berlin", "Köln"):
        customers.put({"ann": {"city": city}})
    kafka.clock.advance(minutes=2)
    customers.put({"bob": {}})  # rolls the segment
    kafka.clock.advance(minutes=minutes)
    assert len(kafka.records("customers")) == rows
    assert customers.load() == {"ann": {"city": "Köln"}, "bob": {}}


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Fetch", "KAFKA_STORAGE_ERROR"),
        ("Fetch", "NOT_LEADER_OR_FOLLOWER"),
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("Metadata", "LEADER_NOT_AVAILABLE"),
    ],
)
def test_the_table_is_loaded_despite_errors(kafka: odradek.Broker, shop: OpenedShop, api: str, error: str) -> None:
    kafka.create_topic("customers", partitions=2, config=COMPACTED)
    rows: Table = {f"customer-{n}": {"city": n} for n in range(20)}
    shop.customers().put(rows)
    fault = kafka.fail(api, error, topic="customers", times=2)
    assert shop.customers().load() == rows
    assert fault.hits == 2


@pytest.mark.parametrize("api", ["ApiVersions", "Metadata", "Fetch"])
def test_the_table_is_loaded_despite_a_closed_connection(kafka: odradek.Broker, shop: OpenedShop, api: str) -> None:
    kafka.create_topic("customers", config=COMPACTED)
    shop.customers().put({"ann": {"city": "Bonn"}})
    kafka.close_connection(api)
    assert shop.customers().load() == {"ann": {"city": "Bonn"}}


@pytest.mark.parametrize("how", ["kill", "shut_down"])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["whole", "compacted"])
def test_the_table_survives_a_restart(kafka: odradek.Broker, shop: OpenedShop, how: str, is_compacted: bool) -> None:
    kafka.create_topic("customers", partitions=2, config=COMPACTED)
    expected = changed(shop, 7, 30)
    if is_compacted:
        kafka.compact("customers")
    getattr(kafka, how)()
    kafka.restart()
    assert shop.customers().load() == expected


def test_a_row_without_a_key_is_refused(kafka: odradek.Broker, shop: OpenedShop) -> None:
    kafka.create_topic("customers", config=COMPACTED)
    with pytest.raises(odradek.KafkaError, match="INVALID_RECORD"):
        kafka.produce("customers", "nobody's row")
    assert shop.customers().load() == {}


def test_a_row_that_is_refused_is_an_error(kafka: odradek.Broker, shop: OpenedShop) -> None:
    kafka.create_topic("customers", config=COMPACTED)
    customers = shop.customers()
    kafka.fail("Produce", "INVALID_RECORD", topic="customers")
    with pytest.raises(KafkaException, match="INVALID_RECORD"):
        customers.put({"ann": {}})
    customers.put({"bob": {}})
    assert customers.load() == {"bob": {}}


@pytest.mark.parametrize("ends", ["commit", "abort"])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["whole", "compacted"])
def test_rows_of_a_transaction(kafka: odradek.Broker, shop: OpenedShop, ends: str, is_compacted: bool) -> None:
    kafka.create_topic("customers", config=COMPACTED)
    customers = shop.customers()
    customers.put({"ann": {"city": "Bonn"}, "bob": {}})
    importer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **PRODUCER, "transactional.id": "import"})
    importer.init_transactions(PATIENCE_S)
    importer.begin_transaction()
    importer.produce("customers", '{"city": "Rome"}', key="ann")
    importer.produce("customers", None, key="bob")
    getattr(importer, f"{ends}_transaction")(PATIENCE_S)
    customers.put({"eve": {}})
    if is_compacted:
        kafka.compact("customers")
    old: Table = {"ann": {"city": "Bonn"}, "bob": {}}
    assert customers.load() == ({"ann": {"city": "Rome"}} if ends == "commit" else old) | {"eve": {}}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_rows_of_an_open_transaction(kafka: odradek.Broker, shop: OpenedShop, isolation: str) -> None:
    kafka.create_topic("customers", config=COMPACTED)
    customers = shop.customers(**{"isolation.level": isolation})
    customers.put({"ann": {"city": "Bonn"}})
    importer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **PRODUCER, "transactional.id": "import"})
    importer.init_transactions(PATIENCE_S)
    importer.begin_transaction()
    importer.produce("customers", '{"city": "Rome"}', key="ann")
    importer.flush(PATIENCE_S)
    assert customers.load() == {"ann": {"city": "Bonn" if isolation == "read_committed" else "Rome"}}
