"""TLS of the listeners as the network needs it: loaded at the start, so that bad stores stop it."""

from __future__ import annotations

from collections.abc import Callable

from broker.environment.contract import Executor
from broker.network.handshakes import Handshakes
from broker.network.tls_transport import Tls
from broker.security.tls_context import server_context
from cluster.security.distinguished_name import subject_of
from config.broker_config import BrokerConfig
from config.security.principal_rules import PrincipalRules


def tls_of_listeners(config: BrokerConfig, executor: Executor) -> dict[str, Tls]:
    """TLS of each listener that has it. Raises ConfigError."""
    handshakes = Handshakes(executor)
    delay_s = config.connection_failed_authentication_delay_ms / 1000
    return {
        name: Tls(server_context(each), _users_by(each.principal_rules), handshakes, delay_s)
        for name, each in config.ssl.items()
    }


def _users_by(rules: PrincipalRules) -> Callable[[bytes], str | None]:
    return lambda certificate: rules.name_of(subject_of(certificate))
