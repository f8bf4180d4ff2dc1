"""`checkpoint-doctor`: compare a query's checkpoint with the broker, and write a repaired one.

    bin/spark-job checkpoint-doctor --bootstrap-servers 127.0.0.1:9092 --checkpoint /lake/checkpoints/flights \
        --write /lake/checkpoints/flights-repaired

Names the offsets that are lost (before the log's start), deleted (their topic or partition is gone or was recreated)
and future (after the log's end), each with its cause and the offset in a repaired checkpoint. Works on the checkpoint
of any query of Spark's Kafka source. It recognizes a recreated topic by its id if one of these jobs recorded it,
otherwise by its offsets. It only reads the checkpoint itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint, Offsets, record_topic_ids, recorded_topic_ids
from spark_jobs.checkpoints.doctor import Finding, TopicNow, examine, repaired, repaired_end
from spark_jobs.common.cli import add_session_options
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.runner import guarded, parser_of, session_of
from spark_jobs.common.source import read_client_properties

NAME = "checkpoint-doctor"


def look_up(admin: KafkaAdmin, topics: set[str]) -> dict[str, TopicNow]:
    """State at the broker of the existing topics among `topics`."""
    found = {}
    for topic in sorted(topics):
        known = admin.partitions_and_id(topic)
        if known is not None:
            partitions, topic_id = known
            found[topic] = TopicNow(
                topic_id=topic_id,
                first=admin.offsets({topic: partitions}, "earliest")[topic],
                # The end that read_uncommitted sees: a query may have read beyond the last stable offset.
                ends=admin.offsets({topic: partitions}, "latest", "read_uncommitted")[topic],
                configs=admin.topic_configs(topic),
            )
    return found


def starts_of(checkpoint: Checkpoint) -> dict[int, Offsets]:
    """Where the next batch begins, for each Kafka source. Raises ValueError if no source has offsets."""
    starts = {source: checkpoint.start_of_next(source) for source in checkpoint.kafka_sources()}
    known = {source: offsets for source, offsets in starts.items() if offsets is not None}
    if not known:
        raise ValueError(f"{checkpoint.path} has no offsets of Kafka's topics")
    return known


def planned_ends(checkpoint: Checkpoint, sources: Sequence[int]) -> dict[int, Offsets]:
    """Where the planned but uncommitted batch ends, for each source; empty without such a batch."""
    planned, committed = checkpoint.planned_batch(), checkpoint.committed_batch()
    if planned is None or planned == committed:
        return {}
    ends = {source: checkpoint.end_of(planned, source) for source in sources}
    return {source: offsets for source, offsets in ends.items() if offsets is not None}


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Findings on one source: on its next offsets, and separately on the end of its unfinished batch."""

    start: list[Finding]
    end: list[Finding]


def diagnose(start: Offsets, end: Offsets, now: dict[str, TopicNow], ids: dict[str, str]) -> Diagnosis:
    """Compare a source's next offsets and the end of its unfinished batch (empty without one) with its topics."""
    found = list(examine(start, now, ids))
    wrong = {(finding.topic, finding.partition) for finding in found}
    later = [finding for finding in examine(end, now, ids) if (finding.topic, finding.partition) not in wrong]
    # The batch begins where records exist, so it must also end there, whatever happened to those after it.
    at_log_end = [
        dataclasses.replace(finding, moved_to=now[finding.topic].ends[finding.partition])
        if finding.moved_to is not None
        else finding
        for finding in later
    ]
    return Diagnosis(found, at_log_end)


def write_repaired(
    spark: SparkSession, checkpoint: Checkpoint, path: str, now: dict[str, TopicNow], diagnoses: dict[int, Diagnosis]
) -> None:
    """Write a copy of `checkpoint` to `path`, with the offsets of the findings and the current topic ids.

    Raises FileExistsError when `path` exists.
    """
    starts = starts_of(checkpoint)
    ends = planned_ends(checkpoint, list(starts))
    planned = checkpoint.planned_batch()
    copy = checkpoint.copy_to(path)
    for source, diagnosis in diagnoses.items():
        start = repaired(starts[source], diagnosis.start)
        copy.move_start(source, start)
        if source in ends and planned is not None:
            copy.move_end(planned, source, repaired_end(ends[source], start, now, diagnosis.start))
    record_topic_ids(spark, path, {topic: topic_now.topic_id for topic, topic_now in now.items() if topic_now.topic_id})


def examine_checkpoint(arguments: argparse.Namespace, spark: SparkSession) -> int:
    """Print the findings, and write the repaired checkpoint if requested; returns the exit code."""
    properties = read_client_properties(arguments.command_config) if arguments.command_config else {}
    checkpoint = Checkpoint(spark, arguments.checkpoint)
    starts = starts_of(checkpoint)
    ends = planned_ends(checkpoint, list(starts))
    with KafkaAdmin(spark, arguments.bootstrap_servers, properties) as admin:
        now = look_up(admin, {topic for offsets in (*starts.values(), *ends.values()) for topic in offsets})
    ids = recorded_topic_ids(spark, arguments.checkpoint)
    diagnoses = {source: diagnose(start, ends.get(source, {}), now, ids) for source, start in starts.items()}
    every = [finding for diagnosis in diagnoses.values() for finding in (*diagnosis.start, *diagnosis.end)]
    for finding in every:
        print(finding.line())
    partitions = sum(len(numbers) for offsets in starts.values() for numbers in offsets.values())
    print(f"{NAME}: {len(every)} of {partitions} partitions of {arguments.checkpoint} are wrong")
    if arguments.write is not None:
        write_repaired(spark, checkpoint, arguments.write, now, diagnoses)
        print(f"{NAME}: wrote {arguments.write}; run the query with --checkpoint {arguments.write}")
        return 0
    return 1 if every else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the doctor; 0 if the checkpoint is correct, or a repaired one was written.

    Exit codes: 1 if it is wrong or unreadable, 2 for bad options.
    """
    parser = parser_of(NAME, "Compare a query's checkpoint with the broker; write a repaired one.")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--command-config", metavar="FILE", help="Kafka client properties")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="of a query that does not run now")
    parser.add_argument("--write", metavar="DIR", help="write a repaired copy there, for the query to run with")
    add_session_options(parser)
    arguments = parser.parse_args(argv)

    def body() -> int:
        with session_of(NAME, arguments) as spark:
            return examine_checkpoint(arguments, spark)

    return guarded(NAME, body)


if __name__ == "__main__":
    sys.exit(main())
