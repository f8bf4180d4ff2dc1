"""The SCRAM mechanisms with their numbers in requests (Kafka class `ScramMechanism`; KIP-554)."""

from __future__ import annotations

from typing import Final

MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
