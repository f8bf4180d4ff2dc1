"""Certificates replaced while the broker runs: rewritten files, and stores that kafka-configs names."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.security.certificates import Authority, Identity
from tests.kit.waiting import eventually

SET = AlterConfigOpType.SET
KEY = "listener.name.ssl.ssl.keystore.location"


class Site:
    """A broker with a listener in plain text and one that requires certificates."""

    def __init__(self, directory: Path, others: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.authority = Authority()
        self.trusted = self.authority.write_pem(directory / "trusted.pem")
        self.client = self.authority.issue("client").write_pem(directory / "client.pem")
        self.first = self.authority.issue("broker")
        self.key = self.first.write_pem(directory / "broker.pem")
        plain, secure = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.port = int(secure.rpartition(":")[2])
        self.process = BrokerProcess(
            directory / "broker",
            {
                "listeners": f"PLAINTEXT://{plain},SSL://{secure}",
                "listener.name.ssl.ssl.keystore.type": "PEM",
                KEY: str(self.key),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.trusted),
                "ssl.client.auth": "required",
                **(others or {}),
            },
        )
        self.process.address = plain

    def serial(self) -> int:
        """The serial number of the certificate that the listener shows to a new client. Raises OSError for a refused
        client.
        """
        context = ssl.create_default_context(cadata=self.authority.pem)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.client)
        with (
            socket.create_connection(("127.0.0.1", self.port), 10) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as secured,
        ):
            shown = secured.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)

    def await_serial(self, wanted: Identity) -> None:
        """Wait until the listener presents this certificate."""
        number = wanted.certificate.serial_number
        eventually("the new certificate", self.serial, lambda serial: serial == number, pause_s=0.2)

    def replace_key(self, content: str) -> None:
        """Replace the file, like certificate renewal tools."""
        fresh = self.directory / "fresh.pem"
        fresh.write_text(content)
        os.replace(fresh, self.key)

    def await_complaint(self, text: str) -> None:
        """Wait until the broker has logged it."""
        eventually("a complaint", self.process.output.read_text, lambda output: text in output, pause_s=0.2)

    def alter(self, **changes: str) -> None:
        """Alter the listener's keys like kafka-configs, with underscores for dots. Raises KafkaException."""
        entries = [
            ConfigEntry(f"listener.name.ssl.ssl.{key.replace('_', '.')}", value, incremental_operation=SET)
            for key, value in changes.items()
        ]
        self.alter_key(*entries)

    def alter_key(self, *entries: ConfigEntry) -> None:
        """Raises KafkaException."""
        resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=list(entries))
        admin = AdminClient({"bootstrap.servers": self.process.address, "log_level": 0})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)


def pem(identity: Identity) -> str:
    return identity.key_pem() + identity.certificate_pem


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.process.start()
    yield made
    assert made.process.stop() == 0
    assert "Traceback" not in made.process.output.read_text()


def test_files_that_are_written_anew(site: Site) -> None:
    assert site.serial() == site.first.certificate.serial_number
    second = site.authority.issue("broker")
    site.replace_key(pem(second))
    site.await_serial(second)
    site.replace_key(pem(site.authority.issue("somebody")))
    site.await_complaint("Listener SSL keeps its certificates: Invalid value")
    site.await_complaint("its subject CN=somebody is not the present one, CN=broker (ssl.allow.dn.changes)")
    site.replace_key(pem(site.authority.issue("broker", hosts=("localhost",))))
    site.await_complaint("it lacks the present alternative names 127.0.0.1 (ssl.allow.san.changes)")
    site.replace_key(site.first.key_pem() + second.certificate_pem)
    site.await_complaint("the private key is not that of the first certificate")
    site.key.unlink()
    site.await_complaint("it cannot be read: No such file or directory")
    assert site.serial() == second.certificate.serial_number, "what cannot be used changes nothing"
    third = site.authority.issue("broker")
    site.replace_key(pem(third))
    site.await_serial(third)


def test_whom_a_listener_trusts(site: Site) -> None:
    others = Authority("others")
    site.client = others.issue("client").write_pem(site.directory / "other.pem")
    with pytest.raises(OSError, match=r"UNKNOWN_CA|unknown ca|reset"):
        site.serial()
    site.trusted.write_text(site.authority.pem + others.pem)
    eventually("trust", site.serial, lambda _: True, not_yet=(OSError,), pause_s=0.2)


def test_stores_that_kafka_configs_names(site: Site) -> None:
    second = site.authority.issue("broker")
    site.alter(keystore_location=str(second.write_pem(site.directory / "second.pem")))
    site.await_serial(second)
    with pytest.raises(KafkaException, match="it cannot be read: No such file"):
        site.alter(keystore_location="/none.pem")
    somebody = site.authority.issue("somebody").write_pem(site.directory / "somebody.pem")
    with pytest.raises(KafkaException, match="is not the present one"):
        site.alter(keystore_location=str(somebody))
    with pytest.raises(KafkaException, match="only per-listener using the listener prefix"):
        site.alter_key(ConfigEntry("ssl.keystore.location", str(somebody), incremental_operation=SET))
    with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
        site.alter(client_auth="none")
    with pytest.raises(KafkaException, match="Password encoder secret not configured"):
        site.alter(key_password="x")
    assert site.serial() == second.certificate.serial_number
    # The dynamic configuration survives a restart.
    site.process.stop()
    site.process.start()
    site.await_serial(second)


def test_passwords_that_kafka_configs_sets(tmp_path: Path) -> None:
    site = Site(tmp_path, {"password.encoder.secret": "encoder's"})
    site.process.start()
    second = site.authority.issue("broker")
    location = str(second.write_pkcs12(tmp_path / "second.p12", "hidden word", site.authority))
    with pytest.raises(KafkaException, match="it does not open the store"):
        site.alter(keystore_type="PKCS12", keystore_location=location, keystore_password="wrong")
    site.alter(keystore_type="PKCS12", keystore_location=location, keystore_password="hidden word")
    site.await_serial(second)
    # Other keys can be changed, and the password stays.
    third = site.authority.issue("broker")
    site.alter(keystore_location=str(third.write_pkcs12(tmp_path / "third.p12", "hidden word", site.authority)))
    site.await_serial(third)
    site.process.stop()
    site.process.start()
    site.await_serial(third)
    resource = ConfigResource(ResourceType.BROKER, "0")
    admin = AdminClient({"bootstrap.servers": site.process.address, "log_level": 0})
    shown = admin.describe_configs([resource])[resource].result(30)
    password = shown["listener.name.ssl.ssl.keystore.password"]
    assert (password.value, password.is_sensitive) == (None, True)
    assert site.process.stop() == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.joinpath("broker").rglob("*") if path.is_file())
    assert b"encryptedPassword:" in kept
    assert b"hidden word" not in kept
