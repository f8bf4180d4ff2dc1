"""Which limit counts for a client, and who shares it (Kafka class `ClientQuotaManager`, its default callback).

From the most to the least specific: user and client id, user and default client id, user, default user and client id,
both defaults, default user, client id, default client id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cluster.quotas.entities import DEFAULT, Name

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
