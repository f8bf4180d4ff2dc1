"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

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
    int64,
    nullable_string,
    string,
    uuid,
)


class CreateTopicsRequest(Request, api_key=ApiKey.CREATE_TOPICS, versions="0-7"):
    """Topics to create; from v4 on, -1 partitions or replicas mean the broker's defaults (KIP-464).

    - v1: validate without creating
    - v5: flexible
    """

    class CreatableReplicaAssignment(Struct):
        """The brokers of one partition, the preferred leader first."""

        partition_index: int32
        broker_ids: list[int32]

    class CreatableTopicConfig(Struct):
        """One configuration override."""

        name: string
        value: nullable_string

    class CreatableTopic(Struct):
        """A topic, either with counts or, both counts being -1, with assignments."""

        name: string
        num_partitions: int32
        replication_factor: int16
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment]
        configs: list[CreateTopicsRequest.CreatableTopicConfig]

    topics: list[CreatableTopic]
    timeout_ms: int32 = 60000
    validate_only: boolean = field("1+", default=False)


class CreateTopicsResponse(Response, api_key=ApiKey.CREATE_TOPICS, versions="0-7"):
    """The created topics, or errors.

    - v1: error message
    - v2: throttle time
    - v5: flexible; partitions, replicas and configuration of the new topic (KIP-525)
    - v7: topic id (KIP-516)
    """

    class CreatableTopicConfigs(Struct):
        """One configuration value of the new topic and its source."""

        name: string
        value: nullable_string
        read_only: boolean
        config_source: int8 = -1
        is_sensitive: boolean

    class CreatableTopicResult(Struct):
        """The outcome for one topic; `configs` is null if the client may not see them."""

        name: string
        topic_id: uuid = field("7+", default=ZERO_UUID, ignorable=True)
        error_code: int16
        error_message: nullable_string = field("1+", default=None, ignorable=True)
        topic_config_error_code: int16 = field("5+", tag=0, default=0, ignorable=True)
        num_partitions: int32 = field("5+", default=-1, ignorable=True)
        replication_factor: int16 = field("5+", default=-1, ignorable=True)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = field("5+", default=[], ignorable=True)

    throttle_time_ms: int32 = field("2+", default=0, ignorable=True)
    topics: list[CreatableTopicResult]


class DeleteTopicsRequest(Request, api_key=ApiKey.DELETE_TOPICS, versions="0-6"):
    """Topics to delete.

    - v4: flexible
    - v6: by name or id (KIP-516)
    """

    class DeleteTopicState(Struct):
        """A topic by name, or by id when the name is null."""

        name: nullable_string = None
        topic_id: uuid

    topics: list[DeleteTopicState] = field("6+", default=[])
    topic_names: list[string] = field("0-5", default=[], ignorable=True)
    timeout_ms: int32


class DeleteTopicsResponse(Response, api_key=ApiKey.DELETE_TOPICS, versions="0-6"):
    """The outcome per topic.

    - v1: throttle time
    - v4: flexible
    - v5: error message
    - v6: topic id, and a null name if only the id is known
    """

    class DeletableTopicResult(Struct):
        """The outcome for one topic."""

        name: nullable_string = field(nullable="6+")
        topic_id: uuid = field("6+", default=ZERO_UUID, ignorable=True)
        error_code: int16
        error_message: nullable_string = field("5+", default=None, ignorable=True)

    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    responses: list[DeletableTopicResult]


class CreatePartitionsRequest(Request, api_key=ApiKey.CREATE_PARTITIONS, versions="0-3"):
    """Topics to grow (KIP-195).

    - v2: flexible
    """

    class CreatePartitionsAssignment(Struct):
        """The brokers of one new partition."""

        broker_ids: list[int32]

    class CreatePartitionsTopic(Struct):
        """A topic and its new total of partitions; with null assignments the controller places the replicas."""

        name: string
        count: int32
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None

    topics: list[CreatePartitionsTopic]
    timeout_ms: int32
    validate_only: boolean


class CreatePartitionsResponse(Response, api_key=ApiKey.CREATE_PARTITIONS, versions="0-3"):
    """The outcome per topic.

    - v2: flexible
    - v3: THROTTLING_QUOTA_EXCEEDED may be returned (KIP-599)
    """

    class CreatePartitionsTopicResult(Struct):
        """The outcome for one topic."""

        name: string
        error_code: int16
        error_message: nullable_string = None

    throttle_time_ms: int32
    results: list[CreatePartitionsTopicResult]


class DeleteRecordsRequest(Request, api_key=ApiKey.DELETE_RECORDS, versions="0-2"):
    """Partitions whose log start to move up (KIP-107).

    - v2: flexible
    """

    class DeleteRecordsPartition(Struct):
        """The new log start of one partition; -1 for its high watermark."""

        partition_index: int32
        offset: int64

    class DeleteRecordsTopic(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition]

    topics: list[DeleteRecordsTopic]
    timeout_ms: int32


class DeleteRecordsResponse(Response, api_key=ApiKey.DELETE_RECORDS, versions="0-2"):
    """The outcome per partition.

    - v2: flexible
    """

    class DeleteRecordsPartitionResult(Struct):
        """The new log start of one partition; -1 with an error."""

        partition_index: int32
        low_watermark: int64
        error_code: int16

    class DeleteRecordsTopicResult(Struct):
        """The partitions of one topic."""

        name: string
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult]

    throttle_time_ms: int32
    topics: list[DeleteRecordsTopicResult]
