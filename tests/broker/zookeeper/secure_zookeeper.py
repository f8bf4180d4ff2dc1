"""A real ZooKeeper that is reached by TLS, with certificates on both sides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.broker.zookeeper.certificates import Authority
from tests.kit.broker_process import free_port
from tests.kit.zookeeper import real_zookeeper


class SecureZookeeper(NamedTuple):
    """A server whose certificate is for localhost, and which wants one from its clients."""

    port: int
    authority: Authority
    key_store: Path
    """Of a broker."""

    def settings(self, **others: str) -> dict[str, str]:
        """Keys of a broker, to which `others` (with underscores for dots) are added."""
        return {
            "zookeeper.connect": f"localhost:{self.port}",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(self.key_store),
            "zookeeper.ssl.truststore.location": str(self.authority.certificate),
            **{f"zookeeper.{name.replace('_', '.')}": value for name, value in others.items()},
        }


@contextlib.contextmanager
def secure_zookeeper(directory: Path) -> Iterator[SecureZookeeper]:
    """One that serves, for a block. Skips the test without Java or jars."""
    authority, port = Authority(directory / "keys"), free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(authority.issue("localhost")),
        "ssl.trustStore.location": str(authority.certificate),
        "ssl.protocol": "TLSv1.3",
        "ssl.enabledProtocols": "TLSv1.2,TLSv1.3",
    }
    with real_zookeeper(directory, settings=settings):
        yield SecureZookeeper(port, authority, authority.issue("broker"))
