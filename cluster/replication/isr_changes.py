"""Changes of the in-sync replicas that a leader asks its controller for (KIP-497)."""

from __future__ import annotations

from typing import Final

from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from protocol.value import Value

UNKNOWN_BROKER_EPOCH: Final = -1
"""The leader has not heard of the broker in this epoch; its incarnation is not checked."""

NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller tells that it has not applied the change, and that no other will: the leader's partition epoch is the
right one, and the epochs of controllers only rise.
"""

SUPERSEDED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The leader knows something old, or was never told. Whether the change was applied is not known: it stays pending
until the controller sends the leader its role again. Every other error is passing: the same change is sent once more.
"""


class IsrChange(Value, eq=False):
    """The in-sync replicas that a partition is to have, with the epochs of their brokers' registrations.

    It is applied only while the partition has this leader epoch and this partition epoch. To send it twice does no
    harm. Two are never equal, so that an answer is matched with the very change that was asked for.
    """

    topic_partition: TopicPartition
    topic_id: Uuid
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch), the epoch -1 when it is not known."""
    leader_recovery_state: int = 0

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers in `new_isr`."""
        return tuple(broker_id for broker_id, _ in self.new_isr)
