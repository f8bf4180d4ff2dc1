"""A real database: 1,000 random changes through Debezium, the broker and `upsert`, which is killed meanwhile.

Slow: run it with `pytest -m slow tests/spark/upsert/test_upsert_debezium.py`. Needs PostgreSQL (Debian's package
`postgresql`), and downloads Debezium with Maven; without them it is skipped.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from spark_jobs.upserts.snapshots import read_table
from tests.kit.waiting import eventually
from tests.spark.upsert.debezium import Debezium, Postgres
from tests.spark.upsert.upsert_process import UpsertJob
from tests.spark.warm_jobs import WarmJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

CHANGES = 1_000
FIRST_ROWS = 50
PARTITIONS = 3
TABLE = "CREATE TABLE orders (id INT PRIMARY KEY, name TEXT, amount NUMERIC(10, 2), paid BOOLEAN NOT NULL);"
ROW = "id INT NOT NULL, name STRING, amount STRING, paid BOOLEAN NOT NULL"


@pytest.fixture
def database() -> Iterator[Postgres]:
    postgres = Postgres()
    try:
        postgres.start()
        yield postgres
    finally:
        postgres.stop()


class RandomChanges:
    """Statements that change one row each; `events` counts Debezium's records for them."""

    def __init__(self) -> None:
        self._chance = random.Random(5)
        self._ids = list(range(FIRST_ROWS))
        self._next = FIRST_ROWS
        self.events = FIRST_ROWS

    def statement(self) -> str:
        kind = self._chance.choices(["insert", "update", "delete", "rename"], [4, 5, 3, 1])[0]
        amount, paid = f"{self._chance.randrange(10**6) / 100:.2f}", self._chance.choice(["true", "false"])
        if kind == "insert" or not self._ids:
            self._ids.append(self._next)
            self._next += 1
            self.events += 1
            return f"INSERT INTO orders VALUES ({self._ids[-1]}, 'it''s \u00e9 {amount}', {amount}, {paid});"
        index = self._chance.randrange(len(self._ids))
        row = self._ids[index]
        if kind == "update":
            self.events += 1
            name = self._chance.choice(["NULL", "''", "'again'"])
            return f"UPDATE orders SET amount = {amount}, paid = {paid}, name = {name} WHERE id = {row};"
        if kind == "delete":
            self._ids.pop(index)
            self.events += 2  # the delete, and a tombstone
            return f"DELETE FROM orders WHERE id = {row};"
        self._ids[index] = self._next
        self._next += 1
        self.events += 3  # the delete, a tombstone, and a new row
        return f"UPDATE orders SET id = {self._ids[index]} WHERE id = {row};"

    def script(self, count: int) -> str:
        """A script of this many statements, some of them in one transaction."""
        statements = []
        while count:
            together = min(count, self._chance.choice([1, 1, 1, 7]))
            count -= together
            statements += ["BEGIN;", *(self.statement() for _ in range(together)), "COMMIT;"]
        return "\n".join(statements)


def rows_in(database: Postgres) -> list[tuple[Any, ...]]:
    lines = database.run("SELECT to_json(array[id::text, name, amount::text, paid::text]) FROM orders ORDER BY id;")
    rows = [json.loads(line) for line in lines.splitlines()]
    return [(int(number), name, amount, paid == "true") for number, name, amount, paid in rows]


def records_in(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counting"})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=30)[1] for n in range(PARTITIONS))
    finally:
        consumer.close()


def test_the_table_equals_the_database(
    bootstrap: str, jobs: WarmJobs, database: Postgres, tmp_path: Path, spark: SparkSession
) -> None:
    prefix = f"shop-{uuid.uuid4()}"
    topic = f"{prefix}.public.orders"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    database.run(f"{TABLE} INSERT INTO orders SELECT n, 'first', n * 1.25, true FROM generate_series(0, 49) n;")
    changes = RandomChanges()
    debezium = Debezium(tmp_path / "connect", bootstrap, database, "public.orders", prefix)
    debezium.start()

    def await_events() -> None:
        def arrived() -> int:
            assert debezium.is_running, debezium.output.read_text()[-4000:]
            return records_in(bootstrap, topic)

        eventually("every change is in the topic", arrived, lambda n: n == changes.events, patience_s=120, pause_s=0.3)

    try:
        await_events()  # the existing rows
        options = ("--envelope", "debezium", "--keys", "id")
        current = UpsertJob(bootstrap, topic, tmp_path / "current", ROW, *options)
        running = current.start("--trigger", "100ms", "--max-offsets-per-trigger", "200")
        database.run(changes.script(CHANGES // 2))
        current.kill_in_the_middle_of_a_batch(running, after_batches=1)
        database.run(changes.script(CHANGES - CHANGES // 2))
        await_events()
    finally:
        debezium.kill()
    expected = rows_in(database)
    assert " and 0 dead letters in " in current.run(jobs)
    assert sorted(tuple(row) for row in read_table(spark, current.table).collect()) == expected

    history = UpsertJob(bootstrap, topic, tmp_path / "history", ROW, *options, "--scd", "2")
    assert f"{changes.events:,} changes and 0 dead letters" in history.run(jobs)
    rows = read_table(spark, history.table)
    assert sorted(tuple(row)[:4] for row in rows.where("is_current").collect()) == expected
    assert rows.where("is_current = (valid_to IS NOT NULL) OR valid_to < valid_from").count() == 0
