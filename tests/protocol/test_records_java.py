"""Record batches against Kafka's classes: equal records and equal bytes, in both directions."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protocol.records.batch import Header, Record, RecordBatch, build_batch, offset_of_max_timestamp
from protocol.records.compression import CompressionType
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from tests.kit.jars import java, kafka_classpath

BATCHES = 400

pytestmark = pytest.mark.java


def ask_java(tasks: list[dict[str, Any]]) -> list[str]:
    """The answers of `RecordBatches.java`, one per task."""
    program = Path(__file__).with_name("java") / "RecordBatches.java"
    command = java("-Xmx512m", "-XX:+UseSerialGC", "-cp", kafka_classpath(), str(program))
    lines = "\n".join(json.dumps(task) for task in tasks) + "\n"
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:].decode()
    answers = done.stdout.decode().splitlines()
    assert [answer for answer in answers if answer.startswith("!")] == []
    return answers


def base64_text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def random_content(rng: random.Random) -> bytes | None:
    return rng.choice([None, b"", rng.randbytes(rng.randrange(1, 60)), b"v" * rng.randrange(60, 300)])


def random_batch(rng: random.Random) -> tuple[list[Record], dict[str, Any]]:
    base = rng.choice([1_700_000_000_000, 0, -1, 2**40])
    names = ["h", "", "zażółć", "🙂", "a b"]
    rows = []
    for _ in range(rng.choice([1, 2, 3, 10, 70, 200])):
        headers: list[Header] = [(rng.choice(names), random_content(rng)) for _ in range(rng.choice([0, 0, 0, 1, 3]))]
        timestamp = max(-1, base + rng.randrange(-5, 100_000))
        rows.append(Record(0, timestamp, random_content(rng), random_content(rng), headers))
    has_producer = rng.random() < 0.5
    options = {
        "base_offset": rng.choice([0, 1, 10**12]),
        "compression": rng.choice(list(CompressionType)),
        "log_append_time_ms": rng.choice([None, None, 1_700_000_123_456]),
        "producer_id": rng.randrange(2**40) if has_producer else -1,
        "producer_epoch": rng.randrange(2**15) if has_producer else -1,
        "base_sequence": rng.choice([0, 7, 2**31 - 3]) if has_producer else -1,
        "is_transactional": has_producer and rng.random() < 0.5,
        "partition_leader_epoch": rng.choice([-1, 0, 5]),
    }
    return rows, options


def to_json(rows: list[Record], options: dict[str, Any]) -> dict[str, Any]:
    return {
        **options,
        "compression": int(options["compression"]),
        "records": [
            {
                "timestamp": row.timestamp,
                "key": base64_text(row.key),
                "value": base64_text(row.value),
                "headers": [[name, base64_text(content)] for name, content in row.headers],
            }
            for row in rows
        ],
    }


def plain(record: Record) -> list[Any]:
    headers = [[name, base64_text(content)] for name, content in record.headers]
    return [record.offset, record.timestamp, base64_text(record.key), base64_text(record.value), headers]


def test_the_same_records_are_the_same_bytes() -> None:
    rng = random.Random(1)
    cases = [random_batch(rng) for _ in range(BATCHES)]
    for (rows, options), answer in zip(cases, ask_java([to_json(*case) for case in cases]), strict=True):
        theirs = RecordBatch(memoryview(base64.b64decode(answer)))
        theirs.ensure_valid()
        ours = RecordBatch(memoryview(build_batch(rows, **options)))
        assert list(ours.records()) == list(theirs.records())
        assert ours.records_payload() == theirs.records_payload()
        # Two compressors of one format agree in everything but length and CRC
        assert bytes(ours.buffer[21:61]) == bytes(theirs.buffer[21:61])
        if options["compression"] is CompressionType.NONE:
            assert bytes(ours.buffer) == bytes(theirs.buffer)


def test_kafka_reads_ours() -> None:
    rng = random.Random(2)
    batches = [
        RecordBatch(memoryview(build_batch(rows, **options))) for rows, options in map(random_batch, [rng] * BATCHES)
    ]
    answers = ask_java([{"read": base64_text(bytes(batch.buffer))} for batch in batches])
    for batch, answer in zip(batches, map(json.loads, answers), strict=True):
        assert answer.pop("records") == [plain(record) for record in batch.records()]
        assert answer.pop("offset_of_max_timestamp") == offset_of_max_timestamp(batch)
        assert answer == {name: getattr(batch, name) for name in answer}


def test_kafka_reads_large_compressed_batches_of_every_level() -> None:
    """Larger than the blocks of each codec, and partly incompressible."""
    rng = random.Random(3)
    rows = [Record(at, 1000 + at, None, rng.randbytes(500) + bytes(500)) for at in range(300)]
    levels = {
        CompressionType.GZIP: (None, -1, 1, 9),
        CompressionType.LZ4: (None, 1, 17),
        CompressionType.ZSTD: (None, 1),
    }
    batches = [build_batch(rows, compression=codec, compression_level=at) for codec in levels for at in levels[codec]]
    batches.append(build_batch(rows, compression=CompressionType.SNAPPY))
    for answer in ask_java([{"read": base64_text(batch)} for batch in batches]):
        assert json.loads(answer)["records"] == [plain(row) for row in rows]


def test_markers_are_the_same_bytes() -> None:
    tasks, ours = [], []
    for kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        options = {"base_offset": 77, "partition_leader_epoch": 3, "producer_id": 2**40, "producer_epoch": 5}
        tasks.append({"marker": int(kind), "coordinator_epoch": 9, "timestamp": 1_700_000_000_000, **options})
        ours.append(build_end_txn_marker(EndTxnMarker(kind, 9), timestamp=1_700_000_000_000, **options))
    assert [base64.b64decode(answer) for answer in ask_java(tasks)] == ours
