"""Security of the listeners, for the network. Loaded at the start, so that bad stores prevent it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import TYPE_CHECKING, Final

from broker.broker_environment import Environment
from broker.network.connection import Dispatch
from broker.network.handshakes import Handshakes
from broker.network.secured_connection import SecuredConnection
from broker.network.tls_transport import Tls, TlsTransport
from broker.security.renewal import Renewable
from broker.security.sasl_session import SaslSession
from client.environment import Network
from client.secured_network import SecuredNetwork
from cluster.znodes import ZnodeFormatError
from config.broker_config import BrokerConfig
from environment.contract import Clock, Executor, Random
from security.principals import PrincipalRules, subject_of
from security.sasl_config import SaslConfig
from security.sasl_exchange import (
    Exchange,
    PlainExchange,
    SaslAuthenticationError,
    ScramCredential,
    ScramExchange,
    TokenCredential,
)
from security.tls import ClientSsl, LoadedTls, SslConfig, TlsLoader
from zookeeper.coordination import CoordinationError

if TYPE_CHECKING:
    from broker.network.socket_server import SocketServer
    from broker.security.issuer_keys import IssuerKeys
    from broker.security.token_validator import Tokens

logger = logging.getLogger("kafka.security.SaslListener")

StoredCredential = Callable[[str, str], Awaitable[ScramCredential]]
"""`ScramCredentials.find`."""
StoredToken = Callable[[str, str], Awaitable[TokenCredential | None]]
"""Finds a delegation token by its id and a mechanism, if it exists. Raises CoordinationError, ZnodeFormatError."""


_NOT_OBTAINED: Final = "Authentication failed: Credentials could not be obtained"


class SaslListener:
    """SASL of one listener."""

    def __init__(
        self,
        config: SaslConfig,
        stored: StoredCredential,
        stored_token: StoredToken,
        clock: Clock,
        random: Random,
        failure_delay_s: float,
        new_gssapi: Callable[[], Exchange] | None,
        tokens: Tokens | None,
    ) -> None:
        """`new_gssapi` starts a GSSAPI exchange, `tokens` one of OAUTHBEARER. Each is None if that mechanism is off."""
        self._config = config
        self._stored = stored
        self._stored_token = stored_token
        self._clock = clock
        self._random = random
        self._failure_delay_s = failure_delay_s
        self._new_gssapi = new_gssapi
        self.tokens = tokens
        self._secret = random.uuid() + random.uuid()

    def session(self, dispatcher: Dispatch) -> SaslSession:
        """Create the authentication of a new connection."""
        return SaslSession(dispatcher, self._config, self._exchange, self._clock, self._failure_delay_s)

    def _exchange(self, mechanism: str) -> Exchange:
        if mechanism == "PLAIN":
            return PlainExchange(self._config.plain_users, self._secret)
        if mechanism == "GSSAPI" and self._new_gssapi is not None:
            return self._new_gssapi()
        if mechanism == "OAUTHBEARER" and self.tokens is not None:
            return self.tokens.exchange()
        return ScramExchange(mechanism, self._credential, self._token, self._nonce)

    def _nonce(self) -> str:
        return self._random.uuid().hex()

    async def _credential(self, user: str, mechanism: str) -> ScramCredential:
        try:
            return await self._stored(user, mechanism)
        except (CoordinationError, ValueError) as error:
            logger.warning("The %s credential of a user cannot be read: %s", mechanism, error)
            raise SaslAuthenticationError(_NOT_OBTAINED) from error

    async def _token(self, token_id: str, mechanism: str) -> TokenCredential | None:
        try:
            return await self._stored_token(token_id, mechanism)
        except (CoordinationError, ZnodeFormatError) as error:
            logger.warning("A delegation token cannot be read: %s", error)
            raise SaslAuthenticationError(_NOT_OBTAINED) from error


class SecuredListener:
    """TLS, SASL or both of one listener."""

    def __init__(self, tls: Tls | None, loaded: LoadedTls | None, sasl: SaslListener | None) -> None:
        """`tls` was built from `loaded`."""
        self.tls = tls
        self.loaded = loaded
        self.sasl = sasl

    def protocol(self, server: SocketServer, dispatcher: Dispatch, listener_name: str) -> asyncio.BaseProtocol:
        """See `broker.network.socket_server.ProtocolFactory`."""
        session = None if self.sasl is None else self.sasl.session(dispatcher)
        connection = SecuredConnection(server, dispatcher, listener_name, session, has_tls=self.tls is not None)
        return connection if self.tls is None else TlsTransport(connection, self.tls)


def security_of_listeners(
    config: BrokerConfig,
    environment: Environment,
    stored: StoredCredential,
    stored_token: StoredToken,
    *,
    besides: Container[str] = (),
) -> dict[str, SecuredListener]:
    """Set up each listener that needs security, except those in `besides`. Raises ConfigError."""
    handshakes = Handshakes(environment.executor)
    delay_s = config.connection_failed_authentication_delay_ms / 1000
    loader = TlsLoader()
    loaded = {name: loader.load(each) for name, each in config.ssl.items() if name not in besides}
    tls = {
        name: Tls(each.context, _users_by(config.ssl[name].principal_rules), handshakes, delay_s)
        for name, each in loaded.items()
    }
    sasl = {
        name: SaslListener(
            each,
            stored,
            stored_token,
            environment.clock,
            environment.random,
            delay_s,
            _gssapi(each, environment.executor),
            _tokens(each, environment),
        )
        for name, each in config.sasl.items()
        if name not in besides
    }
    return {
        name: SecuredListener(tls.get(name), loaded.get(name), sasl.get(name)) for name in dict.fromkeys((*tls, *sasl))
    }


def _gssapi(config: SaslConfig, executor: Executor) -> Callable[[], Exchange] | None:
    """Return a function that starts a GSSAPI exchange, if a listener uses it. Raises ConfigError for a bad keytab."""
    if config.kerberos is None:
        return None
    from security.gssapi_exchange import GssapiExchange
    from security.kerberos_login import Acceptor

    acceptor, names = Acceptor(config.kerberos.login), config.kerberos.names
    return lambda: GssapiExchange(acceptor.context(), names, acceptor.default_realm, executor.run)


def _tokens(config: SaslConfig, environment: Environment) -> Tokens | None:
    if config.tokens is None:
        return None
    from broker.security.token_validator import tokens_of

    return tokens_of(config.tokens, environment)


def issuer_keys_of(listeners: Mapping[str, SecuredListener]) -> list[IssuerKeys]:
    """The token issuers' keys, for periodic refreshes."""
    tokens = [each.sasl.tokens for each in listeners.values() if each.sasl is not None]
    return [each.keys for each in tokens if each is not None and each.keys is not None]


def renewables_of(listeners: Mapping[str, SecuredListener], network: Network | None) -> list[Renewable]:
    """Everything with certificates: the listeners, and the `network` to other brokers if it uses TLS."""
    found = [
        Renewable(f"Listener {name}", each.loaded, each.tls.renew, _ssl_of(name))
        for name, each in listeners.items()
        if each.tls is not None and each.loaded is not None
    ]
    if isinstance(network, SecuredNetwork) and network.tls is not None:
        found.append(Renewable("The connection to other brokers", network.tls, network.renew, _channel_ssl))
    return found


def _ssl_of(name: str) -> Callable[[BrokerConfig], SslConfig | None]:
    return lambda config: config.ssl.get(name)


def _channel_ssl(config: BrokerConfig) -> ClientSsl | None:
    return None if config.inter_broker_channel is None else config.inter_broker_channel.ssl


def _users_by(rules: PrincipalRules) -> Callable[[bytes], str | None]:
    return lambda certificate: rules.name_of(subject_of(certificate))
