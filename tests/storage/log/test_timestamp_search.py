"""Lookups by timestamp give the same result on a compacted log as reading all of it."""

from __future__ import annotations

import random

import pytest

from protocol.records.batch import CompressionType, Record
from protocol.records.record_format import DELETE_HORIZON_FLAG
from storage.log.unified_log import UnifiedLog
from tests.storage.compaction.cleaning import Stand, put
from tests.storage.support import T0, read_all

SPREAD_MS = 300
KEYS = 12


def records_of(log: UnifiedLog) -> list[Record]:
    return [record for batch in read_all(log) for record in batch.records()]


def fill(stand: Stand, rng: random.Random, batches: int) -> None:
    """Batches of every codec and several records each, with tombstones, with unordered timestamps."""
    for _ in range(batches):
        count = rng.randrange(1, 6)
        rows = [
            (b"k%d" % rng.randrange(KEYS), None if rng.random() < 0.2 else bytes(rng.randrange(60)))
            for _ in range(count)
        ]
        times = [-1 if rng.random() < 0.05 else T0 + rng.randrange(SPREAD_MS) for _ in rows]
        put(stand.log, *rows, timestamps=times, compression=rng.choice(list(CompressionType)))
    stand.log.roll(T0)
    stand.log.flush(T0)


def check(log: UnifiedLog) -> None:
    """Check every possible timestamp, and the largest."""
    records = records_of(log)
    for timestamp in range(T0 - 2, T0 + SPREAD_MS + 2):
        expected = next((record for record in records if record.timestamp >= timestamp), None)
        found = log.offset_for_timestamp(timestamp)
        if expected is None:
            assert found is None, timestamp
        else:
            assert found is not None, timestamp
            assert (found.offset, found.timestamp) == (expected.offset, expected.timestamp), timestamp


@pytest.mark.parametrize("seed", range(5))
def test_as_if_all_of_it_were_read(seed: int) -> None:
    rng = random.Random(seed)
    stand = Stand()
    stamped = 0
    for turn in range(3):
        fill(stand, rng, 40)
        check(stand.log)
        stand.clean(T0 + turn)
        stamped += sum(batch.attributes & DELETE_HORIZON_FLAG != 0 for batch in read_all(stand.log))
        check(stand.log)
        stand.restart()
        check(stand.log)
    assert stamped, "a delete horizon takes the place of the base timestamp: none of that was seen"
