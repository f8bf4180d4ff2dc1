"""The terms of the benchmark: a scenario, its context and the sample that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.brokers import Broker
from bench.load import Load, SparkSession


@dataclass(frozen=True)
class Sample:
    """One figure of one side. CPU is given per gigabyte (10^9 bytes of values) when `gigabytes` is, else in seconds."""

    value: float
    broker_cpu_s: float | None = None
    client_cpu_s: float | None = None
    gigabytes: float | None = None
    details: dict[str, float] = field(default_factory=dict)
    warm: Sample | None = None
    """The third such load on the same broker."""


@dataclass
class Context:
    """Values shared by scenarios of a run. `scale` shortens the loads (1: the figures that the targets are for)."""

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
    `launches` prepared but not launched. With `also_warm` the same load is put on it twice more, and the last of them
    shown, too. With `leaves_many_files` the data stay until the whole run ends: ext4 looks at each inode that was
    deleted in the last minutes before it makes a new one, so that the next broker would pay for the removal.
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
    """Ratios that details of the samples, by name, may not be above."""
    detail_limits: Mapping[str, float] = field(default_factory=dict)
    """Limits of Odradek's own details, by name."""
    limit: float | None = None
    either: bool = False
    """Whether it is enough to reach `target` or `limit`."""
    launches: bool = False
    also_warm: bool = False
    leaves_many_files: bool = False
    brokers: int = 1
    """More than one: a cluster of so many on one ZooKeeper, whose topics have three replicas (`bench.clusters`)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the broker's processes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the broker's server.properties, beside those of every broker."""
    compares_states: bool = False
    """Whether the sides are two states of the code: what is slower is noise where the broker spends no more CPU."""
    prepare: Callable[[Broker], None] | None = None
    """Is given the broker before anything of it is started, to make files for it and to complete its settings."""
