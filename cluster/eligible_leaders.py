"""Replicas outside the ISR that may lead because they hold every committed record (KIP-966)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.value import Value, field

_NOBODY = -1
ELR, LAST_KNOWN_LEADER, BROKER_EPOCHS = "elr", "last_known_leader", "broker_epochs"
"""Odradek's extra keys in a partition's state. Kafka ignores them, and drops them when it rewrites the state."""


class EligibleLeaders(Value):
    """Extra state of a partition without a leader, or with an ISR smaller than min.insync.replicas.

    `replicas` have left the ISR, but nothing was committed since: a leader commits nothing while the state has these
    fields. `last_known_leader` is the broker that led last. `epochs` maps each member of the ISR and of `replicas` to
    the broker epoch it had then: after a restart, that broker may have lost the end of its log.
    """

    replicas: tuple[int, ...] = ()
    last_known_leader: int = _NOBODY
    epochs: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))

    def encode(self) -> str:
        """The keys and values, without the braces of a JSON object."""
        values = {
            ELR: list(self.replicas),
            LAST_KNOWN_LEADER: self.last_known_leader,
            BROKER_EPOCHS: {str(broker_id): epoch for broker_id, epoch in self.epochs.items()},
        }
        return json.dumps(values, separators=(",", ":"))[1:-1]

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> EligibleLeaders | None:
        """Parse them from a JSON object, or return None if it lacks them."""
        if ELR not in value:
            return None
        epochs = {int(broker_id): int(epoch) for broker_id, epoch in value.get(BROKER_EPOCHS, {}).items()}
        return cls(tuple(map(int, value[ELR])), int(value.get(LAST_KNOWN_LEADER, _NOBODY)), epochs)

    @classmethod
    def for_leader(cls, replicas: Iterable[int] | None) -> EligibleLeaders | None:
        """Build the part that a leader receives: the eligible replicas, if any."""
        return None if replicas is None else cls(tuple(replicas))
