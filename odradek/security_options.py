"""TLS and SASL of a broker under test, and the settings with which each client library reaches it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from odradek.control import OdradekError
from odradek.processes import Launcher

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER = "admin"
"""The user that clients log in as."""
BROKER_USER = "broker"
INTERNAL = "INTERNAL"
"""The listener between the brokers of a cluster whose clients use security. Its brokers log in by PLAIN: the users of
SCRAM are in the tree, which they could not reach without each other.
"""
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Security:
    """How clients reach a broker: with TLS, with SASL, both or neither."""

    def __init__(self, *, tls: bool, sasl: str | None) -> None:
        if sasl is not None and sasl not in MECHANISMS:
            raise OdradekError(f"unknown SASL mechanism {sasl!r}; there are: {', '.join(MECHANISMS)}")
        self.has_tls = tls
        self.mechanism = sasl
        self.password = secrets.token_urlsafe(16)
        self._directory: Path | None = None

    def __str__(self) -> str:
        return f"tls={self.has_tls}, sasl={self.mechanism!r}"

    @property
    def protocol(self) -> str:
        """Kafka's name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.has_tls else "PLAINTEXT")

    @property
    def is_scram(self) -> bool:
        """Whether the user must be created once the broker runs."""
        return self.mechanism is not None and self.mechanism.startswith("SCRAM")

    @property
    def login(self) -> dict[str, str | None]:
        """The user as which clients log in, for the control API; see `is_scram`."""
        return {"name": USER, "password": self.password, "mechanism": self.mechanism}

    @property
    def authority_file(self) -> Path:
        """The certificate that clients trust."""
        assert self._directory is not None, "the broker has not started"
        return self._directory / "authority.pem"

    def prepare(self, launcher: Launcher) -> None:
        """Create the certificates, once."""
        if self.has_tls and self._directory is None:
            directory = launcher.new_directory()
            launcher.run("certificates", directory=str(directory))
            self._directory = directory

    def broker_properties(self) -> dict[str, str]:
        """The keys of server.properties."""
        settings: dict[str, str] = {}
        if self.protocol != "PLAINTEXT":
            settings["security.inter.broker.protocol"] = self.protocol
        if self.has_tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.authority_file.with_name("broker.pem")),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority_file),
            }
        if self.mechanism is not None:
            listener = f"listener.name.{self.protocol.lower()}.{self.mechanism.lower()}"
            settings |= {
                "sasl.enabled.mechanisms": self.mechanism,
                "sasl.mechanism.inter.broker.protocol": self.mechanism,
                f"{listener}.sasl.jaas.config": self._brokers_login(),
            }
        return settings

    def member_properties(self) -> dict[str, str]:
        """The keys of server.properties that replace security.inter.broker.protocol in a cluster."""
        return {
            "listener.security.protocol.map": f"{self.protocol}:{self.protocol},{INTERNAL}:SASL_PLAINTEXT",
            "inter.broker.listener.name": INTERNAL,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            f"listener.name.{INTERNAL.lower()}.sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{INTERNAL.lower()}.plain.sasl.jaas.config": self._plain_login(),
        }

    def _brokers_login(self) -> str:
        if self.is_scram:
            return f'{_SCRAM_MODULE} required username="{BROKER_USER}" password="{self.password}";'
        return self._plain_login()

    def _plain_login(self) -> str:
        own = f'username="{BROKER_USER}" password="{self.password}"'
        users = "".join(f' user_{user}="{self.password}"' for user in (BROKER_USER, USER))
        return f"{_PLAIN_MODULE} required {own}{users};"

    def client_config(self, library: str, bootstrap_servers: str) -> dict[str, Any]:
        """The settings for a client library. Raises OdradekError for an unknown one."""
        make = _LIBRARIES.get(library)
        if make is None:
            raise OdradekError(f"unknown client library {library!r}; there are: {', '.join(_LIBRARIES)}")
        return make(self, bootstrap_servers)

    def _java(self, bootstrap_servers: str) -> dict[str, Any]:
        settings = {"bootstrap.servers": bootstrap_servers, "security.protocol": self.protocol}
        if self.has_tls:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority_file)}
        if self.mechanism is not None:
            module = _SCRAM_MODULE if self.is_scram else _PLAIN_MODULE
            login = f'{module} required username="{USER}" password="{self.password}";'
            settings |= {"sasl.mechanism": self.mechanism, "sasl.jaas.config": login}
        return settings

    def _spark(self, bootstrap_servers: str) -> dict[str, Any]:
        return {f"kafka.{name}": value for name, value in self._java(bootstrap_servers).items()}

    def _librdkafka(self, bootstrap_servers: str) -> dict[str, Any]:
        settings = {"bootstrap.servers": bootstrap_servers, "security.protocol": self.protocol}
        if self.has_tls:
            settings["ssl.ca.location"] = str(self.authority_file)
        if self.mechanism is not None:
            settings |= {"sasl.mechanism": self.mechanism, "sasl.username": USER, "sasl.password": self.password}
        return settings

    def _kafka_python(self, bootstrap_servers: str) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "security_protocol": self.protocol}
        if self.has_tls:
            settings["ssl_cafile"] = str(self.authority_file)
        if self.mechanism is not None:
            settings |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": USER,
                "sasl_plain_password": self.password,
            }
        return settings

    def _aiokafka(self, bootstrap_servers: str) -> dict[str, Any]:
        settings = self._kafka_python(bootstrap_servers)
        if authority := settings.pop("ssl_cafile", None):
            import ssl

            settings["ssl_context"] = ssl.create_default_context(cafile=authority)
        return settings

    def _kafkajs(self, bootstrap_servers: str) -> dict[str, Any]:
        settings: dict[str, Any] = {"brokers": bootstrap_servers.split(",")}
        if self.has_tls:
            settings["ssl"] = {"ca": [self.authority_file.read_text(encoding="ascii")]}
        if self.mechanism is not None:
            settings["sasl"] = {"mechanism": self.mechanism.lower(), "username": USER, "password": self.password}
        return settings


_LIBRARIES: Mapping[str, Callable[[Security, str], dict[str, Any]]] = {
    "aiokafka": Security._aiokafka,
    "confluent": Security._librdkafka,
    "java": Security._java,
    "kafka-python": Security._kafka_python,
    "kafkajs": Security._kafkajs,
    "spark": Security._spark,
}
