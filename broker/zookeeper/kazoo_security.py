"""Authentication of a session and of ZooKeeper's servers, and access control of new nodes."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from broker.zookeeper.kazoo_client import new_initiator
from broker.zookeeper.kazoo_handler import TlsSocket
from cluster.znodes import SCRAM_SECRET
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, ConfigRuleError
from config.properties import load_properties
from config.zookeeper_connection import CIPHER_SUITES, KEY_STORE, tls_properties
from security.jaas import FILE_PROPERTY, ZookeeperLogin
from security.kerberos_login import KerberosLogin
from security.tls import ClientSsl, client_context

_SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token/tokens", SCRAM_SECRET)
_OPEN: list[ACL] = OPEN_ACL_UNSAFE
_OWNED: list[ACL] = CREATOR_ALL_ACL
_READABLE: list[ACL] = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
_NOBODY = (
    "zookeeper.set.acl is true, but ZooKeeper client TLS configuration identifying at least "
    "zookeeper.ssl.client.enable, zookeeper.clientCnxnSocket, and zookeeper.ssl.keystore.location was not present and "
    f"there is no JAAS login file with a section for ZooKeeper (KAFKA_OPTS=-D{FILE_PROPERTY}=FILE)"
)


class SessionSecurity(NamedTuple):
    """The security settings that all sessions of one configuration share."""

    tls: ssl.SSLContext | None = None
    login: ZookeeperLogin | None = None
    sets_acl: bool = False

    @classmethod
    def of(cls, config: BrokerConfig, login: ZookeeperLogin | None) -> SessionSecurity:
        """Read the files that `config` names. `login` comes from the JAAS file. Raises ConfigError."""
        tls = None if config.zookeeper_tls is None else _tls_context(config.zookeeper_tls)
        shows_certificate = config.zookeeper_tls is not None and config.zookeeper_tls.key_store is not None
        sets_acl = bool(config.values["zookeeper.set.acl"])
        if sets_acl and login is None and not shows_certificate:
            raise ConfigRuleError("zookeeper.set.acl", True, _NOBODY)
        if isinstance(login, KerberosLogin):
            new_initiator(login)
        return cls(tls, login, sets_acl)

    @classmethod
    def of_tool(
        cls, connect: str, tls: bytes, login: ZookeeperLogin | None = None, *, owns_nodes: bool = False
    ) -> SessionSecurity:
        """The settings of a tool. Only the TLS properties of the file `tls` apply. With `owns_nodes`, nodes that the
        tool creates belong to it, provided that it authenticates. Raises ConfigError.
        """
        properties = tls_properties(load_properties(tls))
        is_known = login is not None or f"{KEY_STORE}.location" in properties
        sets_acl = str(owns_nodes and is_known).lower()
        return cls.of(BrokerConfig({"zookeeper.connect": connect, "zookeeper.set.acl": sets_acl, **properties}), login)

    def acl(self, path: str) -> list[ACL]:
        """The access control list of a new node (Kafka's `ZkData.defaultAcls`); `path` is without the chroot."""
        # Clients older than Kafka 0.9 keep their offsets there.
        if not self.sets_acl or path == "/consumers":
            return _OPEN
        return _OWNED if path.startswith(_SENSITIVE) else _READABLE


def _tls_context(tls: ClientSsl) -> ssl.SSLContext:
    try:
        context = client_context(tls)
    except ConfigError as error:
        if error.name == "ssl.cipher.suites":
            raise ConfigError(CIPHER_SUITES, error.value, error.reason) from error
        raise
    context.sslsocket_class = TlsSocket
    return context
