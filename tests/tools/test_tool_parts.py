"""Parts of the tools that a comparison with Kafka's tools does not reach."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from client.metadata import PartitionMetadata
from protocol.errors import ApiError, ErrorCode
from tools import storage, topics
from tools.producer_perf_test import Statistics
from tools.support.common import ToolError
from tools.support.error_texts import exception_text
from tools.support.group_reset import parse_datetime, parse_duration
from tools.support.java_dates import format_date
from tools.support.options import Option, OptionError, OptionParser
from tools.support.performance import Throttle, print_metrics
from tools.topics import is_reported, partition_line

PARSER = OptionParser(
    "A tool.",
    [
        Option("number", "A number.", "n", "Long"),
        Option("small", "A small one.", "n", "Integer"),
        Option("maybe", "With or without a value.", "", argument_optional=True),
        Option("flag", "A flag."),
        Option("with-default", "A text.", "text", default="given"),
    ],
)


def test_options_are_read_as_jopt_reads_them() -> None:
    options = PARSER.parse(["--number", "-5", "--maybe", "--flag", "ignored", "-with-default=a=b", "--number=7"])
    assert options.texts("number") == ["-5", "7"]
    assert (options.has("maybe"), options.text("maybe"), options.has("flag")) == (True, None, True)
    assert options.text("with-default") == "a=b"
    assert PARSER.parse([]).text("with-default") == "given"
    assert not PARSER.parse([]).has("with-default")
    assert PARSER.parse(["--maybe", "yes"]).text("maybe") == "yes"
    with pytest.raises(OptionError, match="multiple arguments for option number"):
        options.text("number")
    assert PARSER.parse(["--number", "-5"]).number("number") == -5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--numbe", "1"], "numbe is not a recognized option"),
        (["--number"], "Option number requires an argument"),
        (["--number", "--"], "Option number requires an argument"),
        (["--zookeeper", "zk:2181"], "zookeeper is not a recognized option; use --bootstrap-server"),
    ],
)
def test_command_lines_that_make_no_sense(words: list[str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        PARSER.parse(words)


@pytest.mark.parametrize(
    ("name", "text"), [("small", "2147483648"), ("number", "1.5"), ("number", "1_0"), ("number", "")]
)
def test_numbers_that_are_none(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"Cannot parse argument '{text}' of option {name}"):
        PARSER.parse([f"--{name}={text}"]).number(name)


def test_the_usage_names_every_option_within_80_columns() -> None:
    lines = PARSER.format_help().splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:] if line.startswith("--")] == [
        *("--flag", "--help", "--maybe", "--number", "--small", "--version", "--with-default"),
    ]


def test_java_dates() -> None:
    moment = datetime(2026, 3, 7, 0, 5, 9, 42_000, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    for pattern, shown in {
        "yyyy-MM-dd HH:mm:ss:SSS": "2026-03-07 00:05:09:042",
        "EEE, d MMM yy h 'o''clock' a": "Sat, 7 Mar 26 12 o'clock AM",
        "EEEE MMMM k K DDD u": "Saturday March 24 0 066 6",
        "HH:mm Z X XX XXX": "00:05 +0530 +05 +0530 +05:30",
        "''": "'",
    }.items():
        assert format_date(moment, pattern) == shown
    assert format_date(moment.astimezone(UTC), "HH:mmX") == "18:35Z"
    with pytest.raises(ToolError, match="Illegal pattern character 'Q'"):
        format_date(moment, "Q")


def test_durations() -> None:
    for text, milliseconds in {
        "PT1S": 1_000,
        "P1DT2H3M4.5S": 93_784_500,
        "-PT0.001S": -1,
        "PT-1M": -60_000,
        "p1d": 86_400_000,
    }.items():
        assert parse_duration(text) == milliseconds
    for text in ("", "P", "PT", "1D", "P1H", "P1DT"):
        with pytest.raises(ToolError, match="cannot be parsed to a Duration"):
            parse_duration(text)


def test_times() -> None:
    assert parse_datetime("1970-01-01T00:00:01.500") == 1_500
    assert parse_datetime("1970-01-01T02:00:00.000+02:00") == 0
    assert parse_datetime("1970-1-1T0:0:0.7Z and more") == 7
    assert parse_datetime("1970-01-01T02:00:00.000+0200") == 0
    with pytest.raises(ToolError, match='Unparseable date: "1970-01-01T00:00:00Z"'):
        parse_datetime("1970-01-01T00:00:00")
    for text in ("1970-01-01", "1970-13-01T00:00:00"):
        with pytest.raises(ToolError, match="ParseException"):
            parse_datetime(text)


def test_throttle_keeps_the_pace() -> None:
    async def run() -> float:
        throttle = Throttle(2_000)
        start = asyncio.get_running_loop().time()
        for sent in range(200):
            await throttle.wait(sent)
        return asyncio.get_running_loop().time() - start

    assert asyncio.run(run()) >= 0.095


def test_partitions_in_trouble_are_reported() -> None:
    partition = PartitionMetadata(0, ErrorCode.NONE, -1, 5, (1, 2, 3), (2,), (1,))
    assert partition_line("t", partition) == (
        "\tTopic: t\tPartition: 0\tLeader: none\tReplicas: 1,2,3\tIsr: 2\tElr: N/A\tLastKnownElr: N/A"
    )
    reports = ("under-replicated-partitions", "unavailable-partitions", "under-min-isr-partitions")
    assert all(is_reported(partition, report, 2, {2, 3}) for report in reports)
    assert is_reported(partition, "at-min-isr-partitions", 1, {2, 3})
    healthy = partition._replace(leader=2, isr=(1, 2, 3))
    assert not any(is_reported(healthy, report, 2, {1, 2, 3}) for report in (*reports, "at-min-isr-partitions"))


def test_metrics_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    statistics = Statistics(3)
    statistics.record(3, 300, 7)
    print_metrics(statistics.metrics("c", "t", 1))
    blank, head, *rows = capsys.readouterr().out.splitlines()
    assert blank == ""
    assert head.split() == ["Metric", "Name", "Value"]
    assert rows == sorted(rows)
    assert {row.index(" : ") for row in rows} == {head.index("   Value")}
    values = {name.strip(): value for name, _, value in (row.rpartition(" : ") for row in rows)}
    assert values["producer-metrics:record-send-total:{client-id=c}"] == "3.000"
    assert values["producer-topic-metrics:record-error-total:{client-id=c, topic=t}"] == "1.000"
    assert values["producer-topic-metrics:byte-total:{client-id=c, topic=t}"] == "300.000"


def test_errors_are_named_once() -> None:
    package = "org.apache.kafka.common.errors."
    for error, text in {
        ApiError(ErrorCode.INVALID_CONFIG, "no such key"): "InvalidConfigurationException: no such key",
        ApiError(ErrorCode.INVALID_CONFIG): "InvalidConfigurationException: Configuration is invalid.",
        ApiError(ErrorCode.NOT_ENOUGH_REPLICAS): "NotEnoughReplicasException",
        ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, "only one"): "NotEnoughReplicasException: only one",
    }.items():
        assert exception_text(error) == package + text


def test_a_mistyped_option_gets_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    for command, hint in {"odradek tool": "; did you mean --number?", "kafka-tool.sh": ""}.items():
        monkeypatch.setenv("ODRADEK_COMMAND", command)
        with pytest.raises(OptionError) as error:
            PARSER.parse(["--numbre", "1"])
        assert str(error.value) == f"numbre is not a recognized option{hint}"


def test_help_of_odradeks_command_is_output_and_mistakes_are_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODRADEK_COMMAND", "odradek topics")
    assert topics.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Create, list, describe, grow and delete topics.\nOption ")
    assert topics.main(["--create"]) == 1
    assert capsys.readouterr().err == (
        'Missing required argument "[topic]"\n`odradek topics --help` shows the options.\n'
    )
    monkeypatch.setenv("ODRADEK_COMMAND", "kafka-topics.sh")
    for mistake in (["--help"], ["--create", "--bootstrap-server", "b:1"]):
        assert topics.main(mistake) == 1
        assert "\nOption " in capsys.readouterr().err


def test_a_mistyped_command_of_a_tool_gets_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, hint in {"odradek storage": "; did you mean format?", "kafka-storage.sh": ""}.items():
        monkeypatch.setenv("ODRADEK_COMMAND", command)
        assert storage.main(["formt"]) == 1
        assert capsys.readouterr().err.endswith(f"(choose from 'info', 'format', 'random-uuid'){hint}\n")
