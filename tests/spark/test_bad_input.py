"""Bad input: one line that names it, exit code 1 or 2, no stack trace, and no commit of unwritten data."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as datasets  # type: ignore[import-untyped]
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql.types import StructType

from spark_jobs.common.schema import _Ddl
from tests.kit.broker_process import ROOT, free_port
from tests.kit.small_disk import fill, small_disk
from tests.spark.job_runs import make_topics, produce_values
from tests.spark.warm_jobs import WarmJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FLIGHTS = [json.dumps({"origin": ("EWR", "JFK")[number % 2], "delay": number}).encode() for number in range(100)]
QUICK = "default.api.timeout.ms=2000\nrequest.timeout.ms=1000\n"
RULES = 'rules: [{name: on time, expect: "late = 0"}]'


@pytest.fixture
def topic(bootstrap: str) -> str:
    (made,) = make_topics(bootstrap, "flights")
    produce_values(bootstrap, made, FLIGHTS)
    return made


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "flights.ddl": "origin STRING, delay INT",
        "bad.ddl": "origin TEXTUAL",
        "rules.yaml": RULES,
        "bad.yaml": "rules: [",
        "quick.properties": QUICK,
        "bad.properties": "security.protocol=NONE\n",
        "file": "",
    }.items():
        (tmp_path / name).write_text(text)


def refused(jobs: WarmJobs, name: str, *options: str, codes: tuple[int, ...] = (1,)) -> str:
    """The last line of a job that exits with one of `codes` and without a stack trace."""
    code, said = jobs.run(name, *options)
    assert code in codes, said
    assert not [line for line in said.splitlines() if line.lstrip().startswith(("at ", "Traceback", "{"))], said
    (line,) = [line for line in said.splitlines() if line.startswith(f"{name}: ")]
    return line.removeprefix(f"{name}: ")


def options(bootstrap: str, topic: str, directory: Path, *more: str) -> list[str]:
    """Options of a job that writes below `directory`; the last option of a name wins."""
    return [
        "--bootstrap-servers", bootstrap, "--topics", topic, "--output", str(directory / "table"),
        "--checkpoint", str(directory / "checkpoint"), *(part.format(at=directory) for part in more),
    ]  # fmt: skip


SCHEMA = ("--schema", "{at}/flights.ddl")
WINDOW = (*SCHEMA, "--window", "1h")
WRONG: dict[str, tuple[str, tuple[str, ...], str]] = {
    "topic": ("lake", ("--topics", "none"), "topic none does not exist at {bootstrap}"),
    "broker": (
        "lake",
        ("--bootstrap-servers", "127.0.0.1:{port}", "--command-config", "{at}/quick.properties"),
        "no broker answers at 127.0.0.1:{port} (Connection refused); gave up after 2 s",
    ),
    "address": ("lake", ("--bootstrap-servers", "somewhere"), "bad client property: Invalid url in bootstrap.servers"),
    "property": ("lake", ("--command-config", "{at}/bad.properties"), "bad client property: "),
    "no schema": ("lake", ("--schema", "{at}/none.ddl"), "[Errno 2] No such file or directory: '{at}/none.ddl'"),
    "schema": ("lake", ("--schema", "{at}/bad.ddl"), "--schema {at}/bad.ddl: [UNSUPPORTED_DATATYPE]"),
    "partition": ("lake", (*SCHEMA, "--partition-by", "late"), "--partition-by late: must be topic, date or fields"),
    "output": ("lake", ("--output", "{at}/file"), "Destination exists and is not a directory: {at}/file"),
    "position": (
        "lake",
        ("--starting", '{{"TOPIC":{{"0":0}}}}'),
        '--starting {{"{topic}":{{"0":0}}}}: has no offset for {topic}-1, {topic}-2',
    ),
    "group": ("aggregate", (*WINDOW, "--group-by", "late"), "--group-by late: the schema has no such field"),
    "measure": ("aggregate", (*WINDOW, "--agg", "sum:late"), "--agg sum:late: the schema has no field late"),
    "time": ("aggregate", (*WINDOW, "--timestamp-field", "late"), "--timestamp-field late: the schema has no such"),
    "key": ("upsert", (*SCHEMA, "--keys", "late"), "--keys late: must be fields of the schema"),
    "rule": (
        "quality",
        (*SCHEMA, "--rules", "{at}/rules.yaml", "--dead-letters", "{at}/bad"),
        "rule 'on time': late = 0: [UNRESOLVED_COLUMN",
    ),
    "rules": (
        "quality",
        (*SCHEMA, "--rules", "{at}/bad.yaml", "--dead-letters", "{at}/bad"),
        "--rules {at}/bad.yaml: not YAML",
    ),
}


@pytest.mark.parametrize(("name", "more", "line"), WRONG.values(), ids=WRONG)
def test_bad_options_are_named(
    jobs: WarmJobs, bootstrap: str, topic: str, tmp_path: Path, name: str, more: tuple[str, ...], line: str
) -> None:
    port = str(free_port())
    given = [part.replace("{port}", port).replace("TOPIC", topic) for part in more]
    # 2 if it fails before it uses Spark and the brokers.
    codes = (2,) if line.startswith(("--", "[Errno")) and "--starting" not in line else (1,)
    told = refused(jobs, name, *options(bootstrap, topic, tmp_path, *given), codes=codes)
    assert told.startswith(line.format(at=tmp_path, bootstrap=bootstrap, port=port, topic=topic)), told
    assert not list((tmp_path / "checkpoint").glob("offsets/[0-9]*"))


def test_bad_usage_exits_2(jobs: WarmJobs, bootstrap: str, topic: str, tmp_path: Path) -> None:
    code, said = jobs.run("lake", *options(bootstrap, topic, tmp_path, "--trigger", "soon"))
    assert (code, said.splitlines()[-1]) == (
        2,
        "lake: error: argument --trigger: 'soon': must be available-now or an interval like 500ms, 30s, 5m, 1h",
    )


def test_a_pattern_without_topics_is_said(jobs: WarmJobs, bootstrap: str, topic: str, tmp_path: Path) -> None:
    given = options(bootstrap, topic, tmp_path)
    given[given.index("--topics") :][:2] = []
    code, said = jobs.run("lake", "--bootstrap-servers", bootstrap, "--pattern", "none.*", *given[4:])
    assert (code, "lake: no topic matches --pattern none.* yet" in said) == (0, True), said


def test_a_checkpoint_of_another_query(jobs: WarmJobs, bootstrap: str, topic: str, tmp_path: Path) -> None:
    (other,) = make_topics(bootstrap, "other")
    produce_values(bootstrap, other, FLIGHTS)
    given = options(bootstrap, topic, tmp_path)
    explained = jobs.run("lake", *given, "--explain")
    assert explained[0] == 0, explained[1]
    assert "a new query, from earliest" in explained[1]
    assert jobs.run("lake", *given)[0] == 0
    told = refused(jobs, "lake", *options(bootstrap, other, tmp_path))
    assert told.startswith(f"checkpoint {tmp_path}/checkpoint is of a query that reads topic {topic}, which is gone or")
    # It continues as if nothing had happened.
    code, said = jobs.run("lake", *given)
    assert (code, said.splitlines()[0]) == (0, "lake: 0 records and 0 dead letters in 0 batches"), said

    (offsets,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    (offsets.parent / f".{offsets.name}.crc").unlink()
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:2], "damaged"]))
    told = refused(jobs, "lake", *given)
    assert told == f"{tmp_path}/checkpoint/offsets/{offsets.name} is damaged: damaged"


def test_state_of_other_groups(jobs: WarmJobs, bootstrap: str, tmp_path: Path) -> None:
    (topic,) = make_topics(bootstrap, "flights")
    produce_values(bootstrap, topic, FLIGHTS)
    more = ("--schema", "{at}/flights.ddl", "--window", "1h", "--mode", "update")
    assert jobs.run("aggregate", *options(bootstrap, topic, tmp_path, *more, "--group-by", "origin"))[0] == 0
    produce_values(bootstrap, topic, FLIGHTS)
    told = refused(jobs, "aggregate", *options(bootstrap, topic, tmp_path, *more))
    assert "STATE_STORE" in told
    assert "schema" in told


def test_records_that_the_topic_does_not_take(jobs: WarmJobs, bootstrap: str, tmp_path: Path) -> None:
    (topic,) = make_topics(bootstrap, "large")
    produce_values(bootstrap, topic, [bytes(5000)])
    small = f"{topic}-small"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(small, 1, config={"max.message.bytes": "1000"})])[small].result(30)
    (tmp_path / "rules.yaml").write_text('rules: [{name: any, expect: "true"}]')
    told = refused(
        jobs, "quality", "--bootstrap-servers", bootstrap, "--topics", topic, "--rules", str(tmp_path / "rules.yaml"),
        "--out-topic", small, "--dead-letters", str(tmp_path / "bad"), "--checkpoint", str(tmp_path / "checkpoint"),
    )  # fmt: skip
    assert told == "The request included a message larger than the max message size the server will accept."
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))


def test_a_full_disk_under_the_table(bootstrap: str, tmp_path: Path) -> None:
    """Uses separate jobs: their JVM keeps the failed files open, and the disk could not be unmounted."""
    (topic,) = make_topics(bootstrap, "large")
    values = [random.Random(number).randbytes(5000) for number in range(2000)]
    produce_values(bootstrap, topic, values)
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk / "filler", leave_bytes=5_000_000)
        table = disk / "table"
        given = options(bootstrap, topic, tmp_path, "--output", str(table))
        jobs = WarmJobs(tmp_path)
        try:
            assert refused(jobs, "lake", *given) == f"{table}: No space left on device"
            assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
            assert not list(table.rglob("topic=*"))
            (disk / "filler").unlink()
            code, said = jobs.run("lake", *given)
        finally:
            jobs.close()
        assert (code, said.splitlines()[0]) == (0, "lake: 2,000 records and 0 dead letters in 1 batches"), said
        rows = datasets.dataset(table, format="parquet", partitioning="hive").to_table(columns=["value"])
        assert sorted(rows["value"].to_pylist()) == sorted(values)


@pytest.mark.parametrize(
    ("name", "more", "line"),
    [
        ("aggregate", (*WINDOW, "--agg", "median:delay"), "--agg median:delay: must be count, or FUNCTION:FIELD"),
        ("aggregate", (*WINDOW, "--agg", "sum:nope"), "--agg sum:nope: the schema has no field nope"),
        ("aggregate", (*WINDOW, "--slide", "2h"), "--slide: must go with a --window that is not shorter"),
        ("replay", (), "usage: "),
    ],
)
def test_bad_options_are_found_without_java(tmp_path: Path, name: str, more: tuple[str, ...], line: str) -> None:
    given = options("127.0.0.1:1", "t", tmp_path, *more)
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"spark_jobs.jobs.{name}", *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.removeprefix(f"{name}: ").startswith(line), done.stderr


def test_ddl_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    assert spark.version
    for ddl in (
        "a INT, b STRING NOT NULL, `c d` bigint",
        "a: int, b STRUCT<x: INT NOT NULL, y ARRAY<MAP<STRING, DECIMAL(5,2)>>>, c TIMESTAMP_NTZ, d DECIMAL, e DEC(4)",
        "type STRING, date DATE, a TINYINT, b SMALLINT, c FLOAT, d DOUBLE, e BINARY, f BOOLEAN, g TIMESTAMP, h real",
    ):
        assert _Ddl(ddl).schema() == StructType.fromDDL(ddl)
    for unknown in ("a TEXTUAL", "a INT b", "a VARCHAR(5)", "a INT COMMENT 'x'", "a", "a DECIMAL(50,2)", "a ARRAY<INT"):
        with pytest.raises(LookupError):
            _Ddl(unknown).schema()
