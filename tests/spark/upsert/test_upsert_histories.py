"""Histories of rows from Debezium, in any order of arrival and in any batches, against a naive model."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as sql

from spark_jobs.jobs.upsert import merge, transform
from tests.kit.due import due
from tests.spark.upsert.upserts import NOON, config_of, form_of, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FORM = form_of("id INT, n INT", envelope="debezium")
EPOCH_MS = 1_600_000_000_000
"""Long before the records' timestamps, to reveal a time taken from one of those."""
KEYS = 40
Version = tuple[int, int, int | None]
"""Value, and the milliseconds of its start and end."""


@dataclasses.dataclass(frozen=True)
class Event:
    """A change in the database; `n` None deletes the row."""

    key: int
    lsn: int
    time_ms: int
    n: int | None

    def record(self) -> tuple[bytes, bytes]:
        row = {"id": self.key, "n": self.n}
        deletes = self.n is None
        source = {"lsn": self.lsn, "ts_ms": self.time_ms}
        event = {"op": "d" if deletes else "u", "before": None, "after": None, "source": source, "ts_ms": 1}
        event["before" if deletes else "after"] = {"id": self.key} if deletes else row
        return json.dumps({"id": self.key}).encode(), json.dumps(event).encode()

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """Debezium's records for it: a delete is followed by a tombstone."""
        key, value = self.record()
        return [(key, value), (key, None)] if self.n is None else [(key, value)]


def random_history(chance: random.Random, key: int) -> list[Event]:
    """Changes in order; a row is not deleted twice in a row."""
    events: list[Event] = []
    lsn, time_ms = chance.randrange(100), EPOCH_MS
    for _ in range(chance.randrange(1, 9)):
        lsn, time_ms = lsn + chance.randrange(1, 5), time_ms + chance.randrange(1, 5_000)
        there = bool(events) and events[-1].n is not None
        n = None if there and chance.random() < 0.4 else chance.randrange(1000)
        events.append(Event(key, lsn, time_ms, n))
    return events


def versions(events: Sequence[Event]) -> list[Version]:
    """The naive model: each value is valid until the next change of its row."""
    ends = [event.time_ms for event in events[1:]]
    return [
        (event.n, event.time_ms, end) for event, end in zip(events, [*ends, None], strict=True) if event.n is not None
    ]


def merged(
    spark: SparkSession, records: Sequence[tuple[bytes, bytes | None]], cuts: Iterable[int], scd: int
) -> DataFrame:
    """The table from the records, in batches that end at `cuts`."""
    config = config_of(FORM, scd=scd)
    table: DataFrame | None = None
    ends = sorted({*cuts, len(records)})
    for batch_id, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        frame = frame_of(spark, records[begin:end], first=begin)
        table = merge(table, transform(frame, config), config, batch_id).localCheckpoint()
    assert table is not None
    return table.where("not _deleted")


def histories(table: DataFrame) -> dict[int, list[Version]]:
    found: dict[int, list[Version]] = {}
    times = [sql.unix_millis(name) for name in ("valid_from", "valid_to")]
    for row in table.orderBy("id", "_sequence").select("id", "n", *times, "is_current").collect():
        assert row.is_current == (row[3] is None)
        found.setdefault(row.id, []).append((row.n, row[2], row[3]))
    return found


@pytest.mark.parametrize("seed", due(range(3)))
def test_histories_are_right_in_any_order_of_arrival(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    events = {key: random_history(chance, key) for key in range(KEYS)}
    arriving = [event for of_key in events.values() for event in of_key]
    arriving += chance.sample(arriving, len(arriving) // 4)  # as sent by a connector that was restarted
    chance.shuffle(arriving)
    records = [record for event in arriving for record in event.records()]
    cuts = chance.sample(range(1, len(records)), 2)

    found = histories(merged(spark, records, cuts, scd=2))
    assert found == {key: expected for key, of_key in events.items() if (expected := versions(of_key))}

    current = {row.id: row.n for row in merged(spark, records, cuts, scd=1).collect()}
    assert current == {key: of_key[-1].n for key, of_key in events.items() if of_key[-1].n is not None}


def test_a_tombstone_alone_deletes_and_moves_no_other_version(spark: SparkSession) -> None:
    """A compacted topic keeps the tombstone without its delete, so the time of the delete is lost."""
    alone, twice, between, deleted_late = range(1, 5)
    first = {key: Event(key, 5, EPOCH_MS, 10).record() for key in range(1, 5)}
    last = {key: Event(key, 9, EPOCH_MS + 1000, 11).record() for key in range(1, 5)}
    tombstone = {key: (first[key][0], None) for key in first}
    batches: list[list[tuple[bytes, bytes | None]]] = [
        [first[alone], tombstone[alone], first[twice], tombstone[twice], first[between], first[deleted_late]],
        [tombstone[twice], tombstone[between], tombstone[deleted_late]],
        [last[between], Event(deleted_late, 7, EPOCH_MS + 500, None).record()],
        [last[deleted_late]],
    ]
    records = [record for batch in batches for record in batch]
    sent_ms = [int(NOON.timestamp() * 1000) + 1000 * number for number in range(len(records))]
    cuts = itertools.accumulate(map(len, batches))
    assert histories(merged(spark, records, cuts, 2)) == {
        alone: [(10, EPOCH_MS, sent_ms[1])],
        twice: [(10, EPOCH_MS, sent_ms[3])],
        between: [(10, EPOCH_MS, EPOCH_MS + 1000), (11, EPOCH_MS + 1000, None)],
        deleted_late: [(10, EPOCH_MS, EPOCH_MS + 500), (11, EPOCH_MS + 1000, None)],
    }


def test_a_delete_without_a_sequence_keeps_its_first_time(spark: SparkSession) -> None:
    config = config_of(form_of("id INT, seq INT", sequence_by=("seq",)), scd=2)
    records = [(b"1", b'{"id": 1, "seq": 3}'), (b"1", None), (b"1", None)]
    table = merge(None, transform(frame_of(spark, records), config), config, 0)
    (row,) = table.where("not _deleted").select(sql.col("valid_to") - sql.col("valid_from")).collect()
    assert row[0] == dt.timedelta(seconds=1)
