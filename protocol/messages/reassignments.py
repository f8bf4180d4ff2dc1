"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455), ElectLeaders (KIP-460)."""

from __future__ import annotations

from enum import IntEnum

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, field, int8, int16, int32, nullable_string, string


class AlterPartitionReassignmentsRequest(Request, api_key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0"):
    """Partitions to reassign."""

    class ReassignablePartition(Struct):
        """The target replicas of a partition; null cancels its reassignment."""

        partition_index: int32
        replicas: list[int32] | None = field(default=None)

    class ReassignableTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition]

    timeout_ms: int32 = field(default=60_000)
    topics: list[ReassignableTopic]


class AlterPartitionReassignmentsResponse(Response, api_key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0"):
    """Whether each reassignment was started."""

    class ReassignablePartitionResponse(Struct):
        """One partition."""

        partition_index: int32
        error_code: int16
        error_message: nullable_string = field(default=None)

    class ReassignableTopicResponse(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]

    throttle_time_ms: int32
    error_code: int16
    error_message: nullable_string
    responses: list[ReassignableTopicResponse]


class ListPartitionReassignmentsRequest(Request, api_key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0"):
    """The partitions to list; null for all."""

    class ListPartitionReassignmentsTopics(Struct):
        """The partitions of one topic."""

        name: string
        partition_indexes: list[int32]

    timeout_ms: int32 = field(default=60_000)
    topics: list[ListPartitionReassignmentsTopics] | None


class ListPartitionReassignmentsResponse(Response, api_key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0"):
    """The ongoing reassignments."""

    class OngoingPartitionReassignment(Struct):
        """One partition with its replicas by broker id."""

        partition_index: int32
        replicas: list[int32]
        adding_replicas: list[int32]
        removing_replicas: list[int32]

    class OngoingTopicReassignment(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]

    throttle_time_ms: int32
    error_code: int16
    error_message: nullable_string
    topics: list[OngoingTopicReassignment]


class ElectionType(IntEnum):
    """The type of election (Kafka class `ElectionType`)."""

    PREFERRED = 0
    """The first replica of the assignment, if it is in sync."""
    UNCLEAN = 1
    """The first live replica of a partition without a leader, in sync or not."""


class ElectLeadersRequest(Request, api_key=ApiKey.ELECT_LEADERS, versions="0-2"):
    """The partitions to elect leaders of; null for all. `election_type` is a number of `ElectionType`."""

    class TopicPartitions(Struct):
        """Partitions of one topic."""

        topic: string
        partitions: list[int32]

    election_type: int8 = field("1+", default=0)
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: int32 = field(default=60_000)


class ElectLeadersResponse(Response, api_key=ApiKey.ELECT_LEADERS, versions="0-2"):
    """The outcome per partition."""

    class PartitionResult(Struct):
        """One partition."""

        partition_id: int32
        error_code: int16
        error_message: nullable_string

    class ReplicaElectionResult(Struct):
        """The partitions of one topic."""

        topic: string
        partition_result: list[ElectLeadersResponse.PartitionResult]

    throttle_time_ms: int32
    error_code: int16 = field("1+", default=0)
    replica_election_results: list[ReplicaElectionResult]
