"""Topics that a query reads, and those of its checkpoint. A topic made again has its old name and a new id."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint
from spark_jobs.common.files import TableDirectory

FILE = "_odradek_topic_ids.json"


def recorded_topic_ids(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The ids that the checkpoint's queries have recorded, by topic."""
    text = TableDirectory(spark, checkpoint).read_text(FILE)
    ids: dict[str, str] = json.loads(text) if text is not None else {}
    return ids


def record_topic_ids(spark: SparkSession, checkpoint: str, ids: dict[str, str]) -> None:
    """Replace the record of the checkpoint; nothing is written when it says the same already."""
    if ids != recorded_topic_ids(spark, checkpoint):
        TableDirectory(spark, checkpoint).replace_text(FILE, json.dumps(ids, sort_keys=True))


def check_topic_ids(
    spark: SparkSession, checkpoint: str, topics: Iterable[str], ids: dict[str, str], *, fail_on_data_loss: bool
) -> None:
    """Record `ids`, those of the query's `topics` now (a topic of an old broker has none).

    Unless loss is allowed, raises ValueError for a topic made again since, and for one that the checkpoint has offsets
    of and that is not among `topics`. Spark itself goes by offsets: it would begin in the middle of a new topic that is
    longer than the old one was. And it would plan a batch without the missing topic, fail, and find that batch in the
    checkpoint at each later start.
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
