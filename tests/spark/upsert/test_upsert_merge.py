"""The table from batches of changes, against a dict; replays, crashes, snapshots and refused options."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.jobs.upsert import UpsertConfig, UpsertWriter, bind_output, merge, transform
from spark_jobs.upserts.snapshots import current_snapshot, read_table
from tests.spark.upsert.upserts import config_of, form_of, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Record = tuple[int, int | None, int]
"""Key, sequence and value; a sequence of None is a tombstone."""


@pytest.fixture(scope="module")
def batches(spark: SparkSession) -> SparkSession:
    """A session like that of a streaming batch: the plan is not changed while it runs."""
    session = spark.newSession()
    for name, value in {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        session.conf.set(name, value)
    return session


def records_of(records: Sequence[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (b"%d" % key, None if sequence is None else json.dumps({"id": key, "seq": sequence, "n": n}).encode())
        for key, sequence, n in records
    ]


SEQUENCED = form_of("id INT, seq INT, n INT", sequence_by=("seq",))
ARRIVING = form_of("id INT, seq INT, n INT")


def history_of(records: Sequence[Record], *, sequenced: bool) -> dict[int, list[tuple[int, int, int | None]]]:
    """By key its (order, arrival, value) in order, None for a delete: the expected table."""
    entries: dict[int, dict[tuple[int, bool], tuple[int, int, int | None]]] = {}
    so_far: dict[int, int] = {}
    for arrival, (key, sequence, n) in enumerate(records):
        order = arrival if not sequenced else so_far.get(key) if sequence is None else sequence
        if order is None:
            continue
        so_far[key] = max(order, so_far.get(key, order))
        entries.setdefault(key, {})[order, sequence is None] = (order, arrival, None if sequence is None else n)
    return {key: sorted(of_key.values(), key=lambda entry: entry[:2]) for key, of_key in entries.items()}


def current_rows(records: Sequence[Record], *, sequenced: bool) -> dict[int, int]:
    latest = {key: entries[-1][2] for key, entries in history_of(records, sequenced=sequenced).items()}
    return {key: n for key, n in latest.items() if n is not None}


def write_batches(
    session: SparkSession, config: UpsertConfig, batches: Sequence[Sequence[Record]], *, first_batch: int = 0
) -> UpsertWriter:
    writer = UpsertWriter(config, bind_output(session, config))
    offset = 0
    for batch_id, records in enumerate(batches):
        if batch_id >= first_batch:
            writer(transform(frame_of(session, records_of(records), first=offset), config), batch_id)
        offset += len(records)
    return writer


CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=12
)


@pytest.mark.parametrize("sequenced", [False, True])
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=CHANGES, second=CHANGES)
def test_the_table_is_what_a_dict_would_be(
    batches: SparkSession, first: list[Record], second: list[Record], *, sequenced: bool
) -> None:
    config = config_of(SEQUENCED if sequenced else ARRIVING)
    frames = [frame_of(batches, records_of(first)), frame_of(batches, records_of(second), first=len(first))]
    merged: DataFrame | None = None
    for batch_id, frame in enumerate(frames):
        merged = merge(merged, transform(frame, config), config, batch_id)
    assert merged is not None
    rows = {row.id: row.n for row in merged.where("not _deleted").collect()}
    assert rows == current_rows([*first, *second], sequenced=sequenced)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES, cut=st.integers(1, 11))
def test_the_history_does_not_depend_on_the_batches(batches: SparkSession, changes: list[Record], cut: int) -> None:
    config = config_of(SEQUENCED, scd=2)
    first, second = frame_of(batches, records_of(changes[:cut])), None
    merged = merge(None, transform(first, config), config, 0)
    if changes[cut:]:
        second = frame_of(batches, records_of(changes[cut:]), first=cut)
        merged = merge(merged, transform(second, config), config, 1)
    found: dict[int, list[Any]] = {}
    for row in merged.where("not _deleted").orderBy("id", "_sequence", "_arrival").collect():
        found.setdefault(row.id, []).append((row.seq, row.n, row.is_current, row.valid_from, row.valid_to))
    expected = history_of(changes, sequenced=True)
    versions = {key: [entry for entry in entries if entry[2] is not None] for key, entries in expected.items()}
    assert {key: [row[:2] for row in rows] for key, rows in found.items()} == {
        key: [(order, n) for order, _, n in rows] for key, rows in versions.items() if rows
    }
    current = {key: row[1] for key, rows in found.items() for row in rows if row[2]}
    assert current == current_rows(changes, sequenced=True)
    for rows in found.values():
        assert all(row[4] is None for row in rows if row[2])
        assert all(row[3] <= row[4] for row in rows if not row[2])
        assert all(before[4] <= after[3] for before, after in itertools.pairwise(rows))


def test_history_tells_from_when_to_when(batches: SparkSession, tmp_path: Path) -> None:
    config = config_of(ARRIVING, tmp_path, scd=2)
    write_batches(batches, config, [[(1, 0, 10), (2, 0, 20)], [(1, 0, 11), (2, None, 0)], [(2, 0, 21), (1, None, 0)]])
    table = read_table(batches, config.output)
    assert table.columns == ["id", "seq", "n", "valid_from", "valid_to", "is_current"]
    second = "cast(timestampdiff(SECOND, timestamp'2026-03-01 12:00:00', {0}) as int) {0}".format
    rows = table.selectExpr("id", "n", second("valid_from"), second("valid_to"), "is_current").collect()
    assert sorted(tuple(row) for row in rows) == [
        (1, 10, 0, 2, False), (1, 11, 2, 5, False), (2, 20, 1, 3, False), (2, 21, 4, None, True),
    ]  # fmt: skip


@pytest.mark.parametrize("scd", [1, 2])
def test_a_batch_that_is_run_again_changes_nothing(batches: SparkSession, tmp_path: Path, scd: int) -> None:
    config = config_of(SEQUENCED, tmp_path, scd=scd)
    written = [[(1, 1, 1), (2, 5, 2)], [(1, 3, 3), (2, None, 0), (3, 1, 4)]]
    write_batches(batches, config, written)
    before = current_snapshot(batches, config.output)
    rows = sorted(read_table(batches, config.output).collect())
    again = write_batches(batches, config, written, first_batch=1)
    assert (current_snapshot(batches, config.output), again.changes) == (before, 0)
    # Died after the snapshot and before its commit: the batch runs as if nothing had been written.
    assert before is not None
    (tmp_path / "table" / "_commits" / f"{before.batch_id:020}.json").unlink()
    again = write_batches(batches, config, written, first_batch=1)
    assert again.changes == 3
    assert sorted(read_table(batches, config.output).collect()) == rows
    kept = {path.name for path in (tmp_path / "table" / "_snapshots").iterdir() if not path.name.startswith(".")}
    assert before.directory not in kept


@pytest.mark.parametrize("scd", [1, 2])
def test_later_batches_run_the_code_that_was_compiled_for_the_first(
    batches: SparkSession, compilations: Callable[[], int], tmp_path: Path, scd: int
) -> None:
    config = config_of(SEQUENCED, tmp_path, scd=scd)
    written = [[(key, batch, key)] for batch, key in enumerate((1, 2, 1, 3))]
    write_batches(batches, config, written[:2])  # the second batch already merges with a table
    compiled = compilations()
    write_batches(batches, config, written, first_batch=2)
    assert compilations() == compiled
    assert read_table(batches, config.output).count() == (3 if scd == 1 else 4)


def test_a_key_that_moved_to_another_partition_keeps_its_newest_value(batches: SparkSession) -> None:
    config = config_of(ARRIVING)
    old = frame_of(batches, records_of([(1, 0, 10)]), partition=5, first=1)
    new = frame_of(batches, records_of([(1, 0, 11)]), partition=2, first=3)
    (row,) = merge(None, transform(old.union(new), config), config, 0).collect()
    assert row.n == 11


def test_readers_see_whole_snapshots_and_dead_letters_are_set_aside(batches: SparkSession, tmp_path: Path) -> None:
    import pyarrow.dataset  # type: ignore[import-untyped]

    config = config_of(SEQUENCED, tmp_path, keep_replaced_ms=0)
    with pytest.raises(FileNotFoundError, match="no table"):
        read_table(batches, config.output)
    writer = UpsertWriter(config, bind_output(batches, config))
    writer(transform(frame_of(batches, [(b"1", b"garbage"), (b"x", None)]), config), 0)
    assert read_table(batches, config.output).collect() == []
    writer(transform(frame_of(batches, records_of([(1, 1, 1), (2, 1, 2), (2, None, 0)]), first=2), config), 1)
    assert [tuple(row) for row in read_table(batches, config.output).collect()] == [(1, 1, 1)]
    assert writer.summary() == "3 changes and 2 dead letters in 2 batches; the table has 1 rows"
    letters = batches.read.parquet(config.dead_letters).orderBy("kafka_offset").collect()
    assert [row.dead_letter_reason for row in letters] == [
        "not JSON at line 1, column 1 (byte 0): Expecting value",
        "key id is missing or null",
    ]
    # As a reader without Spark finds it.
    (commit,) = (tmp_path / "table" / "_commits").glob("[0-9]*.json")
    told = json.loads(commit.read_text())
    rows = pyarrow.dataset.dataset(tmp_path / "table" / told["rows"]).to_table()
    assert (told["count"], rows.select(["id", "n"]).to_pylist()) == (1, [{"id": 1, "n": 1}])


def test_a_table_can_get_fields_and_lose_none(batches: SparkSession, tmp_path: Path) -> None:
    write_batches(batches, config_of(ARRIVING, tmp_path), [[(1, 1, 1)]])
    wider = config_of(form_of("id INT, seq INT, n INT, note STRING"), tmp_path)
    writer = UpsertWriter(wider, bind_output(batches, wider))
    writer(transform(frame_of(batches, [(b"2", b'{"n": 2, "note": "x"}')], first=1), wider), 1)
    rows = sorted((row.id, row.n, row.note) for row in read_table(batches, wider.output).collect())
    assert rows == [(1, 1, None), (2, 2, "x")]
    for ddl in ("id INT, seq INT, n INT", "id INT, seq INT, n BIGINT, note STRING"):
        with pytest.raises(ValueError, match=r"has the field (note STRING|n INT): it must stay so"):
            bind_output(batches, config_of(form_of(ddl), tmp_path))


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        (ARRIVING, {"checkpoint": "other"}, "belongs to another checkpoint"),
        (ARRIVING, {"scd": 2}, "--scd: .* was begun with 1"),
        (SEQUENCED, {}, "--sequence-by: .* was begun with none"),
    ],
)
def test_a_table_is_kept_as_it_was_begun(
    batches: SparkSession, tmp_path: Path, form: Any, options: dict[str, Any], message: str
) -> None:
    bind_output(batches, config_of(ARRIVING, tmp_path))
    bind_output(batches, config_of(ARRIVING, tmp_path))
    with pytest.raises(ValueError, match=message):
        bind_output(batches, config_of(form, tmp_path, **options))


def test_names_of_the_tables_own_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="columns of its own with these names: valid_from, _sequence"):
        config_of(form_of("id INT, valid_from DATE, _sequence INT"))


def test_snapshots_that_were_replaced_stay_for_their_readers(batches: SparkSession, tmp_path: Path) -> None:
    config = config_of(
        ARRIVING, tmp_path, file_format="orc", keep_replaced_ms=int(dt.timedelta(hours=1).total_seconds() * 1000)
    )
    write_batches(batches, config, [[(1, 1, 1)]])
    reader = read_table(batches, config.output)
    write_batches(batches, config, [[(1, 1, 1)], [(1, 1, 2)]])
    assert [row.n for row in reader.collect()] == [1]
    assert [row.n for row in read_table(batches, config.output).collect()] == [2]
