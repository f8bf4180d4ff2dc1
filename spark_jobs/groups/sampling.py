"""Samples of consumer groups: what each has committed, and where the partitions that it reads begin and end."""

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
"""One row for each partition that a group has committed, or that is assigned to a member of it.

`committed` is null where nothing is; `log_start` and `log_end` where the partition is gone, or has no leader;
`oldest_unread`, the timestamp of the first record that the group has not read, where there is none.
"""

Sample = tuple[str, str, int, dt.datetime, int | None, int | None, int | None, dt.datetime | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Which groups: those of `names`, or with a `pattern` (a regular expression) those whose whole name matches it."""

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
        """The groups, in order; those of `names` are there whether they exist or not."""
        if self.pattern is None:
            return sorted(set(self.names))
        return sorted(name for name in admin.consumer_groups() if re.fullmatch(self.pattern, name))

    def check(self, admin: KafkaAdmin, bootstrap_servers: str) -> None:
        """Raise ValueError for a group of `names` that does not exist, or a `pattern` that no group matches."""
        found = self.now(admin)
        if not found:
            raise ValueError(f"--group-pattern {self.pattern}: matches no consumer group of {bootstrap_servers}")
        if self.pattern is None:
            for name in found:
                if admin.assigned_partitions(name) is None:
                    raise ValueError(f"consumer group {name} does not exist at {bootstrap_servers}")


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The groups that were looked at, at a time, and their partitions. A group may have none."""

    at: dt.datetime
    groups: list[str]
    rows: list[Sample]


def take_sample(spark: SparkSession, source: SourceConfig, groups: Groups) -> Sampled:
    """Look at the groups once. Raises Py4JJavaError or ValueError when the brokers do not answer."""
    with (
        KafkaAdmin(spark, source.bootstrap_servers, source.client_properties) as admin,
        OldestRecords(spark, source) as oldest,
    ):
        names = groups.now(admin)
        # What is committed first: a group that goes on reading meanwhile is not ahead of the end that is read later.
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
    """Offsets of the partitions that the group has committed or is assigned; None for those without a commit."""
    known: dict[Partition, int | None] = dict.fromkeys(admin.assigned_partitions(group) or ())
    for topic, numbers in admin.committed(group).items():
        known |= {(topic, int(number)): offset for number, offset in numbers.items()}
    return known


def _moment(timestamp_ms: int | None) -> dt.datetime | None:
    return None if timestamp_ms is None else dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC)
