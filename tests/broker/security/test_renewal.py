"""How often key stores are read, and on which thread: opening one blocks every thread for a third of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.broker_environment import system_environment
from broker.metadata.config_service import ConfigService
from broker.metadata.metadata_cache import MetadataCache
from broker.security.listener_security import SecuredListener, renewables_of, security_of_listeners
from broker.security.renewal import CertificateRenewal
from client.secured_network import SecuredNetwork
from cluster.controller.commands import CommandFence
from cluster.metadata_image import MetadataImage
from config.broker_config import BrokerConfig
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError
from security import tls
from tests.kit.environment import InlineExecutor
from tests.kit.security.certificates import Authority

AUTHORITY = Authority()
read_key = tls.read_key


class CountingExecutor(InlineExecutor):
    """Knows whether one of its functions is running."""

    is_running = False

    def run(self, function: Callable[..., Any], /, *args: object) -> Awaitable[Any]:
        self.is_running = True
        try:
            return super().run(function, *args)
        finally:
            self.is_running = False


class Site:
    """The security of a broker with two listeners that share a key store, one of them for brokers."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.key = AUTHORITY.issue("broker").write_pem(directory / "broker.pem")
        self.executor = CountingExecutor()
        self.reads: list[bool] = []
        """One entry for each read of a key store: whether it happened off the event loop."""
        monkeypatch.setattr(tls, "read_key", self._read_key)
        self.config = BrokerConfig.of(
            {
                "broker.id": "0",
                "listeners": "IN://127.0.0.1:9092,OUT://127.0.0.1:9093",
                "listener.security.protocol.map": "IN:SSL,OUT:SSL",
                "inter.broker.listener.name": "IN",
                "zookeeper.connect": "localhost:1",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.key),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(AUTHORITY.write_pem(directory / "trusted.pem")),
            }
        )
        self.cache = MetadataCache(CommandFence(), MetadataImage())
        self.configs = ConfigService(self.config, self.cache)
        environment = system_environment(self.config)
        self.listeners: dict[str, SecuredListener] = security_of_listeners(self.config, environment, _none, _none)
        assert self.config.inter_broker_channel is not None
        network = SecuredNetwork(self.config.inter_broker_channel)
        renewables = renewables_of(self.listeners, network)
        self.renewal = CertificateRenewal(self.executor, lambda: self.configs.current, renewables)
        self.configs.check_listeners = self.renewal.check_stores

    def _read_key(self, store: Any) -> Any:
        self.reads.append(self.executor.is_running)
        return read_key(store)

    async def alter(self, **changes: str) -> None:
        """A dynamic change on this broker, with underscores for dots. Raises ApiError."""
        changed = {name.replace("_", "."): value for name, value in changes.items()}
        await self.configs.validate_broker(changed, per_broker=True)
        self.cache.update_configs({(int(ConfigResourceType.BROKER), "0"): changed})

    def contexts(self) -> list[object]:
        return [each.tls.context for each in self.listeners.values() if each.tls is not None]


async def _none(first: str, second: str) -> None:
    return None


def test_a_start_reads_a_store_once_for_all_listeners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch)
    asyncio.run(site.renewal.check())
    assert len(site.reads) == 2, "once for the listeners, once for the connections between brokers"


def test_unrelated_changes_read_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-written store does not stop them either."""

    async def scenario() -> None:
        site = Site(tmp_path, monkeypatch)
        site.reads.clear()
        contexts = site.contexts()
        await site.alter(log_cleaner_threads="2")
        await site.renewal.check()
        assert (site.reads, site.contexts()) == ([], contexts)
        site.key.write_text(site.key.read_text()[:200])
        await site.alter(log_cleaner_threads="1")
        await site.renewal.check()
        assert site.contexts() == contexts, "it keeps its certificates"

    asyncio.run(scenario())


def test_new_stores_are_read_once_and_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, monkeypatch)
        site.reads.clear()
        contexts = site.contexts()
        fresh = AUTHORITY.issue("broker").write_pem(tmp_path / "fresh.pem")
        await site.alter(listener_name_out_ssl_keystore_location=str(fresh))
        assert site.reads == [True]
        await site.renewal.check()
        assert site.reads == [True] * 2
        assert [new is old for new, old in zip(site.contexts(), contexts, strict=True)] == [True, False]
        AUTHORITY.issue("broker").write_pem(site.key)
        await site.renewal.check()
        assert site.reads == [True] * 3, "once for the listener and the connections between brokers"
        stranger = AUTHORITY.issue("stranger").write_pem(tmp_path / "stranger.pem")
        with pytest.raises(ApiError, match=r"its subject CN=stranger is not the present one, CN=broker"):
            await site.alter(listener_name_out_ssl_keystore_location=str(stranger))

    asyncio.run(scenario())
