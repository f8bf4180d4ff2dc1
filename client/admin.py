"""Administration: topics, configurations, records, log directories, offsets by time (Kafka class `KafkaAdminClient`).

Every function takes the client first, asks the responsible broker, and retries while leaders or controllers move (see
`client.kafka_client`). A failure of the whole request raises ApiError. A request for several items returns an outcome
for each item.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from client.errors import raise_for
from client.kafka_client import KafkaClient
from client.metadata import Metadata
from protocol.config_resources import AlterConfigOp, ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from protocol.topic_partition import TopicPartition
from protocol.uuids import ZERO_UUID

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3

_CONSUMER_REPLICA_ID = -1

T = TypeVar("T")

ConfigEntry = DescribeConfigsResponse.DescribeConfigsResourceResult


class ConfigChange(NamedTuple):
    """One change of a key: `value` None deletes it."""

    name: str
    value: str | None

    @property
    def operation(self) -> AlterConfigOp:
        """The operation for IncrementalAlterConfigs."""
        return AlterConfigOp.DELETE if self.value is None else AlterConfigOp.SET


class OffsetAndTimestamp(NamedTuple):
    """A result of ListOffsets; missing values are -1."""

    offset: int
    timestamp: int
    leader_epoch: int


# -- topics ------------------------------------------------------------------------------------------------------------


async def list_topics(client: KafkaClient) -> Metadata:
    """The cluster with all topics visible to this client."""
    return await client.describe_topics(None)


async def create_topic(
    client: KafkaClient,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create one topic; -1 uses the cluster's default for a number. Raises ApiError (TOPIC_ALREADY_EXISTS and
    others).
    """
    placed = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
        for index, replicas in (assignment or {}).items()
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=-1 if assignment else partitions,
        replication_factor=-1 if assignment else replication_factor,
        assignments=placed,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=client.settings.request_timeout_ms, validate_only=False)
    response = await client.ask_controller(
        "createTopics", request, CreateTopicsResponse, lambda answer: [each.error_code for each in answer.topics]
    )
    raise_for(response.topics[0].error_code, response.topics[0].error_message)


async def delete_topic(client: KafkaClient, name: str) -> None:
    """Delete one topic. Raises ApiError."""
    state = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)
    request = DeleteTopicsRequest(topics=[state], topic_names=[name], timeout_ms=client.settings.request_timeout_ms)
    response = await client.ask_controller(
        "deleteTopics", request, DeleteTopicsResponse, lambda answer: [each.error_code for each in answer.responses]
    )
    raise_for(response.responses[0].error_code, response.responses[0].error_message)


async def create_partitions(
    client: KafkaClient, topic: str, count: int, assignments: Sequence[Sequence[int]] | None = None
) -> None:
    """Grow one topic to `count` partitions; `assignments` place the new ones. Raises ApiError."""
    placed = None
    if assignments is not None:
        placed = [
            CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments
        ]
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=placed)],
        timeout_ms=client.settings.request_timeout_ms,
        validate_only=False,
    )
    response = await client.ask_controller(
        "createPartitions",
        request,
        CreatePartitionsResponse,
        lambda answer: [each.error_code for each in answer.results],
    )
    raise_for(response.results[0].error_code, response.results[0].error_message)


# -- configurations ----------------------------------------------------------------------------------------------------


async def describe_configs(
    client: KafkaClient, resources: Iterable[tuple[int, str]], *, include_synonyms: bool = False
) -> dict[tuple[int, str], list[ConfigEntry]]:
    """The configuration of each resource, given by type and name. Raises ApiError for the first that fails."""
    found: dict[tuple[int, str], list[ConfigEntry]] = {}
    for node_id, group in _by_config_owner(resources).items():
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None
                )
                for kind, name in group
            ],
            include_synonyms=include_synonyms,
        )
        response = await _ask_owner(client, node_id, "describeConfigs", request, DescribeConfigsResponse)
        for result in response.results:
            raise_for(result.error_code, result.error_message)
            found[result.resource_type, result.resource_name] = result.configs
    return found


