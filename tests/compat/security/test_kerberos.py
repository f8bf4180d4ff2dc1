"""GSSAPI with a real Kerberos: our tools, kafka-python, aiokafka, and librdkafka if built with it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import SaslHandshakeRequest
from security.gssapi_exchange import gssapi_tokens
from security.kerberos_login import Initiator, KerberosLogin
from tests.compat.security.attempts import attempt
from tests.compat.security.kerberos_site import BROKER, KEY, TICKETS, WRONG, Site, listeners
from tests.kit.broker_cluster import BrokerCluster
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.jars import require
from tests.kit.security.kerberos import REALM, module, realm_of_this_process
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.kit.zookeeper import served_tree


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("kerberos")
    with realm_of_this_process(directory / "realm") as realm:
        made = Site(directory, realm)
        made.process.start()
        yield made
        assert made.process.stop() == 0
        assert "Traceback" not in made.process.output.read_text()


@pytest.mark.parametrize("kind", ["keytab", "tickets"])
def test_the_tools(kind: str, site: Site) -> None:
    cache = site.realm.tickets("alice")
    jaas = (
        module(site.realm.keytab("alice"), f"alice@{REALM}")
        if kind == "keytab"
        else f'{TICKETS} ticketCache="{cache}";'
    )
    file = site.properties(jaas)
    made = site.run("topics", "--command-config", file, "--create", "--topic", kind)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    lines = "".join(f"line {number}\n" for number in range(100))
    sent = site.run("console_producer", "--producer.config", file, "--topic", kind, given=lines)
    assert (sent.returncode, sent.stderr) == (0, ""), sent.stderr
    # Longer than a session lasts: connections are replaced by new ones.
    options = ["--topic", kind, "--from-beginning", "--timeout-ms", "5000"]
    read = site.run("console_consumer", "--consumer.config", file, *options)
    assert read.stdout == lines, read.stderr


def test_a_login_module_in_a_jaas_file_and_a_realm_in_kafka_opts(site: Site, tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    keytab = site.realm.keytab("alice")
    jaas.write_text(f"KafkaClient {{ {module(keytab, 'alice', 'serviceName=kafka')} }};")
    plain = tmp_path / "client.properties"
    plain.write_text("security.protocol=SASL_PLAINTEXT\n")
    options = f"-Djava.security.auth.login.config={jaas} -Djava.security.krb5.conf={site.realm.config}"
    arguments = ["--command-config", str(plain), "--list"]
    assert site.run("topics", *arguments, KAFKA_OPTS=options, KRB5_CONFIG="/none").returncode == 0


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", "librdkafka"])
def test_other_clients(client: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{site.realm.tickets('alice')}")
    settings = {"address": site.address, "protocol": "sasl_plaintext", "topic": client, "service": "kafka"}
    answer = attempt(client, {**settings, **({"mechanism": "GSSAPI"} if client == "librdkafka" else {})})
    if "No provider for SASL mechanism GSSAPI" in answer:
        pytest.skip("this librdkafka is built without GSSAPI")
    assert answer == "received 500"


def test_kcat(site: Site) -> None:
    """The distribution's kcat is librdkafka with Cyrus's and MIT's libraries."""
    require("kcat")
    settings = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.kinit.cmd": "true",
    }
    options = [word for key, text in settings.items() for word in ("-X", f"{key}={text}")]

    def kcat(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kcat", "-m", "60", "-b", site.address, *options, "-t", "kcat", *arguments],
            env={**os.environ, "KRB5CCNAME": f"FILE:{site.realm.tickets('alice')}"},
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    sent = kcat("-P", given="one\ntwo\n")
    if "No worthy mech" in sent.stderr:
        pytest.skip("needs Cyrus's module for GSSAPI: on Debian the package libsasl2-modules-gssapi-mit")
    assert sent.returncode == 0, sent.stderr
    read = kcat("-C", "-e", "-q", "-o", "beginning")
    assert read.stdout == "one\ntwo\n", read.stderr


def test_tokens_without_headers(site: Site) -> None:
    host, _, port = site.address.rpartition(":")
    login = KerberosLogin("key", "kafka", "alice", site.realm.keytab("alice"))
    tokens = gssapi_tokens(Initiator(login, "v0"), "localhost")
    with WireClient(host, int(port), "old") as client:
        client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 0)
        client.send_frame(next(tokens))
        client.send_frame(tokens.send(client.receive_frame()))
        client.send_frame(tokens.send(client.receive_frame()))
        # The last token gets no answer: this one belongs to the next request.
        assert client.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), 9).brokers


def test_the_short_name_is_the_user(site: Site) -> None:
    file = site.properties(module(site.realm.keytab("bob"), "bob"))
    refused = site.run("topics", "--command-config", file, "--create", "--topic", "bobs")
    assert refused.returncode == 1
    assert "Authorization failed" in refused.stdout + refused.stderr
    eventually(
        "who was refused",
        site.process.output.read_text,
        lambda output: "Principal = User:bob is Denied" in output,
    )


