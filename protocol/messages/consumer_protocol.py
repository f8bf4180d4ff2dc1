"""Messages between consumers, which the coordinator passes on without looking inside (Kafka class `ConsumerProtocol`).

Both structs lie in JoinGroup and SyncGroup behind an int16 version. A reader takes a newer version for the newest it
knows and ignores what follows: read the version, then use `decode_prefix`.
"""

from __future__ import annotations

from protocol.wire.schema import Message, Struct, field, int32, nullable_bytes, nullable_string, string


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """The subscription of a member, in the metadata of JoinGroup.

    - v1: the partitions it owns, for cooperative rebalancing (KIP-429)
    - v2: the generation in which it owned them
    - v3: rack
    """

    class TopicPartition(Struct):
        """The partitions owned of one topic."""

        topic: string
        partitions: list[int32]

    topics: list[string]
    user_data: nullable_bytes = None
    owned_partitions: list[TopicPartition] = field("1+", default=[], ignorable=True)
    generation_id: int32 = field("2+", default=-1, ignorable=True)
    rack_id: nullable_string = field("3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """The partitions that a member is to read, in the assignment of SyncGroup."""

    class TopicPartition(Struct):
        """The partitions assigned of one topic."""

        topic: string
        partitions: list[int32]

    assigned_partitions: list[TopicPartition]
    user_data: nullable_bytes = None
