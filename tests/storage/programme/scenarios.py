"""The lives that the fault matrix goes through, call by call."""

from __future__ import annotations

from typing import NamedTuple

from protocol.compression import CompressionType
from storage.log_config import LogConfig
from tests.storage.programme import steps
from tests.storage.programme.steps import Step
from tests.storage.support import DIR


class Scenario(NamedTuple):
    """Steps in order, on logs with this configuration."""

    steps: tuple[Step, ...]
    config: LogConfig
    directories: tuple[str, ...] = (DIR,)


SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150, file_delete_delay_ms=10)

_append = steps.append()
_LEADER = (
    steps.start,
    *[_append] * 3,
    steps.append(producer_id=5),
    steps.flush,
    steps.append(values=3, codec=CompressionType.ZSTD),
    steps.append(values=2, codec=CompressionType.LZ4, producer_id=6),
    steps.append(size=450),
    _append,
    steps.append(size=600, codec=CompressionType.GZIP),
    steps.append(size=300, producer_id=5),
    steps.background,
    _append,
    steps.append(size=200),
    steps.roll,
    steps.append(values=2, codec=CompressionType.SNAPPY),
    steps.flush_during(steps.append(size=500), steps.roll, steps.append(size=300), _append),
    steps.look,
    steps.new_epoch,
    steps.append(producer_id=5),
    steps.append(size=800),
    _append,
    steps.delete_records(5),
    steps.truncate(2),
    steps.new_epoch,
    _append,
    steps.append(producer_id=7),
    steps.flush,
    steps.append(size=700),
    steps.append(producer_id=7, size=300),
    steps.append(producer_id=8, size=300),
    steps.roll,
    steps.append(producer_id=7),
    steps.truncate(3),
    steps.append(producer_id=6, size=300),
    steps.append(producer_id=5, size=300),
    steps.roll,
    _append,
    steps.background,
    steps.create_neighbour,
    steps.delete_neighbour,
    _append,
    steps.stop,
    steps.start,
    steps.append(producer_id=5),
    *[_append] * 2,
    steps.kill,
    steps.start,
    steps.append(values=2, producer_id=6),
    steps.background,
    _append,
)
_FOLLOWER = (
    steps.start,
    steps.follow(2, 3),
    steps.follow(1, 1, 4),
    steps.new_epoch,
    steps.follow(3, gap=2),
    steps.flush_during(steps.follow(5), steps.follow(4), steps.truncate(1), steps.follow(2, 2)),
    steps.background,
    steps.follow(1, 2, 3),
    steps.new_epoch,
    steps.follow(6),
    steps.follow(2),
    steps.truncate(4),
    steps.new_epoch,
    steps.follow(3),
    steps.follow(3),
    steps.flush_during(steps.truncate(1), steps.follow(3)),
    steps.kill,
    steps.start,
    steps.append(producer_id=5),
    steps.follow(2, gap=1),
    steps.delete_records(6),
    steps.background,
    steps.follow(1),
    steps.stop,
    steps.start,
    steps.follow(1),
)

SCENARIOS = {"leader": Scenario(_LEADER, SMALL), "follower": Scenario(_FOLLOWER, SMALL)}
