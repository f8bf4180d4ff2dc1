"""Rows from a mirror, a replay and a deduplicating reader: static frames, no broker."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from spark_jobs.common.cli import RunConfig
from spark_jobs.common.dedupe import dedupe
from spark_jobs.common.provenance import MIRROR_SOURCE, REPLAY_SOURCE
from spark_jobs.common.sink import KafkaSink, with_row_headers
from spark_jobs.common.source import SourceConfig
from spark_jobs.copies.offset_map import MAP_HEADER, map_entries, map_records, mirrored_ranges, translate
from spark_jobs.copies.ranges import Ranges, ranges_of
from spark_jobs.jobs import mirror, replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.checkpoints.checkpoint import Offsets
    from spark_jobs.copies.ranges import At

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

CONNECTOR = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
WHEN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
WHEN_MS = int(WHEN.timestamp() * 1000)
Headers = list[tuple[str, bytes | None]] | None


def frame(spark: SparkSession, *records: tuple[str, int, int, bytes | None, Headers]) -> DataFrame:
    """Rows of the connector, of (topic, partition, offset, key, headers)."""
    rows = [(key, b"v", topic, number, at, WHEN, 0, headers) for topic, number, at, key, headers in records]
    return spark.createDataFrame(rows, CONNECTOR)


def mirror_config(**changes: Any) -> mirror.MirrorConfig:
    given = {
        "source": SourceConfig(bootstrap_servers="a:1", topics="t"),
        "run": RunConfig(checkpoint="c", trigger={}, group_id="", metrics_port=None),
        "target": KafkaSink(bootstrap_servers="b:1"),
        "source_cluster": "A",
        "target_cluster": "B",
    }
    return mirror.MirrorConfig(**{**given, **changes})


def source_header(cluster: str, offset: int = 7) -> tuple[str, bytes]:
    place = {"cluster": cluster, "topic": "t", "partition": 1, "offset": offset, "timestamp": WHEN_MS}
    return MIRROR_SOURCE, json.dumps(place, separators=(",", ":")).encode()


def plain(headers: Any) -> list[tuple[str, bytes | None]]:
    return [(header["key"], None if header["value"] is None else bytes(header["value"])) for header in headers]


def test_a_mirrored_record_keeps_all_and_says_where_it_was(spark: SparkSession) -> None:
    rows = mirror.transform(
        frame(spark, ("t", 1, 7, b"k", [("h", b"\xff"), ("h", None)]), ("t", 0, 3, None, None)), mirror_config()
    ).collect()
    first, second = rows
    assert (first["topic"], first["partition"], bytes(first["key"]), bytes(first["value"])) == ("t", 1, b"k", b"v")
    assert plain(first["headers"]) == [("h", b"\xff"), ("h", None), source_header("A")]
    assert second["key"] is None
    assert [name for name, _ in plain(second["headers"])] == [MIRROR_SOURCE]


def test_a_record_that_was_at_the_target_is_left_out_whatever_way_it_took(spark: SparkSession) -> None:
    rows = mirror.transform(
        frame(
            spark,
            ("t", 0, 0, b"native", []),
            ("t", 0, 1, b"from-c", [source_header("C")]),
            ("t", 0, 2, b"from-b", [source_header("B")]),
            ("t", 0, 3, b"from-b-by-c", [source_header("B"), source_header("C")]),
            ("t", 0, 4, b"not-json", [(MIRROR_SOURCE, b"B"), (MIRROR_SOURCE, None)]),
            ("t", 0, 5, b"a-map", [(MAP_HEADER, None)]),
        ),
        mirror_config(),
    )
    assert {bytes(row["key"]) for row in rows.collect()} == {b"native", b"from-c", b"not-json"}


@pytest.mark.parametrize(
    ("rename", "name", "expected"),
    [("{topic}", None, "t.x"), ("{source}.{topic}", None, "A.t.x"), ("{source}-{topic}-copy", "eu", "eu-t.x-copy")],
)
def test_renaming(spark: SparkSession, rename: str, name: str | None, expected: str) -> None:
    config = mirror_config(rename=rename, source_name=name)
    assert config.name_at_target("t.x") == expected
    assert mirror.transform(frame(spark, ("t.x", 0, 0, None, None)), config).first()["topic"] == expected


@pytest.mark.parametrize("rename", ["copy", "{source}", "{topic}.{cluster}", "{topic}{}"])
def test_bad_names_are_refused(rename: str) -> None:
    with pytest.raises(ValueError, match=r"^--rename .*: must hold \{topic\}"):
        mirror_config(rename=rename)


def copies(spark: SparkSession, *pairs: tuple[int, int]) -> DataFrame:
    """Copies of partition 1 of `t` of A at B, of (source offset, target offset)."""
    return frame(spark, *(("t", 1, at, None, [source_header("A", offset)]) for offset, at in pairs))


def test_the_map_has_a_range_for_each_stretch_without_gaps_on_both_sides(spark: SparkSession) -> None:
    read_back = copies(spark, (0, 10), (1, 11), (3, 12), (4, 13), (5, 20)).union(frame(spark, ("t", 1, 14, None, [])))
    entries = map_entries(map_records(mirrored_ranges(read_back, "A", "B"), "map"))
    found = sorted(
        (row["source"]["first"], row["source"]["last"], row["target"]["first"], row["target"]["last"])
        for row in entries.collect()
    )
    assert found == [(0, 1, 10, 11), (3, 4, 12, 13), (5, 5, 20, 20)]
    assert entries.first()["target"]["cluster"] == "B"


@pytest.mark.parametrize(("at", "moved"), [(0, 10), (1, 11), (2, 12), (4, 13), (5, 20), (6, 21), (99, 21)])
def test_a_group_goes_on_at_the_first_record_that_it_has_not_read(spark: SparkSession, at: int, moved: int) -> None:
    entries = mirrored_ranges(copies(spark, (0, 10), (1, 11), (3, 12), (4, 13), (5, 20)), "A", "B")
    assert translate(spark, entries, {"t": {"1": at, "0": 5}, "u": {"0": 1}}, "A") == {"t": {"1": moved}}


def test_a_group_leaves_nothing_out_of_a_batch_that_was_written_twice(spark: SparkSession) -> None:
    twice = copies(spark, *[(n, n) for n in range(3)], *[(n, n + 3) for n in range(5)])
    entries = mirrored_ranges(twice, "A", "B").cache()
    # After 0..2 came 0..4 again: a reader of 0 and 1 continues at the first 2, one of all of 0..2 at the 3.
    assert [translate(spark, entries, {"t": {"1": n}}, "A")["t"]["1"] for n in range(6)] == [0, 1, 2, 6, 7, 8]


def test_a_reader_drops_the_copies_of_a_row_and_no_other_record(spark: SparkSession) -> None:
    written = mirror.transform(frame(spark, *(("t", 0, n, b"k", None) for n in range(4))), mirror_config())
    first = with_row_headers(written.limit(2), "q", 3, mirror.PLACE)
    second = with_row_headers(written, "q", 3, mirror.PLACE)
    other_batch = with_row_headers(written.limit(1), "q", 4, mirror.PLACE)
    headers = [plain(row["headers"]) for part in (first, second, other_batch) for row in part.collect()]
    assert headers[0][-4:] == [("query", b"q"), ("batch", b"3"), ("partition", b"t-0"), ("row", b"0")]
    records = frame(spark, *(("t", 0, n, None, found) for n, found in enumerate([*headers, [], None, [("row", b"0")]])))
    assert sorted(row["offset"] for row in dedupe(records).collect()) == [0, 1, 4, 5, 6, 7, 8, 9]


def test_a_stream_is_deduplicated_within_a_time(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ValueError, match="say how long"):
        dedupe(stream)


class Positions:
    """A log of two partitions, 5 to 10 and 0 to 100."""

    def offsets(self, at: At) -> Offsets:
        return {"t": {"earliest": {"0": 5, "1": 0}, "latest": {"0": 10, "1": 100}}.get(str(at), {"0": 7, "1": 100})}


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        ("earliest", "latest", [("t", 0, 5, 10), ("t", 1, 0, 100)]),
        ("@1000", "latest", [("t", 0, 7, 10), ("t", 1, 100, 100)]),
        ('{"t":{"0":-2,"1":50}}', '{"t":{"1":-1}}', [("t", 1, 50, 100)]),
        ('{"t":{"0":9}}', "@1000", [("t", 0, 9, 9)]),
    ],
)
def test_ranges(start: str, end: str, rows: list[tuple[str, int, int, int]]) -> None:
    ranges = ranges_of(start, end, Positions())
    assert ranges.rows() == rows
    assert Ranges.from_json(ranges.to_json()) == ranges


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ('{"t":{"0":4}}', "t-0: offset 4 is not there, the partition has 5 to 10"),
        ('{"t":{"9":4}}', "t-9: there is no such partition"),
        ('{"u":{"0":4}}', "u-0: there is no such partition"),
    ],
)
def test_ranges_that_are_not_there_are_refused(start: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranges_of(start, "latest", Positions())


@pytest.mark.parametrize("size", [1, 7, 50, 104, 105, 1000])
def test_steps_are_all_of_the_ranges_and_none_twice(size: int) -> None:
    ranges = ranges_of("earliest", "latest", Positions())
    count = ranges.steps(size)
    steps = [ranges.step(number, count) for number in range(count)]
    assert max(step.size() for step in steps) <= size + len(ranges.rows())
    covered = [
        (topic, number, offset)
        for step in steps
        for topic, number, start, end in step.rows()
        for offset in range(start, end)
    ]
    assert len(covered) == len(set(covered)) == ranges.size()


def test_a_replayed_record_says_where_it_was(spark: SparkSession) -> None:
    config = replay.ReplayConfig(
        source=SourceConfig(bootstrap_servers="a:1", topics="t"),
        sink=KafkaSink(bootstrap_servers="a:1", topic="again"),
        checkpoint=None,
        key_filter="^user-[12]$",
    )
    records = [("t", 1, n, key, None) for n, key in enumerate([b"user-1", b"user-3", None, b"user-2"])]
    rows = replay.transform(frame(spark, *records), config)
    assert "partition" not in rows.columns
    assert [bytes(row["key"]) for row in rows.collect()] == [b"user-1", b"user-2"]
    place = {"topic": "t", "partition": 1, "offset": 0, "timestamp": WHEN_MS}
    name, value = plain(rows.first()["headers"])[-1]
    assert (name, json.loads(value or b"")) == (REPLAY_SOURCE, place)
