"""`upsert`: keep a table of the current rows, or of their history, from a stream of changes.

    python -m spark_jobs.jobs.upsert --bootstrap-servers 127.0.0.1:9092 --topics shop.public.orders \
        --envelope debezium --schema orders.ddl --keys id \
        --output /tables/orders --checkpoint /tables/checkpoints/orders

Guarantee: the table is the result of the committed batches, each applied exactly once. Readers always see the table as
of one batch, even if the job dies at any moment and restarts. With `--sequence-by`, or Debezium's order, changes of a
key apply in that order, even if they arrive in another one.

How: a batch is merged with the newest snapshot into a new one, and a commit file then makes that one the table
(`spark_jobs.upserts.snapshots`). The commit contains the batch's number: a batch that Spark repeats after its commit
changes nothing. Deletes are remembered, hidden from readers, so that an older change that arrives late does not restore
the row. Every batch rewrites the table: choose a trigger that suits its size.
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
"""Rows of the table and of a batch that justify another task of a merge: tasks with few rows are mostly overhead."""

MERGING = ("_batch", "_last", "_repeats", "_first", "_begins", "_ends")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpsertConfig:
    """One table: its source, run settings, location and change format.

    `scd` 1 keeps the current rows, 2 every version of each with `valid_from`, `valid_to` and `is_current`.
    `keep_replaced_ms`: how long a snapshot stays readable after the commit of the next one.
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
    """The rows of `transform` that are not a change: the record as received, and the reason."""
    letters = changes.where(sql.col(REASON).isNotNull())
    why = explained(config.changes).alias(REASON)
    return letters.select(*RECORD_COLUMNS, sql.col("raw_value").alias("value"), why, *DERIVED_PARTITIONS)


