"""The terms of the benchmark: a scenario, its context and the sample that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.brokers import Broker
from bench.load import Load, SparkSession


@dataclass(frozen=True)
class Sample:
    """One figure of one side. CPU is per gigabyte (10^9 bytes of values) if `gigabytes` is set, else in seconds."""

    value: float
    broker_cpu_s: float | None = None
    client_cpu_s: float | None = None
    gigabytes: float | None = None
    details: dict[str, float] = field(default_factory=dict)
    warm: Sample | None = None
    """The third identical load on the same broker."""


@dataclass
class Context:
    """Values shared by the scenarios of a run. `scale` shortens the loads (1: the size that the targets are for)."""

    load: Load
    scale: float
    until_the_end: ExitStack
    spark: SparkSession | None = None

    def count(self, records: int) -> int:
        """`records`, scaled."""
        return max(1000, int(records * self.scale))


Measure = Callable[[Context, Broker, str], Sample]


@dataclass(frozen=True)
class Scenario:
    """A row of the table. Targets are ratios Odradek / Apache Kafka; `limit` is for Odradek's own figure, in `unit`.

    `measure(context, broker, topic)`: `topic` is a name that no other sample uses; the broker is fresh, and with
    `launches` prepared but not launched. With `also_warm` the same load runs twice more, and the table also shows the
    last run. With `leaves_many_files` the data stays until the end of the whole run: before ext4 creates an inode, it
    checks each inode deleted in the last minutes, so the next broker would pay for the removal.
    """

    name: str
    title: str
    unit: str
    measure: Measure
    rounds: int = 3
    higher_is_better: bool = True
    target: float | None = None
    cpu_target: float | None = None
    detail_targets: Mapping[str, float] = field(default_factory=dict)
    """Maximum ratios of details of the samples, by name."""
    detail_limits: Mapping[str, float] = field(default_factory=dict)
    """Limits of Odradek's own details, by name."""
    limit: float | None = None
    either: bool = False
    """Whether reaching either `target` or `limit` is enough."""
    launches: bool = False
    also_warm: bool = False
    leaves_many_files: bool = False
    brokers: int = 1
    """Above 1: a cluster of this size on one ZooKeeper; its topics have three replicas (`bench.clusters`)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables of the broker's processes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Additional server.properties, on top of those of every broker."""
    compares_states: bool = False
    """Whether the sides are two states of the code: then a slowdown without more broker CPU is noise."""
    prepare: Callable[[Broker], None] | None = None
    """Called with the broker before any of its processes start, to create files and complete its settings."""
