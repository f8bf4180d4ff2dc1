"""Replaces certificates while the broker runs: after a change of their files, or of the stores configured by
kafka-configs (Kafka classes `DynamicBrokerConfig`, `SslFactory`). Open connections are unaffected.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from environment.contract import Executor
from security.stores import check_identity, identity_of
from security.tls import AnySsl, LoadedTls, Stamps, TlsLoader, stamps_of

logger = logging.getLogger("kafka.security.CertificateRenewal")

CHECK_MS: Final = 2_000
"""Maximum delay until new certificates are noticed."""


class Renewable(NamedTuple):
    """TLS of a listener, or of the connections to other brokers, as it was `loaded`. `config_of` returns its current
    settings; `renew` sets the context for new connections.
    """

    title: str
    loaded: LoadedTls
    renew: Callable[[ssl.SSLContext], None]
    config_of: Callable[[BrokerConfig], AnySsl | None]


class CertificateRenewal:
    """Checks stores periodically, and switches to changed ones that are usable. Reads a store only after a change, and
    never on the event loop.
    """

    def __init__(self, executor: Executor, current: Callable[[], BrokerConfig], all_: Iterable[Renewable]) -> None:
        self._executor = executor
        self._current = current
        self._renewables: dict[str, Renewable] = {}
        self._in_use: dict[str, LoadedTls] = {}
        self._seen: dict[str, tuple[AnySsl, Stamps]] = {}
        """The stores read last, usable or not."""
        self.replace(all_)

    def replace(self, all_: Iterable[Renewable]) -> None:
        """Check these from now on. State of the ones that stay is kept."""
        before, self._renewables = self._renewables, {each.title: each for each in all_}
        for title, each in self._renewables.items():
            if title not in before or each.loaded is not before[title].loaded:
                self._in_use[title] = each.loaded
                self._seen[title] = each.loaded.config, each.loaded.stamps

    async def check(self) -> None:
        """Check all of them once. An unusable store is logged, and read again after its next change."""
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
        """Raise ConfigError if changed stores of a proposed configuration are unusable. Stores unchanged since
        `current` are not read.
        """
        loader = TlsLoader()
        for title, renewable in list(self._renewables.items()):
            wanted = renewable.config_of(proposed)
            if wanted is not None and wanted != renewable.config_of(current):
                await self._executor.run(_replacement, loader, wanted, self._in_use[title])


def _replacement(loader: TlsLoader, wanted: AnySsl, in_use: LoadedTls) -> LoadedTls:
    """Load the new stores. Raises ConfigError, also if the new certificate has another identity than the one in use."""
    loaded = loader.load(wanted)
    if wanted.key_store is not None and loaded.chain is not None and in_use.chain not in (None, loaded.chain):
        before, after = identity_of(wanted.key_store, in_use.chain), identity_of(wanted.key_store, loaded.chain)
        check_identity(wanted.key_store, before, after, wanted.allowed_changes)
    return loaded
