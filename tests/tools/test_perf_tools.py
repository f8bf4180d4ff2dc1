"""kafka-producer-perf-test and kafka-consumer-perf-test against our broker: output, refused options and exit codes.

The formats are those of Kafka 3.9.1's tools, and `test_tools_parity` compares ours with them if Java is available.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker_process import BrokerProcess
from tools import console_consumer, consumer_perf_test, producer_perf_test, transactions
from tools.support.common import ToolError

_F1, _F2, _F4, _F6 = (rf"\d+\.\d{{{digits}}}" for digits in (1, 2, 4, 6))
PRODUCER_TOTAL = re.compile(
    rf"(\d+) records sent, {_F6} records/sec \({_F2} MB/sec\), {_F2} ms avg latency, {_F2} ms max latency, "
    r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."
)
_DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
_RATES = rf"{_F4}, {_F4}, \d+, {_F4}, -?\d+, -?\d+, {_F4}, {_F4}"
CONSUMER_TOTAL = re.compile(rf"{_DATE}, {_DATE}, {_RATES}")
CONSUMER_PROGRESS = re.compile(rf"{_DATE}, 0, {_RATES}")
_HEADER_END = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, "
    "fetch.nMsg.sec"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), {"num.partitions": "2"})
    broker.start()
    yield broker.address
    broker.stop()


def produce(address: str, topic: str, *arguments: str, code: int = 0) -> None:
    given = ["--topic", topic, *arguments, "--producer-props", f"bootstrap.servers={address}"]
    assert producer_perf_test.main(given) == code


def consume(address: str, topic: str, *arguments: str) -> None:
    assert consumer_perf_test.main(["--bootstrap-server", address, "--topic", topic, *arguments]) == 0


def test_what_is_sent_is_read(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "both", "--num-records", "3000", "--record-size", "100", "--throughput", "-1")
    sent = PRODUCER_TOTAL.fullmatch(capsys.readouterr().out.strip())
    assert sent is not None
    assert sent[1] == "3000"
    consume(address, "both", "--messages", "3000", "--timeout", "60000")
    header, report = capsys.readouterr().out.splitlines()
    assert header == f"start.time, end.time, {_HEADER_END}"
    assert CONSUMER_TOTAL.fullmatch(report)
    assert report.split(", ")[2] == f"{3000 * 100 / 2**20:.4f}"
    assert report.split(", ")[4] == "3000"


def test_throughput_is_kept(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "slow", "--num-records", "50", "--record-size", "10", "--throughput", "100")
    rate = re.search(r"sent, ([0-9.]+) records/sec", capsys.readouterr().out)
    assert rate is not None
    assert float(rate[1]) <= 105


@pytest.mark.parametrize("throughput", ["-1", "1000"])
def test_records_in_transactions(address: str, capsys: pytest.CaptureFixture[str], throughput: str) -> None:
    topic = f"transactions{throughput}"
    transactional = ("--transaction-duration-ms", "30", "--transactional-id", topic, "--payload-monotonic")
    produce(address, topic, "--num-records", "300", "--throughput", throughput, *transactional)
    sent = PRODUCER_TOTAL.fullmatch(capsys.readouterr().out.strip())
    assert sent is not None
    assert sent[1] == "300"
    given = ["--bootstrap-server", address, "--topic", topic, "--from-beginning", "--max-messages", "300"]
    assert console_consumer.main([*given, "--isolation-level", "read_committed"]) == 0
    assert sorted(map(int, capsys.readouterr().out.split())) == list(range(300))
    assert transactions.main(["--bootstrap-server", address, "describe", "--transactional-id", topic]) == 0
    _, described = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in described.split("\t")][1:5:3] == [topic, "CompleteCommit"]


def test_without_a_duration_there_are_no_transactions(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(
        address, "plain", "--num-records", "3", "--payload-monotonic", "--throughput", "-1", "--transactional-id", "no"
    )
    capsys.readouterr()
    assert transactions.main(["--bootstrap-server", address, "describe", "--transactional-id", "no"]) == 1
    assert "`no` failed because the ID could not be found" in capsys.readouterr().err


def test_too_few_records(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "few", "--num-records", "7", "--payload-monotonic", "--throughput", "-1")
    capsys.readouterr()
    # Joining and fetching must fit in the timeout, too.
    readers = ("--timeout", "4000", "--hide-header", "--group", "few-readers")
    consume(address, "few", "--messages", "8", *readers)
    warning, report = capsys.readouterr().out.splitlines()
    assert warning == (
        "WARNING: Exiting before consuming the expected number of messages: timeout (4000 ms) exceeded. "
        "You can use the --timeout option to increase the timeout."
    )
    assert report.split(", ")[4] == "7"
    # The group has committed, so nothing is left to read.
    consume(address, "few", "--messages", "1", *readers)
    assert capsys.readouterr().out.splitlines()[1].split(", ")[4] == "0"


def test_detailed_stats_and_metrics(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    produce(address, "detail", "--num-records", "5", "--record-size", "9", "--throughput", "-1", "--print-metrics")
    total, empty, title, *metrics = capsys.readouterr().out.splitlines()
    assert PRODUCER_TOTAL.fullmatch(total)
    assert empty == ""
    assert re.fullmatch(r"Metric Name +Value", title)
    sent = [line for line in metrics if line.startswith("producer-metrics:record-send-total:{client-id=perf-producer-")]
    assert [line[title.index("Value") :] for line in sent] == ["5.000"]
    detailed = ("--show-detailed-stats", "--reporting-interval", "0")
    consume(address, "detail", "--messages", "5", "--timeout", "60000", *detailed)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == f"time, threadId, {_HEADER_END}"
    assert lines
    assert all(CONSUMER_PROGRESS.fullmatch(line) for line in lines)


def test_payloads_of_a_file(address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    path.write_text("four\nfive\n\n")
    produce(address, "file", "--num-records", "300", "--payload-file", str(path), "--throughput", "-1")
    read, number, total = capsys.readouterr().out.splitlines()
    assert (read, number) == (f"Reading payloads from: {path}", "Number of messages read: 2")
    assert total.startswith("300 records sent, ")
    consume(address, "file", "--messages", "300", "--hide-header", "--timeout", "60000")
    assert capsys.readouterr().out.split(", ")[2] == f"{300 * 4 / 2**20:.4f}"


def test_a_delimiter_is_a_regular_expression(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "payloads"
    path.write_text("aXXbYYc X d")
    assert producer_perf_test.read_payloads(str(path), "([XY]+)") == [b"a", b"b", b"c ", b" d"]
    assert capsys.readouterr().out.endswith("Number of messages read: 4\n")
    with pytest.raises(ToolError, match=r"--payload-delimiter \[ is not a regular expression"):
        producer_perf_test.read_payloads(str(path), "[")


@pytest.mark.parametrize("content", [None, ""])
def test_no_payloads(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "payloads"
    if content is not None:
        path.write_text(content)
    produce("127.0.0.1:1", "t", "--num-records", "1", "--payload-file", str(path), "--throughput", "-1", code=1)
    out, err = capsys.readouterr()
    assert out == f"Reading payloads from: {path}\n"
    assert err == "File does not exist or empty file provided.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--print-metrics"], "the following arguments are required: --topic, --num-records, --throughput"),
        (["--num-records", "x"], "argument --num-records: could not convert 'x' to Long (For input string: \"x\")"),
        (["--num-records", "1", "--payload-monotonic", "--record-size", "3"], "not allowed with argument"),
        (["--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1"], "Either --producer-props"),
    ],
)
def test_mistakes_of_the_producer(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert producer_perf_test.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "producer-performance: error: " in err
    assert message in err


def test_help_of_the_producer(capsys: pytest.CaptureFixture[str]) -> None:
    assert producer_perf_test.main([]) == 0
    without = capsys.readouterr()
    assert producer_perf_test.main(["--help"]) == 1
    assert capsys.readouterr() == without
    assert without.out.startswith("usage: producer-performance [-h]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "t", "--messages", "1"], "Missing required option(s) [bootstrap-server]"),
        (["--bootstrap-server", "b:1", "--messages", "1"], 'Missing required argument "[topic]"'),
        (["--bootstrap-server", "b:1", "--topic", "t"], 'Missing required argument "[messages]"'),
        (["--broker-list", "127.0.0.1:1", "--topic", "t", "--messages", "x"], "Cannot parse argument 'x' of option"),
    ],
)
def test_mistakes_of_the_consumer(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert consumer_perf_test.main(arguments) == 1
    assert capsys.readouterr().err.startswith(message)
