"""Whom a connection belongs to (Kafka class `KafkaPrincipal`)."""

from __future__ import annotations

from typing import Final

from protocol.value import Value, field


class Principal(Value):
    """A client as access control and quotas know it; `kind` is nearly always `User`."""

    kind: str
    name: str
    has_token: bool = field(default=False, compare=False)
    """Whether it was a delegation token that said who the client is."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""A client that has not said who it is."""
