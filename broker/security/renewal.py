"""Certificates that change while the broker runs: files that were written anew, and stores that kafka-configs names
(Kafka classes `DynamicBrokerConfig`, `SslFactory`). Connections that are there stay as they are.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from broker.environment.contract import Executor
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.security.secret_files import FileStamp, stamp_of
from config.security.ssl_config import ClientSsl, SslConfig
from config.security.store_config import Store
from config.security.stores import Identity, check_identity, identity_of
from config.security.tls_context import client_context, server_context

logger = logging.getLogger("kafka.security.CertificateRenewal")

CHECK_MS: Final = 2_000
"""How long new certificates may not be seen."""

AnySsl = SslConfig | ClientSsl


class Renewable(NamedTuple):
    """TLS of a listener, or of the connections to other brokers. `config_of` tells what it should be now, and `renew`
    has new connections use a context.
    """

    title: str
    renew: Callable[[ssl.SSLContext], None]
    config_of: Callable[[BrokerConfig], AnySsl | None]


class _State(NamedTuple):
    """The stores that were read last, usable or not, and whose key is in use."""

    config: AnySsl | None
    stamps: tuple[FileStamp | None, ...]
    identity: Identity | None


class CertificateRenewal:
    """Looks at stores again and again, and takes over those that have changed and can be used."""

    def __init__(
        self, executor: Executor, current: Callable[[], BrokerConfig], loaded: BrokerConfig, all_: Iterable[Renewable]
    ) -> None:
        """`loaded` is the configuration by which the contexts were made."""
        self._executor = executor
        self._current = current
        self._states = {each: _read(each.config_of(loaded)) for each in all_}

    async def check(self) -> None:
        """One look at all of them. What cannot be used is logged, and looked at again once it has changed."""
        config = self._current()
        for renewable, state in self._states.items():
            wanted = renewable.config_of(config)
            if wanted is None:
                continue
            stamps = await self._executor.run(_stamps, wanted)
            if (wanted, stamps) == (state.config, state.stamps):
                continue
            self._states[renewable] = state._replace(config=wanted, stamps=stamps)
            try:
                identity, context = await self._executor.run(_renewed, wanted, state.identity)
            except ConfigError as error:
                logger.error("%s keeps its certificates: %s", renewable.title, error)
                continue
            self._states[renewable] = _State(wanted, stamps, identity)
            renewable.renew(context)
            logger.info("%s has taken over its new certificates", renewable.title)


def check_stores(current: BrokerConfig, proposed: BrokerConfig) -> None:
    """Raise ConfigError when a listener could not take over its stores of a proposed configuration."""
    for name, wanted in proposed.ssl.items():
        before = current.ssl.get(name)
        if before is not None and wanted != before:
            _renewed(wanted, _read(before).identity)


def _renewed(config: AnySsl, before: Identity | None) -> tuple[Identity | None, ssl.SSLContext]:
    """Raises ConfigError."""
    identity = None if config.key_store is None else identity_of(config.key_store)
    if config.key_store is not None and identity is not None and before is not None:
        check_identity(config.key_store, before, identity, config.allowed_changes)
    context = server_context(config) if isinstance(config, SslConfig) else client_context(config)
    return identity, context


def _read(config: AnySsl | None) -> _State:
    if config is None:
        return _State(None, (), None)
    try:
        identity = None if config.key_store is None else identity_of(config.key_store)
    except ConfigError:  # it was there a moment ago
        identity = None
    return _State(config, _stamps(config), identity)


def _stamps(config: AnySsl) -> tuple[FileStamp | None, ...]:
    stores: tuple[Store | None, ...] = (config.key_store, config.trust_store)
    return tuple(None if each is None or each.location is None else stamp_of(each.location) for each in stores)
