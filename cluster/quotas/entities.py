"""Who has a quota: a user, a client id, both or an IP address, or all that have none of their own (KIP-13, KIP-55,
KIP-612); and which limit counts for a client (Kafka class `ClientQuotaManager`, its default callback).

In the coordination tree they are /config/users/<user>, /config/users/<user>/clients/<client-id>,
/config/clients/<client-id> and /config/ips/<address>, with names as Kafka's class `Sanitizer` writes them.

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
    """Types of what has a configuration in the tree but is no resource on the wire. The numbers are Odradek's, beside
    those of `ConfigResourceType`.
    """

    USER = -1
    CLIENT = -2
    IP = -3


class Default(Enum):
    """Stands where a name would."""

    ALL = DEFAULT_ENTITY


DEFAULT: Final = Default.ALL
Name = str | Default | None
"""A name, or all that have no quota of their own; None where an entity has no such part."""


class QuotaEntity(Value):
    """Whoever shares one limit. Those with an `ip` have no other part."""

    user: Name = None
    client_id: Name = None
    ip: Name = None

    def parts(self) -> dict[str, str | None]:
        """By their types on the wire, where the name of the default is null."""
        named = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name if isinstance(name, str) else None for kind, name in named.items() if name is not None}

    @property
    def resource(self) -> ConfigResource:
        """Where its configuration is."""
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
        """The entity whose configuration is there; None for other resources, and names that mean none."""
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
    """From types and names as `QuotaEntity.parts` gives them."""
    user, client_id, ip = (
        (DEFAULT if parts[kind] is None else parts[kind]) if kind in parts else None
        for kind in ("user", "client-id", "ip")
    )
    return QuotaEntity(user, client_id, ip)


def _node_name(name: Name) -> str:
    """As `ConfigResource` has it, to which "" is the default."""
    return sanitized(name) if isinstance(name, str) else ""


def _name(node_name: str) -> Name:
    return DEFAULT if node_name in ("", DEFAULT_ENTITY) else desanitized(node_name)


NOBODY: Final = ""


class Sharers(NamedTuple):
    """The clients that a limit is shared by: a user's, those with a client id, or both; the other part is empty.

    Each user, and each client id, has a default limit for itself.
    """

    user: str
    client_id: str


class Limits:
    """The limits of one kind of quota, by user and client id."""

    def __init__(self, limits: Mapping[tuple[Name, Name], float]) -> None:
        """A part of a key is None where the entity has no such part."""
        self._limits = limits

    def __bool__(self) -> bool:
        return bool(self._limits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limits) and self._limits == other._limits

    __hash__ = None  # type: ignore[assignment]

    def sharers(self, user: str, client_id: str) -> Sharers:
        """With whom this client shares a limit, if there is one for it."""
        limits = self._limits
        for known in (user, DEFAULT):
            if (known, client_id) in limits or (known, DEFAULT) in limits:
                return Sharers(user, client_id)
            if (known, None) in limits:
                return Sharers(user, NOBODY)
        return Sharers(NOBODY, client_id)

    def limit(self, sharers: Sharers) -> float | None:
        """The limit that they share; None where nothing limits them.

        A client without a client id has no quota of a client id, not even the default one, as in Kafka.
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
