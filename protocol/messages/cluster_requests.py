"""Requests of brokers to their controller: ControlledShutdown, AlterPartition and AllocateProducerIds."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.uuids import ZERO_UUID
from protocol.wire.schema import Request, Response, Struct, field, int8, int16, int32, int64, string, uuid


class ControlledShutdownRequest(Request, api_key=ApiKey.CONTROLLED_SHUTDOWN, versions="0-3"):
    """A broker wants to stop: the controller moves its leaderships to other brokers.

    - v1: the client id is in the header
    - v2: broker epoch (KIP-380)
    - v3: flexible
    """

    broker_id: int32
    broker_epoch: int64 = field("2+", default=-1, ignorable=True)


class ControlledShutdownResponse(Response, api_key=ApiKey.CONTROLLED_SHUTDOWN, versions="0-3"):
    """The partitions that the broker still leads; it may stop when the list is empty.

    - v3: flexible
    """

    class RemainingPartition(Struct):
        """A partition that could not get another leader."""

        topic_name: string
        partition_index: int32

    error_code: int16
    remaining_partitions: list[RemainingPartition]


class AlterPartitionRequest(Request, api_key=ApiKey.ALTER_PARTITION, versions="0-3"):
    """ISR changes that leaders request (KIP-497).

    - v1: leader recovery state (KIP-704)
    - v2: topic ids instead of names (KIP-841)
    - v3: the epochs of the brokers in the ISR (KIP-903)
    """

    class BrokerState(Struct):
        """An in-sync replica; broker epoch -1 is not checked."""

        broker_id: int32 = field("3+", default=0)
        broker_epoch: int64 = field("3+", default=-1)

    class PartitionData(Struct):
        """One partition. `partition_epoch` is the epoch that the change is based on."""

        partition_index: int32
        leader_epoch: int32
        new_isr: list[int32] = field("0-2", default=[])
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = field("3+", default=[])
        leader_recovery_state: int8 = field("1+", default=0)
        partition_epoch: int32

    class TopicData(Struct):
        """The partitions of one topic."""

        topic_name: string = field("0-1", default="", ignorable=True)
        topic_id: uuid = field("2+", default=ZERO_UUID, ignorable=True)
        partitions: list[AlterPartitionRequest.PartitionData]

    broker_id: int32
    broker_epoch: int64 = -1
    topics: list[TopicData]


class AlterPartitionResponse(Response, api_key=ApiKey.ALTER_PARTITION, versions="0-3"):
    """The resulting partition states.

    - v1: leader recovery state (KIP-704)
    - v2: topic ids; INELIGIBLE_REPLICA, NEW_LEADER_ELECTED and UNKNOWN_TOPIC_ID may be returned (KIP-841)
    """

    class PartitionData(Struct):
        """One partition; with an error, it is unchanged. `eligible_leader_replicas` is Odradek's, only for Odradek
        brokers.
        """

        partition_index: int32
        error_code: int16
        leader_id: int32
        leader_epoch: int32
        isr: list[int32]
        leader_recovery_state: int8 = field("1+", default=0, ignorable=True)
        partition_epoch: int32
        eligible_leader_replicas: list[int32] | None = field("0+", tag=966, nullable="0+", default=None)

    class TopicData(Struct):
        """The partitions of one topic."""

        topic_name: string = field("0-1", default="", ignorable=True)
        topic_id: uuid = field("2+", default=ZERO_UUID, ignorable=True)
        partitions: list[AlterPartitionResponse.PartitionData]

    throttle_time_ms: int32
    error_code: int16
    topics: list[TopicData]


class AllocateProducerIdsRequest(Request, api_key=ApiKey.ALLOCATE_PRODUCER_IDS, versions="0"):
    """Asks for a block of producer ids (KIP-730)."""

    broker_id: int32
    broker_epoch: int64 = -1


class AllocateProducerIdsResponse(Response, api_key=ApiKey.ALLOCATE_PRODUCER_IDS, versions="0"):
    """A block of producer ids, exclusive to this broker."""

    throttle_time_ms: int32
    error_code: int16
    producer_id_start: int64
    producer_id_len: int32
