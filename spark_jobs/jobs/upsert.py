"""`upsert`: keep a table of the current rows, or of their history, from a stream of changes.

    python -m spark_jobs.jobs.upsert --bootstrap-servers 127.0.0.1:9092 --topics shop.public.orders \
        --envelope debezium --schema orders.ddl --keys id \
        --output /tables/orders --checkpoint /tables/checkpoints/orders

Guarantee: the table is what the committed batches make of it, each applied exactly once, and readers see the table as
one batch left it, also when the job dies at any moment and is started again. Changes of a key are applied in their
order, whatever order they arrive in when `--sequence-by` or Debezium gives one.

How: a batch is merged with the newest snapshot into a new one, which a commit file then makes the table
(`spark_jobs.upserts.snapshots`). The commit carries the batch's number: a batch that Spark runs again after it was
committed changes nothing. Deletes are remembered, out of readers' sight, so that an older change that comes late does
not bring the row back.
The table is written anew by every batch: take a trigger that suits its size.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from spark_jobs.checkpoints.binding import bind
from spark_jobs.common.cli import INTERVAL, RunConfig, names_in
from spark_jobs.common.records import DERIVED_PARTITIONS, REASON, RECORD_COLUMNS, parameter
from spark_jobs.common.runner import Job, Query, run
from spark_jobs.common.schema import read_schema
from spark_jobs.common.sink import Attempts, ParquetSink
from spark_jobs.common.source import SourceConfig, read_stream
from spark_jobs.schemas.value_format import add_value_options, value_format
from spark_jobs.upserts.changes import (
    DEBEZIUM,
    INTERNAL,
    PLAIN,
    TIME,
    ChangeFormat,
    explained,
    parse_changes,
)
from spark_jobs.upserts.snapshots import ARRIVAL, DELETED, OWN_COLUMNS, SEQUENCE, UNDATED, SnapshotWriter, read_table

__all__ = ["JOB", "UpsertConfig", "build_query", "main", "merge", "plan", "read_table", "transform"]

MARKER = "_odradek_upsert.json"
"""See `spark_jobs.checkpoints.binding`."""

HISTORY = ("valid_from", "valid_to", "is_current")
ROWS_A_TASK = 50_000
"""Rows of the table and of a batch for which a merge takes another task: tasks of few rows are mostly overhead."""

MERGING = ("_batch", "_last", "_repeats", "_first", "_begins", "_ends")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpsertConfig:
    """One table: its source, its run, where it is and what changes look like.

    `scd` 1 keeps the current rows, 2 every version of each with `valid_from`, `valid_to` and `is_current`.
    `keep_replaced_ms`: how long a reader can go on with a snapshot after the next one was committed.
    """

    source: SourceConfig
    run: RunConfig
    output: str
    dead_letters: str
    changes: ChangeFormat
    scd: int = 1
    file_format: str = "parquet"
    keep_replaced_ms: int = 600_000

    def __post_init__(self) -> None:
        own = {
            *RECORD_COLUMNS,
            *DERIVED_PARTITIONS,
            REASON,
            *HISTORY,
            *OWN_COLUMNS,
            *INTERNAL,
            *MERGING,
            "raw_value",
            "batch_id",
        }
        taken = [name for name in self.changes.schema.fieldNames() if name in own]
        if taken:
            raise ValueError(f"--schema: the table has columns of its own with these names: {', '.join(taken)}")

    @property
    def settings(self) -> dict[str, Sequence[str] | str | int]:
        """Settings that must not change under a table."""
        form = self.changes
        return {
            "keys": form.keys,
            "envelope": form.envelope,
            "sequence_by": form.sequence_by,
            "scd": self.scd,
        }


def transform(df: DataFrame, config: UpsertConfig) -> DataFrame:
    """The connector's rows as changes, as `spark_jobs.upserts.changes.parse_changes` describes them."""
    return parse_changes(df, config.changes)


def dead_letter_rows(changes: DataFrame, config: UpsertConfig) -> DataFrame:
    """Those of `transform`'s rows that are not a change: the record as it came, and the reason."""
    letters = changes.where(sql.col(REASON).isNotNull())
    why = explained(config.changes).alias(REASON)
    return letters.select(*RECORD_COLUMNS, sql.col("raw_value").alias("value"), why, *DERIVED_PARTITIONS)


