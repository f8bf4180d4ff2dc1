"""Kafka's own clients, in its tools, over each security protocol and mechanism."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority
from tests.tools.tool_pair import Answer, Runner, kafkas_runner

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

PACKAGE = "org.apache.kafka.common.security."
MODULES = {
    "PLAIN": f"{PACKAGE}plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{PACKAGE}scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{PACKAGE}scram.ScramLoginModule",
}
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
PASSWORD = "one two"


class Site:
    """A broker with each kind of listener, a JVM for Kafka's tools, and files for them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in PROTOCOLS}
        self.authority = Authority()
        self._trusted = self.authority.write_pkcs12(directory / "trusted.p12", "secret")
        self.strange = Authority("strange").write_pkcs12(directory / "strange.p12", "secret")
        jaas = f'{MODULES["PLAIN"]} required user_alice="{PASSWORD}";'
        stores = {
            "": self.authority.issue("broker"),
            "listener.name.expired.": self.authority.issue("broker", days=-1),
            "listener.name.elsewhere.": self.authority.issue("broker", hosts=("broker.example",)),
        }
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
                "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in PROTOCOLS.items()),
                "ssl.keystore.type": "PEM",
                **{
                    f"{prefix}ssl.keystore.location": str(store.write_pem(directory / f"{prefix}pem"))
                    for prefix, store in stores.items()
                },
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.write_pem(directory / "clients.pem")),
                "listener.name.ssl.ssl.client.auth": "required",
                "sasl.enabled.mechanisms": ",".join(MODULES),
                "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
                "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
                # Kafka's clients reauthenticate in time, on the same connections.
                "connections.max.reauth.ms": "3000",
            },
        )
        self.process.address = self.addresses["PLAINTEXT"]
        self._runner: Runner = kafkas_runner(directory)

    def identity(self, days: int = 30) -> str:
        """A client's key store."""
        issued = self.authority.issue("alice", days=days)
        return str(issued.write_pkcs12(self._directory / f"alice{days}.p12", "secret", self.authority))

    def properties(self, listener: str, mechanism: str = "", password: str = PASSWORD, **others: str) -> str:
        """A file of properties; `others` have underscores for dots."""
        given = {"security.protocol": PROTOCOLS[listener]}
        if PROTOCOLS[listener].endswith("SSL"):
            given |= {"ssl.truststore.type": "PKCS12", "ssl.truststore.location": str(self._trusted)}
            given["ssl.truststore.password"] = "secret"
        if mechanism:
            module = f'{MODULES[mechanism]} required username="alice" password="{password}";'
            given |= {"sasl.mechanism": mechanism, "sasl.jaas.config": module}
        given |= {name.replace("_", "."): value for name, value in others.items()}
        if "ssl.keystore.location" in given:
            given |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "secret", "ssl.key.password": "secret"}
        path = self._directory / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return str(path)

    def run(self, tool: str, listener: str, *arguments: str, given: str = "") -> Answer:
        """Run one of Kafka's tools against the listener."""
        return self._runner.run(tool, ["--bootstrap-server", self.addresses[listener], *arguments], given)

    def close(self) -> None:
        """End the JVM."""
        self._runner.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("java"))
    made.process.start()
    for mechanism in list(MODULES)[1:]:
        user = ["--entity-type", "users", "--entity-name", "alice"]
        change = ["--alter", *user, "--add-config", f"{mechanism}=[iterations=8192,password={PASSWORD}]"]
        assert made.run("configs", "PLAINTEXT", *change).code == 0
    yield made
    made.close()
    assert made.process.stop() == 0
    assert "Traceback" not in made.process.output.read_text()


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_who_is_let_in(listener: str, mechanism: str, site: Site) -> None:
    others = {} if mechanism else {"ssl_keystore_location": site.identity()}
    file, topic = site.properties(listener, mechanism, **others), f"{listener}-{mechanism}"
    made = site.run("topics", listener, "--command-config", file, "--create", "--topic", topic)
    assert made.code == 0, made
    lines = "".join(f"line {number}\n" for number in range(100))
    sent = site.run("console_producer", listener, "--producer.config", file, "--topic", topic, given=lines)
    assert sent.code == 0, sent
    options = ["--topic", topic, "--from-beginning", "--timeout-ms", "6000"]
    read = site.run("console_consumer", listener, "--consumer.config", file, *options)
    assert read.stdout == lines, read.stderr


WRONG = "Authentication failed during authentication due to invalid credentials with SASL mechanism"


@pytest.mark.parametrize(
    ("listener", "mechanism", "others", "complaint"),
    [
        ("SASL_PLAINTEXT", "PLAIN", {"password": "x"}, "Authentication failed: Invalid username or password"),
        ("SASL_SSL", "SCRAM-SHA-256", {"password": "x"}, f"{WRONG} SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512", {"password": "x"}, f"{WRONG} SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512", {}, "'SCRAM-SHA-512' not enabled in the server, enabled mechanisms are"),
        ("SSL", "", {}, "bad_certificate|certificate_required"),
        ("SSL", "", {"ssl_keystore_location": "expired"}, "certificate_expired"),
        ("SSL", "", {"ssl_truststore_location": "strange"}, "unable to find valid certification path|PKIX path"),
        ("EXPIRED", "", {}, "PKIX path validation failed|NotAfter"),
        ("ELSEWHERE", "", {}, "No subject alternative names matching IP address 127.0.0.1 found"),
    ],
)
def test_who_is_not(listener: str, mechanism: str, others: dict[str, str], complaint: str, site: Site) -> None:
    given = dict(others)
    if "ssl_keystore_location" in given:
        given["ssl_keystore_location"] = site.identity(days=-1)
    if "ssl_truststore_location" in given:
        given["ssl_truststore_location"] = str(site.strange)
    refused = site.run("topics", listener, "--command-config", site.properties(listener, mechanism, **given), "--list")
    assert refused.code == 1
    said = refused.stdout + refused.stderr
    assert any(each in said for each in complaint.split("|")), said


def test_no_host_name_is_checked_where_nobody_asks_for_it(site: Site) -> None:
    file = site.properties("ELSEWHERE", ssl_endpoint_identification_algorithm="")
    assert site.run("topics", "ELSEWHERE", "--command-config", file, "--list").code == 0
