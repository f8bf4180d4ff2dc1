"""Codec of the data that group members exchange in JoinGroup and SyncGroup (Kafka class `ConsumerProtocol`).

A reader takes a newer version for the newest that it knows, and ignores what follows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, TypeVar

from client.assignors import Subscription
from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.topic_partition import TopicPartition, by_topic
from protocol.wire.schema import Message, encode_versioned

M = TypeVar("M", bound=Message)

_VERSION: Final = struct.Struct(">h")


def _decode(message_type: type[M], data: bytes) -> M | None:
    """None for no data, which is what a member without partitions may be given. Raises DecodeError."""
    if len(data) < _VERSION.size:
        return None
    version = min(_VERSION.unpack_from(data)[0], message_type.max_version)
    return message_type.decode_prefix(memoryview(data)[_VERSION.size :], version)[0]


def encode_subscription(
    topics: Iterable[str], owned: Iterable[TopicPartition] = (), generation: int = -1, rack: str | None = None
) -> bytes:
    """Encode the topics that a member wants and the partitions that it owns since `generation`."""
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(sorted(owned)).items()
        ],
        generation_id=generation,
        rack_id=rack,
    )
    return encode_versioned(message, message.max_version)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Decode a subscription, written by any client. Raises DecodeError."""
    message = _decode(ConsumerProtocolSubscription, data)
    if message is None:
        return Subscription((), instance_id=instance_id)
    owned = tuple(
        TopicPartition(each.topic, partition) for each in message.owned_partitions for partition in each.partitions
    )
    return Subscription(tuple(message.topics), owned, message.generation_id, instance_id)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the partitions that a member is to read."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=each)
            for topic, each in by_topic(sorted(partitions)).items()
        ]
    )
    return encode_versioned(message, message.max_version)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode an assignment, written by any client. Raises DecodeError."""
    message = _decode(ConsumerProtocolAssignment, data)
    if message is None:
        return []
    return [
        TopicPartition(each.topic, partition) for each in message.assigned_partitions for partition in each.partitions
    ]