def _quoted(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _entries(changes: DataFrame, config: UpsertConfig, batch_id: int) -> DataFrame:
    """Changes of one batch with the order in which they arrived.

    Offsets order a partition. Where a key has changes in several (the topic was given more partitions), the one that
    was written to last counts as the last: its records come after those of the others.
    """
    form = config.changes
    keys = _quoted(form.keys)
    last_write = f"max(kafka_timestamp) OVER (PARTITION BY {', '.join(keys)}, topic, kafka_partition)"
    place = "topic, kafka_partition AS partition, kafka_offset AS offset"
    # Of a deleted row nothing but the key is kept: what was deleted is not to be found in the table's files.
    fields = [
        name if name in keys else f"IF({DELETED}, NULL, {name}) AS {name}" for name in _quoted(form.schema.fieldNames())
    ]
    own = [SEQUENCE] if form.sequenced else []
    if form.sequenced and config.scd == 2:
        own.append(f"{'raw_value IS NULL' if form.envelope == DEBEZIUM else 'FALSE'} AS {UNDATED}")
    known = changes.where(f"{REASON} IS NULL").withColumn("_batch", parameter(batch_id))
    return known.selectExpr(
        *fields,
        f"{TIME} AS valid_from",
        *own,
        f"struct(_batch AS batch, {last_write} AS at, {place}) AS {ARRIVAL}",
        DELETED,
    )


def stored_schema(entries: StructType, config: UpsertConfig) -> StructType:
    """Columns of the table's files, given those of `_entries`."""
    names = config.changes.schema.fieldNames()
    fields = [entries[name] for name in names]
    if config.scd == 2:
        fields += [StructField(name, TimestampType()) for name in ("valid_from", "valid_to")]
        fields.append(StructField("is_current", BooleanType()))
    own = [name for name in (SEQUENCE, UNDATED, ARRIVAL) if name in entries.names]
    return StructType([*fields, *(entries[name] for name in own)])


def merge(stored: DataFrame | None, changes: DataFrame, config: UpsertConfig, batch_id: int) -> DataFrame:
    """The table after a batch: `stored` (None: no table yet) with the changes among `transform`'s rows.

    Has the table's columns, then `_sequence`, `_arrival` and `_deleted`. What the order of the changes decides, their
    distribution over batches does not.
    """
    entries = _entries(changes, config, batch_id)
    names = stored_schema(entries.schema, config).fieldNames()
    if stored is not None:
        times = [] if config.scd == 2 else ["CAST(NULL AS TIMESTAMP) AS valid_from"]
        kept = [name for name in entries.columns if config.scd == 2 or name != "valid_from"]
        entries = stored.selectExpr(*_quoted(kept), *times).unionByName(entries)
    of_key = f"PARTITION BY {', '.join(_quoted(config.changes.keys))}"
    if config.changes.sequenced:
        entries = _sequenced(entries, of_key)
    rows = _history(entries, config, of_key) if config.scd == 2 else _latest(entries, config, of_key)
    return rows.select(*_quoted(names), DELETED)


def _sequenced(entries: DataFrame, of_key: str) -> DataFrame:
    """`entries` with a sequence each.

    A delete without one (a null value) comes after everything of its key that came before it. It changes nothing, and
    is left out, where that is nothing, or ends in a delete: Debezium sends a null value after each of its deletes.
    """
    arrived = f"OVER ({of_key} ORDER BY {ARRIVAL})"
    again = f"{SEQUENCE} IS NULL AND coalesce(lag({DELETED}) {arrived}, FALSE)"
    sequence = f"IF({again}, NULL, coalesce({SEQUENCE}, max({SEQUENCE}) {arrived}))"
    others = [name for name in entries.columns if name != SEQUENCE]
    return entries.selectExpr(*_quoted(others), f"{sequence} AS {SEQUENCE}").where(f"{SEQUENCE} IS NOT NULL")


def _latest(entries: DataFrame, config: UpsertConfig, of_key: str) -> DataFrame:
    if not config.changes.sequenced:
        # In the order of arrival nothing can come late: no delete has to be remembered.
        last = f"{ARRIVAL} = max({ARRIVAL}) OVER ({of_key})"
        return entries.selectExpr("*", f"{last} AS _last").where(f"_last AND NOT {DELETED}")
    order = f"struct({SEQUENCE}, {ARRIVAL})"
    last = f"{order} = max({order}) OVER ({of_key})"
    # A delete that came late is remembered as long as it is what came last: a null value after it says nothing new.
    late = f"{DELETED} AND {ARRIVAL} = max({ARRIVAL}) OVER ({of_key})"
    return entries.selectExpr("*", f"{last} OR {late} AS _last").where("_last")


def _history(entries: DataFrame, config: UpsertConfig, of_key: str) -> DataFrame:
    if config.changes.sequenced:
        ordered = f"OVER ({of_key} ORDER BY {SEQUENCE}, {ARRIVAL})"
        entries = _without_repeats(entries, of_key)
        undated = f"coalesce({UNDATED}, FALSE)"
    else:
        ordered, undated = f"OVER ({of_key} ORDER BY {ARRIVAL})", "FALSE"
        # Nothing can come late between two deletes: the second one says nothing new.
        repeats = f"{DELETED} AND coalesce(lag({DELETED}) {ordered}, FALSE)"
        entries = entries.selectExpr("*", f"{repeats} AS _repeats").where("NOT _repeats")
    # Clocks may disagree with the order; no version ends before it begins.
    entries = entries.selectExpr("*", f"max(IF({undated}, NULL, valid_from)) {ordered} AS _begins")
    # A null value has the time when it was sent, which is later than what it tells of: it moves nothing that follows.
    sent = f"greatest(_begins, least(valid_from, lead(_begins) {ordered}))"
    entries = entries.selectExpr("*", f"IF({undated}, {sent}, _begins) AS _ends")
    others = [name for name in entries.columns if name != "valid_from"]
    return entries.selectExpr(
        *_quoted(others),
        f"IF({undated}, valid_from, _begins) AS valid_from",
        f"lead(_ends) {ordered} AS valid_to",
        f"NOT {DELETED} AND lead({DELETED}) {ordered} IS NULL AS is_current",
    )


def _without_repeats(entries: DataFrame, of_key: str) -> DataFrame:
    """`entries` with one of those that were sent twice, as a connector does that was restarted: the one that came last.

    A delete keeps the time of the first, and of one that has a time of its own.
    """
    again = f"OVER ({of_key}, {SEQUENCE}, {DELETED})"
    first = f"min(struct({UNDATED}, {ARRIVAL}, valid_from)) {again}"
    last = f"{ARRIVAL} = max({ARRIVAL}) {again}"
    once = entries.selectExpr("*", f"{first} AS _first", f"{last} AS _last").where("_last")
    own = (UNDATED, "valid_from")
    others = [name for name in entries.columns if name not in own]
    return once.selectExpr(*_quoted(others), *(f"IF({DELETED}, _first.{name}, {name}) AS {name}" for name in own))


class UpsertWriter:
    """Writer that the query calls for each batch; counts the changes it has applied."""

    def __init__(self, config: UpsertConfig, table: SnapshotWriter) -> None:
        self.config = config
        self.table = table
        self.changes = 0
        self.dead = 0
        self.batches = 0
        self._attempts = Attempts()
        self._last = -1, 0
        self._stored_schema: StructType | None = None
        self._most_tasks = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Apply one batch of `transform`'s rows, unless it is in the table already."""
        current = self.table.current
        if current is not None and current.batch_id >= batch_id:
            return
        with self.config.changes.values.decided(batch) as changes:
            self._apply(changes, batch_id)

    def _apply(self, changes: DataFrame, batch_id: int) -> None:
        counts, sizes = Observation(f"changes-{batch_id}"), Observation(f"table-{batch_id}")
        observed = changes.observe(counts, sql.expr("count(1) AS all"), sql.expr(f"count({REASON}) AS dead"))
        schema = self._stored_schema or stored_schema(_entries(changes, self.config, batch_id).schema, self.config)
        self._stored_schema = schema
        self._choose_tasks(changes.sparkSession)
        merged = merge(self.table.read(changes.sparkSession, schema), observed, self.config, batch_id)
        merged = merged.observe(sizes, sql.expr("count(1) AS all"), sql.expr(f"count_if({DELETED}) AS gone"))
        directory = self.table.write(merged, batch_id)
        total, dead = map(int, counts.get.values())
        letters = ParquetSink(path=self.config.dead_letters, partition_by=DERIVED_PARTITIONS)
        # Before the commit: a batch that is in the table is not run again.
        with self._attempts.replaced(changes.sparkSession, batch_id, letters):
            if dead:
                letters.write(dead_letter_rows(changes, self.config), batch_id)
        entries, deleted = map(int, sizes.get.values())
        self.table.commit(batch_id, directory, schema, live=entries - deleted, deleted=deleted)
        self.changes += total - dead
        self.dead += dead
        self.batches += total > 0
        self._last = batch_id, total

    def _choose_tasks(self, spark: SparkSession) -> None:
        """Have a merge as many tasks as it has work for, if it has as many rows as the last one."""
        partitions, current = "spark.sql.shuffle.partitions", self.table.current
        self._most_tasks = self._most_tasks or int(str(spark.conf.get(partitions)))
        if current is not None and self.batches:
            rows = current.live + current.deleted + self._last[1]
            spark.conf.set(partitions, min(self._most_tasks, 1 + rows // ROWS_A_TASK))

    def records_of(self, batch_id: int) -> int | None:
        """How many records the last batch held; None for another."""
        last, records = self._last
        return records if last == batch_id else None

    def summary(self) -> str:
        """Tell the changes, the dead letters, the batches and the rows of the table."""
        rows = self.table.current.live if self.table.current is not None else 0
        done = f"{self.changes:,} changes and {self.dead:,} dead letters in {self.batches:,} batches"
        return f"{done}; the table has {rows:,} rows"


def bind_output(spark: SparkSession, config: UpsertConfig) -> SnapshotWriter:
    """Tie output and checkpoint together, or check that they are; gives the table's writer.

    Raises ValueError when the output belongs to another checkpoint, or is kept in another way or with other fields.
    """
    bind(spark, config.output, config.run.checkpoint, marker=MARKER, settings=config.settings)
    table = SnapshotWriter(
        spark, config.output, file_format=config.file_format, keep_replaced_ms=config.keep_replaced_ms
    )
    if table.current is not None:
        _check_fields(table.current.schema, config)
    return table


def _check_fields(stored: StructType, config: UpsertConfig) -> None:
    """New fields are null in the rows that are there; others must stay as they are."""
    ours = {field.name: field.dataType for field in config.changes.schema}
    for field in stored:
        if field.name in (*HISTORY, *OWN_COLUMNS):
            continue
        if ours.get(field.name) != field.dataType:
            kept = f"{field.name} {field.dataType.simpleString().upper()}"
            raise ValueError(f"--schema: the table in {config.output} has the field {kept}: it must stay so")


def plan(spark: SparkSession, config: UpsertConfig) -> DataFrame:
    """The changes that batches are made of."""
    return transform(read_stream(spark, config.source), config)


def build_query(spark: SparkSession, config: UpsertConfig) -> Query:
    """The query that keeps the table. Raises ValueError as `bind_output` does."""
    # Parsed by the stream, and not by the writer: to plan it again for each batch takes longer than a small batch does.
    changes = plan(spark, config)  # what is wrong with --delete-when shows before anything is written
    writer = UpsertWriter(config, bind_output(spark, config))
    return Query(changes.writeStream.foreachBatch(writer), writer.summary, writer.records_of)


def duration_ms(text: str) -> int:
    """Milliseconds of `90s`, `10m` and the like; raises ArgumentTypeError."""
    interval = INTERVAL.fullmatch(text)
    if interval is None:
        raise argparse.ArgumentTypeError(f"'{text}': must be a duration like 500ms, 30s, 5m, 1h")
    return int(interval[1]) * _UNIT_MS[interval[2]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the values, the changes and the table."""
    add_value_options(parser)
    changes = parser.add_argument_group("changes")
    changes.add_argument("--schema", required=True, metavar="FILE", help="fields of a row: DDL or Spark's JSON")
    changes.add_argument(
        "--keys", required=True, type=names_in, metavar="A,B,...", help="fields that identify a row; from value or key"
    )
    changes.add_argument(
        "--envelope",
        choices=[PLAIN, DEBEZIUM],
        default=PLAIN,
        help="none: a value is the row, a null value deletes it; debezium: Debezium's events in JSON (default: none)",
    )
    changes.add_argument(
        "--sequence-by",
        type=names_in,
        default=(),
        metavar="A,B,...",
        help="fields that order the changes of a row (default: Debezium's source.lsn, then ts_ms; else the offsets)",
    )
    changes.add_argument("--delete-when", metavar="SQL", help="rows for which this holds are deleted")
    table = parser.add_argument_group("table")
    table.add_argument("--output", required=True, metavar="DIR")
    table.add_argument(
        "--scd", type=int, choices=[1, 2], default=1, help="1: current rows; 2: every version of each (default: 1)"
    )
    table.add_argument(
        "--format", choices=["parquet", "orc"], default="parquet", help="of the files (default: parquet)"
    )
    table.add_argument(
        "--keep-replaced",
        type=duration_ms,
        default=600_000,
        metavar="TIME",
        help="how long readers can go on with a snapshot that was replaced (default: 10m)",
    )
    table.add_argument(
        "--dead-letters", metavar="DIR", help="where records go that are not a change (default: OUTPUT-dead-letters)"
    )


def configure(arguments: argparse.Namespace, source: SourceConfig, running: RunConfig) -> UpsertConfig:
    """The table that the options describe; raises OSError or ValueError with one line about a bad one."""
    output = arguments.output.rstrip("/")
    return UpsertConfig(
        source=source,
        run=running,
        output=output,
        dead_letters=arguments.dead_letters or f"{output}-dead-letters",
        changes=ChangeFormat(
            schema=read_schema(arguments.schema),
            keys=arguments.keys,
            envelope=arguments.envelope,
            sequence_by=arguments.sequence_by,
            delete_when=arguments.delete_when,
            values=value_format(arguments),
        ),
        scd=arguments.scd,
        file_format=arguments.format,
        keep_replaced_ms=arguments.keep_replaced,
    )


JOB = Job(
    name="upsert",
    description="Keep a table of current rows, or of their history, from a stream of changes.",
    add_options=add_options,
    configure=configure,
    plan=plan,
    build_query=build_query,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job, as `spark_jobs.common.runner.run` says."""
    return run(JOB, argv)


if __name__ == "__main__":
    sys.exit(main())
