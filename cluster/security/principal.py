"""The authenticated client of a connection (Kafka class `KafkaPrincipal`)."""

from __future__ import annotations

from typing import Final

from protocol.value import Value, field


class Principal(Value):
    """A client as access control and quotas know it; `kind` is nearly always `User`."""

    kind: str
    name: str
    has_token: bool = field(default=False, compare=False)
    """Whether the client authenticated with a delegation token."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""A client that has not authenticated."""
