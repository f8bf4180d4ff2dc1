"""`python -m broker.format_storage FILE`: claim log directories for a cluster before a broker's first start.

Standard input is a JSON object: `cluster_id`, `ignore_formatted`, and `users`, a list of name, mechanism, iterations,
salt and salted password (both in base64) of SCRAM users, which exist when the broker starts.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.broker_environment import Environment, open_embedded, system_environment
from broker.logs.directory_failures import DirectoryFailures
from broker.stages.directories import NO_BROKER_ID, LockedDirectories
from broker.zookeeper.kafka_zk_client import KafkaZkClient
from cluster.quotas.entities import QuotaEntity
from cluster.znodes import PERSISTENT_PATHS
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, ConfigRuleError
from config.properties import load_properties, resolve
from environment.system import variables
from security.openssl_files import read_bytes
from security.sasl_exchange import ScramCredential
from storage.directory.meta_properties import META_PROPERTIES, LogDirError
from zookeeper.coordination import CoordinationError

RELEASE: Final = "3.9-IV0"

Users = Mapping[str, Mapping[str, str]]
"""The text of a credential, by user and mechanism."""


def main(argv: list[str]) -> int:
    """Carry out the request on standard input. Returns the exit code."""
    wanted: Mapping[str, Any] = json.load(sys.stdin)
    try:
        config = BrokerConfig.of(resolve(load_properties(read_bytes(argv[0])), variables(), read_bytes))
        said = asyncio.run(
            format_directories(
                system_environment(config),
                config,
                wanted["cluster_id"],
                _users(wanted["users"]),
                ignore_formatted=wanted["ignore_formatted"],
            )
        )
    except (ConfigError, CoordinationError, LogDirError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(said))
    return 0


async def format_directories(
    environment: Environment,
    config: BrokerConfig,
    cluster_id: str,
    users: Users | None = None,
    *,
    ignore_formatted: bool,
) -> list[str]:
    """Write missing meta.properties, and `users` into a new tree. Returns the lines to print.

    Raises LogDirError for directories that belong to another cluster or broker or are in use, and, without
    `ignore_formatted`, for those that are already formatted.
    """
    if config.zookeeper_connect:
        message = "The kafka configuration file appears to be for a legacy cluster. Formatting is only supported for "
        raise ConfigRuleError("zookeeper.connect", config.zookeeper_connect, f"{message}clusters in KRaft mode.")
    directories = LockedDirectories.lock(config, environment, DirectoryFailures(asyncio.Event()))
    try:
        identity = directories.identity
        assert identity.broker_id != NO_BROKER_ID, "a broker without ZooKeeper has an id"
        formatted = [path for path in config.log_dirs if path not in identity.unclaimed]
        if identity.cluster_id not in {None, cluster_id}:
            found = f"Expected {cluster_id}, but read {identity.cluster_id}"
            raise LogDirError(f"Invalid cluster.id in: {formatted[0]}/{META_PROPERTIES}. {found}")
        if formatted and not ignore_formatted:
            hint = "Use --ignore-formatted to ignore this directory and format the others."
            raise LogDirError(f"Log directory {formatted[0]} is already formatted. {hint}")
        if not identity.unclaimed:
            return ["All of the log directories are already formatted."]
        if users and config.log_dirs[0] in identity.unclaimed:
            await _add_users(environment, config, users)
        directories.claim(environment, cluster_id)
    finally:
        directories.release()
        environment.executor.close()
    return [f"Formatting {path} with metadata.version {RELEASE}." for path in identity.unclaimed]


async def _add_users(environment: Environment, config: BrokerConfig, users: Users) -> None:
    failed: list[OSError] = []
    ensemble = await open_embedded(environment, config, failed.append)
    session = ensemble.session()
    await session.connect()
    try:
        zk_client = KafkaZkClient(session, environment.clock)
        await zk_client.create_missing(PERSISTENT_PATHS)
        for user, credentials in users.items():
            await session.multi(await zk_client.config_operations({QuotaEntity(user).resource: credentials}))
    finally:
        await session.close()
        await ensemble.close()


def _users(given: Sequence[Sequence[Any]]) -> dict[str, dict[str, str]]:
    users: dict[str, dict[str, str]] = {}
    for name, mechanism, iterations, salt, salted in given:
        decoded = base64.b64decode(salted), base64.b64decode(salt)
        credential = ScramCredential.from_salted_password(mechanism, *decoded, iterations)
        users.setdefault(name, {})[mechanism] = credential.to_text()
    return users


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
