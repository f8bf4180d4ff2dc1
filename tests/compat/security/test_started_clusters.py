"""Clusters of `odradek cluster start --tls --sasl`: clients use exactly the properties that it prints."""

from __future__ import annotations

import contextlib
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from config.properties import parse_properties
from tests.kit.broker_process import free_port
from tests.kit.cluster_command import ClusterCommand, cluster_command
from tests.kit.due import due
from tests.kit.waiting import eventually
from tests.tools.tool_pair import kafkas_runner

pytestmark = pytest.mark.timeout(240)

TOPIC = "flights"
KINDS = {
    "SSL": "--tls",
    "SASL_PLAINTEXT": "--sasl SCRAM-SHA-256",
    "SASL_SSL": "--tls --sasl PLAIN",
}


PROGRAMS = {
    "aiokafka": """
import asyncio, sys
from aiokafka import AIOKafkaConsumer

async def main():
    async with AIOKafkaConsumer(sys.argv[1], **settings, auto_offset_reset="earliest") as consumer:
        for _ in range(int(sys.argv[2])):
            print((await consumer.getone()).value.decode())

asyncio.run(main())
""",
    "kafka-python": """
import sys
from kafka import KafkaConsumer

consumer = KafkaConsumer(sys.argv[1], **settings, auto_offset_reset="earliest")
for _ in range(int(sys.argv[2])):
    print(next(consumer).value.decode())
consumer.close()
""",
}


class Printed(NamedTuple):
    """The output of `start` for clients, by kind of client: the file names and their text."""

    java: tuple[Path, str]
    librdkafka: tuple[Path, str]
    python: tuple[Path, str]

    @classmethod
    def of(cls, said: str) -> Printed:
        """Parse the output. The text of a file ends where the next one begins."""
        found = re.findall(r"(?ms)^# .*?: (/\S+)$\n(.*?\n)(?=\n# |\nNext:)", said)
        return cls(*((Path(path), text) for path, text in found))

    @property
    def for_librdkafka(self) -> dict[str, Any]:
        return dict(line.split("=", 1) for line in self.librdkafka[1].splitlines())


@contextlib.contextmanager
def started(directory: Path, options: str) -> Iterator[tuple[ClusterCommand, Printed]]:
    """A cluster of two brokers, and the output of its start."""
    with cluster_command(directory) as cluster:
        said = cluster("start", "--brokers", "2", "--base-port", str(free_port()), *options.split())
        yield cluster, Printed.of(said)


def create_topic(settings: Mapping[str, Any]) -> None:
    admin = AdminClient({**settings, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 2)])[TOPIC].result(30)


def produce(settings: Mapping[str, Any], value: bytes) -> None:
    """One record, acknowledged by all replicas."""
    failures: list[object] = []
    producer = Producer({**settings, "log_level": 0, "message.timeout.ms": 60_000})
    producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(70) == 0
    assert failures == [None]


def consume(printed: Printed, client: str, count: int) -> list[str]:
    """The first values, read by a program with the printed settings."""
    program = f"{printed.python[1]}\n{PROGRAMS[client]}"
    said = subprocess.run(
        [sys.executable, "-c", program, TOPIC, str(count)], capture_output=True, text=True, timeout=90, check=False
    )
    assert said.returncode == 0, said.stderr
    return said.stdout.split()


def await_refusal(settings: Mapping[str, Any], error_name: str) -> None:
    """Wait until librdkafka reports that error. It may report others first, such as a slow broker."""
    told: list[str] = []
    client = AdminClient({**settings, "log_level": 0, "error_cb": lambda error: told.append(error.name())})

    def polled() -> list[str]:
        client.poll(0.1)
        return told

    eventually(error_name, polled, lambda names: error_name in names)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.parametrize("protocol", KINDS)
