"""How a session shows ZooKeeper who it is, how it knows that it speaks with ZooKeeper, and who may read its nodes."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from broker.zookeeper.kazoo_handler import TlsSocket
from cluster.znodes import SCRAM_SECRET
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, ConfigRuleError
from config.properties import load_properties
from config.security.jaas_file import FILE_PROPERTY
from config.zookeeper.jaas import DigestLogin
from config.zookeeper.tls import CIPHER_SUITES, KEY_STORE, TRUST_STORE, ZookeeperTls, tls_properties

_SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token/tokens", SCRAM_SECRET)
_OPEN: list[ACL] = OPEN_ACL_UNSAFE
_OWNED: list[ACL] = CREATOR_ALL_ACL
_READABLE: list[ACL] = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
_NOBODY = (
    "zookeeper.set.acl is true, but ZooKeeper client TLS configuration identifying at least "
    "zookeeper.ssl.client.enable, zookeeper.clientCnxnSocket, and zookeeper.ssl.keystore.location was not present and "
    f"there is no JAAS login file with a section for ZooKeeper (KAFKA_OPTS=-D{FILE_PROPERTY}=FILE)"
)
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class SessionSecurity(NamedTuple):
    """Means that all sessions of one configuration share."""

    tls: ssl.SSLContext | None = None
    login: DigestLogin | None = None
    sets_acl: bool = False

    @classmethod
    def of(cls, config: BrokerConfig, login: DigestLogin | None) -> SessionSecurity:
        """Read the files that `config` names. `login` is the JAAS file's. Raises ConfigError."""
        tls = None if config.zookeeper_tls is None else _tls_context(config.zookeeper_tls)
        shows_certificate = config.zookeeper_tls is not None and config.zookeeper_tls.key_store is not None
        sets_acl = bool(config.values["zookeeper.set.acl"])
        if sets_acl and login is None and not shows_certificate:
            raise ConfigRuleError("zookeeper.set.acl", True, _NOBODY)
        return cls(tls, login, sets_acl)

    @classmethod
    def of_tool(
        cls, connect: str, tls: bytes, login: DigestLogin | None = None, *, owns_nodes: bool = False
    ) -> SessionSecurity:
        """That of a tool. Of the properties in the file `tls` those of TLS are heeded. With `owns_nodes` those that it
        makes are its own, if it tells ZooKeeper who it is. Raises ConfigError.
        """
        properties = tls_properties(load_properties(tls))
        is_known = login is not None or f"{KEY_STORE}.location" in properties
        sets_acl = str(owns_nodes and is_known).lower()
        return cls.of(BrokerConfig({"zookeeper.connect": connect, "zookeeper.set.acl": sets_acl, **properties}), login)

    def acl(self, path: str) -> list[ACL]:
        """Who may do what with a new node (Kafka's `ZkData.defaultAcls`); `path` is without the chroot."""
        # Clients older than Kafka 0.9 keep their offsets there.
        if not self.sets_acl or path == "/consumers":
            return _OPEN
        return _OWNED if path.startswith(_SENSITIVE) else _READABLE


def _tls_context(tls: ZookeeperTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    context.check_hostname = tls.checks_host_name
    versions = sorted(_VERSIONS[name] for name in tls.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if tls.cipher_suites:
        _choose_suites(context, tls.cipher_suites)
    if tls.trust_store is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(tls.trust_store)
        except OSError as error:
            raise _unusable(TRUST_STORE, tls.trust_store, error, "no certificate in PEM is in it") from error
    if tls.key_store is not None:
        try:
            # Without a password OpenSSL would ask for it at the terminal.
            context.load_cert_chain(tls.key_store, password=tls.key_password)
        except OSError as error:
            why = f"its key and certificate in PEM cannot be read, or {KEY_STORE}.password is wrong"
            raise _unusable(KEY_STORE, tls.key_store, error, why) from error
    return context


def _choose_suites(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    for suite in suites:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError as error:
            raise ConfigError(CIPHER_SUITES, suite, "OpenSSL has no such suite") from error
    context.set_ciphers(":".join(suites))


def _unusable(store: str, path: str, error: OSError, otherwise: str) -> ConfigError:
    reason = otherwise if isinstance(error, ssl.SSLError) else error.strerror
    return ConfigError(f"{store}.location", path, reason)
