"""Which security a cluster was started with (`--tls`, `--sasl`)."""

from __future__ import annotations

from typing import Final

from protocol.value import Value

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Those that know users by a name and a password."""


class ClusterSecurity(Value):
    """Of the one listener that a broker has, for clients and other brokers. `mechanism` is None without SASL."""

    has_tls: bool = False
    mechanism: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is any."""
        return self.has_tls or self.mechanism is not None

    @property
    def protocol(self) -> str:
        """Kafka's name of it, which is the listener's name too."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.has_tls else "PLAINTEXT")

    @property
    def is_scram(self) -> bool:
        """Whether users are kept in the coordination tree."""
        return self.mechanism is not None and self.mechanism.startswith("SCRAM")

    @property
    def title(self) -> str:
        """As messages name it, by the options of the command."""
        options = [*(["--tls"] if self.has_tls else []), *([f"--sasl {self.mechanism}"] if self.mechanism else [])]
        return " ".join(options) or "neither --tls nor --sasl"
