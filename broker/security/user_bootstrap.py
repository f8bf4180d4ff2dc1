"""`python -m broker.security.user_bootstrap`: manages SCRAM users in a ZooKeeper before brokers that need them start.

Standard input is a JSON object: `connect` (HOST:PORT[/CHROOT]), `tls_file` (a file with Kafka's properties for TLS with
ZooKeeper, or null) and `java_options` (may name a JAAS file), and either `describe` (names of users, "" for the
default, or null for all) or `user`, `set` (iterations, salt and salted password in base64, by mechanism) and `remove`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from broker.zookeeper.kafka_zk_client import KafkaZkClient
from broker.zookeeper.kazoo_security import SessionSecurity
from broker.zookeeper.kazoo_session import KazooCoordination
from cluster import znodes
from cluster.quotas.entities import DEFAULT, QuotaEntity
from config.definitions import ConfigError
from config.zookeeper_connection import parse_zookeeper_connect
from environment.system import SystemClock, read_text
from security.jaas import system_properties, zookeeper_login
from security.sasl_exchange import ScramCredential
from storage.io.os_file_system import OsFileSystem
from zookeeper.coordination import CoordinationError

_TIMEOUT_MS = 30_000
_USERS = "/config/users"
_PARENTS = ("/config", znodes.CONFIG_CHANGES, _USERS)


class CredentialChangeError(Exception):
    """The change was refused; the message says why."""


def main() -> int:
    """Execute the command on standard input. Returns the exit code."""
    try:
        for line in asyncio.run(_do(json.load(sys.stdin))):
            print(line)
    except (ConfigError, CoordinationError, CredentialChangeError, znodes.ZnodeFormatError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _do(wanted: Mapping[str, Any]) -> list[str]:
    login = zookeeper_login(system_properties(wanted["java_options"]), read_text)
    tls = b"" if wanted["tls_file"] is None else OsFileSystem().read_file(wanted["tls_file"])
    security = SessionSecurity.of_tool(wanted["connect"], tls, login, owns_nodes=True)
    address = parse_zookeeper_connect(wanted["connect"])
    session = KazooCoordination(address, _TIMEOUT_MS, _TIMEOUT_MS, 10, security)
    await session.connect()
    try:
        users = Users(session)
        if "describe" in wanted:
            return await users.described(wanted["describe"])
        credentials = {
            mechanism: ScramCredential.from_salted_password(mechanism, _decoded(salted), _decoded(salt), iterations)
            for mechanism, (iterations, salt, salted) in wanted["set"].items()
        }
        return [await users.change(wanted["user"], credentials, wanted["remove"])]
    finally:
        await session.close()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


class Users:
    """The users in a tree (Kafka class `AdminZkClient`). Raises CoordinationError and ZnodeFormatError."""

    def __init__(self, session: KazooCoordination) -> None:
        self._session = session
        self._zk_client = KafkaZkClient(session, SystemClock())

    async def described(self, names: Sequence[str] | None) -> list[str]:
        """Describe these users, one line each; by default, all users with a configuration."""
        wanted = names or []
        if names is None and await self._zk_client.exists(_USERS):
            wanted = ["", *await self._zk_client.users()]
        lines = []
        for name in wanted:
            config = await self._zk_client.read_config(QuotaEntity(name or DEFAULT).resource)
            if config or names is not None:
                configs = ",".join(f"{key}={value}" for key, value in config.items())
                lines.append(f"Configs for {_title(name)} are {configs}")
        return lines

    async def change(self, user: str, added: Mapping[str, ScramCredential], removed: Sequence[str]) -> str:
        """Set some credentials of a user and remove others. Returns a message. Raises RefusedError if one to remove
        does not exist.
        """
        await self._zk_client.create_missing(_PARENTS)
        resource = QuotaEntity(user).resource
        config = await self._zk_client.read_config(resource)
        missing = [mechanism for mechanism in removed if mechanism not in config]
        if missing:
            raise CredentialChangeError(f"Invalid config(s): {','.join(missing)}")
        config |= {mechanism: credential.to_text() for mechanism, credential in added.items()}
        kept = {key: value for key, value in config.items() if key not in removed}
        await self._session.multi(await self._zk_client.config_operations({resource: kept}))
        return f"Completed updating config for entity: {_title(user)}."


def _title(name: str) -> str:
    return f"user-principal '{name}'" if name else "default user-principal"


if __name__ == "__main__":
    sys.exit(main())
