"""Whom a connection belongs to (Kafka class `KafkaPrincipal`)."""

from __future__ import annotations

from typing import Final

from protocol.value import Value


class Principal(Value):
    """A client as access control and quotas know it; `kind` is nearly always `User`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""A client that has not said who it is."""
