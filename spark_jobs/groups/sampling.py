"""Samples of consumer groups: their committed offsets, and the log starts and ends of their partitions."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re

from pyspark.sql import SparkSession

from spark_jobs.common.kafka_admin import KafkaAdmin
from spark_jobs.common.source import SourceConfig
from spark_jobs.groups.oldest import OldestRecords, Partition

SAMPLE_SCHEMA = (
    "group STRING NOT NULL, topic STRING NOT NULL, partition INT NOT NULL, sampled_at TIMESTAMP NOT NULL, "
    "committed BIGINT, log_start BIGINT, log_end BIGINT, oldest_unread TIMESTAMP"
)
"""One row for each partition that a group has committed, or that is assigned to one of its members.

`committed` is null without a commit; `log_start` and `log_end` are null if the partition is gone or leaderless;
`oldest_unread`, the timestamp of the first unread record, is null if the group has read everything.
"""

Sample = tuple[str, str, int, dt.datetime, int | None, int | None, int | None, dt.datetime | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Selects groups: those in `names`, or with a `pattern` (a regular expression) those whose whole name matches."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        if not self.names and self.pattern is None:
            raise ValueError("--group: names no group")
        try:
            re.compile(self.pattern or "")
        except re.error as failure:
            raise ValueError(f"--group-pattern {self.pattern}: {failure}") from None

    def now(self, admin: KafkaAdmin) -> list[str]:
        """The groups in order; those of `names` are included whether they exist or not."""
        if self.pattern is None:
            return sorted(set(self.names))
        return sorted(name for name in admin.consumer_groups() if re.fullmatch(self.pattern, name))

    def check(self, admin: KafkaAdmin, bootstrap_servers: str) -> None:
        """Raise ValueError for a group of `names` that does not exist, or a `pattern` that matches no group."""
        found = self.now(admin)
        if not found:
            raise ValueError(f"--group-pattern {self.pattern}: matches no consumer group of {bootstrap_servers}")
        if self.pattern is None:
            for name in found:
                if admin.assigned_partitions(name) is None:
                    raise ValueError(f"consumer group {name} does not exist at {bootstrap_servers}")


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The sampled groups and their partitions at one time. A group may have zero partitions."""

    at: dt.datetime
    groups: list[str]
    rows: list[Sample]


def take_sample(spark: SparkSession, source: SourceConfig, groups: Groups) -> Sampled:
    """Sample the groups once. Raises Py4JJavaError or ValueError if the brokers do not answer."""
    with (
        KafkaAdmin(spark, source.bootstrap_servers, source.client_properties) as admin,
        OldestRecords(spark, source) as oldest,
    ):
        names = groups.now(admin)
        # Read the commits first: a group that keeps reading is then not ahead of the log ends, which are read later.
        committed = {name: _committed(admin, name) for name in names}
        partitions = {partition for known in committed.values() for partition in known}
        starts, ends = admin.partition_offsets(partitions)
        now = dt.datetime.now(dt.UTC)
        rows = []
        for name, known in committed.items():
            unread = {
                partition: (max(offset, starts[partition]), ends[partition])
                for partition, offset in known.items()
                if offset is not None and partition in ends and offset < ends[partition]
            }
            times = oldest.times_ms(unread)
            rows += [
                (
                    name,
                    *partition,
                    now,
                    known[partition],
                    starts.get(partition),
                    ends.get(partition),
                    _moment(times.get(partition)),
                )
                for partition in sorted(known)
            ]
    return Sampled(now, names, rows)


def _committed(admin: KafkaAdmin, group: str) -> dict[Partition, int | None]:
    """Offsets of the group's committed or assigned partitions; those without a commit have None."""
    known: dict[Partition, int | None] = dict.fromkeys(admin.assigned_partitions(group) or ())
    for topic, numbers in admin.committed(group).items():
        known |= {(topic, int(number)): offset for number, offset in numbers.items()}
    return known


def _moment(timestamp_ms: int | None) -> dt.datetime | None:
    return None if timestamp_ms is None else dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
