"""`python -m broker.security.first_users SERVER.PROPERTIES USERS.PROPERTIES`: create SCRAM users before brokers start.

Brokers that authenticate to each other by SCRAM cannot create the users they need. Like Kafka's `kafka-configs.sh
--zookeeper`, this writes them to the ZooKeeper of SERVER.PROPERTIES, for each SCRAM mechanism in its
`sasl.enabled.mechanisms`. USERS.PROPERTIES maps users to passwords.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Mapping
from typing import Final

from broker.zookeeper.kafka_zk_client import KafkaZkClient
from broker.zookeeper.kazoo_session import KazooEnsemble
from cluster.quotas.entities import QuotaEntity
from cluster.znodes import PERSISTENT_PATHS
from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from config.properties import load_properties, resolve
from environment.contract import Random
from environment.system import SystemClock, SystemRandom, kafka_options, read_text, variables
from protocol.scram_mechanisms import HASHES, MIN_ITERATIONS
from security.jaas import system_properties, zookeeper_login
from security.openssl_files import read_bytes
from security.sasl_exchange import ScramCredential
from storage.io.os_file_system import OsFileSystem
from zookeeper.coordination import CoordinationError

_ITERATIONS: Final = MIN_ITERATIONS
"""As in `kafka-configs.sh`."""


class UserError(Exception):
    """An existing user cannot be used; the message says which, and why."""


def main(argv: list[str]) -> int:
    """Create the missing users. If one cannot be created, prints the reason and returns exit code 1."""
    properties, users_file = argv
    file_system = OsFileSystem()
    try:
        config = BrokerConfig(resolve(load_properties(file_system.read_file(properties)), variables(), read_bytes))
        passwords = load_properties(file_system.read_file(users_file))
        asyncio.run(make_users(config, passwords))
    except (ConfigError, CoordinationError, OSError, UserError) as error:
        print(f"{users_file}: {error}", file=sys.stderr)
        return 1
    return 0


async def make_users(config: BrokerConfig, passwords: Mapping[str, str]) -> None:
    """Create the missing users. Never changes a password.

    Raises UserError for a user with another password or a damaged credential, ConfigError if `config` lacks a
    ZooKeeper, and CoordinationError.
    """
    address = config.zookeeper_address
    if address is None:
        raise ConfigError("zookeeper.connect", "", "the users are kept in the ZooKeeper that it names")
    login = zookeeper_login(system_properties(kafka_options()), read_text)
    session = KazooEnsemble(address, config, login).session()
    await session.connect()
    try:
        zk_client = KafkaZkClient(session, SystemClock())
        await zk_client.create_missing(PERSISTENT_PATHS)
        for user, password in passwords.items():
            resource = QuotaEntity(user).resource
            known = await zk_client.read_config(resource)
            wanted = with_credentials(user, password, known, config, SystemRandom())
            if wanted != known:
                await session.multi(await zk_client.config_operations({resource: wanted}))
    finally:
        await session.close()


def with_credentials(
    user: str, password: str, known: Mapping[str, str], config: BrokerConfig, random: Random
) -> dict[str, str]:
    """Add missing credentials to a user's configuration `known`. Raises as `make_users` does."""
    wanted = dict(known)
    enabled = config.values["sasl.enabled.mechanisms"]
    for mechanism in HASHES.keys() & set(enabled if isinstance(enabled, tuple) else ()):
        if mechanism not in known:
            wanted[mechanism] = _credential(mechanism, password, random.uuid(), _ITERATIONS).to_text()
            continue
        try:
            found = ScramCredential.from_text(known[mechanism])
        except ValueError as error:
            raise UserError(f"{mechanism} of user {user}: {error}") from error
        if found != _credential(mechanism, password, found.salt, found.iterations):
            where = config.zookeeper_address
            raise UserError(f"user {user} has at {where} another password for {mechanism} than here")
    return wanted


def _credential(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return ScramCredential.from_salted_password(mechanism, salted, salt, iterations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
