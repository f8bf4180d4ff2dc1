"""Options, source settings, schema files and progress lines of the jobs: most tests need no Spark."""

from __future__ import annotations

import argparse
import fcntl
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.java_gateway import JavaPackage, JVMView

from spark_jobs.common.cli import add_common_options, source_config, trigger_options
from spark_jobs.common.errors import _explained
from spark_jobs.common.files import TableDirectory
from spark_jobs.common.kafka_admin import await_broker
from spark_jobs.common.progress import BatchProgress, kafka_offsets, records_between
from spark_jobs.common.schema import read_schema
from spark_jobs.common.session import build_session, connector_coordinate, fetching, ivy_dir, java_class, resolved
from spark_jobs.common.source import (
    SourceConfig,
    check_starting_offsets,
    read_client_properties,
    source_options,
    starting_options,
)
from tests.broker.zookeeper.certificates import Authority
from tests.kit.broker_process import ROOT, free_port

REQUIRED = ["--bootstrap-servers", "b:9092", "--topics", "t", "--checkpoint", "c"]


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_common_options(parser)
    return parser.parse_args([*REQUIRED, *options])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("available-now", {"availableNow": True}),
        ("30s", {"processingTime": "30 seconds"}),
        ("500ms", {"processingTime": "500 milliseconds"}),
        ("2 h", {"processingTime": "2 hours"}),
    ],
)
def test_triggers(text: str, options: dict[str, Any]) -> None:
    assert trigger_options(text) == options


