"""Listeners that change while the broker runs (Kafka class `DynamicListenerConfig`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.broker_environment import Environment
from broker.metadata.dynamic_configs import Refreshing
from broker.metadata.reconfiguration import reconfiguration_error
from broker.network.socket_server import ListenerBinding, SocketServer
from cluster import znodes
from cluster.metadata_image import BrokerImage
from config.broker_config import BrokerConfig
from config.definitions import ConfigError

if TYPE_CHECKING:
    from broker.security.listener_security import SecuredListener, StoredCredential, StoredToken
    from broker.security.renewal import CertificateRenewal
    from broker.stages.serving import ServingBroker

logger = logging.getLogger("kafka.server.DynamicListenerConfig")


class DynamicListenerConfig:
    """Owns the open listeners, their security and their registered addresses.

    A configuration change is checked before it is stored, and applied afterwards. If it cannot be applied (for example,
    because a port was taken in between), listeners and registration remain unchanged, and the reason is logged.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        socket_server: SocketServer,
        stored: StoredCredential,
        stored_token: StoredToken,
    ) -> None:
        """`stored` and `stored_token` look up client credentials in the tree."""
        self._environment = environment
        self._socket_server = socket_server
        self._stored = stored
        self._stored_token = stored_token
        self._opened = config
        """The configuration of the open listeners."""
        self._security: Mapping[str, SecuredListener] = {}
        self._is_registered = True
        """Whether the registration matches the open listeners."""
        self._serving: ServingBroker | None = None
        self._renewal: CertificateRenewal | None = None
        self._refreshes_issuer_keys = False
        self._refreshing = Refreshing("dynamic-listeners", self._apply)
        self._applying = asyncio.Lock()

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def bind(self) -> None:
        """Bind the addresses of the listeners in server.properties. Raises OSError, and ConfigError for unusable
        stores.
        """
        self._security = self._new_security(self._opened)
        await self._socket_server.bind([_endpoint(name, self._opened, self._security) for name in _names(self._opened)])

    async def bind_as(self, config: BrokerConfig) -> None:
        """Bind the addresses of this configuration instead, which was changed in an earlier run. Raises the errors of
        `bind`.
        """
        removed, added = _difference(self._opened, config)
        if removed or added:
            security = self._security_for(config)
            await self._socket_server.change(removed, [_endpoint(name, config, security) for name in added])
            self._security = security
        self._opened = config

    def serve(self, serving: ServingBroker) -> None:
        """Follow changes of the configuration and of the certificate and key files from now on."""
        self._serving = serving
        configs = serving.coordination.configs
        configs.check_listeners = self._check
        configs.on_change(self._config_changed)
        serving.coordination.membership.on_session_change(lambda: None, self._session_began)
        self._watch_security(serving)
        self._config_changed(configs.current)

    async def close(self) -> None:
        """Stop following the configuration."""
        await self._refreshing.close()

    def _config_changed(self, config: BrokerConfig) -> None:
        opened = self._opened
        if (config.listeners, config.advertised_listeners) != (opened.listeners, opened.advertised_listeners):
            self._refreshing.begin()

    async def _session_began(self, _broker: BrokerImage) -> None:
        if not self._is_registered:
            self._refreshing.begin()

    # -- changes -------------------------------------------------------------------------------------------------------

    async def _check(self, current: BrokerConfig, proposed: BrokerConfig) -> None:
        """Raise ConfigError or ApiError for listeners that cannot be opened, or whose stores are unusable."""
        if self._renewal is not None:
            await self._renewal.check_stores(current, proposed)
        before = {each.listener_name: each.security_protocol for each in current.listeners}
        for each in proposed.listeners:
            if before.get(each.listener_name, each.security_protocol) != each.security_protocol:
                raise reconfiguration_error(
                    f"Security protocol cannot be updated for existing listener ListenerName({each.listener_name})"
                )
        if proposed.listeners == current.listeners:  # Listeners that could not be opened must not block other changes.
            return
        removed, added = _difference(self._opened, proposed)
        security = await self._environment.executor.run(self._security_for, proposed)
        try:
            await self._socket_server.check_addresses(removed, [_endpoint(name, proposed, security) for name in added])
        except OSError as error:
            raise ConfigError("listeners", proposed.values["listeners"], error.strerror) from error

    async def _apply(self) -> None:
        """Update listeners and registration to the current configuration. Raises CoordinationError."""
        serving = self._serving
        assert serving is not None
        async with self._applying:
            config = serving.coordination.configs.current
            removed, added = _difference(self._opened, config)
            if removed or added:
                try:
                    security = await self._environment.executor.run(self._security_for, config)
                    await self._socket_server.change(removed, [_endpoint(name, config, security) for name in added])
                except (OSError, ConfigError) as error:
                    logger.error("Could not change the listeners, keeping the open ones: %s", error)
                    return
                logger.info(
                    "Listeners closed: %s, opened: %s",
                    removed,
                    [str(each) for each in config.listeners if each.listener_name in added],
                )
                self._security = security
                self._watch_security(serving)
            self._opened = config
            self._is_registered = False
            await serving.coordination.membership.change_endpoints(self.endpoints())
            self._is_registered = True
        self._config_changed(serving.coordination.configs.current)  # It may have been changed back meanwhile.

    def endpoints(self) -> tuple[znodes.Endpoint, ...]:
        """The advertised listeners, with their bound ports."""
        return tuple(
            znodes.Endpoint(
                each.listener_name,
                each.host or self._environment.network.host_name(),
                each.port or self._socket_server.ports[each.listener_name],
                each.security_protocol,
            )
            for each in self._opened.advertised_listeners
        )

    # -- security ------------------------------------------------------------------------------------------------------

    def _security_for(self, config: BrokerConfig) -> Mapping[str, SecuredListener]:
        """Reuse the security of unchanged listeners, and create it for new ones."""
        kept = {name: each for name, each in self._security.items() if name in _names(config)}
        return {**kept, **self._new_security(config)}

    def _new_security(self, config: BrokerConfig) -> Mapping[str, SecuredListener]:
        if not config.ssl and not config.sasl:
            return {}
        from broker.security.listener_security import security_of_listeners

        return security_of_listeners(
            config, self._environment, self._stored, self._stored_token, besides=self._security.keys()
        )

    def _watch_security(self, serving: ServingBroker) -> None:
        """Renew certificates, also for connections to other brokers, and refresh the keys of token issuers."""
        config, supervisor = serving.coordination.configs.current, serving.supervisor
        if config.ssl:
            from broker.security.listener_security import renewables_of
            from broker.security.renewal import CHECK_MS, CertificateRenewal

            links = serving.member.links
            renewables = renewables_of(self._security, None if links is None else links.network)
            if self._renewal is None:
                configs = serving.coordination.configs
                self._renewal = CertificateRenewal(self._environment.executor, lambda: configs.current, renewables)
                supervisor.every(CHECK_MS, "certificates", self._renewal.check)
            else:
                self._renewal.replace(renewables)
        if any(each.tokens is not None for each in config.sasl.values()) and not self._refreshes_issuer_keys:
            from broker.security.issuer_keys import CHECK_MS as KEYS_CHECK_MS

            self._refreshes_issuer_keys = True
            supervisor.every(
                KEYS_CHECK_MS, "issuer-keys", self._refresh_issuer_keys, initial_delay_ms=0, asks_others=True
            )

    async def _refresh_issuer_keys(self) -> None:
        from broker.security.listener_security import issuer_keys_of

        await asyncio.gather(*(each.refresh() for each in issuer_keys_of(self._security)))


def _names(config: BrokerConfig) -> list[str]:
    return [each.listener_name for each in config.listeners]


def _endpoint(name: str, config: BrokerConfig, security: Mapping[str, SecuredListener]) -> ListenerBinding:
    found = next(each for each in config.listeners if each.listener_name == name)
    return ListenerBinding(name, found.host, found.port, security.get(name))


def _difference(before: BrokerConfig, after: BrokerConfig) -> tuple[list[str], list[str]]:
    """The listeners to close and those to open: a listener with a new address is in both lists."""
    added = [each.listener_name for each in after.listeners if each not in before.listeners]
    return [each.listener_name for each in before.listeners if each not in after.listeners], added
