"""Tables as whole snapshots: readers see the table as of one batch, whatever fails while the next is written.

    TABLE/_commits/00000000000000000007.json       what the table is after batch 7, and where
    TABLE/_snapshots/00000000000000000007-1f2e3d4c/_deleted=false/*.parquet      its rows
    TABLE/_snapshots/00000000000000000007-1f2e3d4c/_deleted=true/*.parquet       what deletes left behind, for the job

The commit file with the highest number is the table: its `rows` names the directory of the rows, below TABLE, or is
null for a table without rows. A commit file is written under a temporary name and renamed once the snapshot is
complete. Files are never replaced, so the file system need not replace one atomically. The columns `_sequence`,
`_undated` and `_arrival` are internal to the job; `read_table` leaves them out.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
import uuid

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, StructField, StructType

from spark_jobs.common.files import TableDirectory

COMMITS = "_commits"
SNAPSHOTS = "_snapshots"
DELETED = "_deleted"
SEQUENCE = "_sequence"
UNDATED = "_undated"
"""Whether a delete lacks a time, and uses that of its record."""
ARRIVAL = "_arrival"
OWN_COLUMNS = (DELETED, SEQUENCE, UNDATED, ARRIVAL)
COMMIT_NAME = re.compile(r"(\d{20})\.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The table after one batch. `live` and `deleted` count its two parts; `schema` is that of the files."""

    batch_id: int
    directory: str
    file_format: str
    live: int
    deleted: int
    schema: StructType
    committed_ms: int

    def to_json(self) -> str:
        """The text of the commit file."""
        rows = f"{SNAPSHOTS}/{self.directory}/{DELETED}=false" if self.live else None
        fields = {"rows": rows, "count": self.live} | vars(self) | {"schema": self.schema.jsonValue()}
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str) -> Snapshot:
        """The snapshot from a commit file's text."""
        fields = json.loads(text)
        names = [field.name for field in dataclasses.fields(Snapshot)]
        return Snapshot(**{name: fields[name] for name in names} | {"schema": StructType.fromJson(fields["schema"])})

    def public_columns(self) -> list[str]:
        """The columns that a reader of the table sees."""
        return [name for name in self.schema.fieldNames() if name not in OWN_COLUMNS]


def now_ms() -> int:
    """Milliseconds since 1970, by the driver's clock."""
    return time.time_ns() // 1_000_000


def _batches(commits: TableDirectory) -> list[int]:
    found = (COMMIT_NAME.fullmatch(name) for name in commits.names())
    return sorted(int(name[1]) for name in found if name is not None)


def _commit_name(batch_id: int) -> str:
    return f"{batch_id:020}.json"


def current_snapshot(spark: SparkSession, path: str) -> Snapshot | None:
    """The newest snapshot of the table at `path`, or None before the first commit."""
    commits = TableDirectory(spark, f"{path}/{COMMITS}")
    while batches := _batches(commits):
        text = commits.read_text(_commit_name(batches[-1]))
        if text is not None:
            return Snapshot.from_json(text)
        # It was replaced and removed after the listing, so a newer one exists.
    return None


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """The rows of the table at `path` as of the newest committed batch.

    The frame stays at that snapshot; its files outlive their replacement for as long as the job's `--keep-replaced`
    says. Raises FileNotFoundError if the table does not exist.
    """
    snapshot = current_snapshot(spark, path)
    if snapshot is None:
        raise FileNotFoundError(f"{path}: no table (no batch was committed there)")
    if not snapshot.live:
        return spark.createDataFrame([], snapshot.schema).select(snapshot.public_columns())
    rows = spark.read.schema(snapshot.schema).format(snapshot.file_format)
    return rows.load(f"{path}/{SNAPSHOTS}/{snapshot.directory}/{DELETED}=false").select(snapshot.public_columns())


class SnapshotWriter:
    """The only writer of a table; on creation it removes what interrupted writers left behind."""

    def __init__(self, spark: SparkSession, path: str, *, file_format: str = "parquet", keep_replaced_ms: int) -> None:
        self._path = path
        self._file_format = file_format
        self._keep_replaced_ms = keep_replaced_ms
        self._commits = TableDirectory(spark, f"{path}/{COMMITS}")
        self._directories = TableDirectory(spark, f"{path}/{SNAPSHOTS}")
        texts = [self._commits.read_text(_commit_name(batch_id)) for batch_id in _batches(self._commits)]
        self._snapshots = [Snapshot.from_json(text) for text in texts if text is not None]
        committed = {snapshot.directory for snapshot in self._snapshots}
        for name in self._directories.names():
            if name not in committed:
                self._directories.remove_children(name)

    @property
    def current(self) -> Snapshot | None:
        """The newest snapshot, or None before the first."""
        return self._snapshots[-1] if self._snapshots else None

    def read(self, spark: SparkSession, schema: StructType) -> DataFrame | None:
        """The newest snapshot, deleted rows included, with the columns of `schema` (null for a missing column).

        Returns None before the first.
        """
        if self.current is None:
            return None
        path = f"{self._path}/{SNAPSHOTS}/{self.current.directory}"
        return (
            spark.read.schema(StructType([*schema, StructField(DELETED, BooleanType())]))
            .format(self.current.file_format)
            .load(path)
        )

    def write(self, rows: DataFrame, batch_id: int) -> str:
        """Write a snapshot that is not visible yet; returns the directory to commit. `rows` has a column `_deleted`."""
        directory = f"{batch_id:020}-{uuid.uuid4().hex[:8]}"
        rows.write.partitionBy(DELETED).format(self._file_format).save(f"{self._path}/{SNAPSHOTS}/{directory}")
        return directory

    def commit(self, batch_id: int, directory: str, schema: StructType, *, live: int, deleted: int) -> None:
        """Make the snapshot the table, and remove those that were replaced long enough ago.

        Raises FileExistsError if another writer has committed this batch.
        """
        snapshot = Snapshot(
            batch_id=batch_id,
            directory=directory,
            file_format=self._file_format,
            live=live,
            deleted=deleted,
            schema=schema,
            committed_ms=now_ms(),
        )
        self._commits.write_text(_commit_name(batch_id), snapshot.to_json())
        self._snapshots.append(snapshot)
        while len(self._snapshots) > 1 and now_ms() - self._snapshots[1].committed_ms >= self._keep_replaced_ms:
            oldest = self._snapshots.pop(0)
            # Remove the commit first: a commit with missing files would be an unreadable table.
            self._commits.remove_children(_commit_name(oldest.batch_id))
            self._directories.remove_children(oldest.directory)
