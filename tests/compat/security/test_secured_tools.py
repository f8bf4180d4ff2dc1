"""This project's tools over TLS and SASL, with `--command-config` and similar options."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.security.certificates import Authority, subject

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Site:
    """A broker with a listener of each security protocol, and the files for clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.addresses = {
            name: f"127.0.0.1:{free_port()}" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        }
        authority = Authority()
        self.trusted = authority.write_pem(directory / "trusted.pem")
        self.strange = Authority("strange").write_pem(directory / "strange.pem")
        self.key = authority.issue("alice").write_pkcs12(directory / "alice.p12", "secret", authority)
        elsewhere = authority.issue(subject("broker"), hosts=("broker.example",))
        jaas = f'{PLAIN_MODULE} required user_alice="one two";'
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(authority.issue("broker").write_pem(directory / "broker.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.trusted),
                "ssl.client.auth": "required",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
                "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
                "listener.name.sasl_ssl.ssl.keystore.location": str(elsewhere.write_pem(directory / "elsewhere.pem")),
                "connections.max.reauth.ms": "2000",
            },
        )
        self.process.address = self.addresses["PLAINTEXT"]

    def properties(self, protocol: str, **others: str) -> str:
        """A file of properties for `protocol`; `others` have underscores for dots."""
        given = {"security.protocol": protocol, "default.api.timeout.ms": "20000"}
        if protocol.endswith("SSL"):
            given |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.trusted)}
        if protocol == "SSL":
            given |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(self.key)}
            given["ssl.keystore.password"] = "secret"
        if protocol.startswith("SASL"):
            given["sasl.mechanism"] = "PLAIN"
            given["sasl.jaas.config"] = f'{PLAIN_MODULE} required username="alice" password="one two";'
        if protocol == "SASL_SSL":
            given["ssl.endpoint.identification.algorithm"] = ""
        given |= {name.replace("_", "."): value for name, value in others.items()}
        path = self._directory / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return str(path)

    def run(
        self, tool: str, protocol: str, *arguments: str, given: str = "", options: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the tools against the listener of `protocol`."""
        return subprocess.run(
            [sys.executable, "-m", f"tools.{tool}", "--bootstrap-server", self.addresses[protocol], *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "KAFKA_OPTS": options},
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tools"))
    made.process.start()
    yield made
    assert made.process.stop() == 0
    assert "Traceback" not in made.process.output.read_text()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_the_tools(protocol: str, site: Site) -> None:
    file = site.properties(protocol)
    made = site.run("topics", protocol, "--command-config", file, "--create", "--topic", protocol)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    lines = "".join(f"line {number}\n" for number in range(100))
    sent = site.run("console_producer", protocol, "--producer.config", file, "--topic", protocol, given=lines)
    assert (sent.returncode, sent.stderr) == (0, ""), sent.stderr
    # Longer than a session lasts: connections are replaced by new ones.
    options = ["--topic", protocol, "--from-beginning", "--timeout-ms", "5000"]
    read = site.run("console_consumer", protocol, "--consumer.config", file, *options)
    assert read.stdout == lines, read.stderr
    assert "Processed a total of 100 messages" in read.stderr


@pytest.mark.parametrize(
    ("protocol", "others", "complaint"),
    [
        ("SSL", {"ssl_truststore_location": "strange"}, "SSL handshake failed: self-signed certificate"),
        ("SSL", {"ssl_keystore_location": ""}, "SSL handshake failed: TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        ("SSL", {"ssl_keystore_password": "x"}, "for configuration ssl.keystore.password: it does not open the store"),
        ("SASL_SSL", {"ssl_endpoint_identification_algorithm": "https"}, "IP address mismatch"),
        (
            "SASL_PLAINTEXT",
            {"sasl_mechanism": "DIGEST"},
            "sasl.mechanism: it must be one of: GSSAPI, OAUTHBEARER, PLAIN, SCRAM",
        ),
        ("SASL_PLAINTEXT", {"sasl_jaas_config": ""}, "for configuration sasl.jaas.config: it must look like"),
        (
            "SASL_PLAINTEXT",
            {"sasl_jaas_config": f'{PLAIN_MODULE} required username="alice" password="other";'},
            "Authentication failed: Invalid username or password",
        ),
        (
            "SASL_PLAINTEXT",
            {
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_jaas_config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="alice" password="one two";',
            },
            "Client SASL mechanism 'SCRAM-SHA-256' not enabled in the server, enabled mechanisms are [PLAIN]",
        ),
    ],
)
def test_what_a_tool_says(protocol: str, others: dict[str, str], complaint: str, site: Site) -> None:
    others = {name: str(site.strange) if value == "strange" else value for name, value in others.items()}
    refused = site.run("topics", protocol, "--command-config", site.properties(protocol, **others), "--list")
    assert refused.returncode == 1
    assert complaint in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    assert "other" not in refused.stderr


def test_a_producer_that_is_not_let_in(site: Site) -> None:
    jaas = f'{PLAIN_MODULE} required username="alice" password="other";'
    file = site.properties("SASL_PLAINTEXT", sasl_jaas_config=jaas)
    sent = site.run("console_producer", "SASL_PLAINTEXT", "--producer.config", file, "--topic", "t", given="a\n")
    assert "Invalid username or password" in sent.stderr
    assert "Traceback" not in sent.stderr


def test_a_login_module_in_a_jaas_file(site: Site, tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'KafkaClient {{ {PLAIN_MODULE} required username="alice" password="one two"; }};')
    plain = tmp_path / "client.properties"
    plain.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    options = f"-Djava.security.auth.login.config={jaas}"
    arguments = ["--command-config", str(plain), "--list"]
    assert site.run("topics", "SASL_PLAINTEXT", *arguments, options=options).returncode == 0
    without = site.run("topics", "SASL_PLAINTEXT", *arguments)
    assert "for configuration sasl.jaas.config: it must look like" in without.stdout