async def alter_configs(client: KafkaClient, kind: int, name: str, changes: Iterable[ConfigChange]) -> None:
    """Change keys of one resource (KIP-339). Raises ApiError."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=change.name, config_operation=change.operation, value=change.value
                    )
                    for change in changes
                ],
            )
        ],
        validate_only=False,
    )
    (node_id,) = _by_config_owner([(kind, name)])
    response = await _ask_owner(client, node_id, "incrementalAlterConfigs", request, IncrementalAlterConfigsResponse)
    for result in response.responses:
        raise_for(result.error_code, result.error_message)


def _by_config_owner(resources: Iterable[tuple[int, str]]) -> dict[int | None, list[tuple[int, str]]]:
    """Resources by the id of the broker to ask: a broker for its own configuration, None for any broker."""
    owners: dict[int | None, list[tuple[int, str]]] = defaultdict(list)
    for kind, name in resources:
        is_brokers_own = kind in {ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER} and name
        owners[int(name) if is_brokers_own else None].append((kind, name))
    return owners


async def _ask_owner(
    client: KafkaClient,
    node_id: int | None,
    what: str,
    request: DescribeConfigsRequest | IncrementalAlterConfigsRequest,
    response_type: type[AnswerT],
) -> AnswerT:
    if node_id is None:
        return await client.ask_any(what, request, response_type)
    return await client.ask_node(node_id, what, request, response_type)


AnswerT = TypeVar("AnswerT", DescribeConfigsResponse, IncrementalAlterConfigsResponse)


# -- records and offsets -----------------------------------------------------------------------------------------------


async def list_offsets(
    client: KafkaClient, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0, retry: bool = True
) -> dict[TopicPartition, OffsetAndTimestamp | ApiError]:
    """For each partition the first offset at or after a timestamp (or one of the special ones)."""

    async def ask(leader: int, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp | ApiError]:
        topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(
                ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=partition, timestamp=wanted[TopicPartition(topic, partition)]
                )
            )
        request = ListOffsetsRequest(
            replica_id=_CONSUMER_REPLICA_ID,
            isolation_level=isolation_level,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        response = await (await client.node_connection(leader)).ask(request, ListOffsetsResponse)
        return {
            TopicPartition(topic.name, each.partition_index): ApiError(ErrorCode.of(each.error_code))
            if each.error_code
            else OffsetAndTimestamp(each.offset, each.timestamp, each.leader_epoch)
            for topic in response.topics
            for each in topic.partitions
        }

    return await ask_leaders(client, "listOffsets", wanted, ask, retry=retry)


async def delete_records(
    client: KafkaClient,
    offsets: Mapping[TopicPartition, int],
    on_outcome: Callable[[TopicPartition, int | ApiError], None] | None = None,
) -> dict[TopicPartition, int | ApiError]:
    """Move log starts up to the offsets (-1: the high watermark) and return the new log start of each partition.

    `on_outcome` is called as soon as the outcome of a partition is known; others may be retried for a long time.
    """

    async def ask(leader: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int | ApiError]:
        topics: dict[str, list[DeleteRecordsRequest.DeleteRecordsPartition]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(
                DeleteRecordsRequest.DeleteRecordsPartition(
                    partition_index=partition, offset=offsets[TopicPartition(topic, partition)]
                )
            )
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=each) for name, each in topics.items()
            ],
            timeout_ms=client.settings.request_timeout_ms,
        )
        response = await (await client.node_connection(leader)).ask(request, DeleteRecordsResponse)
        return {
            TopicPartition(topic.name, each.partition_index): ApiError(ErrorCode.of(each.error_code))
            if each.error_code
            else each.low_watermark
            for topic in response.topics
            for each in topic.partitions
        }

    return await ask_leaders(client, "deleteRecords", offsets, ask, on_outcome=on_outcome)


async def ask_leaders(
    client: KafkaClient,
    what: str,
    partitions: Iterable[TopicPartition],
    ask: Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, T | ApiError]]],
    *,
    retry: bool = True,
    on_outcome: Callable[[TopicPartition, T | ApiError], None] | None = None,
) -> dict[TopicPartition, T | ApiError]:
    """Ask each partition's leader, all leaders concurrently; partitions without a leader or with a transient error are
    retried.

    Without `retry` each partition is asked once, and a DisconnectedError goes to the caller. `on_outcome` is called
    once for each partition, as soon as its outcome is final.
    """
    outcomes: dict[TopicPartition, T | ApiError] = {}
    open_partitions = list(partitions)

    def report(done: list[TopicPartition]) -> None:
        for each in sorted(done):
            if on_outcome is not None and each in outcomes:
                on_outcome(each, outcomes[each])

    async def attempt() -> None:
        nonlocal open_partitions
        metadata = await client.fetch_metadata(sorted({each.topic for each in open_partitions}))
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for each in open_partitions:
            leader = _leader_of(metadata, each)
            if isinstance(leader, ApiError):
                outcomes[each] = leader
            else:
                by_leader[leader].append(each)
        for answers in await asyncio.gather(*(ask(leader, group) for leader, group in by_leader.items())):
            outcomes.update(answers)
        asked, open_partitions = open_partitions, [each for each in open_partitions if _is_passing(outcomes[each])]
        report([each for each in asked if each not in open_partitions])
        if open_partitions:
            failure = outcomes[open_partitions[0]]
            raise failure if isinstance(failure, ApiError) else ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)

    if open_partitions:
        try:
            await (client.retry(what, attempt) if retry else attempt())
        except ApiError:
            if not outcomes:
                raise
            report(open_partitions)
    return outcomes


def _leader_of(metadata: Metadata, partition: TopicPartition) -> int | ApiError:
    known = metadata.partition(*partition)
    topic = metadata.topics.get(partition.topic)
    if topic is not None and topic.error_code not in {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}:
        return ApiError(topic.error_code)
    if known is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if known.leader < 0:
        return ApiError(ErrorCode.LEADER_NOT_AVAILABLE)
    return known.leader


def _is_passing(outcome: object) -> bool:
    return isinstance(outcome, ApiError) and outcome.error_code.retriable


# -- log directories ---------------------------------------------------------------------------------------------------


async def describe_log_dirs(client: KafkaClient, node_id: int) -> list[DescribeLogDirsResponse.DescribeLogDirsResult]:
    """The log directories of one broker. Raises ApiError."""
    response = await client.ask_node(
        node_id, "describeLogDirs", DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
    )
    raise_for(response.error_code)
    return response.results