def test_a_job_waits_for_a_broker_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as broker:
        broker.bind(("127.0.0.1", free_port()))
        port = broker.getsockname()[1]
        pauses: list[float] = []

        def sleep(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 3:
                broker.listen()

        await_broker(f"PLAINTEXT://127.0.0.1:{port}", {"default.api.timeout.ms": "600000"}, sleep=sleep)
    assert len(pauses) == 3
    assert capsys.readouterr().err == (f"waiting up to 600 s for a broker: 127.0.0.1:{port} (Connection refused)\n")


def test_a_job_gives_up_when_no_broker_answers() -> None:
    a, b = free_port(), free_port()
    refused = rf"no broker answers at 127\.0\.0\.1:{a} \(Connection refused\), 127\.0\.0\.1:{b} .*; gave up after 0 s"
    with pytest.raises(OSError, match=refused):
        await_broker(f"127.0.0.1:{a}, 127.0.0.1:{b}", {"default.api.timeout.ms": "0"})
    await_broker("nowhere", {})


@pytest.mark.parametrize("text", ["", "30", "s", "-3s", "once"])
def test_bad_triggers_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be available-now or an interval"):
        trigger_options(text)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("latest", {"startingOffsets": "latest"}),
        ('{"t":{"0":5}}', {"startingOffsets": '{"t":{"0":5}}'}),
        ("@1700000000000", {"startingTimestamp": "1700000000000", "startingOffsetsByTimestampStrategy": "latest"}),
        ("@2026-01-01", {"startingTimestamp": "1767225600000", "startingOffsetsByTimestampStrategy": "latest"}),
        (
            "@2026-01-01T01:00+01:00",
            {"startingTimestamp": "1767225600000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_starting_positions(text: str, options: dict[str, str]) -> None:
    assert starting_options(text) == options


def test_starting_offsets_name_each_partition() -> None:
    topics = {"t": 2, "u": 1}
    for text in ("earliest", "latest", "@1700000000000", '{"t":{"0":5,"1":-1},"u":{"0":-2}}'):
        check_starting_offsets(text, topics)
    with pytest.raises(ValueError, match=r"has no offset for t-1, u-0$"):
        check_starting_offsets('{"t":{"0":5}}', topics)
    with pytest.raises(ValueError, match=r"the query does not read t-2, v-0$"):
        check_starting_offsets('{"t":{"0":5,"1":1,"2":1},"u":{"0":0},"v":{"0":0}}', topics)


@pytest.mark.parametrize(
    "options",
    [
        ["--starting", "soon"],
        ["--starting", "@soon"],
        ["--starting", "[1]"],
        ["--starting", '{"t":1}'],
        ["--starting", '{"t":{"0":"1"}}'],
        ["--max-offsets-per-trigger", "0"],
    ],
)
def test_bad_values_are_refused(options: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError):
        parse(*options)


def test_options_reach_the_source(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("# comment\nclient.id=x\nmax.poll.records = 7\n")
    options = source_options(source_config(parse("--command-config", str(properties), "--fail-on-data-loss", "false")))
    assert options["subscribe"] == "t"
    assert options["kafka.bootstrap.servers"] == "b:9092"
    assert options["kafka.client.id"] == "x"
    assert options["kafka.max.poll.records"] == "7"
    assert options["failOnDataLoss"] == "false"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["maxOffsetsPerTrigger"] == "1000000"


def test_a_pattern_instead_of_topics() -> None:
    assert source_options(SourceConfig(bootstrap_servers="b", pattern="t.*"))["subscribePattern"] == "t.*"


def test_a_line_that_is_no_property_is_named(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("client.id=x\nnonsense\n")
    with pytest.raises(ValueError, match=r"client\.properties:2: not 'key=value': nonsense"):
        read_client_properties(str(properties))


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b\n\n # c=d\n!e=f\n  g : h=i  ", {"a": "b", "g": "h=i"}),
        (
            r"sasl.jaas.config=M required password=\"a\\\\\\\"b\";",
            {"sasl.jaas.config": r'M required password="a\\\"b";'},
        ),
        (
            'a=M required \\\n    username="u" \\\n    password="=";\nb=c',
            {"a": 'M required username="u" password="=";', "b": "c"},
        ),
        (r"a\:b=\u00e9\t.", {"a:b": "é\t."}),
        ("a=\nb=c\\", {"a": "", "b": "c"}),
    ],
)
def test_client_properties_are_read_as_java_reads_them(text: str, properties: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    assert read_client_properties(str(file)) == properties


@pytest.mark.spark
def test_pem_files_go_to_the_executors_as_their_text(spark: Any, tmp_path: Path) -> None:
    """Kafka's own client reads the certificates and the key from the properties."""
    authority = Authority(tmp_path / "authority")
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SSL\nbootstrap.servers=b:9092\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={authority.issue('client')}\n"
    )
    properties = read_client_properties(str(file))
    assert not [name for name in properties if name.endswith(".location")]
    kafka = spark._jvm.org.apache.kafka
    given = spark._jvm.java.util.HashMap()
    for name, value in properties.items():
        given[name] = value
    stores = kafka.common.security.ssl.DefaultSslEngineFactory()
    stores.configure(kafka.clients.admin.AdminClientConfig(given).values())
    assert (stores.truststore().size(), stores.keystore().size()) == (1, 1)


def test_the_connector_is_of_pysparks_version() -> None:
    import pyspark

    assert connector_coordinate().endswith(f":{pyspark.__version__}")


FETCHES = """
from spark_jobs.common.session import fetching
print("asks", flush=True)
with fetching("a:b:1,c:d:2"):
    print("its turn")
"""


def test_processes_that_lack_a_package_start_spark_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_CACHE", str(tmp_path))
    jars = ivy_dir() / "jars"
    jars.mkdir(parents=True)
    (jars / "a_b-1.jar").touch()
    with fetching("a:b:1,c:d:2"):
        fetches = subprocess.Popen([sys.executable, "-c", FETCHES], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert fetches.stdout is not None
        assert fetches.stdout.readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            fetches.communicate(timeout=3)
    said, _ = fetches.communicate(timeout=60)
    assert said == "its turn\n"


def test_processes_that_have_the_packages_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_CACHE", str(tmp_path))
    (ivy_dir() / "jars").mkdir(parents=True)
    (ivy_dir() / "jars" / "a_b-1.jar").touch()
    with (ivy_dir() / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with fetching("a:b:1"):
            assert (ivy_dir() / "jars" / "a_b-1.jar").exists()


def test_nothing_is_fetched_under_spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ODRADEK_CACHE", str(tmp_path / "file" / "where nothing can be made"))
    with pytest.raises(NotADirectoryError), fetching("a:b:1"):
        pass
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with fetching("a:b:1"):
        assert not ivy_dir().exists()


def test_jars_that_are_known_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("ODRADEK_CACHE", str(tmp_path))
    jar = ivy_dir() / "a.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    python = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    python.write_text(f"#!/bin/sh\necho thirty lines\necho file://{jar}\n")
    python.chmod(0o755)
    assert resolved("a:b:1") == f"file://{jar}"
    assert "thirty" not in "".join(capfd.readouterr())
    python.write_text("#!/bin/sh\necho thirty lines\nexit 1\n")
    assert resolved("a:b:1") == f"file://{jar}"
    jar.unlink()
    with pytest.raises(ChildProcessError):
        resolved("a:b:1")
    assert "thirty lines" in capfd.readouterr().err


def test_a_directory_without_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--kafka-jars"):
        build_session("x", kafka_jars=str(tmp_path))


@pytest.mark.spark
def test_no_class_is_looked_for_twice(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java looks up each part of a name, even a package, in hundreds of jars, and does not cache misses."""
    looked_for = []
    (tmp_path / "file").write_text("text")

    def use_classes() -> None:
        assert TableDirectory(spark, str(tmp_path)).read_text("file") == "text"
        # The end of a Java iterator is an exception whose class PySpark looks up.
        assert list(java_class(spark, "java.util.ArrayList")()) == []

    use_classes()
    for kind in (JVMView, JavaPackage):
        original = kind.__getattr__

        def look_for(found: Any, name: str, original: Any = original) -> Any:
            looked_for.append(name)
            return original(found, name)

        monkeypatch.setattr(kind, "__getattr__", look_for)
    use_classes()
    assert not [name for name in looked_for if "." not in name]


@pytest.mark.parametrize("text", ["-- a comment\na INT NOT NULL,\n  b STRING\n", None])
@pytest.mark.spark
def test_schema_files(spark: Any, tmp_path: Path, text: str | None) -> None:
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    expected = StructType([StructField("a", IntegerType(), nullable=False), StructField("b", StringType())])
    path = tmp_path / "schema"
    path.write_text(text if text is not None else expected.json())
    assert read_schema(str(path)) == expected


@pytest.mark.parametrize("text", ["", "-- only a comment", "{", '{"type": "struct"}'])
def test_bad_schema_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schema"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"--schema {path}"):
        read_schema(str(path))


def done(**fields: Any) -> BatchProgress:
    zeros = {"state_rows": 0, "late_records": 0, "duplicate_rows": 0, "lag": {}}
    return BatchProgress(**({"batch": 3, "records": 100, "duration_ms": 2000} | zeros | fields))


def test_progress_says_rate_and_lag() -> None:
    line = done(lag={"t-0": 10, "t-1": 1000}).line()
    assert line == "batch 3: 100 records in 2.0 s (50 records/s), lag 1,010 (t-1: 1,000)"


def test_progress_says_what_was_dropped_and_what_is_not_known() -> None:
    line = done(lag=None, state_rows=1234, late_records=5, duplicate_rows=6).line()
    assert line == (
        "batch 3: 100 records in 2.0 s (50 records/s), lag unknown, 1,234 rows of state, 5 late records dropped, "
        "6 duplicates dropped"
    )


def test_where_a_batch_ended_in_all_its_sources() -> None:
    sources = [{"endOffset": json.dumps({"t": {"0": 5}})}, {"endOffset": {"u": {"1": 6}}}, {"endOffset": None}]
    assert kafka_offsets({"sources": sources}) == {"t": {"0": 5}, "u": {"1": 6}}


def test_lag_is_of_partitions_that_both_know() -> None:
    assert records_between({"t": {"0": 5, "1": 9}}, {"t": {"0": 8, "1": 7, "2": 4}, "u": {"0": 1}}) == {
        "t-0": 3,
        "t-1": 0,
    }


def test_lost_records_say_what_to_do() -> None:
    line = _explained(
        "SparkException", "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Some data may have been lost because they"
    )
    assert "checkpoint-doctor shows which" in line
