"""Output of `--explain`: the plan of a query and the offsets that it would read."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.checkpoints.checkpoint import Checkpoint, Offsets
from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.source import SourceConfig, starting_offsets, timestamp_ms


def first_offsets(source: SourceConfig, topics: dict[str, int], admin: KafkaAdmin) -> Offsets:
    """Where a new query would begin, as `starting` says."""
    if source.starting in {"earliest", "latest"}:
        return admin.offsets(topics, "earliest" if source.starting == "earliest" else "latest", source.isolation_level)
    given = starting_offsets(source.starting)
    if given is None:
        return admin.offsets(topics, timestamp_ms(source.starting[1:]), source.isolation_level)
    named = {
        -2: admin.offsets(topics, "earliest", source.isolation_level),
        -1: admin.offsets(topics, "latest", source.isolation_level),
    }
    return {
        topic: {number: named[at][topic][number] if at in named else at for number, at in numbers.items()}
        for topic, numbers in given.items()
    }


def explain(plan: DataFrame, spark: SparkSession, source: SourceConfig, checkpoint: str, admin: KafkaAdmin) -> None:
    """Print the plan, and a line for each partition: where the next batch begins, where the partition ends."""
    plan.explain(mode="formatted")
    topics = admin.topics(names=source.topic_names(), pattern=source.pattern)
    begin = Checkpoint(spark, checkpoint).starts_of_next()
    print(f"from {checkpoint}" if begin is not None else f"a new query, from {source.starting}")
    begin = begin if begin is not None else first_offsets(source, topics, admin)
    first = admin.offsets(topics, "earliest", source.isolation_level)
    ends = admin.offsets(topics, "latest", source.isolation_level)
    print(f"{'TOPIC':<40} {'PARTITION':>9} {'FROM':>15} {'TO':>15} {'OFFSETS':>15}")
    for topic, partitions in sorted(ends.items()):
        for number, end in sorted(partitions.items(), key=lambda item: int(item[0])):
            # A partition that the query does not know yet is read from its first offset.
            start = begin.get(topic, {}).get(number, first[topic][number])
            print(f"{topic:<40} {number:>9} {start:>15,} {end:>15,} {end - start:>15,}")
