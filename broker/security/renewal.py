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
from security.stores import check_identity, identity_of
from security.tls import AnySsl, LoadedTls, Stamps, TlsLoader, stamps_of

logger = logging.getLogger("kafka.security.CertificateRenewal")

CHECK_MS: Final = 2_000
"""How long new certificates may not be seen."""


class Renewable(NamedTuple):
    """TLS of a listener, or of the connections to other brokers, as it was `loaded`. `config_of` tells what it should
    be now, and `renew` has new connections use a context.
    """

    title: str
    loaded: LoadedTls
    renew: Callable[[ssl.SSLContext], None]
    config_of: Callable[[BrokerConfig], AnySsl | None]


class CertificateRenewal:
    """Looks at stores again and again, and takes over those that have changed and can be used. Reads none while they
    stay as they are, and none on the event loop.
    """

    def __init__(self, executor: Executor, current: Callable[[], BrokerConfig], all_: Iterable[Renewable]) -> None:
        self._executor = executor
        self._current = current
        self._renewables: dict[str, Renewable] = {}
        self._in_use: dict[str, LoadedTls] = {}
        self._seen: dict[str, tuple[AnySsl, Stamps]] = {}
        """The stores that were read last, usable or not."""
        self.replace(all_)

    def replace(self, all_: Iterable[Renewable]) -> None:
        """Look at these from now on. What is known of those that stay remains known."""
        before, self._renewables = self._renewables, {each.title: each for each in all_}
        for title, each in self._renewables.items():
            if title not in before or each.loaded is not before[title].loaded:
                self._in_use[title] = each.loaded
                self._seen[title] = each.loaded.config, each.loaded.stamps

    async def check(self) -> None:
        """One look at all of them. What cannot be used is logged, and looked at again once it has changed."""
        config = self._current()
        loader = TlsLoader()
        for title, renewable in list(self._renewables.items()):
            wanted = renewable.config_of(config)
            if wanted is None:
                continue
            seen = wanted, await self._executor.run(stamps_of, wanted)
            if seen == self._seen[title]:
                continue
            self._seen[title] = seen
            try:
                loaded = await self._executor.run(_replacement, loader, wanted, self._in_use[title])
            except ConfigError as error:
                logger.error("%s keeps its certificates: %s", title, error)
                continue
            if self._renewables.get(title) is not renewable:  # its listener was replaced meanwhile
                continue
            self._in_use[title] = loaded
            renewable.renew(loaded.context)
            logger.info("%s has taken over its new certificates", title)

    async def check_stores(self, current: BrokerConfig, proposed: BrokerConfig) -> None:
        """Raise ConfigError when the stores of a proposed configuration could not be taken over. Those that it leaves
        as they are in `current` are not read.
        """
        loader = TlsLoader()
        for title, renewable in list(self._renewables.items()):
            wanted = renewable.config_of(proposed)
            if wanted is not None and wanted != renewable.config_of(current):
                await self._executor.run(_replacement, loader, wanted, self._in_use[title])


def _replacement(loader: TlsLoader, wanted: AnySsl, in_use: LoadedTls) -> LoadedTls:
    """Raises ConfigError, also for a certificate of somebody else than the one in use."""
    loaded = loader.load(wanted)
    if wanted.key_store is not None and loaded.chain is not None and in_use.chain not in (None, loaded.chain):
        before, after = identity_of(wanted.key_store, in_use.chain), identity_of(wanted.key_store, loaded.chain)
        check_identity(wanted.key_store, before, after, wanted.allowed_changes)
    return loaded
