"""Reader of a query's checkpoint: the offsets of each batch, the committed batches, and the ids of the topics. A
recreated topic keeps its name but gets a new id.

Layout (Spark's `OffsetSeqLog`, `CommitLog` and `KafkaSourceInitialOffsetWriter`): `offsets/N` holds a version, a line
of metadata and a line for each source; `commits/N` exists once batch N is done; `sources/I/0` holds the offsets at
which source I began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import SparkSession

from spark_jobs.common.files import TableDirectory

Offsets = dict[str, dict[str, int]]
"""Topic, partition (as text, as in JSON), offset."""


class Checkpoint:
    """The checkpoint directory of one query, by URI or local path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._root = TableDirectory(spark, path)
        self._spark = spark

    def _directory(self, name: str) -> TableDirectory:
        return TableDirectory(self._spark, f"{self.path.rstrip('/')}/{name}")

    def committed_batch(self) -> int | None:
        """The last committed batch, or None."""
        return max(self._batches("commits"), default=None)

    def planned_batch(self) -> int | None:
        """The last batch with written offsets, committed or not, or None."""
        return max(self._batches("offsets"), default=None)

    def _batches(self, log: str) -> list[int]:
        return [int(name) for name in self._directory(log).names() if name.isdigit()]

    def end_of(self, batch: int, source: int = 0) -> Offsets | None:
        """Where `batch` ends in source number `source`, or None if the file or the line is missing."""
        text = self._directory("offsets").read_text(str(batch))
        lines = text.splitlines()[2:] if text is not None else []
        if source >= len(lines) or lines[source] == "-":
            return None
        try:
            offsets: Offsets = json.loads(lines[source])
        except json.JSONDecodeError:
            raise ValueError(f"{self.path}/offsets/{batch} is damaged: {lines[source]}") from None
        return offsets

    def beginning(self, source: int = 0) -> Offsets | None:
        """Where the query began in source number `source`, or None before its first batch."""
        text = self._directory(f"sources/{source}").read_text("0")
        if text is None:
            return None
        # Spark writes a zero byte first, so that Spark 2.1.0 fails on the file (SPARK-19517).
        _, _, body = text.lstrip("\0").partition("\n")
        offsets: Offsets | None = json.loads(body) if body.lstrip().startswith("{") else None
        return offsets

    def start_of_next(self, source: int = 0) -> Offsets | None:
        """Where the next batch begins: after the last committed batch, or at the beginning. A new query has None."""
        committed = self.committed_batch()
        if committed is None:
            return self.beginning(source)
        return self.end_of(committed, source)

    def starts_of_next(self) -> Offsets | None:
        """`start_of_next` of all Kafka sources together; the sources read different topics."""
        if self.planned_batch() is None and not self._directory("sources").names():
            return None
        starts: Offsets = {}
        for source in self.kafka_sources():
            starts |= self.start_of_next(source) or {}
        return starts or None

    def range_of(self, batch: int, source: int = 0) -> tuple[Offsets, Offsets] | None:
        """Where `batch` begins and ends in source number `source`, or None if it read nothing from it.

        A partition that is new in this batch begins at -2, its first record.
        """
        end = self.end_of(batch, source)
        begin = self.end_of(batch - 1, source) or self.beginning(source)
        if end is None or begin is None or begin == end:
            return None
        known = {
            topic: {number: begin.get(topic, {}).get(number, -2) for number in numbers}
            for topic, numbers in end.items()
        }
        return known, end

    def watermark_ms(self, batch: int) -> int:
        """The watermark of `batch`, in milliseconds since 1970; 0 before the first."""
        text = self._directory("offsets").read_text(str(batch)) if batch >= 0 else None
        return int(json.loads(text.splitlines()[1])["batchWatermarkMs"]) if text is not None else 0

    def kafka_sources(self) -> list[int]:
        """Numbers of the sources that hold Kafka offsets. Raises ValueError if this is not a query's checkpoint."""
        planned = self.planned_batch()
        names = self._directory("sources").names()
        numbers = [int(name) for name in names if name.isdigit()]
        if not numbers and planned is None:
            raise ValueError(f"{self.path} is not a checkpoint of a query: it has no sources and no offsets")
        return [number for number in sorted(numbers) if self.beginning(number) is not None]

    def copy_to(self, path: str) -> Checkpoint:
        """Copy the whole checkpoint, state included. Raises FileExistsError when `path` exists."""
        self._root.copy_to(path)
        return Checkpoint(self._spark, path)

    def move_start(self, source: int, offsets: Offsets) -> None:
        """Make the next batch of `source` begin at `offsets`. Only for a copy that no query uses."""
        committed = self.committed_batch()
        if committed is None:
            begun = self._directory(f"sources/{source}").read_text("0") or ""
            head = begun.split("\n", 1)[0]
            self._directory(f"sources/{source}").replace_text("0", f"{head}\n{_offsets_json(offsets)}")
        else:
            self.move_end(committed, source, offsets)

    def move_end(self, batch: int, source: int, offsets: Offsets) -> None:
        """Make `batch` end at `offsets` in `source`. Only for a copy that no query uses."""
        log = self._directory("offsets")
        lines = (log.read_text(str(batch)) or "").split("\n")
        lines[2 + source] = _offsets_json(offsets)
        log.replace_text(str(batch), "\n".join(lines))


def _offsets_json(offsets: Offsets) -> str:
    """Offsets as Spark writes them."""
    return json.dumps(offsets, separators=(",", ":"))


FILE = "_odradek_topic_ids.json"


def recorded_topic_ids(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The topic ids that the checkpoint's queries have recorded, by topic."""
    text = TableDirectory(spark, checkpoint).read_text(FILE)
    ids: dict[str, str] = json.loads(text) if text is not None else {}
    return ids


def record_topic_ids(spark: SparkSession, checkpoint: str, ids: dict[str, str]) -> None:
    """Write the topic ids of the checkpoint, unless they are already recorded."""
    if ids != recorded_topic_ids(spark, checkpoint):
        TableDirectory(spark, checkpoint).replace_text(FILE, json.dumps(ids, sort_keys=True))


def check_topic_ids(
    spark: SparkSession, checkpoint: str, topics: Iterable[str], ids: dict[str, str], *, fail_on_data_loss: bool
) -> None:
    """Record `ids`, the current ids of the query's `topics` (a topic of an old broker has none).

    Unless loss is allowed, raises ValueError for a recreated topic, and for a topic that the checkpoint has offsets of
    but that is not among `topics`. Spark itself compares offsets only: it would begin in the middle of a new topic that
    is longer than the old one. It would also plan a batch without the missing topic, fail, and find that batch in the
    checkpoint at every later start.
    """
    recorded = recorded_topic_ids(spark, checkpoint)
    again = sorted(topic for topic in ids if recorded.get(topic, ids[topic]) != ids[topic])
    if again and fail_on_data_loss:
        raise ValueError(
            f"topic {', '.join(again)} was made again since checkpoint {checkpoint}: its offsets are of the old topic; "
            "checkpoint-doctor can write a repaired one"
        )
    left = sorted(set(Checkpoint(spark, checkpoint).starts_of_next() or {}) - set(topics))
    if left and fail_on_data_loss:
        raise ValueError(
            f"checkpoint {checkpoint} is of a query that reads topic {', '.join(left)}, which is gone or was not asked "
            "for: take this query's checkpoint or a new one; checkpoint-doctor writes one without topics that are gone"
        )
    record_topic_ids(spark, checkpoint, recorded | ids)
