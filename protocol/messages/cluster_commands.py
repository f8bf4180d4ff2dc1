"""LeaderAndIsr, StopReplica and UpdateMetadata, which a controller in ZooKeeper mode sends to brokers."""

from __future__ import annotations

from typing import ClassVar

from protocol.api_keys import ApiKey
from protocol.uuids import ZERO_UUID
from protocol.wire.schema import (
    Request,
    Response,
    Struct,
    boolean,
    field,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    string,
    uuid,
)
from protocol.wire.wire_types import MAX_ELEMENTS


class LeaderAndIsrRequest(Request, api_key=ApiKey.LEADER_AND_ISR, versions="0-7"):
    """Assigns leader and follower roles to a broker.

    - v1: whether a replica begins with this request
    - v2: broker epoch (KIP-380); partitions by topic
    - v3: the replicas that a reassignment adds and removes (KIP-455)
    - v4: flexible
    - v5: topic ids; whether these are all partitions of the broker (KIP-516)
    - v6: leader recovery state (KIP-704)
    - v7: whether the controller is one of KRaft (KIP-866)
    """

    max_elements: ClassVar[int] = MAX_ELEMENTS

    class LeaderAndIsrPartitionState(Struct):
        """One partition. `partition_epoch` is the version of its state znode. `eligible_leader_replicas` is Odradek's,
        only for Odradek brokers.
        """

        topic_name: string = field("0-1", default="", ignorable=True)
        partition_index: int32
        controller_epoch: int32
        leader: int32
        leader_epoch: int32
        isr: list[int32]
        partition_epoch: int32
        replicas: list[int32]
        adding_replicas: list[int32] = field("3+", default=[], ignorable=True)
        removing_replicas: list[int32] = field("3+", default=[], ignorable=True)
        is_new: boolean = field("1+", default=False, ignorable=True)
        leader_recovery_state: int8 = field("6+", default=0)
        eligible_leader_replicas: list[int32] | None = field("6+", tag=966, nullable="6+", default=None)

    class LeaderAndIsrTopicState(Struct):
        """Partitions of one topic."""

        topic_name: string = field("2+", default="")
        topic_id: uuid = field("5+", default=ZERO_UUID, ignorable=True)
        partition_states: list[LeaderAndIsrRequest.LeaderAndIsrPartitionState] = field("2+", default=[])

    class LeaderAndIsrLiveLeader(Struct):
        """The address of a leader."""

        broker_id: int32
        host_name: string
        port: int32

    controller_id: int32
    is_kraft_controller: boolean = field("7+", default=False)
    controller_epoch: int32
    broker_epoch: int64 = field("2+", default=-1, ignorable=True)
    type: int8 = field("5+", default=0)
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = field("0-1", default=[])
    topic_states: list[LeaderAndIsrTopicState] = field("2+", default=[])
    live_leaders: list[LeaderAndIsrLiveLeader]


class LeaderAndIsrResponse(Response, api_key=ApiKey.LEADER_AND_ISR, versions="0-7"):
    """The result of the role changes.

    - v1: KAFKA_STORAGE_ERROR may be returned
    - v4: flexible
    - v5: partitions by topic id (KIP-516)
    """

    class LeaderAndIsrPartitionError(Struct):
        """The error of one partition, 0 on success."""

        topic_name: string = field("0-4", default="", ignorable=True)
        partition_index: int32
        error_code: int16

    class LeaderAndIsrTopicError(Struct):
        """The partitions of one topic."""

        topic_id: uuid = field("5+", default=ZERO_UUID)
        partition_errors: list[LeaderAndIsrResponse.LeaderAndIsrPartitionError] = field("5+", default=[])

    error_code: int16
    partition_errors: list[LeaderAndIsrPartitionError] = field("0-4", default=[])
    topics: list[LeaderAndIsrTopicError] = field("5+", default=[])