def test_clients_use_what_is_printed(protocol: str, tmp_path: Path) -> None:
    with started(tmp_path / "cluster", KINDS[protocol]) as (cluster, printed):
        for path, text in printed:
            assert path.read_text(encoding="utf-8") == text
        assert modes(tmp_path / "cluster" / "clients") == modes(tmp_path / "cluster" / "security") == {0o600}
        settings = printed.for_librdkafka
        assert settings["security.protocol"] == protocol
        create_topic(settings)
        produce(settings, b"AA-1141")
        for client in PROGRAMS:
            assert consume(printed, client, 1) == ["AA-1141"]
        if "sasl.password" in settings:
            await_refusal({**settings, "sasl.password": "another"}, "_AUTHENTICATION")
        if "ssl.ca.location" in settings:
            strangers = {name: value for name, value in settings.items() if name != "ssl.ca.location"}
            await_refusal(strangers, "_SSL")
        in_plain_text = AdminClient({"bootstrap.servers": settings["bootstrap.servers"], "log_level": 0})
        with pytest.raises(KafkaException):
            in_plain_text.list_topics(timeout=2)
        assert set(cluster.states().values()) == {"running"}


def test_the_life_of_a_secured_cluster(tmp_path: Path) -> None:
    """Every command still works; a second start keeps keys and passwords."""
    directory = tmp_path / "cluster"
    with started(directory, "--tls --sasl SCRAM-SHA-512") as (cluster, printed):
        settings = printed.for_librdkafka
        create_topic(settings)
        produce(settings, b"1")
        secrets = {
            path: path.read_bytes()
            for folder in ("security", "clients", "broker-1", "broker-2")
            for path in (directory / folder).iterdir()
            if path.suffix in {".pem", ".properties"}
        }
        assert len(secrets) == 9
        cluster("kill", "2")
        assert cluster.states() == {1: "running", 2: "dead"}
        again = Printed.of(cluster("start", "--tls", "--sasl", "SCRAM-SHA-512"))
        assert again == printed
        assert {path: path.read_bytes() for path in secrets} == secrets

        cluster("pause", "2")
        cluster("resume", "2")
        cluster.await_status("2 +running +.* +1 +1 ")
        assert "broker 3 serves at" in cluster("add")
        assert set(AdminClient({**settings, "log_level": 0}).list_topics(timeout=30).brokers) == {1, 2, 3}
        assert printed.java[0].read_text().splitlines()[0].count(",") == 2
        assert modes(directory / "clients") == {0o600}

        cluster("stop")
        after = Printed.of(cluster("start"))
        produce(after.for_librdkafka, b"2")
        assert consume(after, "aiokafka", 2) == ["1", "2"]
        assert cluster.states() == dict.fromkeys((1, 2, 3), "running")


def test_an_authorizer_lets_the_admin_in(tmp_path: Path) -> None:
    options = "--sasl SCRAM-SHA-512 --set authorizer.class.name=kafka.security.authorizer.AclAuthorizer"
    with started(tmp_path / "cluster", options) as (_, printed):
        create_topic(printed.for_librdkafka)
        produce(printed.for_librdkafka, b"1")


def test_a_password_that_the_cluster_does_not_know(tmp_path: Path) -> None:
    """One line states the problem, at the start and in the status."""
    directory = tmp_path / "cluster"
    with started(directory, "--sasl SCRAM-SHA-256") as (cluster, _):
        users = directory / "security" / "users.properties"
        users.write_text(re.sub("admin=.*", "admin=another", users.read_text()))
        assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in cluster("status", code=1)
        cluster("kill", "1")
        said = cluster("start", code=1)
        other = r"/users.properties: user admin has at \S+ another password for SCRAM-SHA-256 than here$"
        assert re.search(other, said), said


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.parametrize("options", due([*KINDS.values(), "--tls --sasl SCRAM-SHA-512"]))
def test_kafkas_tools_use_what_is_printed(options: str, tmp_path: Path) -> None:
    with (
        contextlib.closing(kafkas_runner(tmp_path)) as runner,
        started(tmp_path / "cluster", options) as (_, printed),
    ):
        properties = tmp_path / "printed.properties"
        properties.write_text(printed.java[1], encoding="iso-8859-1")
        servers = parse_properties(printed.java[1])["bootstrap.servers"]
        words = f"--bootstrap-server {servers} --command-config {properties}"
        made = runner.run("topics", shlex.split(f"{words} --create --topic {TOPIC} --replication-factor 2"))
        assert (made.code, made.stdout) == (0, f"Created topic {TOPIC}.\n"), made
        words = f"--bootstrap-server {servers} --producer.config {properties} --topic {TOPIC} --sync"
        sent = runner.run("console_producer", shlex.split(words), "AA-1141\n")
        assert sent.code == 0, sent
        assert consume(printed, "aiokafka", 1) == ["AA-1141"]
