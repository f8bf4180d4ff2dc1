"""kafka-producer-perf-test and kafka-consumer-perf-test, alone and beside Kafka's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.apache_kafka import ApacheKafka
from tests.broker_process import BrokerProcess
from tests.tools.perf_reports import (
    CONSUMER_PROGRESS,
    CONSUMER_TOTAL,
    PRODUCER_TOTAL,
    PRODUCER_WINDOW,
    run_java,
)
from tools import consumer_perf_test, producer_perf_test
from tools.date_format import DateFormat
from tools.latency_stats import LatencyStats


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), {"num.partitions": "2"})
    broker.start()
    yield broker.address
    broker.stop()


def produce(address: str, topic: str, *arguments: str, code: int = 0) -> None:
    given = ["--topic", topic, *arguments, "--producer-props", f"bootstrap.servers={address}"]
    assert producer_perf_test.main(given) == code


def consume(address: str, topic: str, *arguments: str, code: int = 0) -> None:
    assert consumer_perf_test.main(["--bootstrap-server", address, "--topic", topic, *arguments]) == code


def test_what_is_sent_is_read(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "both", "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
    sent = PRODUCER_TOTAL.fullmatch(capsys.readouterr().out.strip())
    assert sent is not None
    assert sent[1] == "3000"
    consume(address, "both", "--messages", "3000", "--timeout", "5000")
    header, report = capsys.readouterr().out.splitlines()
    assert header.split(", ")[:3] == ["start.time", "end.time", "data.consumed.in.MB"]
    read = CONSUMER_TOTAL.fullmatch(report)
    assert read is not None
    assert read[1] == "3000"
    assert report.split(", ")[2] == f"{3000 * 100 / 2**20:.4f}"


def test_too_few_records(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "few", "--num-records", "7", "--payload-monotonic", "--throughput", "-1")
    capsys.readouterr()
    consume(address, "few", "--messages", "8", "--timeout", "300", "--hide-header", "--group", "few-readers")
    warning, report = capsys.readouterr().out.splitlines()
    assert warning == (
        "WARNING: Exiting before consuming the expected number of messages: timeout (300 ms) exceeded. "
        "You can use the --timeout option to increase the timeout."
    )
    assert report.split(", ")[4] == "7"
    # The group has committed, so that nothing is left for it.
    consume(address, "few", "--messages", "1", "--timeout", "300", "--hide-header", "--group", "few-readers")
    assert capsys.readouterr().out.splitlines()[1].split(", ")[4] == "0"


def test_detailed_stats_and_metrics(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "detail", "--num-records", "5", "--record-size", "9", "--throughput", "100", "--print-metrics")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["", f"{'Metric Name':{len(lines[3]) - len(' : 33554432.000')}}   Value"]
    assert any(re.fullmatch(r"producer-metrics:record-send-total:\{client-id=.*\} +: 5\.000", line) for line in lines)
    consume(
        address,
        "detail",
        *("--messages", "5", "--show-detailed-stats", "--reporting-interval", "0", "--print-metrics"),
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("time, threadId, ")
    assert CONSUMER_PROGRESS.fullmatch(lines[1])
    assert "consumer-fetch-manager-metrics:bytes-consumed-total:{client-id=perf-consumer-client}   : 45.000" in lines


@pytest.mark.parametrize(
    ("text", "delimiter", "payloads"),
    [("a\nbb\n\n", "\\n", {b"a", b"bb"}), ("a, b,c", ",\\s*", {b"a", b"b", b"c"}), ("é", "\\n", {"é".encode()})],
)
def test_payloads_of_a_file(tmp_path: Path, text: str, delimiter: str, payloads: set[bytes]) -> None:
    path = tmp_path / "payloads"
    path.write_text(text)
    arguments = producer_perf_test.make_parser().parse_args(
        ["--topic", "t", "--num-records", "1", "--throughput", "-1", "--payload-file", str(path)]
    )
    arguments.payload_delimiter = delimiter
    read = producer_perf_test.read_payloads(arguments)
    assert set(read) == payloads
    make = producer_perf_test.values_maker(arguments, read, 1000)
    values = make(20)
    assert len(values) == 20
    assert set(values) <= payloads


@pytest.mark.parametrize("size", [0, 1, 100, 5000, 100_000])
def test_random_payloads_fill_a_batch(size: int) -> None:
    arguments = producer_perf_test.make_parser().parse_args(
        ["--topic", "t", "--num-records", "1", "--throughput", "-1", "--record-size", str(size)]
    )
    make = producer_perf_test.values_maker(arguments, None, 16_000)
    values = make(10**6)
    assert {len(value) for value in values} == {size}
    assert len(values) == 1 or 12_000 < sum(map(len, values)) + len(values) * 10 <= 18_000 or size < 10
    assert re.fullmatch(rb"[A-Z]*", b"".join(values))
    assert len(make(1)) == 1


def test_latencies_are_counted_by_record(capsys: pytest.CaptureFixture[str]) -> None:
    stats = LatencyStats(1000.0)
    assert stats.total_line(1000.0).startswith("0 records sent, 0.000000 records/sec (0.00 MB/sec), NaN ms avg")
    stats.add(90, 90 * 2**20, 1000.0, 1003.9)
    stats.add(10, 10 * 2**20, 1000.0, 2000.0)
    assert stats.total_line(3000.0) == (
        "100 records sent, 50.000000 records/sec (50.00 MB/sec), 102.70 ms avg latency, 1000.00 ms max latency, "
        "3 ms 50th, 1000 ms 95th, 1000 ms 99th, 1000 ms 99.9th."
    )
    assert capsys.readouterr().out == ""
    stats.add(1, 0, 5990.0, 6000.0)
    assert PRODUCER_WINDOW.fullmatch(capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --topic, --num-records, --throughput"),
        (["--num-records", "x"], "argument --num-records: could not convert 'x' to Long (For input string: \"x\")"),
        (["--num-records", "1", "--payload-monotonic", "--record-size", "3"], "not allowed with argument"),
        (["--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1"], "Either --producer-props"),
    ],
)
def test_mistakes_of_the_producer(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert producer_perf_test.main(arguments or ["--print-metrics"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "producer-performance: error: " in err
    assert message in err


def test_help_of_the_producer(capsys: pytest.CaptureFixture[str]) -> None:
    assert producer_perf_test.main([]) == 0
    without = capsys.readouterr()
    assert producer_perf_test.main(["--help"]) == 1
    assert capsys.readouterr() == without
    assert without.out.startswith("usage: producer-performance [-h] --topic TOPIC")


def test_transactions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    produce("127.0.0.1:1", "t", *_one_record("1"), "--transaction-duration-ms", "100", code=1)
    assert capsys.readouterr().err == "--transaction-duration-ms: transactions are not supported yet\n"


def test_refused_records_are_told(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "refused", *_one_record("2000000"))
    out, err = capsys.readouterr()
    assert out.startswith("0 records sent, 0.000000 records/sec (0.00 MB/sec), NaN ms avg latency, 0.00 ms max")
    assert re.match(r"org\.apache\.kafka\.common\.errors\.RecordTooLargeException: The message is 20000\d\d bytes", err)


def _one_record(size: str) -> tuple[str, ...]:
    return ("--num-records", "1", "--record-size", size, "--throughput", "-1")


@pytest.mark.parametrize(
    ("arguments", "out", "message"),
    [
        (["--topic", "t", "--messages", "1"], "", "Missing required option(s) [bootstrap-server]"),
        (["--bootstrap-server", "b:1", "--messages", "1"], "", 'Missing required argument "[topic]"'),
        (["--bootstrap-server", "b:1", "--topic", "t"], "", 'Missing required argument "[messages]"'),
        (
            ["--bootstrap-server", "127.0.0.1:1", "--topic", "t", "--messages", "x", "--hide-header"],
            "",
            "Cannot parse argument 'x' of option messages",
        ),
        (
            ["--broker-list", "b:1", "--topic", "t", "--messages", "1", "--hide-header", "--date-format", "b"],
            "",
            "Illegal pattern character 'b'",
        ),
    ],
)
def test_mistakes_of_the_consumer(
    capsys: pytest.CaptureFixture[str], arguments: list[str], out: str, message: str
) -> None:
    assert consumer_perf_test.main(arguments) == 1
    told = capsys.readouterr()
    assert told.out == out
    assert told.err.splitlines()[0] == message


def test_dates() -> None:
    timestamp_ms = int(datetime(2026, 3, 7, 0, 5, 9, tzinfo=UTC).astimezone().timestamp() * 1000) + 42
    date = datetime.fromtimestamp(timestamp_ms // 1000).astimezone()
    assert DateFormat("yyyy-MM-dd HH:mm:ss:SSS").format(timestamp_ms) == f"{date:%Y-%m-%d %H:%M:%S}:042"
    assert DateFormat("d MMM yy 'o''clock' '' a").format(timestamp_ms) == f"{date.day} {date:%b %y} o'clock ' {date:%p}"
    assert DateFormat("EEEE MMMM D S").format(timestamp_ms) == f"{date:%A %B} {date.timetuple().tm_yday} 42"
    with pytest.raises(ValueError, match="Unterminated quote"):
        DateFormat("yyyy 'x")


@pytest.mark.java
def test_kafkas_own_tools_print_the_same(address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("one\ntwo\nthree\n")
    options = ("--num-records", "50", "--payload-file", str(payloads), "--throughput", "-1")
    theirs = run_java(
        "ProducerPerformance", "--topic", "same", *options, "--producer-props", f"bootstrap.servers={address}"
    )
    produce(address, "same", *options)
    ours = capsys.readouterr().out
    assert ours.splitlines()[:2] == theirs.splitlines()[:2]
    for line in (ours.splitlines()[2], theirs.splitlines()[2]):
        assert PRODUCER_TOTAL.fullmatch(line)
    reading = ("--topic", "same", "--messages", "200", "--timeout", "1000")
    theirs = run_java("ConsumerPerformance", "--bootstrap-server", address, *reading)
    consume(address, *reading[1:])
    ours = capsys.readouterr().out
    assert ours.splitlines()[:2] == theirs.splitlines()[:2]
    for line in (ours.splitlines()[2], theirs.splitlines()[2]):
        assert CONSUMER_TOTAL.fullmatch(line)
    assert _columns(ours, 2, 4) == _columns(theirs, 2, 4)


def _columns(output: str, *numbers: int) -> list[str]:
    cells = output.splitlines()[2].split(", ")
    return [cells[number] for number in numbers]


@pytest.mark.java
def test_against_apache_kafka(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path)
    kafka.start()
    try:
        produce(kafka.address, "t", "--num-records", "2000", "--record-size", "50", "--throughput", "-1")
        assert capsys.readouterr().out.startswith("2000 records sent, ")
        consume(kafka.address, "t", "--messages", "2000", "--hide-header")
        assert _columns("\n\n" + capsys.readouterr().out, 4) == ["2000"]
    finally:
        kafka.stop()
