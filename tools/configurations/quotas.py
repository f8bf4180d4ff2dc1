"""The quotas of users, clients and IPs in kafka-configs (Kafka class `ConfigCommand`)."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from client.kafka_client import KafkaClient
from client.security_admin import alter_client_quotas, describe_client_quotas
from config.broker_keys import CLIENT_QUOTA_KEYS, IP_QUOTA_KEYS, SCRAM_KEYS
from config.definitions import ConfigError, ConfigType, parse_value, value_to_text
from tools.support.common import ToolError

USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
QUOTA_ENTITIES: Final = {USERS: "user", CLIENTS: "client-id", IPS: "ip"}
"""The types of entities in options, and on the wire."""
_TITLES: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}


class RefusedError(ToolError):
    """An invalid request; only its message is printed."""


def check_address(kinds: Iterable[str], names: Iterable[str]) -> None:
    """Raise ToolError for a name that is not an IP address."""
    if IPS not in kinds:
        return
    for name in names:
        try:
            if name:
                socket.getaddrinfo(name, None)
        except (OSError, UnicodeError):
            raise ToolError(
                f"The entity name for {IPS} must be a valid IP or resolvable host, but it is: {name}"
            ) from None


def check_keys(kinds: Sequence[str], names: Sequence[str], added: Collection[str], deleted: Collection[str]) -> None:
    """Raise RefusedError for keys that these entities do not have, or that exclude each other."""
    is_user = list(kinds) == [USERS]
    keys = IP_QUOTA_KEYS if IPS in kinds else [*CLIENT_QUOTA_KEYS, *(SCRAM_KEYS if is_user else ())]
    unknown_added = [key for key in added if key not in keys]
    unknown_deleted = [key for key in deleted if key not in keys]
    if IPS in kinds:
        if unknown_added or unknown_deleted:
            raise RefusedError(
                f"Only connection quota configs can be added for '{IPS}' using --bootstrap-server. "
                f"Unexpected config names: {','.join([*unknown_added, *unknown_deleted])}"
            )
        return
    kind, what = (CLIENTS, "quota") if CLIENTS in kinds else (USERS, "quota and SCRAM credential")
    for verb, unknown, collection in (("added", unknown_added, "Set"), ("deleted", unknown_deleted, "ArrayBuffer")):
        if unknown:
            raise RefusedError(
                f"Only {what} configs can be {verb} for '{kind}' using --bootstrap-server. "
                f"Unexpected config names: {collection}({', '.join(unknown)})"
            )
    credentials = {*added, *deleted}.intersection(SCRAM_KEYS)
    if credentials and "" in names:
        raise RefusedError(
            "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials using "
            "--bootstrap-server."
        )
    if credentials and credentials != {*added, *deleted}:
        raise RefusedError(
            f"Cannot alter both quota and SCRAM credential configs simultaneously for '{USERS}' using "
            "--bootstrap-server."
        )


async def describe(client: KafkaClient, kinds: Sequence[str], names: Sequence[str]) -> None:
    """Print the quotas of entities of exactly these types; a type without a name matches all."""
    any_name = [QUOTA_ENTITIES[kind] for kind in kinds[len(names) :]]
    for entry in await describe_client_quotas(client, _parts(kinds, names), any_name):
        entity = ", ".join(
            f"the default {_TITLES[kind]}" if entry.parts[kind] is None else f"{_TITLES[kind]} '{entry.parts[kind]}'"
            for kind in _TITLES
            if kind in entry.parts
        )
        quotas = ", ".join(f"{key}={value_to_text(value)}" for key, value in entry.quotas.items())
        print(f"Quota configs for {entity} are {quotas}")


async def alter(
    client: KafkaClient, kinds: Sequence[str], names: Sequence[str], added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    """Set and remove quotas. Raises RefusedError for a quota to remove that is not set."""
    parts = _parts(kinds, names)
    entries = await describe_client_quotas(client, parts)
    present = {key for entry in entries for key in entry.quotas}
    unset = [key for key in deleted if key not in present]
    if unset:
        raise RefusedError(f"Invalid config(s): {','.join(unset)}")
    changes = {key: _limit(key, text) for key, text in added.items()}
    await alter_client_quotas(client, parts, {**changes, **dict.fromkeys(deleted)})


def _limit(key: str, text: str) -> float | None:
    try:
        value = parse_value(key, ConfigType.DOUBLE, text)
    except ConfigError:
        raise RefusedError(f"Cannot parse quota configuration value for {key}: {text}") from None
    assert isinstance(value, float)
    return value


def _parts(kinds: Sequence[str], names: Sequence[str]) -> dict[str, str | None]:
    if len(names) > len(kinds):
        raise ToolError("More entity names specified than entity types")
    return {QUOTA_ENTITIES[kind]: name or None for kind, name in zip(kinds, names, strict=False)}
