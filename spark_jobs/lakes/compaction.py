"""Compaction: merges a table's many small files of committed batches into few.

Each batch of the job `lake` owns the directories `.../batch_id=N/`. Those of one partition are merged into the
directory of the highest batch among them. The rows are first written outside the table. Then the old directories are
renamed out of the table and the new one into it. A journal lets the next compaction finish an interrupted one.

A reader that lists the table in the milliseconds of those renames misses rows of that partition, and one that listed it
before finds files gone, because Parquet lacks snapshots. Compact while nothing reads, or read again. A committed batch
is not
run again, unless its checkpoint is restored to an older state: `check_not_rewound`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint
from spark_jobs.common.files import TableDirectory, beside
from spark_jobs.common.sink import BATCH

JOURNAL = "_odradek_compaction.json"
"""Journal of the merge that is being moved into the table."""
STAGING = "compacting"
"""A directory next to the table, where merges are staged."""
STAGED = ".odradek-compacting-"
REPLACED = ".odradek-replaced-"
_THROUGH = re.compile(r"_odradek_compacted_through_(\d+)")
_ORDER = ("topic", "kafka_partition", "kafka_offset")
_DATA_FILE = re.compile(rf"(?:(?P<partition>.+)/)?{BATCH}=(?P<batch>\d+)/[^/._][^/]*")


@dataclasses.dataclass(frozen=True, order=True)
class Fragment:
    """The files of one batch in one partition of the table, `topic=t/date=2026-03-01` say; "" for the table itself."""

    partition: str
    batch: int
    files: int
    size_bytes: int

    @property
    def path(self) -> str:
        """The directory, relative to the table's."""
        return directory_of(self.partition, self.batch)


@dataclasses.dataclass(frozen=True)
class Merge:
    """Fragments of one partition that become `outputs` files in the directory of their last batch."""

    partition: str
    batches: tuple[int, ...]
    files: int
    size_bytes: int
    outputs: int

    def line(self) -> str:
        """One line for people."""
        place = self.partition or "the table"
        batches = f"batches {self.batches[0]} to {self.batches[-1]}"
        return f"{place}: {self.files:,} files of {batches} ({self.size_bytes:,} bytes) into {self.outputs:,}"


def directory_of(partition: str, batch: int, prefix: str = "") -> str:
    """The directory of a batch's files in a partition, relative to the table's."""
    return f"{partition}/{prefix}{BATCH}={batch}".removeprefix("/")


def fragments(files: Iterable[tuple[str, int]]) -> list[Fragment]:
    """The fragments of these files (relative paths and sizes). Hidden files are ignored."""
    found: dict[tuple[str, int], list[int]] = {}
    for path, size_bytes in files:
        match = _DATA_FILE.fullmatch(path)
        if match is not None and not any(part.startswith(".") for part in path.split("/")):
            found.setdefault((match["partition"] or "", int(match["batch"])), []).append(size_bytes)
    return sorted(Fragment(*place, len(sizes), sum(sizes)) for place, sizes in found.items())


def plan_merges(found: Sequence[Fragment], last_batch: int, *, target_bytes: int, min_files: int) -> list[Merge]:
    """Worthwhile merges: partitions with at least `min_files` small files of batches up to `last_batch`.

    Small means less than half of `target_bytes`. A merge that would not save a file is left out. Pure.
    """
    small: dict[str, list[Fragment]] = {}
    for each in found:
        if each.batch <= last_batch and each.size_bytes / each.files < target_bytes / 2:
            small.setdefault(each.partition, []).append(each)
    merges = []
    for partition, members in small.items():
        files, size_bytes = sum(each.files for each in members), sum(each.size_bytes for each in members)
        outputs = max(1, -(-size_bytes // target_bytes))
        if files >= min_files and files > outputs:
            merges.append(Merge(partition, tuple(each.batch for each in members), files, size_bytes, outputs))
    return merges


def compacted_through(table: TableDirectory) -> int | None:
    """The highest batch ever merged with others, or None."""
    found = (_THROUGH.fullmatch(name) for name in table.names())
    return max((int(name[1]) for name in found if name is not None), default=None)


def check_not_rewound(spark: SparkSession, output: str, checkpoint: str) -> None:
    """Raise ValueError if the next batch would replace rows of other batches that were merged into its directory."""
    through = compacted_through(TableDirectory(spark, output))
    committed = Checkpoint(spark, checkpoint).committed_batch()
    if through is not None and (committed is None or committed < through):
        done = "no batch" if committed is None else f"batch {committed}"
        raise ValueError(
            f"--checkpoint {checkpoint} is at {done}, but batches up to {through} of {output} are compacted: "
            "they cannot be run again; use the checkpoint of then, or a new output"
        )


class Compactor:
    """Compactor of one table, the only one at a time; first finishes an interrupted merge."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.rstrip("/")
        self._table = TableDirectory(spark, path)
        text = self._table.read_text(JOURNAL)
        if text is not None:
            self._put_in_place(**json.loads(text))
        self._table.remove_children(STAGED)  # staging directory of earlier versions
        self._staging = TableDirectory(spark, beside(TableDirectory(spark, self._path).uri(), STAGING))
        self._staging.remove_all()

    def plan(self, last_batch: int, *, target_bytes: int, min_files: int) -> list[Merge]:
        """See `plan_merges`."""
        found = fragments(self._table.files())
        return plan_merges(found, last_batch, target_bytes=target_bytes, min_files=min_files)

    def merge(self, merge: Merge) -> int:
        """Merge; returns the number of rows. Raises ValueError, and changes nothing, if a row would be lost."""
        paths = [f"{self._path}/{directory_of(merge.partition, batch)}" for batch in merge.batches]
        rows = self._spark.read.option("mergeSchema", "true").parquet(*paths)
        order = [name for name in _ORDER if name in rows.columns]
        one = merge.outputs == 1
        together = rows.coalesce(1) if one else rows.repartitionByRange(merge.outputs, *order)
        staged = f"{self._staging.path}/{uuid.uuid4().hex[:8]}"
        together.sortWithinPartitions(*order).write.parquet(staged)
        before, after = rows.count(), self._spark.read.parquet(staged).count()
        if before != after:
            raise ValueError(f"{self._path}: {before:,} rows became {after:,}; nothing was changed")
        journal: dict[str, Any] = {"partition": merge.partition, "batches": list(merge.batches), "staged": staged}
        self._note(merge.batches[-1])
        self._table.write_text(JOURNAL, json.dumps(journal))
        self._put_in_place(**journal)
        return after

    def _note(self, batch: int) -> None:
        """Record for `check_not_rewound` that the batch contains rows of others, before it does."""
        through = compacted_through(self._table)
        if through is None or through < batch:
            self._table.write_text(f"_odradek_compacted_through_{batch}", "")

    def _put_in_place(self, partition: str, batches: Sequence[int], staged: str) -> None:
        """Do what the journal says, from any intermediate state; `staged` is a URI, or a path relative to the table."""
        table = self._table
        if table.has(staged):
            for batch in batches:
                old = directory_of(partition, batch)
                if table.has(old):
                    table.move(old, directory_of(partition, batch, REPLACED))
            table.move(staged, directory_of(partition, batches[-1]))
        for batch in batches:
            table.remove(directory_of(partition, batch, REPLACED))
        table.remove(JOURNAL)
