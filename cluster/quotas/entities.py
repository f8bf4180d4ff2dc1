"""Quota entities: a user, a client id, both, an IP address, or the defaults (KIP-13, KIP-55, KIP-612); and which limit
applies to a client (Kafka class `ClientQuotaManager`, its default callback).

Their znodes are /config/users/<user>, /config/users/<user>/clients/<client-id>, /config/clients/<client-id> and
/config/ips/<address>, with names encoded by Kafka's class `Sanitizer`.

From the most to the least specific: user and client id, user and default client id, user, default user and client id,
both defaults, default user, client id, default client id.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from cluster.metadata_image import ConfigResource
from cluster.security.sanitizer import desanitized, sanitized
from cluster.znodes import DEFAULT_ENTITY
from protocol.value import Value

_CLIENTS: Final = "/clients/"


class EntityType(IntEnum):
    """Entities with a configuration in the tree that are not a ConfigResourceType of the protocol. The numbers are
    Odradek's, distinct from those of `ConfigResourceType`.
    """

    USER = -1
    CLIENT = -2
    IP = -3


class Default(Enum):
    """Replaces a name for the default entity."""

    ALL = DEFAULT_ENTITY


DEFAULT: Final = Default.ALL
Name = str | Default | None
"""A name or the default, or None if an entity lacks that part."""


class QuotaEntity(Value):
    """The key of a limit. An entity with an `ip` must not have other parts."""

    user: Name = None
    client_id: Name = None
    ip: Name = None

    def parts(self) -> dict[str, str | None]:
        """Names by entity type, as in the protocol, with null for the default."""
        named = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name if isinstance(name, str) else None for kind, name in named.items() if name is not None}

    @property
    def resource(self) -> ConfigResource:
        """The resource with its configuration."""
        if self.ip is not None:
            return int(EntityType.IP), _node_name(self.ip)
        if self.user is None:
            return int(EntityType.CLIENT), _node_name(self.client_id)
        if self.client_id is None:
            return int(EntityType.USER), _node_name(self.user)
        user, client_id = (_node_name(name) or DEFAULT_ENTITY for name in (self.user, self.client_id))
        return int(EntityType.USER), f"{user}{_CLIENTS}{client_id}"

    @classmethod
    def of(cls, resource: ConfigResource) -> QuotaEntity | None:
        """The entity of a resource, or None if the resource or its name does not denote one."""
        kind, name = resource
        if kind == EntityType.IP:
            return cls(ip=_name(name))
        if kind == EntityType.CLIENT:
            return cls(client_id=_name(name))
        if kind != EntityType.USER:
            return None
        user, slash, rest = name.partition("/")
        if not slash:
            return cls(user=_name(user))
        client_id = rest.removeprefix(_CLIENTS[1:])
        if client_id == rest or not client_id or "/" in client_id:
            return None
        return cls(user=_name(user), client_id=_name(client_id))


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The inverse of `QuotaEntity.parts`."""
    user, client_id, ip = (
        (DEFAULT if parts[kind] is None else parts[kind]) if kind in parts else None
        for kind in ("user", "client-id", "ip")
    )
    return QuotaEntity(user, client_id, ip)


def _node_name(name: Name) -> str:
    """The name in a `ConfigResource`, with "" for the default."""
    return sanitized(name) if isinstance(name, str) else ""


def _name(node_name: str) -> Name:
    return DEFAULT if node_name in ("", DEFAULT_ENTITY) else desanitized(node_name)


NOBODY: Final = ""


class Sharers(NamedTuple):
    """The clients that share a limit: those of a user, with a client id, or both; the other part is empty.

    A default limit applies to each user, or client id, separately.
    """

    user: str
    client_id: str


class QuotaLimits:
    """The limits of one kind of quota, by user and client id."""

    def __init__(self, limits: Mapping[tuple[Name, Name], float]) -> None:
        """Keys are (user, client id), with None if the entity lacks that part."""
        self._limits = limits

    def __bool__(self) -> bool:
        return bool(self._limits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuotaLimits) and self._limits == other._limits

    __hash__ = None  # type: ignore[assignment]

    def sharers(self, user: str, client_id: str) -> Sharers:
        """The key of the limit that this client shares, if it has one."""
        limits = self._limits
        for known in (user, DEFAULT):
            if (known, client_id) in limits or (known, DEFAULT) in limits:
                return Sharers(user, client_id)
            if (known, None) in limits:
                return Sharers(user, NOBODY)
        return Sharers(NOBODY, client_id)

    def limit(self, sharers: Sharers) -> float | None:
        """The shared limit, or None for unlimited.

        As in Kafka, a client without a client id does not get any client id quota, not even the default.
        """
        user, client_id = sharers
        candidates: tuple[tuple[Name, Name], ...]
        if user and client_id:
            candidates = ((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT))
        elif user:
            candidates = ((user, None), (DEFAULT, None))
        elif client_id:
            candidates = ((None, client_id), (None, DEFAULT))
        else:
            return None
        return next((self._limits[each] for each in candidates if each in self._limits), None)
