"""Metadata and DescribeCluster: the brokers, and the leaders of partitions."""

from __future__ import annotations

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
    nullable_string,
    string,
    uuid,
)


class MetadataRequest(Request, api_key=ApiKey.METADATA, versions="0-12"):
    """Topics to describe: null for all (in v0, an empty list), empty for none.

    - v4: whether a missing topic may be created
    - v8: whether to include authorized operations
    - v9: flexible
    - v10: topic ids and null names can be written; brokers accept them from v12 on (KIP-516)
    - v11: cluster authorized operations removed; DescribeCluster has them (KIP-700)
    """

    class MetadataRequestTopic(Struct):
        """A topic by name, or by id when the name is null."""

        topic_id: uuid = field("10+", default=ZERO_UUID, ignorable=True)
        name: nullable_string = field(nullable="10+")

    topics: list[MetadataRequestTopic] | None = field(nullable="1+")
    allow_auto_topic_creation: boolean = field("4+", default=True)
    include_cluster_authorized_operations: boolean = field("8-10", default=False)
    include_topic_authorized_operations: boolean = field("8+", default=False)


class MetadataResponse(Response, api_key=ApiKey.METADATA, versions="0-12"):
    """The cluster as this broker knows it.

    - v1: controller, racks, internal topics
    - v2: cluster id
    - v3: throttle time
    - v5: offline replicas
    - v7: leader epochs
    - v8: authorized operations, as a bit field; -2^31 if not requested
    - v9: flexible
    - v10: topic ids (KIP-516)
    - v12: a topic requested by an unknown id has a null name
    """

    class MetadataResponseBroker(Struct):
        """A broker and its address on the listener of this connection."""

        node_id: int32
        host: string
        port: int32
        rack: nullable_string = field("1+", default=None, ignorable=True)

    class MetadataResponsePartition(Struct):
        """One partition; its leader is -1 if it has none."""

        error_code: int16
        partition_index: int32
        leader_id: int32
        leader_epoch: int32 = field("7+", default=-1, ignorable=True)
        replica_nodes: list[int32]
        isr_nodes: list[int32]
        offline_replicas: list[int32] = field("5+", default=[], ignorable=True)

    class MetadataResponseTopic(Struct):
        """One topic with all its partitions."""

        error_code: int16
        name: nullable_string = field(nullable="12+")
        topic_id: uuid = field("10+", default=ZERO_UUID, ignorable=True)
        is_internal: boolean = field("1+", default=False, ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition]
        topic_authorized_operations: int32 = field("8+", default=-0x80000000)

    throttle_time_ms: int32 = field("3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker]
    cluster_id: nullable_string = field("2+", default=None, ignorable=True)
    controller_id: int32 = field("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: int32 = field("8-10", default=-0x80000000)


class DescribeClusterRequest(Request, api_key=ApiKey.DESCRIBE_CLUSTER, versions="0-1"):
    """Asks for brokers and controller (KIP-700).

    - v1: whether brokers (1) or controllers (2) are meant (KIP-919)
    """

    include_cluster_authorized_operations: boolean
    endpoint_type: int8 = field("1+", default=1)


class DescribeClusterResponse(Response, api_key=ApiKey.DESCRIBE_CLUSTER, versions="0-1"):
    """The brokers and the controller.

    - v1: what kind of nodes are listed (KIP-919)
    """

    class DescribeClusterBroker(Struct):
        """A broker and its address on the listener of this connection."""

        broker_id: int32
        host: string
        port: int32
        rack: nullable_string = None

    throttle_time_ms: int32
    error_code: int16
    error_message: nullable_string = None
    endpoint_type: int8 = field("1+", default=1)
    cluster_id: string
    controller_id: int32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: int32 = -0x80000000