def test_who_is_not_let_in(site: Site) -> None:
    realm = site.realm
    alice = module(realm.keytab("alice"), "alice")
    # Services: one that is not in the broker's keytab, one that does not exist, and none.
    realm.keytab("http/localhost")
    assert f"{WRONG}\n" in site.refusal(alice, "http")
    site.await_logged("Cannot decrypt ticket for http/localhost")
    assert "mail/localhost" in site.refusal(alice, "mail")
    assert "No serviceName defined in either JAAS or Kafka config" in site.refusal(alice, "")
    # Keys: another user's, none, old ones, and those of a deleted principal.
    keytab = realm.keytab("alice")
    assert f"the keytab {keytab} cannot be used for bob" in site.refusal(module(keytab, "bob"))
    assert "the keytab /none cannot be read: No such file" in site.refusal(module("/none", "alice"))
    old = module(realm.keytab("carol"), "carol")
    realm.change_key("carol")
    assert "Authentication failed: Decrypt integrity check failed" in site.refusal(old)
    gone = module(realm.keytab("dave"), "dave")
    realm.delete("dave")
    assert f"Client 'dave@{REALM}' not found in Kerberos database" in site.refusal(gone)
    # No tickets, and no terminal to ask for a password.
    assert "Authentication failed: No " in site.refusal(f"{TICKETS};")
    assert "nobody is asked a password" in site.refusal(f"{TICKETS.replace('true', 'false')};")


def test_a_ticket_that_has_expired(tmp_path: Path, site: Site) -> None:
    with realm_of_this_process(tmp_path / "realm", clock_skew_s=2) as realm:
        realm.keytab("kafka/localhost")
        cache = realm.tickets("alice", life_s=1)
        got_s = time.time()
        eventually("nobody overlooks it", time.time, lambda now_s: now_s > got_s + 4)
        assert "expired" in site.refusal(f'{TICKETS} ticketCache="{cache}";').lower()


def start_of(directory: Path, jaas: str, **others: str) -> str:
    """The output of a broker that fails to start."""
    plain = f"127.0.0.1:{free_port()}"
    settings = {**listeners(plain, free_port()), KEY: jaas, **others}
    broker = BrokerProcess(directory, settings)
    broker.address = plain
    broker.launch()
    assert broker.wait() == 1
    output = broker.output.read_text()
    assert "Traceback" not in output
    return output


def test_what_stops_a_broker(site: Site, tmp_path: Path) -> None:
    keytab = site.realm.keytab("alice")
    assert "the keytab /none cannot be read: No such file or directory" in start_of(
        tmp_path / "a", module("/none", BROKER)
    )
    said = start_of(tmp_path / "b", module(keytab, BROKER))
    assert f"the keytab {keytab} cannot be used for {BROKER}: " in said


def test_a_broker_with_all_of_it_in_kafka_opts(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started like those of Kafka's users."""
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f"KafkaServer {{ {module(site.realm.keytab('kafka/localhost'), BROKER, 'serviceName=kafka')} }};")
    plain, port = f"127.0.0.1:{free_port()}", free_port()
    given = {name: value for name, value in listeners(plain, port).items() if not name.startswith("sasl")}
    broker = BrokerProcess(tmp_path / "broker", given)
    broker.address = plain
    with monkeypatch.context() as patch:
        options = f"-Djava.security.auth.login.config={jaas} -Djava.security.krb5.conf={site.realm.config}"
        patch.setenv("KAFKA_OPTS", options)
        patch.setenv("KRB5_CONFIG", "/none")
        broker.start()
    try:
        # Without its default realm the broker would not match a user by the rule DEFAULT.
        file = site.properties(module(site.realm.keytab("bob"), "bob"))
        listed = site.run("topics", "--command-config", file, "--list", address=f"localhost:{port}")
        assert (listed.returncode, listed.stderr) == (0, "")
    finally:
        assert broker.stop() == 0


def test_brokers_among_themselves(tmp_path: Path) -> None:
    """They replicate and send commands over GSSAPI, while their sessions expire."""
    with realm_of_this_process(tmp_path / "realm") as realm, served_tree(tmp_path / "tree") as tree:
        plain = {number: f"127.0.0.1:{free_port()}" for number in (1, 2)}
        settings = {
            KEY: module(realm.keytab("kafka/localhost"), BROKER),
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "min.insync.replicas": "2",
            "connections.max.reauth.ms": "2000",
        }
        own = {number: listeners(address, free_port()) for number, address in plain.items()}
        cluster = BrokerCluster(tmp_path, brokers=2, settings=settings, own_settings=own, ensemble=[tree])
        for number, broker in cluster.brokers.items():
            broker.address = plain[number]
        cluster.address = ",".join(plain.values())
        with cluster:
            admin = AdminClient({"bootstrap.servers": cluster.address})
            admin.create_topics([NewTopic("t", 2, 2)])["t"].result(30)
            cluster.await_full_isr("t")
            failures: list[object] = []
            producer = Producer({"bootstrap.servers": cluster.address, "acks": "all"})
            until_s = time.monotonic() + 5
            while time.monotonic() < until_s:
                producer.produce("t", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
                assert producer.flush(60) == 0
            assert not failures
            assert cluster.traceback() is None
            for broker in cluster.brokers.values():
                assert "has not authenticated again in time" not in broker.output.read_text()
