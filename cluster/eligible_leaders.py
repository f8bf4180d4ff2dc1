"""Replicas that may lead though they are not in sync, because they have every committed record (KIP-966)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.value import Value, field

_NOBODY = -1
ELR, LAST_KNOWN_LEADER, BROKER_EPOCHS = "elr", "last_known_leader", "broker_epochs"
"""Odradek's own keys in the state of a partition. Kafka ignores them, and drops them when it writes the state."""


class EligibleLeaders(Value):
    """Facts that a partition has besides its ISR, while that is smaller than min.insync.replicas or nobody leads.

    `replicas` left the ISR then, and what is committed has not changed since: a leader commits nothing as long as the
    state has this. `last_known_leader` led last. `epochs`, by broker, are those of the registrations that the members
    of the ISR and of `replicas` had: a later life of a broker may have lost the end of its log.
    """

    replicas: tuple[int, ...] = ()
    last_known_leader: int = _NOBODY
    epochs: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    def encode(self) -> str:
        """The keys and their values, as they stand in a JSON object."""
        values = {
            ELR: list(self.replicas),
            LAST_KNOWN_LEADER: self.last_known_leader,
            BROKER_EPOCHS: {str(broker_id): epoch for broker_id, epoch in self.epochs.items()},
        }
        return json.dumps(values, separators=(",", ":"))[1:-1]

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> EligibleLeaders | None:
        """From a JSON object; None when it does not have them."""
        if ELR not in value:
            return None
        epochs = {int(broker_id): int(epoch) for broker_id, epoch in value.get(BROKER_EPOCHS, {}).items()}
        return cls(tuple(map(int, value[ELR])), int(value.get(LAST_KNOWN_LEADER, _NOBODY)), epochs)

    @classmethod
    def told(cls, replicas: Iterable[int] | None) -> EligibleLeaders | None:
        """As much of it as a leader is told; None for nothing."""
        return None if replicas is None else cls(tuple(replicas))
