"""Compaction keeps every row, whichever process dies during it, and never rolls a checkpoint back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_jobs.common.files import TableDirectory
from spark_jobs.common.sink import ParquetSink
from spark_jobs.jobs import lake_compact
from spark_jobs.lakes.compaction import Compactor, Fragment, Merge, check_not_rewound, fragments, plan_merges
from spark_jobs.lakes.layout import MARKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BATCHES = 4
MB = 1 << 20


def test_files_are_fragments_of_batches() -> None:
    files = [
        ("date=2026-03-01/batch_id=3/part-0.parquet", 10),
        ("date=2026-03-01/batch_id=3/part-1.parquet", 20),
        ("batch_id=4/part-0.parquet", 5),
        ("date=2026-03-01/batch_id=3/.part-0.parquet.crc", 1),
        ("date=2026-03-01/batch_id=3/_SUCCESS", 0),
        ("date=2026-03-01/.odradek-replaced-batch_id=1/part-0.parquet", 7),
        (".spark-staging-1/date=2026-03-01/batch_id=9/part-0.parquet", 7),
        ("_odradek_lake.json", 7),
    ]
    assert fragments(files) == [Fragment("", 4, 1, 5), Fragment("date=2026-03-01", 3, 2, 30)]


def test_a_plan_takes_small_files_of_batches_that_are_done() -> None:
    found = [Fragment("a=1", batch, 2, 2 * MB) for batch in range(5)]
    found += [Fragment("a=1", 5, 1, 100 * MB), Fragment("a=2", 0, 1, MB), Fragment("a=2", 1, 1, MB)]

    def plan(last_batch: int, min_files: int = 3, target_mb: int = 128) -> list[Merge]:
        return plan_merges(found, last_batch, target_bytes=target_mb * MB, min_files=min_files)

    assert plan(3) == [Merge("a=1", (0, 1, 2, 3), 8, 8 * MB, 1)]
    assert [merge.partition for merge in plan(9, min_files=2)] == ["a=1", "a=2"]
    assert plan(9)[0].batches == (0, 1, 2, 3, 4), "a file of most of the target stays"
    assert plan(9, target_mb=3)[0].outputs == 4
    assert plan(9, target_mb=2) == [], "no file would be saved"
    assert plan(-1) == []


def write_lake(spark: SparkSession, directory: Path) -> str:
    """A lake of four batches in two partitions; the last batch is incomplete. Returns the table's directory."""
    table, checkpoint = directory / "table", directory / "checkpoint"
    sink = ParquetSink(path=str(table), partition_by=("date",))
    for batch in range(BATCHES):
        extra = ["int(id) AS late"] if batch == 2 else []  # the schema has grown meanwhile
        rows = spark.range(batch * 100, batch * 100 + 100, numPartitions=2).selectExpr(
            "id AS kafka_offset", "0 AS kafka_partition", "date_add(date'2026-03-01', int(id % 2)) AS date", *extra
        )
        sink.write(rows, batch)
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "commits" / str(BATCHES - 2)).write_text("v1\n{}")
    for place in (table, checkpoint):
        (place / MARKER).write_text('{"output": "1"}')
    return str(table)


def rows_of(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    read = spark.read.option("mergeSchema", "true").parquet(table).drop("batch_id")
    return sorted((row.kafka_offset, str(row.date), row.late or -1) for row in read.collect())


def data_files(table: str) -> list[str]:
    return sorted(str(path.relative_to(table)) for path in Path(table).rglob("[!._]*.parquet"))


def merge_all(spark: SparkSession, table: str) -> None:
    compactor = Compactor(spark, table)
    for merge in compactor.plan(BATCHES - 2, target_bytes=128 * MB, min_files=2):
        compactor.merge(merge)


def test_rows_stay_and_files_become_few(spark: SparkSession, tmp_path: Path) -> None:
    table = write_lake(spark, tmp_path)
    before = rows_of(spark, table)
    assert len(data_files(table)) == 2 * 2 * BATCHES
    merge_all(spark, table)
    assert rows_of(spark, table) == before
    batches = [name.split("/")[1] for name in data_files(table)]
    assert sorted(batches) == ["batch_id=2"] * 2 + ["batch_id=3"] * 4, "the batch that is not done is left alone"
    merge_all(spark, table)
    assert len(data_files(table)) == 6, "nothing is left to merge"
    offsets = [row.kafka_offset for row in spark.read.parquet(f"{table}/date=2026-03-01/batch_id=2").collect()]
    assert offsets == sorted(offsets)


class Died(Exception):
    """The process died here."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of changes to the file system that succeed; the next one dies."""
    left = [10**6]

    def counted(name: str) -> None:
        change = getattr(TableDirectory, name)

        def counting(self: TableDirectory, *arguments: str) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return change(self, *arguments)

        monkeypatch.setattr(TableDirectory, name, counting)

    for name in ("move", "remove", "write_text"):
        counted(name)
    return left


def test_a_compaction_that_died_is_finished_by_the_next(spark: SparkSession, tmp_path: Path, dying: list[int]) -> None:
    """The compaction dies at each of its changes."""
    whole = write_lake(spark, tmp_path)
    before = rows_of(spark, whole)
    finished = set()
    for steps in range(100):
        table = str(shutil.copytree(whole, tmp_path / str(steps)))
        merge = Compactor(spark, table).plan(BATCHES - 2, target_bytes=128 * MB, min_files=2)[0]
        compactor = Compactor(spark, table)
        dying[0] = steps
        try:
            compactor.merge(merge)
            break
        except Died:
            dying[0] = 10**6
        Compactor(spark, table)
        finished.add(len(data_files(table)))
        assert rows_of(spark, table) == before, steps
        assert [path.name for path in Path(table).rglob(".odradek*")] == []
    assert steps > 8
    assert finished == {16, 11}, "before the journal is there all is as it was, afterwards all is done"


def test_a_checkpoint_put_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = write_lake(spark, tmp_path)
    checkpoint = tmp_path / "checkpoint"
    check_not_rewound(spark, table, str(checkpoint))
    merge_all(spark, table)
    check_not_rewound(spark, table, str(checkpoint))
    (checkpoint / "commits" / "2").rename(checkpoint / "commits" / "1")
    with pytest.raises(ValueError, match="is at batch 1, but batches up to 2 of"):
        check_not_rewound(spark, table, str(checkpoint))


def test_the_command(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(lake_compact, "session_of", lambda *_, **__: nullcontext(spark))
    table = write_lake(spark, tmp_path)
    options = ["--output", table, "--checkpoint", str(tmp_path / "checkpoint"), "--min-files", "2"]
    assert lake_compact.main([*options, "--dry-run"]) == 0
    assert "lake compact: 12 files would become 2" in capsys.readouterr().out
    assert len(data_files(table)) == 16
    assert lake_compact.main(options) == 0
    said = capsys.readouterr().out
    assert "date=2026-03-01: 6 files of batches 0 to 2" in said
    assert said.endswith("lake compact: 12 files became 2\n")
    (tmp_path / "checkpoint" / MARKER).write_text(json.dumps({"output": "2"}))
    assert lake_compact.main(options) == 1
    assert "belongs to another checkpoint" in capsys.readouterr().err
    assert lake_compact.main(["--output", str(tmp_path / "none"), "--checkpoint", "c"]) == 1
    assert "no table of the job lake is there" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        lake_compact.main([*options, "--target-file-size", "big"])
    assert usage.value.code == 2
