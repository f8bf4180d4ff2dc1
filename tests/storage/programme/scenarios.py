"""The lives that the fault matrix goes through, call by call."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from protocol.compression import CompressionType
from protocol.control_records import ControlRecordType
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


# Batches of one size, each as long as another that recovery may cut off.
_TORN = (
    steps.start,
    *[steps.append(size=100)] * 14,
    steps.kill,
    steps.start,
    *[steps.append(size=100)] * 6,
    steps.background,
    *[steps.append(size=100)] * 8,
)
_RETENTION = (
    steps.start,
    *[steps.append(size=300)] * 7,
    steps.flush,
    steps.append(size=300, producer_id=5),
    steps.background,
    steps.retain(400),
    *[steps.append(size=300, values=2)] * 3,
    steps.lag(5),
    steps.background,
    steps.retain(500),
    steps.lag(1),
    steps.append(producer_id=5),
    steps.background,
    steps.retain(2000),
    steps.append(producer_id=5),
    steps.kill,
    steps.start,
    steps.background,
    steps.retain(3000),
    _append,
    steps.stop,
    steps.start,
    _append,
)


def _put(*keys: bytes, **options: object) -> Step:
    return steps.append(keys=keys, values=len(keys), **options)


_COMPACTED = (
    steps.start,
    _put(b"a", b"b", b"c"),
    _put(b"a", size=300, producer_id=5),
    _put(b"b", b"d", is_tombstone=True),
    _put(b"e", producer_id=9, is_transactional=True, size=200),
    _put(b"a", b"f", producer_id=8, is_transactional=True),
    steps.append(producer_id=9, marker=ControlRecordType.ABORT),
    _put(b"m", producer_id=9, is_transactional=True),
    steps.append(producer_id=9, marker=ControlRecordType.COMMIT),
    _put(b"c", b"a", codec=CompressionType.ZSTD),
    steps.append(producer_id=8, marker=ControlRecordType.COMMIT),
    steps.roll,
    _put(b"g", size=500, producer_id=5),
    _put(b"b", b"h"),
    steps.roll,
    _put(b"x"),
    steps.flush,
    steps.background,
    steps.compact(),
    _put(b"a", b"x", size=400),
    _put(b"h", is_tombstone=True),
    _put(b"c", producer_id=5),
    steps.roll,
    _put(b"y"),
    _put(b"y", b"a"),
    steps.flush,
    steps.lag(5),
    steps.background,
    steps.compact(),
    steps.lag(1),
    steps.background,
    steps.compact(_put(b"z"), steps.flush),
    steps.background,
    steps.kill,
    steps.start,
    _put(b"g", b"y", codec=CompressionType.GZIP),
    steps.roll,
    _put(b"x", is_tombstone=True),
    steps.flush,
    steps.background,
    steps.compact(steps.delete_records(3), passing_ms=2000),
    _put(b"q"),
    steps.roll,
    _put(b"x"),
    steps.background,
    steps.compact(steps.truncate(1)),
    _put(b"a"),
    steps.background,
    steps.compact(passing_ms=2000),
    steps.stop,
    steps.start,
    _put(b"q", producer_id=5),
    steps.background,
    steps.compact(),
)
_MOVING = (
    steps.start,
    steps.create_neighbour,
    *[steps.append(size=300)] * 4,
    steps.append(producer_id=5),
    steps.background,
    steps.delete_records(2),
    steps.begin_move,
    steps.copy(500),
    steps.append(size=300, producer_id=5),
    steps.copy(500),
    steps.new_epoch,
    _append,
    steps.copy(100),
    steps.truncate(1),
    steps.new_epoch,
    steps.append(producer_id=6),
    steps.delete_records(2),
    steps.end_move,
    _append,
    steps.background,
    steps.begin_move,
    steps.copy(400),
    steps.kill,
    steps.start,
    steps.append(producer_id=5),
    steps.copy(400),
    steps.append(size=300),
    steps.end_move,
    steps.append(producer_id=6),
    steps.background,
    steps.delete_neighbour,
    steps.begin_move,
    steps.copy(300),
    steps.stop,
    steps.start,
    steps.copy(300),
    steps.end_move,
    _append,
)

SCENARIOS = {
    "leader": Scenario(_LEADER, SMALL),
    "follower": Scenario(_FOLLOWER, SMALL),
    "torn": Scenario(_TORN, replace(SMALL, segment_bytes=4000)),
    "retention": Scenario(_RETENTION, replace(SMALL, retention_ms=1000, retention_bytes=2500)),
    "compacted": Scenario(
        _COMPACTED,
        replace(
            SMALL,
            cleanup_policy=frozenset({"compact"}),
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=1000,
        ),
    ),
    "moving": Scenario(_MOVING, SMALL, (DIR, "/more")),
}