def _quoted(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _entries(changes: DataFrame, config: UpsertConfig, batch_id: int) -> DataFrame:
    """Changes of one batch with their arrival order.

    Offsets order the changes of a partition. If a key has changes in several partitions (partitions were added to the
    topic), the most recently written partition is the newest: its records follow those of the others.
    """
    form = config.changes
    keys = _quoted(form.keys)
    last_write = f"max(kafka_timestamp) OVER (PARTITION BY {', '.join(keys)}, topic, kafka_partition)"
    place = "topic, kafka_partition AS partition, kafka_offset AS offset"
    # Keep only the key of a deleted row: deleted values must not stay in the table's files.
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
    """Columns of the table's files, from the columns of `_entries`."""
    names = config.changes.schema.fieldNames()
    fields = [entries[name] for name in names]
    if config.scd == 2:
        fields += [StructField(name, TimestampType()) for name in ("valid_from", "valid_to")]
        fields.append(StructField("is_current", BooleanType()))
    own = [name for name in (SEQUENCE, UNDATED, ARRIVAL) if name in entries.names]
    return StructType([*fields, *(entries[name] for name in own)])


def merge(stored: DataFrame | None, changes: DataFrame, config: UpsertConfig, batch_id: int) -> DataFrame:
    """The table after a batch: `stored` (None for a new table) with the changes among the rows of `transform`.

    Has the table's columns, then `_sequence`, `_arrival` and `_deleted`. The result depends on the order of the
    changes, not on how batches divide them.
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

    A delete without a sequence (a null value) follows everything of its key that arrived before it. It is dropped if
    nothing did, or if the last of these is a delete: Debezium sends a null value after each of its deletes.
    """
    arrived = f"OVER ({of_key} ORDER BY {ARRIVAL})"
    again = f"{SEQUENCE} IS NULL AND coalesce(lag({DELETED}) {arrived}, FALSE)"
    sequence = f"IF({again}, NULL, coalesce({SEQUENCE}, max({SEQUENCE}) {arrived}))"
    others = [name for name in entries.columns if name != SEQUENCE]
    return entries.selectExpr(*_quoted(others), f"{sequence} AS {SEQUENCE}").where(f"{SEQUENCE} IS NOT NULL")


def _latest(entries: DataFrame, config: UpsertConfig, of_key: str) -> DataFrame:
    if not config.changes.sequenced:
        # In arrival order nothing is late: deletes need not be remembered.
        last = f"{ARRIVAL} = max({ARRIVAL}) OVER ({of_key})"
        return entries.selectExpr("*", f"{last} AS _last").where(f"_last AND NOT {DELETED}")
    order = f"struct({SEQUENCE}, {ARRIVAL})"
    last = f"{order} = max({order}) OVER ({of_key})"
    # Remember a late delete while it is the last arrival: a null value after it adds nothing.
    late = f"{DELETED} AND {ARRIVAL} = max({ARRIVAL}) OVER ({of_key})"
    return entries.selectExpr("*", f"{last} OR {late} AS _last").where("_last")


def _history(entries: DataFrame, config: UpsertConfig, of_key: str) -> DataFrame:
    if config.changes.sequenced:
        ordered = f"OVER ({of_key} ORDER BY {SEQUENCE}, {ARRIVAL})"
        entries = _without_repeats(entries, of_key)
        undated = f"coalesce({UNDATED}, FALSE)"
    else:
        ordered, undated = f"OVER ({of_key} ORDER BY {ARRIVAL})", "FALSE"
        # No change can arrive late between two deletes: the second one adds nothing.
        repeats = f"{DELETED} AND coalesce(lag({DELETED}) {ordered}, FALSE)"
        entries = entries.selectExpr("*", f"{repeats} AS _repeats").where("NOT _repeats")
    # Clocks may disagree with the order; no version ends before it begins.
    entries = entries.selectExpr("*", f"max(IF({undated}, NULL, valid_from)) {ordered} AS _begins")
    # A null value has the time of its sending, after that of its change: it must not delay later versions.
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
    """`entries` without changes that were sent twice, as a restarted connector does: keeps the last arrival.

    A delete keeps the time of the first copy, preferably of one with an explicit time.
    """
    again = f"OVER ({of_key}, {SEQUENCE}, {DELETED})"
    first = f"min(struct({UNDATED}, {ARRIVAL}, valid_from)) {again}"
    last = f"{ARRIVAL} = max({ARRIVAL}) {again}"
    once = entries.selectExpr("*", f"{first} AS _first", f"{last} AS _last").where("_last")
    own = (UNDATED, "valid_from")
    others = [name for name in entries.columns if name not in own]
    return once.selectExpr(*_quoted(others), *(f"IF({DELETED}, _first.{name}, {name}) AS {name}" for name in own))


class UpsertWriter:
    """Writes each batch for the query; counts the applied changes."""

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
        """Apply one batch of `transform`'s rows, unless the table already has it."""
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
        # Before the commit: a batch is not repeated once the table has it.
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
        """Give a merge as many tasks as its work needs, assuming as many rows as the last one."""
        partitions, current = "spark.sql.shuffle.partitions", self.table.current
        self._most_tasks = self._most_tasks or int(str(spark.conf.get(partitions)))
        if current is not None and self.batches:
            rows = current.live + current.deleted + self._last[1]
            spark.conf.set(partitions, min(self._most_tasks, 1 + rows // ROWS_A_TASK))

    def records_of(self, batch_id: int) -> int | None:
        """Record count of the last batch, or None for another batch."""
        last, records = self._last
        return records if last == batch_id else None

    def summary(self) -> str:
        """One line: the changes, the dead letters, the batches and the rows of the table."""
        rows = self.table.current.live if self.table.current is not None else 0
        done = f"{self.changes:,} changes and {self.dead:,} dead letters in {self.batches:,} batches"
        return f"{done}; the table has {rows:,} rows"


def bind_output(spark: SparkSession, config: UpsertConfig) -> SnapshotWriter:
    """Tie output and checkpoint together, or check that they are; returns the table's writer.

    Raises ValueError if the output belongs to another checkpoint, or has other settings or incompatible fields.
    """
    bind(spark, config.output, config.run.checkpoint, marker=MARKER, settings=config.settings)
    table = SnapshotWriter(
        spark, config.output, file_format=config.file_format, keep_replaced_ms=config.keep_replaced_ms
    )
    if table.current is not None:
        _check_fields(table.current.schema, config)
    return table


def _check_fields(stored: StructType, config: UpsertConfig) -> None:
    """Check that the stored fields are unchanged; new fields are null in existing rows."""
    ours = {field.name: field.dataType for field in config.changes.schema}
    for field in stored:
        if field.name in (*HISTORY, *OWN_COLUMNS):
            continue
        if ours.get(field.name) != field.dataType:
            kept = f"{field.name} {field.dataType.simpleString().upper()}"
            raise ValueError(f"--schema: the table in {config.output} has the field {kept}: it must stay so")


def plan(spark: SparkSession, config: UpsertConfig) -> DataFrame:
    """The changes that batches apply."""
    return transform(read_stream(spark, config.source), config)


def build_query(spark: SparkSession, config: UpsertConfig) -> Query:
    """The query that keeps the table. Raises ValueError as `bind_output` does."""
    # Parse in the stream, not in the writer: planning it again for each batch takes longer than a small batch.
    changes = plan(spark, config)  # fails on a wrong --delete-when before anything is written
    writer = UpsertWriter(config, bind_output(spark, config))
    return Query(changes.writeStream.foreachBatch(writer), writer.summary, writer.records_of)


def duration_ms(text: str) -> int:
    """Milliseconds of `90s`, `10m` and the like; raises ArgumentTypeError."""
    interval = INTERVAL.fullmatch(text)
    if interval is None:
        raise argparse.ArgumentTypeError(f"'{text}': must be a duration like 500ms, 30s, 5m, 1h")
    return int(interval[1]) * _UNIT_MS[interval[2]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the values, the changes and the table."""
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
        help="how long readers can keep using a replaced snapshot (default: 10m)",
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
