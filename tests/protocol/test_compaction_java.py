"""Compaction of batches against Kafka's own `MemoryRecords.filterTo`."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from protocol.records.batch import Record, RecordBatch, build_batch
from protocol.records.compaction import filter_batch
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from tests.protocol.test_records_java import ask_java, base64_text, random_batch

NOW_MS, RETENTION_MS = 1_800_000_000_000, 86_400_000
KEYS = [b"", b"a", b"b", b"c", b"d" * 70]

pytestmark = pytest.mark.java


def random_case(rng: random.Random) -> tuple[bytes, dict[bytes, int], dict[str, Any]]:
    """A batch, the map, and the filter's options."""
    rows, options = random_batch(rng)
    rows = [row._replace(key=rng.choice([None, *KEYS])) for row in rows]
    if rng.random() < 0.3:
        rows = [Record(0, 1_700_000_000_000 + at, b"%03d" % (at % 7), b"v" * 90) for at in range(len(rows))]
    first = options["base_offset"]
    if rng.random() < 0.4:
        options["delete_horizon_ms"] = rng.choice([NOW_MS - 1, NOW_MS, NOW_MS + 1])
    data = build_batch(rows, **options)
    if rng.random() < 0.1:
        marker = EndTxnMarker(ControlRecordType.COMMIT, 3)
        data = build_end_txn_marker(marker, timestamp=5, producer_id=7, producer_epoch=1, base_offset=first)
    used = sorted({row.key for row in rows if row.key is not None})
    latest = {key: first + rng.randrange(-1, len(rows) + 1) for key in used if rng.random() < 0.8}
    how = {
        "map_end_offset": first + rng.choice([0, len(rows) // 2, len(rows), len(rows) + 9]),
        "delete_retention_ms": RETENTION_MS,
        "discard": rng.random() < 0.1,
        "keep_empty": rng.random() < 0.4,
        "ends_empty_transaction": False,
    }
    if RecordBatch(memoryview(data)).is_control:
        how["ends_empty_transaction"] = rng.random() < 0.5
    return data, latest, how


def header_fields(batch: RecordBatch) -> dict[str, Any]:
    """The header without the sizes and checksums of the rest, and without an unused base timestamp."""
    names = (
        "base_offset", "partition_leader_epoch", "magic", "attributes", "last_offset_delta", "max_timestamp",
        "producer_id", "producer_epoch", "base_sequence", "count", "delete_horizon_ms",
    )  # fmt: skip
    return {name: getattr(batch, name) for name in names}


def test_what_stays_is_what_stays_in_kafka() -> None:
    rng = random.Random(4)
    cases = [random_case(rng) for _ in range(600)]
    tasks = [
        {
            "filter": base64_text(data),
            "latest": [[base64_text(key), offset] for key, offset in latest.items()],
            "now_ms": NOW_MS,
            **how,
        }
        for data, latest, how in cases
    ]
    outcomes = set()
    for (data, latest, how), answer in zip(cases, ask_java(tasks), strict=True):
        theirs = base64.b64decode(answer)
        batch = RecordBatch(memoryview(data))
        ours = filter_batch(batch, latest, now_ms=NOW_MS, **how)
        if ours is None:
            assert theirs == b""
            outcomes.add("drop")
            continue
        kept, expected = RecordBatch(memoryview(ours)), RecordBatch(memoryview(theirs))
        assert kept.is_valid
        assert expected.is_valid
        assert header_fields(kept) == header_fields(expected)
        assert list(kept.records()) == list(expected.records())
        if ours is batch.buffer:
            assert theirs == data
        outcomes.add("unchanged" if ours is batch.buffer else "empty" if kept.count == 0 else "new")
    assert outcomes == {"drop", "unchanged", "empty", "new"}
