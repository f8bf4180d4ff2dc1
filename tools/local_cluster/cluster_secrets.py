"""The keys and passwords of a cluster, in files of its directory; the broker configuration that uses them; and the
properties of clients, for Java, librdkafka and Python.

security/authority.pem         the authority's certificate, which clients and brokers trust
security/authority-key.pem     its key, which signs the certificates of brokers
security/users.properties      passwords by user
broker-1/certificate.pem ...   a broker's key and certificate
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from config.properties import load_properties, properties_text
from security.jaas import MODULES, LoginModule
from tools.local_cluster.cluster_directory import ClusterDirectory, ClusterSecurity, ClusterState, write_private
from tools.support.common import ToolError

BROKER = "broker"
"""The user that brokers authenticate to each other as."""
ADMIN = "admin"
"""The user of clients, including `odradek cluster`."""
SUPER_USERS = f"User:{BROKER};User:{ADMIN}"
_PASSWORD_BYTES = 24


class ClusterSecrets:
    """The secret files of one cluster. Reading them raises ToolError and OSError."""

    def __init__(self, directory: ClusterDirectory, security: ClusterSecurity) -> None:
        self.security = security
        self._directory = directory
        self._files = directory.path / "security"
        self.authority_file = self._files / "authority.pem"
        self.users_file = self._files / "users.properties"
        self._authority_key = self._files / "authority-key.pem"

    def make(self) -> None:
        """Create the authority and the users, or keep those of an earlier cluster here: its data refers to them."""
        if self.security.has_tls and not (self.authority_file.exists() or self._authority_key.exists()):
            from security.certificate_authority import new_authority

            authority = new_authority("Odradek local cluster")
            write_private(self._authority_key, authority.key_pem())
            write_private(self.authority_file, authority.certificate_pem)
        if self.security.mechanism and not self.users_file.exists():
            passwords = {user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in (BROKER, ADMIN)}
            write_private(self.users_file, properties_text(passwords), encoding="iso-8859-1")

    def issue(self, broker_id: int) -> None:
        """Create the certificate of a broker, if the cluster uses TLS."""
        if self.security.has_tls:
            from security.certificate_authority import Identity, issue, subject

            try:
                authority = Identity.from_pem(self.authority_file.read_bytes(), self._authority_key.read_bytes())
            except (TypeError, ValueError) as error:
                raise ToolError(f"the authority in {self._files} cannot be used: {error}") from None
            own = issue(authority, subject(f"broker-{broker_id}"))
            write_private(self._certificate_file(broker_id), own.key_pem() + own.certificate_pem)

    def _certificate_file(self, broker_id: int) -> Path:
        return self._directory.part(broker_id) / "certificate.pem"

    def password(self, user: str) -> str:
        """The password of one user."""
        return self._passwords()[user]

    def _passwords(self) -> Mapping[str, str]:
        found = load_properties(self.users_file.read_bytes())
        for user in (BROKER, ADMIN):
            if not found.get(user):
                raise ToolError(f"{self.users_file} has no password of {user}")
        return found

    def broker_properties(self, broker_id: int) -> dict[str, str]:
        """The security settings in a broker's configuration; empty without security."""
        protocol, mechanism = self.security.protocol, self.security.mechanism
        listener = f"listener.name.{protocol.lower()}"
        settings: dict[str, str] = {}
        if self.security.has_tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._certificate_file(broker_id)),
                "ssl.client.auth": "none",
                **self._trust(),
            }
        if mechanism:
            settings |= {
                "sasl.enabled.mechanisms": mechanism,
                "sasl.mechanism.inter.broker.protocol": mechanism,
                f"{listener}.{mechanism.lower()}.sasl.jaas.config": self._brokers_login(mechanism),
            }
        return {"security.inter.broker.protocol": protocol, **settings} if self.security.is_on else {}

    def client_properties(self) -> dict[str, str]:
        """The security settings of clients in Java and of this project; empty without security."""
        mechanism = self.security.mechanism
        settings = self._trust() if self.security.has_tls else {}
        if mechanism:
            login = {"username": ADMIN, "password": self.password(ADMIN)}
            settings["sasl.mechanism"] = mechanism
            settings["sasl.jaas.config"] = LoginModule(MODULES[mechanism], login).to_text()
        return {"security.protocol": self.security.protocol, **settings} if self.security.is_on else {}

    def _trust(self) -> dict[str, str]:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority_file)}

    def _brokers_login(self, mechanism: str) -> str:
        """The login of the brokers; with PLAIN it includes the passwords of all users."""
        passwords = self._passwords()
        users = {f"user_{user}": password for user, password in passwords.items() if not self.security.is_scram}
        options = {"username": BROKER, "password": passwords[BROKER], **users}
        return LoginModule(MODULES[mechanism], options).to_text()


class ClientFile(NamedTuple):
    """A file with a password, for the clients that `title` names."""

    title: str
    path: Path
    text: str
    encoding: str = "utf-8"


def client_files(directory: ClusterDirectory, state: ClusterState) -> list[ClientFile]:
    """The client files of a cluster; the first one is also for the tools. Raises ToolError and OSError."""
    secrets, folder = ClusterSecrets(directory, state.security), directory.path / "clients"
    java = {"bootstrap.servers": state.bootstrap_servers, **secrets.client_properties()}
    for_java = "Java, and --command-config of the tools"
    for_librdkafka = "librdkafka: confluent-kafka, kcat -F"
    for_python = "aiokafka, and kafka-python: take **settings"
    return [
        ClientFile(for_java, folder / "java.properties", properties_text(java), "iso-8859-1"),
        ClientFile(for_librdkafka, folder / "librdkafka.properties", _librdkafka(secrets, state)),
        ClientFile(for_python, folder / "client_settings.py", _python(secrets, state)),
    ]


def write_client_files(directory: ClusterDirectory, state: ClusterState) -> None:
    """Write the client files again, if the cluster has security: brokers may have been added."""
    if state.security.is_on:
        for file in client_files(directory, state):
            write_private(file.path, file.text, encoding=file.encoding)


def _librdkafka(secrets: ClusterSecrets, state: ClusterState) -> str:
    settings = {"bootstrap.servers": state.bootstrap_servers, "security.protocol": state.security.protocol}
    if state.security.has_tls:
        settings["ssl.ca.location"] = str(secrets.authority_file)
    if state.security.mechanism:
        settings |= {
            "sasl.mechanism": state.security.mechanism,
            "sasl.username": ADMIN,
            "sasl.password": secrets.password(ADMIN),
        }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _python(secrets: ClusterSecrets, state: ClusterState) -> str:
    settings = {
        "bootstrap_servers": repr(state.bootstrap_servers),
        "security_protocol": repr(state.security.protocol),
    }
    if state.security.has_tls:
        settings["ssl_context"] = f"ssl.create_default_context(cafile={str(secrets.authority_file)!r})"
    if state.security.mechanism:
        settings |= {
            "sasl_mechanism": repr(state.security.mechanism),
            "sasl_plain_username": repr(ADMIN),
            "sasl_plain_password": repr(secrets.password(ADMIN)),
        }
    imports = "import ssl\n\n" if state.security.has_tls else ""
    lines = "".join(f"    {key!r}: {value},\n" for key, value in settings.items())
    return f"{imports}settings = {{\n{lines}}}\n"
