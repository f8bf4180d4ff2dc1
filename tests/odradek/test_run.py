"""`odradek run`: a command with a broker that ends with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import odradek

ODRADEK = [sys.executable, "-P", "-m", "odradek", "run"]
PRODUCE = """
import os
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

servers = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}
topics = AdminClient(servers).list_topics(timeout=60).topics
producer = Producer(servers)
producer.produce("orders", b"A1")
assert producer.flush(60) == 0
print(os.environ["KAFKA_BOOTSTRAP_SERVERS"], *sorted(f"{name}:{len(topics[name].partitions)}" for name in topics))
"""
DESCRIBE = """
import os
from confluent_kafka.admin import AdminClient

names = sorted(name for name in os.environ if name.startswith(("KAFKA_SASL", "KAFKA_SSL", "KAFKA_SECURITY")))
settings = {name.removeprefix("KAFKA_").lower().replace("_", "."): os.environ[name] for name in names}
admin = AdminClient({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"], **settings})
listed = admin.list_topics(timeout=60)
print(len(listed.brokers), *listed.topics, *names)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ODRADEK, *words], capture_output=True, text=True, timeout=100, check=False)


def test_a_command_finds_its_broker_and_topics() -> None:
    ran = run("--topics", "orders:3,billing", "--config", "message.max.bytes=1000", "--", sys.executable, "-c", PRODUCE)
    assert (ran.returncode, ran.stderr) == (0, "")
    address, *topics = ran.stdout.split()
    assert topics == ["billing:1", "orders:3"]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--", "sh", "-c", "exit 3"], 3, ""),
        (["--", "sh", "-c", "kill -9 $$"], 137, ""),
        (["--", "no-such-command"], 127, "odradek run: no-such-command: command not found"),
        (["--", "/dev/null"], 126, "odradek run: /dev/null: Permission denied"),
        (["--topics", "a:x", "--", "true"], 2, "odradek run: --topics 'a:x' is not NAME or NAME:PARTITIONS"),
        (["--config", "a", "--", "true"], 2, "odradek run: --config 'a' is not KEY=VALUE"),
        (["--topics", "a b", "--", "true"], 1, "odradek run: INVALID_TOPIC_EXCEPTION: "),
        (["--config", "num.io.threads=x", "--", "true"], 1, "odradek run: The broker cannot start: Invalid value x"),
        (["--sasl", "GSSAPI", "--", "true"], 1, "odradek run: unknown SASL mechanism 'GSSAPI'; there are: PLAIN"),
        ([], 2, "odradek run: name a command after --"),
    ],
)
def test_the_exit_code_is_that_of_the_command(words: list[str], code: int, said: str) -> None:
    ran = run(*words)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("options", "brokers", "names"),
    [
        (["--brokers", "2"], 2, []),
        (["--brokers", "2", "--tls"], 2, ["KAFKA_SECURITY_PROTOCOL", "KAFKA_SSL_CA_LOCATION"]),
        (["--tls"], 1, ["KAFKA_SECURITY_PROTOCOL", "KAFKA_SSL_CA_LOCATION"]),
        (
            ["--tls", "--sasl", "SCRAM-SHA-512"],
            1,
            [
                "KAFKA_SASL_MECHANISM",
                "KAFKA_SASL_PASSWORD",
                "KAFKA_SASL_USERNAME",
                "KAFKA_SECURITY_PROTOCOL",
                "KAFKA_SSL_CA_LOCATION",
            ],
        ),
    ],
)
def test_clusters_and_security(options: list[str], brokers: int, names: list[str]) -> None:
    ran = run(*options, "--topics", "orders", "--", sys.executable, "-c", DESCRIBE)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(brokers), "orders", *names]


def test_the_command_has_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(odradek.__file__).parents[1]
    for paths, left in ((f"{root}{os.pathsep}/mine", "/mine"), (str(root), "none")):
        monkeypatch.setenv("PYTHONPATH", paths)
        monkeypatch.setenv("ODRADEK_COMMAND", "odradek run")
        ran = run("--", "sh", "-c", "echo ${PYTHONPATH-none} ${ODRADEK_COMMAND-none}")
        assert ran.stdout.split() == [left, "none"], ran.stderr


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    waits = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([*ODRADEK, "--", "sh", "-c", waits], stdout=subprocess.PIPE, text=True) as runs:
        assert runs.stdout is not None
        assert runs.stdout.readline() == "ready\n"
        os.kill(runs.pid, signal.SIGTERM)
        assert runs.wait(60) == 5
