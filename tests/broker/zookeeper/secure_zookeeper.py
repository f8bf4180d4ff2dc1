"""A real ZooKeeper with TLS and certificates on both sides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.broker.zookeeper.certificates import Authority
from tests.kit.broker_process import free_port
from tests.kit.zookeeper import real_zookeeper, tls_listener, tls_session


class SecureZookeeper(NamedTuple):
    """A server whose certificate is for localhost, and which requires client certificates."""

    port: int
    authority: Authority
    key_store: Path
    """A broker's key store."""

    def settings(self, **others: str) -> dict[str, str]:
        """The broker's TLS settings plus `others` (with underscores for dots)."""
        return {
            **tls_session(f"localhost:{self.port}", self.key_store, self.authority.certificate),
            **{f"zookeeper.{name.replace('_', '.')}": value for name, value in others.items()},
        }


@contextlib.contextmanager
def secure_zookeeper(directory: Path) -> Iterator[SecureZookeeper]:
    """Run a secure ZooKeeper for the duration of a block. Skips the test without Java or jars."""
    authority, port = Authority(directory / "keys"), free_port()
    listener = tls_listener(port, authority.issue("localhost"), authority.certificate)
    with real_zookeeper(directory, settings=listener):
        yield SecureZookeeper(port, authority, authority.issue("broker"))
