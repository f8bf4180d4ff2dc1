"""Tools as processes: their scripts, signals, closed pipes, terminals, unreachable brokers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.waiting import eventually
from tools.support.options import default_server

PATIENCE_S = 60.0
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
        timeout=PATIENCE_S, check=False,
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
    eventually("the offset", lambda: offsets(broker, topic), lambda said: said == line)


def test_scripts_work_from_anywhere(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()  # a user's directory must not be imported as our package
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
    producer = start_lingering(broker, topic)
    producer.send_signal(number)
    producer.communicate(timeout=PATIENCE_S)
    assert producer.returncode == 128 + number
    assert offsets(broker, topic) == f"{topic}:0:1\n{topic}:1:1\n"


def test_what_was_read_is_delivered_when_the_producer_is_ended_at_its_end(broker: BrokerProcess) -> None:
    """A tool that a busy machine has delayed sees the end of its input and the signal together."""
    producer = start_lingering(broker, "ended-at-its-end")
    producer.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, producer.pid, os.WSTOPPED)
    assert producer.stdin is not None
    producer.stdin.close()
    producer.stdin = None
    producer.send_signal(signal.SIGTERM)
    producer.send_signal(signal.SIGCONT)
    producer.communicate(timeout=PATIENCE_S)
    assert offsets(broker, "ended-at-its-end") == "ended-at-its-end:0:1\nended-at-its-end:1:1\n"


def start_lingering(broker: BrokerProcess, topic: str) -> subprocess.Popen[str]:
    """A producer that has read a line which it will not send for minutes."""
    server = ["--bootstrap-server", broker.address, "--topic", topic]
    run("kafka-topics.sh", *server, "--create", "--partitions", "2")
    producer = start("console_producer", *server, "--timeout", "600000", "--property", "parse.key=true")
    assert producer.stdin is not None
    producer.stdin.write("a\tlingers\nd\t" + "x" * 20_000 + "\n")
    producer.stdin.flush()
    # A full batch is sent at once: when it arrives, the previous line, of the other partition, has been read.
    await_offset(broker, topic, f"{topic}:0:0\n{topic}:1:1\n")
    return producer


def test_a_consumer_that_is_ended_says_what_it_did(broker: BrokerProcess) -> None:
    consumer = start("console_consumer", "--bootstrap-server", broker.address, "--topic", "t", "--from-beginning")
    run("kafka-console-producer.sh", "--bootstrap-server", broker.address, "--topic", "t", given="one\n")
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == "one\n"
    consumer.send_signal(signal.SIGTERM)
    _, said = consumer.communicate(timeout=PATIENCE_S)
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
    assert consumer.wait(PATIENCE_S) == 1
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
    rest, said = producer.communicate(timeout=PATIENCE_S)
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
        producer.communicate(timeout=PATIENCE_S)
    run("kafka-console-producer.sh", "--bootstrap-server", broker.address, "--topic", "pipe2", given=lines)
    for topic in ("file", "pipe2"):
        consume = ["--topic", topic, "--from-beginning", "--max-messages", "30000"]
        assert run("kafka-console-consumer.sh", "--bootstrap-server", broker.address, *consume).stdout == lines


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("default.api.timeout.ms=3000\nretry.backoff.ms=50\n")
    nobody = ["--bootstrap-server", f"127.0.0.1:{free_port()}", "--command-config", str(tmp_path / "client.properties")]
    said = run("kafka-topics.sh", *nobody, "--list")
    assert said.returncode == 1
    assert said.stdout == (
        "Error while executing topic command : Timed out waiting for a node assignment. Call: describeTopics "
        f"(Connection to {nobody[1]} could not be established: Connection refused)\n"
    )
    assert nobody[1] in said.stderr.splitlines()[-1]
    assert "Broker may not be available" in said.stderr
    bad = run("kafka-topics.sh", "--bootstrap-server", "nowhere", "--list")
    assert bad.stdout == "Error while executing topic command : Invalid url in bootstrap.servers: nowhere\n"
    (tmp_path / "tls.properties").write_text("security.protocol=TLS\n")
    refused = run("kafka-topics.sh", *nobody[:2], "--command-config", str(tmp_path / "tls.properties"), "--list")
    assert "Invalid value TLS for configuration security.protocol" in refused.stdout
    assert refused.returncode == 1


def odradek(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "odradek", *args],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_odradeks_own_commands_say_once_that_no_broker_answers_and_give_up() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for command in (["topics", "--list"], ["verifiable-producer", "--topic", "t", "--max-messages", "1"]):
        said = odradek(*command, "--bootstrap-server", nobody)
        assert f"No broker answered within 10 s: Connection to {nobody} could not be est" in said.stdout + said.stderr
        assert said.stderr.count("WARN Connection to") == 1, said.stderr


def test_odradeks_own_commands_know_the_broker_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ODRADEK_COMMAND", raising=False)
    assert default_server({"bootstrap-server", "list"}, {"list"}) is None
    monkeypatch.setenv("ODRADEK_COMMAND", "odradek topics")
    assert default_server({"bootstrap-server", "list"}, {"list"}) == "127.0.0.1:9092"
    for given in ({"bootstrap-server"}, {"list", "broker-list"}, {"help"}, {"version"}, set[str]()):
        assert default_server({"bootstrap-server", "broker-list", "list"}, given) is None
    assert default_server({"list"}, {"list"}) is None


def test_a_warning_that_comes_again_keeps_its_line_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    code = (
        "import logging\nfrom tools.support.common import run_work\n"
        "async def work():\n  for n in (1, 1, 1, 2): logging.warning('lost %d', n)\n  return 0\nrun_work(work)"
    )
    own = ENVIRONMENT | {"ODRADEK_COMMAND": "odradek topics"}
    subprocess.run([sys.executable, "-c", code], env=own, stderr=terminal, check=True, timeout=PATIENCE_S)
    said = os.read(controller, 10_000).decode()
    assert said.count("\x1b[1A\x1b[2K") == 2
    assert said.count("lost 1") == 3
    assert said.count("lost 2") == 1
    plain = subprocess.run(
        [sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True, timeout=60
    )
    assert [line.split()[3:5] for line in plain.stderr.splitlines()] == [["lost", "1"], ["lost", "2"]]
    for descriptor in (controller, terminal):
        os.close(descriptor)


def test_a_verifiable_pair_survives_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"num.partitions": "1"})
    broker.start()
    server = ["--bootstrap-server", broker.address, "--topic", "pair"]
    consumed, produced = tmp_path / "consumed", tmp_path / "produced"
    with consumed.open("wb") as to_consumed, produced.open("wb") as to_produced:
        consumer = start("verifiable_consumer", *server, "--group-id", "pair", stdout=to_consumed.fileno())
        producer = start("verifiable_producer", *server, "--throughput", "200", stdout=to_produced.fileno())
    try:
        for is_killed in (True, False):
            count = len(acked_in(produced)) + 200
            await_true(lambda count=count: len(acked_in(produced)) >= count)  # type: ignore[misc]
            if is_killed:
                broker.kill()
                broker.start()
        producer.send_signal(signal.SIGTERM)
        producer.communicate(timeout=PATIENCE_S)
        assert producer.returncode == 143  # like a JVM ended by SIGTERM
        acked = acked_in(produced)
        last = events_in(produced)[-1]
        assert (last["name"], last["acked"]) == ("tool_data", len(acked))
        await_true(lambda: newest_in(consumed) >= max(acked))
        consumer.send_signal(signal.SIGINT)
        consumer.communicate(timeout=PATIENCE_S)
        assert events_in(consumed)[-1]["name"] == "shutdown_complete"
        assert consumer.returncode == 130
    finally:
        for process in (producer, consumer):
            process.kill()
            process.communicate(timeout=PATIENCE_S)
        broker.kill()


def events_in(output: Path) -> list[dict[str, Any]]:
    """The events that a verifiable tool has printed so far; its last line may be incomplete."""
    return [json.loads(line) for line in output.read_text().splitlines(keepends=True) if line.endswith("\n")]


def acked_in(output: Path) -> list[int]:
    """The offsets of the delivered records."""
    return [each["offset"] for each in events_in(output) if each["name"] == "producer_send_success"]


def newest_in(output: Path) -> int:
    """The last offset that was read."""
    read = [each["partitions"][0]["maxOffset"] for each in events_in(output) if each["name"] == "records_consumed"]
    return max(read, default=-1)


def await_true(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_records_are_deleted_and_told_before_what_cannot_be(broker: BrokerProcess, tmp_path: Path) -> None:
    run("kafka-topics.sh", "--bootstrap-server", broker.address, "--create", "--topic", "shrinks")
    path = tmp_path / "offsets.json"
    partitions = [{"topic": topic, "partition": 0, "offset": 0} for topic in ("missing", "shrinks")]
    path.write_text(json.dumps({"partitions": partitions}))
    deleting = start(
        "delete_records", "--bootstrap-server", broker.address, "--offset-json-file", str(path),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert deleting.stdout is not None
    lines = [deleting.stdout.readline() for _ in range(3)]
    assert lines[2] == "partition: shrinks-0\tlow_watermark: 0\n"
    assert deleting.poll() is None
    deleting.kill()
    deleting.communicate(timeout=PATIENCE_S)


def test_a_failed_topic_command_says_so_on_both_outputs(broker: BrokerProcess) -> None:
    command = ("kafka-topics.sh", "--bootstrap-server", broker.address, "--create", "--topic", "twice")
    assert run(*command).returncode == 0
    again = run(*command)
    reason = "Topic 'twice' already exists."
    assert (again.returncode, again.stdout) == (1, f"Error while executing topic command : {reason}\n")
    assert f"ERROR org.apache.kafka.common.errors.TopicExistsException: {reason}" in again.stderr
