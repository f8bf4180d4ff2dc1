"""Tools as processes: their scripts, signals, closed pipes, terminals, brokers that are not there."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.broker_process import ROOT, BrokerProcess, free_port

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "ODRADEK_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), {"num.partitions": "1"})
    process.start()
    yield process
    process.stop()


def run(script: str, *args: str, given: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bin" / script, *args], input=given, capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd,
        timeout=60, check=False,
    )  # fmt: skip


def start(tool: str, *args: str, **options: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"tools.{tool}", *args],
        env=ENVIRONMENT,
        text=True,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def offsets(broker: BrokerProcess, topic: str) -> str:
    return run("kafka-get-offsets.sh", "--bootstrap-server", broker.address, "--topic", topic).stdout


def await_offset(broker: BrokerProcess, topic: str, line: str) -> None:
    deadline = time.monotonic() + 30
    while offsets(broker, topic) != line:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_scripts_work_from_anywhere(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()  # a directory of the user's must not be taken for our package
    server = ["--bootstrap-server", broker.address]
    created = run("kafka-topics.sh", *server, "--create", "--topic", "scripts", cwd=tmp_path)
    assert (created.returncode, created.stdout, created.stderr) == (0, "Created topic scripts.\n", "")
    assert run("kafka-console-producer.sh", *server, "--topic", "scripts", given="a\nb\n").returncode == 0
    consume = ["--topic", "scripts", "--from-beginning", "--max-messages", "2"]
    consumed = run("kafka-console-consumer.sh", *server, *consume)
    assert (consumed.stdout, consumed.stderr) == ("a\nb\n", "Processed a total of 2 messages\n")
    by_class = run("kafka-run-class.sh", "org.apache.kafka.tools.GetOffsetShell", *server, "--topic", "scripts")
    assert by_class.stdout == "scripts:0:2\n"
    (tmp_path / "link.sh").symlink_to(ROOT / "bin" / "kafka-topics.sh")
    linked = subprocess.run(
        [tmp_path / "link.sh", *server, "--list"], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "scripts" in linked.stdout.split()


def test_every_script_has_a_tool_that_explains_itself() -> None:
    scripts = sorted(path.name for path in (ROOT / "bin").glob("kafka-*.sh") if "server" not in path.name)
    assert len(scripts) >= 15
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda script: run(script, "--help"), scripts))
    for script, said in zip(scripts, answers, strict=True):
        expected = "there is no tool for the class --help" if script == "kafka-run-class.sh" else "--help"
        assert expected in said.stderr + said.stdout, script


def test_classes_without_a_tool_are_an_error() -> None:
    said = run("kafka-run-class.sh", "kafka.tools.StreamsResetter")
    assert (said.returncode, said.stdout) == (1, "")
    assert "no tool for the class kafka.tools.StreamsResetter" in said.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_read_is_delivered_when_the_producer_is_ended(broker: BrokerProcess, number: signal.Signals) -> None:
    topic = f"ended-by-{number.name}"
    producer = start("console_producer", "--bootstrap-server", broker.address, "--topic", topic, "--timeout", "60000")
    assert producer.stdin is not None
    producer.stdin.write("x" * 20_000 + "\nlingers\n")
    producer.stdin.flush()
    await_offset(broker, topic, f"{topic}:0:1\n")  # a full batch does not wait: the line behind it was read, too
    time.sleep(0.5)
    producer.send_signal(number)
    producer.communicate(timeout=20)
    assert producer.returncode == 128 + number
    assert offsets(broker, topic) == f"{topic}:0:2\n"


def test_a_consumer_that_is_ended_says_what_it_did(broker: BrokerProcess) -> None:
    consumer = start("console_consumer", "--bootstrap-server", broker.address, "--topic", "t", "--from-beginning")
    run("kafka-console-producer.sh", "--bootstrap-server", broker.address, "--topic", "t", given="one\n")
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == "one\n"
    consumer.send_signal(signal.SIGTERM)
    _, said = consumer.communicate(timeout=20)
    assert "Processed a total of 1 messages" in said
    assert consumer.returncode == 143


def test_a_closed_pipe_ends_the_consumer_quietly(broker: BrokerProcess) -> None:
    server = ["--bootstrap-server", broker.address]
    run("kafka-console-producer.sh", *server, "--topic", "pipe", given=f"{'x' * 99}\n" * 20_000)
    consumer = start("console_consumer", *server, "--topic", "pipe", "--from-beginning")
    assert consumer.stdout is not None
    assert consumer.stderr is not None
    assert consumer.stdout.readline() == f"{'x' * 99}\n"
    consumer.stdout.close()
    assert consumer.wait(20) == 1
    assert "Traceback" not in consumer.stderr.read()
    consumer.stderr.close()
    assert consumer.stdin is not None
    consumer.stdin.close()


def test_a_terminal_gets_a_prompt(broker: BrokerProcess) -> None:
    controller, terminal = pty.openpty()
    producer = start("console_producer", "--bootstrap-server", broker.address, "--topic", "tty", stdin=terminal)
    assert producer.stdout is not None
    assert producer.stdout.read(1) == ">"
    os.write(controller, b"typed\n")
    assert producer.stdout.read(1) == ">"
    os.write(controller, b"\x04")
    rest, said = producer.communicate(timeout=20)
    assert (producer.returncode, rest, said) == (0, "", "")
    assert offsets(broker, "tty") == "tty:0:1\n"
    for descriptor in (controller, terminal):
        os.close(descriptor)


def test_many_lines_from_a_file_and_from_a_pipe(broker: BrokerProcess, tmp_path: Path) -> None:
    lines = "".join(f"line {number}\n" for number in range(30_000))
    (tmp_path / "lines").write_text(lines)
    with (tmp_path / "lines").open() as file:
        producer = start(
            "console_producer", "--bootstrap-server", broker.address, "--topic", "file", stdin=file.fileno()
        )
        producer.communicate(timeout=60)
    run("kafka-console-producer.sh", "--bootstrap-server", broker.address, "--topic", "pipe2", given=lines)
    for topic in ("file", "pipe2"):
        consume = ["--topic", topic, "--from-beginning", "--max-messages", "30000"]
        assert run("kafka-console-consumer.sh", "--bootstrap-server", broker.address, *consume).stdout == lines


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("default.api.timeout.ms=500\nretry.backoff.ms=50\n")
    nobody = ["--bootstrap-server", f"127.0.0.1:{free_port()}", "--command-config", str(tmp_path / "client.properties")]
    said = run("kafka-topics.sh", *nobody, "--list")
    assert said.returncode == 1
    assert said.stdout == (
        "Error while executing topic command : Timed out waiting for a node assignment. Call: describeTopics\n"
    )
    assert "Broker may not be available" in said.stderr
    bad = run("kafka-topics.sh", "--bootstrap-server", "nowhere", "--list")
    assert bad.stdout == "Error while executing topic command : Invalid url in bootstrap.servers: nowhere\n"
    (tmp_path / "ssl.properties").write_text("security.protocol=SSL\n")
    refused = run("kafka-topics.sh", *nobody[:2], "--command-config", str(tmp_path / "ssl.properties"), "--list")
    assert "only PLAINTEXT is supported yet" in refused.stdout
    assert refused.returncode == 1


def test_a_verifiable_pair_survives_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"num.partitions": "1"})
    broker.start()
    server = ["--bootstrap-server", broker.address, "--topic", "pair"]
    consumer = start("verifiable_consumer", *server, "--group-id", "pair")
    producer = start("verifiable_producer", *server, "--throughput", "200")
    try:
        time.sleep(1.5)
        broker.kill()
        broker.start()
        time.sleep(2.5)
        producer.send_signal(signal.SIGTERM)
        produced = [json.loads(line) for line in producer.communicate(timeout=60)[0].splitlines()]
        assert producer.returncode == 143  # as a JVM that was ended so
        acked = [each["offset"] for each in produced if each["name"] == "producer_send_success"]
        assert len(acked) > 200
        assert (produced[-1]["name"], produced[-1]["acked"]) == ("tool_data", len(acked))
        await_consumed(broker, consumer, max(acked))
        consumer.send_signal(signal.SIGINT)
        assert json.loads(consumer.communicate(timeout=60)[0].splitlines()[-1])["name"] == "shutdown_complete"
        assert consumer.returncode == 130
    finally:
        for process in (producer, consumer):
            process.kill()
            process.communicate(timeout=20)
        broker.kill()


def await_consumed(broker: BrokerProcess, consumer: subprocess.Popen[str], last: int) -> None:
    """Read the consumer's events until it has read everything."""
    assert consumer.stdout is not None
    for line in consumer.stdout:
        event = json.loads(line)
        if event["name"] == "records_consumed" and event["partitions"][0]["maxOffset"] >= last:
            return
    raise AssertionError(f"the consumer ended before it read offset {last} of {broker.address}")
