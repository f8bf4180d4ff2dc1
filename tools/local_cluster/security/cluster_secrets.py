"""The keys and passwords of a cluster, in files of its directory, and what brokers are configured with because of them.

security/authority.pem         the authority's certificate, which clients and brokers trust
security/authority-key.pem     its key, which signs the certificates of brokers
security/users.properties      passwords by user
broker-1/certificate.pem ...   a broker's key and certificate
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from config.properties import load_properties, properties_text
from security.jaas import MODULES, LoginModule
from tools.local_cluster.cluster_directory import ClusterDirectory, write_private
from tools.local_cluster.security.cluster_security import ClusterSecurity
from tools.support.common import ToolError

BROKER = "broker"
"""Who brokers are towards one another."""
ADMIN = "admin"
"""Who clients are, those of `odradek cluster` too."""
SUPER_USERS = f"User:{BROKER};User:{ADMIN}"
_PASSWORD_BYTES = 24


class ClusterSecrets:
    """The files of one cluster. Reading them raises ToolError and OSError."""

    def __init__(self, directory: ClusterDirectory, security: ClusterSecurity) -> None:
        self.security = security
        self._directory = directory
        self._files = directory.path / "security"
        self.authority_file = self._files / "authority.pem"
        self.users_file = self._files / "users.properties"
        self._authority_key = self._files / "authority-key.pem"

    def make(self) -> None:
        """Make the authority and the users, or keep those of a cluster that has been here: its data know them."""
        if self.security.has_tls and not (self.authority_file.exists() or self._authority_key.exists()):
            from tools.local_cluster.security.certificate_authority import new_authority

            authority = new_authority("Odradek local cluster")
            write_private(self._authority_key, authority.key_pem())
            write_private(self.authority_file, authority.certificate_pem)
        if self.security.mechanism and not self.users_file.exists():
            passwords = {user: secrets.token_urlsafe(_PASSWORD_BYTES) for user in (BROKER, ADMIN)}
            write_private(self.users_file, properties_text(passwords), encoding="iso-8859-1")

    def issue(self, broker_id: int) -> None:
        """Make the certificate of a broker, where there is TLS."""
        if self.security.has_tls:
            from tools.local_cluster.security.certificate_authority import Identity, issue, subject

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
        """The security in the configuration of a broker; nothing where the cluster has no security."""
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
        """How Java's clients, and those of this project, reach the brokers; nothing where there is no security."""
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
        """With PLAIN, the configuration of brokers also has the passwords of all users."""
        passwords = self._passwords()
        users = {f"user_{user}": password for user, password in passwords.items() if not self.security.is_scram}
        options = {"username": BROKER, "password": passwords[BROKER], **users}
        return LoginModule(MODULES[mechanism], options).to_text()
