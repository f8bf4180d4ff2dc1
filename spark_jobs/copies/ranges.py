"""Bounded ranges of offsets for a replay: start and end of each partition, and the steps to take."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal, Protocol, Self

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.checkpoints.checkpoint import Offsets
from spark_jobs.common.source import FETCH_OPTIONS, timestamp_ms

NAMED = {-2: "earliest", -1: "latest"}
"""Special offsets in Spark's JSON of offsets."""

At = Literal["earliest", "latest"] | int


class Positions(Protocol):
    """A source of a log's offsets: a cluster, or a directory of records."""

    def offsets(self, at: At) -> Offsets:
        """Offsets of every partition: its first, its end, or the first record at or after a time in milliseconds."""


@dataclasses.dataclass(frozen=True)
class Ranges:
    """For each partition, the first offset to read and the one to stop before; both hold the same partitions."""

    start: Offsets
    end: Offsets

    def size(self) -> int:
        """Total number of offsets in the ranges."""
        return sum(end - start for _, _, start, end in self.rows())

    def rows(self) -> list[tuple[str, int, int, int]]:
        """Topic, partition, start and end, in order."""
        return sorted(
            (topic, int(number), start, self.end[topic][number])
            for topic, numbers in self.start.items()
            for number, start in numbers.items()
        )

    def step(self, number: int, steps: int) -> Ranges:
        """The ranges of step `number` of `steps`, an equal share of every partition; together they cover everything."""

        def at(count: int) -> Offsets:
            return {
                topic: {
                    partition: start + (self.end[topic][partition] - start) * count // steps
                    for partition, start in numbers.items()
                }
                for topic, numbers in self.start.items()
            }

        return Ranges(at(number), at(number + 1))

    def steps(self, offsets_a_step: int) -> int:
        """Steps needed if each takes at most `offsets_a_step` offsets; 0 if all ranges are empty."""
        return -(-self.size() // offsets_a_step)

    def to_json(self) -> str:
        """Text for `from_json`."""
        return json.dumps({"from": self.start, "to": self.end}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The ranges from the text of `to_json`."""
        written = json.loads(text)
        return cls(written["from"], written["to"])


def resolve(position: str, log: Positions) -> Offsets:
    """The offsets that `position` (earliest, latest, @TIMESTAMP or JSON) means; JSON names its partitions.

    Raises ValueError for a partition that the log does not have.
    """
    if position == "earliest":
        return log.offsets("earliest")
    if position == "latest":
        return log.offsets("latest")
    if position.startswith("@"):
        return log.offsets(timestamp_ms(position[1:]))
    given: Offsets = json.loads(position)
    first, ends = log.offsets("earliest"), log.offsets("latest")
    named = {-2: first, -1: ends}
    for topic, numbers in given.items():
        for number, offset in numbers.items():
            if number not in ends.get(topic, {}):
                raise ValueError(f"{topic}-{number}: there is no such partition among the topics to read")
            low, high = first[topic][number], ends[topic][number]
            if offset not in NAMED and not low <= offset <= high:
                raise ValueError(f"{topic}-{number}: offset {offset} is not there, the partition has {low} to {high}")
    return {
        topic: {number: named[at][topic][number] if at in named else at for number, at in numbers.items()}
        for topic, numbers in given.items()
    }


def ranges_of(start: str, end: str, log: Positions) -> Ranges:
    """The ranges from `start` to before `end`; ignores partitions that one of them does not name.

    Raises ValueError as `resolve` does. A range that would end before it starts is empty.
    """
    starts, ends = resolve(start, log), resolve(end, log)
    both = {topic: [number for number in numbers if number in ends.get(topic, {})] for topic, numbers in starts.items()}
    return Ranges(
        {topic: {number: starts[topic][number] for number in both[topic]} for topic in both if both[topic]},
        {
            topic: {number: max(ends[topic][number], starts[topic][number]) for number in both[topic]}
            for topic in both
            if both[topic]
        },
    )


def read_ranges(spark: SparkSession, cluster: dict[str, str], ranges: Ranges) -> DataFrame | None:
    """The records in `ranges` from the cluster of the connector options `cluster`, or None if all are empty."""
    wanted = [row for row in ranges.rows() if row[2] < row[3]]
    if not wanted:
        return None
    assigned: dict[str, list[int]] = {}
    starts: Offsets = {}
    ends: Offsets = {}
    for topic, number, start, end in wanted:
        assigned.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = start
        ends.setdefault(topic, {})[str(number)] = end
    options = {
        **FETCH_OPTIONS,
        **cluster,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
    }
    return spark.read.format("kafka").options(**options).load()
