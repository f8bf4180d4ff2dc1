"""GSSAPI with Java: Kafka's tools, and an Apache Kafka broker in one cluster with an Odradek broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.security.kerberos_site import BROKER, KEY, TICKETS, WRONG, Site, listeners
from tests.kit.apache_kafka import java_server, zookeeper
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.kerberos import REALM, Realm, module, realm_of_this_process
from tests.kit.waiting import eventually
from tests.tools.tool_pair import Answer, Runner, kafkas_runner

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]


@contextlib.contextmanager
def realm_of_java(directory: Path) -> Iterator[Realm]:
    """A realm for the duration of a block, which Java programs also use."""
    with realm_of_this_process(directory) as realm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.config}")
        yield realm


class JavaSite(Site):
    """A broker plus a JVM for Kafka's tools."""

    def __init__(self, directory: Path, realm: Realm) -> None:
        super().__init__(directory, realm)
        self.runner: Runner = kafkas_runner(directory)

    def run_java(self, tool: str, *arguments: str, given: str = "") -> Answer:
        """Run one of Kafka's tools."""
        return self.runner.run(tool, ["--bootstrap-server", self.address, *arguments], given)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaSite]:
    directory = tmp_path_factory.mktemp("java")
    with realm_of_java(directory / "realm") as realm:
        made = JavaSite(directory, realm)
        made.process.start()
        yield made
        made.runner.close()
        assert made.process.stop() == 0
        assert "Traceback" not in made.process.output.read_text()


@pytest.mark.parametrize("kind", ["keytab", "tickets"])
def test_kafkas_tools(kind: str, site: JavaSite) -> None:
    by_keytab, cache = module(site.realm.keytab("alice"), f"alice@{REALM}"), site.realm.tickets("alice")
    file = site.properties(by_keytab if kind == "keytab" else f'{TICKETS} ticketCache="{cache}";')
    made = site.run_java("topics", "--command-config", file, "--create", "--topic", kind)
    assert made.code == 0, made.stderr
    lines = "".join(f"line {number}\n" for number in range(100))
    sent = site.run_java("console_producer", "--producer.config", file, "--topic", kind, given=lines)
    assert sent.code == 0, sent
    # Longer than a session lasts: Java's clients reauthenticate on the same connection.
    options = ["--topic", kind, "--from-beginning", "--timeout-ms", "6000"]
    read = site.run_java("console_consumer", "--consumer.config", file, *options)
    assert read.stdout == lines, read.stderr


def test_who_is_not_let_in(site: JavaSite) -> None:
    site.realm.keytab("http/localhost")
    jaas = module(site.realm.keytab("alice"), f"alice@{REALM}")
    refused = site.run_java("topics", "--command-config", site.properties(jaas, "http"), "--list")
    assert refused.code == 1
    assert WRONG in refused.stdout + refused.stderr
    file = site.properties(module(site.realm.keytab("bob"), f"bob@{REALM}"))
    refused = site.run_java("topics", "--command-config", file, "--create", "--topic", "bobs")
    assert "Authorization failed" in refused.stdout + refused.stderr


def test_beside_an_apache_kafka(tmp_path: Path) -> None:
    """Each of the brokers leads one partition, and follows in the other one."""
    apache, odradek = (f"127.0.0.1:{free_port()}" for _ in range(2))
    apache_port = free_port()
    with realm_of_java(tmp_path / "realm") as realm, zookeeper(tmp_path / "zookeeper") as address:
        common = {
            "zookeeper.connect": address,
            KEY: module(realm.keytab("kafka/localhost"), BROKER),
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "offsets.topic.replication.factor": "2",
            "min.insync.replicas": "2",
            "connections.max.reauth.ms": "2000",
        }
        own = {"broker.id": "0", "log.dirs": str(tmp_path / "apache"), "controlled.shutdown.enable": "false"}
        properties = tmp_path / "apache.properties"
        settings = {**common, **listeners(apache, apache_port), **own}
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        process = BrokerProcess(tmp_path / "odradek", {**common, **listeners(odradek, free_port()), "broker.id": "7"})
        process.address = odradek
        with java_server("kafka.Kafka", properties, apache_port):
            process.start()
            try:
                check_both(apache, odradek)
            finally:
                process.stop()


def check_both(*addresses: str) -> None:
    """Two replicas acknowledge each record, whichever leads."""
    for address in addresses:
        eventually(
            f"both brokers at {address}",
            lambda at=address: set(AdminClient({"bootstrap.servers": at, "log_level": 0}).list_topics().brokers),
            lambda seen: seen == {0, 7},
        )
    admin = AdminClient({"bootstrap.servers": ",".join(addresses)})
    admin.create_topics([NewTopic("t", 2, replica_assignment=[[0, 7], [7, 0]])])["t"].result(30)
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": ",".join(addresses), "acks": "all"})
    for number in range(1000):
        producer.produce("t", str(number), on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failures
