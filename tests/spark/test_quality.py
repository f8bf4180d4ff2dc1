"""Rules on static frames: good rows, bad rows and the reasons, and refused rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")


from spark_jobs.common.cli import RunConfig
from spark_jobs.common.rules import Rule, check_rules, read_rules
from spark_jobs.common.sink import ParquetSink
from spark_jobs.common.source import SourceConfig
from spark_jobs.jobs.quality import QualityConfig, bad_records, bad_rows, good_rows, transform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RULES = (
    Rule(name="positive", expect="n > 0"),
    Rule(name="ratio", expect="10 / n < 9", severity="error"),
    Rule(name="small", expect="n < 100", severity="warning"),
)
CONNECTOR_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def test_rows_are_divided_by_rules(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    division = QualityConfig(
        source=SourceConfig(bootstrap_servers="unused:9092", topics="t"),
        run=RunConfig(checkpoint="unused", trigger={}, group_id="", metrics_port=None),
        rules=RULES,
        good=ParquetSink(path="good"),
        bad=ParquetSink(path="bad"),
        schema=StructType.fromDDL("n INT"),
    )
    values = [b'{"n": 2}', b'{"n": 200}', b'{"n": -1}', b'{"n": 0}', b'{"n": 1}', b"{}", b'{"n": "x"}', None]
    frame = [(b"k", value, "t", 3, offset, None, 0, None) for offset, value in enumerate(values)]
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        rows = transform(spark.createDataFrame(frame, CONNECTOR_COLUMNS), division)
        good = {row.kafka_offset: row.warned_rules for row in good_rows(rows).collect()}
        bad = {row.kafka_offset: row.error for row in bad_rows(rows, division).collect()}
        letters = bad_records(bad_rows(rows, division)).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert good == {0: [], 1: ["small"]}
    assert bad == {
        2: "breaks positive",
        3: "breaks positive; ratio",
        4: "breaks ratio",
        5: "breaks positive; ratio",
        6: 'field n: expected INT, found string "x"',
        7: "value is null",
    }
    headers = [{header.key: bytes(header.value).decode() for header in letter.headers} for letter in letters]
    assert {int(header["source.offset"]): header["error"] for header in headers} == bad
    assert {(header["source.topic"], header["source.partition"]) for header in headers} == {("t", "3")}


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("m > 0", "UNRESOLVED_COLUMN"),
        ("n >", "PARSE_SYNTAX_ERROR"),
        ("n + 1", "must give|BOOLEAN"),
        ("sum(n) > 0", "aggregate|INVALID_WHERE"),
        ("n > rand()", "must give the same answer"),
        ("n > unix_timestamp(now())", "must give the same answer"),
    ],
)
def test_impossible_rules_are_refused(spark: SparkSession, expect: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        check_rules(spark.createDataFrame([(1,)], "n INT"), (Rule(name="r", expect=expect),))
    assert str(refused.value).startswith(f"rule 'r': {expect}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping with a list 'rules'"),
        ("rules: []", "at least one rule"),
        ("rules: [", "not YAML"),
        ("rules: [{name: a}]", "rule 1: needs a 'name' and 'expect'"),
        ("rules: [{name: a, expect: b, when: c}]", "rule 1: no such key: when"),
        ("rules: [{name: a, expect: b, severity: fatal}]", "severity fatal: must be error or warning"),
        ("rules: [{name: a, expect: b}, {name: a, expect: c}]", "two rules are named 'a'"),
    ],
)
def test_bad_rules_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_rules(str(path))