class StopReplicaRequest(Request, api_key=ApiKey.STOP_REPLICA, versions="0-4"):
    """Replicas that a broker must stop, and may have to delete.

    - v1: broker epoch (KIP-380); partitions by topic
    - v2: flexible
    - v3: leader epoch, and whether to delete, of each partition (KIP-570)
    - v4: whether the controller is one of KRaft (KIP-866)
    """

    max_elements: ClassVar[int] = MAX_ELEMENTS

    class StopReplicaPartitionV0(Struct):
        """One partition."""

        topic_name: string = field("0", default="")
        partition_index: int32 = field("0", default=0)

    class StopReplicaTopicV1(Struct):
        """Partitions of one topic."""

        name: string = field("1-2", default="")
        partition_indexes: list[int32] = field("1-2", default=[])

    class StopReplicaPartitionState(Struct):
        """One partition. Leader epoch -1 is not checked, -2 belongs to a topic that is deleted."""

        partition_index: int32 = field("3+", default=0)
        leader_epoch: int32 = field("3+", default=-1)
        delete_partition: boolean = field("3+", default=False)

    class StopReplicaTopicState(Struct):
        """Partitions of one topic."""

        topic_name: string = field("3+", default="")
        partition_states: list[StopReplicaRequest.StopReplicaPartitionState] = field("3+", default=[])

    controller_id: int32
    is_kraft_controller: boolean = field("4+", default=False)
    controller_epoch: int32
    broker_epoch: int64 = field("1+", default=-1, ignorable=True)
    delete_partitions: boolean = field("0-2", default=False)
    ungrouped_partitions: list[StopReplicaPartitionV0] = field("0", default=[])
    topics: list[StopReplicaTopicV1] = field("1-2", default=[])
    topic_states: list[StopReplicaTopicState] = field("3+", default=[])


class StopReplicaResponse(Response, api_key=ApiKey.STOP_REPLICA, versions="0-4"):
    """The result for the replicas.

    - v2: flexible
    - v3: FENCED_LEADER_EPOCH may be returned (KIP-570)
    """

    class StopReplicaPartitionError(Struct):
        """The error of one partition, 0 on success."""

        topic_name: string
        partition_index: int32
        error_code: int16

    error_code: int16
    partition_errors: list[StopReplicaPartitionError]


class UpdateMetadataRequest(Request, api_key=ApiKey.UPDATE_METADATA, versions="0-8"):
    """Metadata for a broker to serve to its clients: all live brokers, and the changed partitions.

    - v1: several endpoints of a broker
    - v2: rack (KIP-36)
    - v3: listener names (KIP-103)
    - v4: offline replicas (KIP-112)
    - v5: broker epoch (KIP-380); partitions by topic
    - v6: flexible
    - v7: topic ids (KIP-516)
    - v8: whether the controller is one of KRaft, and what kind of update it sends (KIP-866)
    """

    max_elements: ClassVar[int] = MAX_ELEMENTS

    class UpdateMetadataPartitionState(Struct):
        """One partition; its leader is -1 without a leader, and -2 when the partition is deleted."""

        topic_name: string = field("0-4", default="", ignorable=True)
        partition_index: int32
        controller_epoch: int32
        leader: int32
        leader_epoch: int32
        isr: list[int32]
        zk_version: int32
        replicas: list[int32]
        offline_replicas: list[int32] = field("4+", default=[], ignorable=True)

    class UpdateMetadataTopicState(Struct):
        """Partitions of one topic."""

        topic_name: string = field("5+", default="")
        topic_id: uuid = field("7+", default=ZERO_UUID, ignorable=True)
        partition_states: list[UpdateMetadataRequest.UpdateMetadataPartitionState] = field("5+", default=[])

    class UpdateMetadataEndpoint(Struct):
        """The address of one listener. Security protocols: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

        port: int32 = field("1+", default=0)
        host: string = field("1+", default="")
        listener: string = field("3+", default="", ignorable=True)
        security_protocol: int16 = field("1+", default=0)

    class UpdateMetadataBroker(Struct):
        """A live broker."""

        id: int32
        v0_host: string = field("0", default="", ignorable=True)
        v0_port: int32 = field("0", default=0, ignorable=True)
        endpoints: list[UpdateMetadataRequest.UpdateMetadataEndpoint] = field("1+", default=[], ignorable=True)
        rack: nullable_string = field("2+", default="", ignorable=True)

    controller_id: int32
    is_kraft_controller: boolean = field("8+", default=False)
    type: int8 = field("8+", tag=0, default=0)
    controller_epoch: int32
    broker_epoch: int64 = field("5+", default=-1, ignorable=True)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = field("0-4", default=[])
    topic_states: list[UpdateMetadataTopicState] = field("5+", default=[])
    live_brokers: list[UpdateMetadataBroker]


class UpdateMetadataResponse(Response, api_key=ApiKey.UPDATE_METADATA, versions="0-8"):
    """Whether the broker accepted the metadata.

    - v6: flexible
    """

    error_code: int16
