"""Current leaders in responses to clients that asked the wrong broker, which saves them a Metadata request (KIP-951;
Kafka's `KafkaApis.getCurrentLeader`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from broker.network.registry import RequestContext
from broker.replication.replica_manager import LeaderHint, ReplicaManager
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchResponse
from protocol.messages.produce import ProduceResponse
from protocol.topic_partition import TopicPartition

FIRST_PRODUCE_VERSION = 10
FIRST_FETCH_VERSION = 16
UNKNOWN = LeaderHint()

Answer = TypeVar("Answer")
Endpoint = TypeVar("Endpoint", ProduceResponse.NodeEndpoint, FetchResponse.NodeEndpoint)


def hint_producers(context: RequestContext, replicas: ReplicaManager, response: ProduceResponse) -> None:
    """Add the leaders of partitions that are led elsewhere."""
    if context.api_version < FIRST_PRODUCE_VERSION:
        return
    refused = (
        (TopicPartition(topic.name, answer.index), answer)
        for topic in response.responses
        for answer in topic.partition_responses
        if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    hints = list(_known(replicas, refused))
    for answer, hint in hints:
        answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
            leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
        )
    if hints:
        response.node_endpoints = _endpoints(context, hints, ProduceResponse.NodeEndpoint)


def hint_readers(
    context: RequestContext,
    replicas: ReplicaManager,
    response: FetchResponse,
    refused: Iterable[tuple[TopicPartition, FetchResponse.PartitionData]],
) -> None:
    """Add the leaders of the `refused` partitions, if the error concerns their leadership."""
    if context.api_version < FIRST_FETCH_VERSION:
        return
    because_of_the_leader = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    hints = list(_known(replicas, (each for each in refused if each[1].error_code in because_of_the_leader)))
    for answer, hint in hints:
        answer.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=hint.leader_id, leader_epoch=hint.leader_epoch)
    if hints:
        response.node_endpoints = _endpoints(context, hints, FetchResponse.NodeEndpoint)


def _known(
    replicas: ReplicaManager, refused: Iterable[tuple[TopicPartition, Answer]]
) -> Iterator[tuple[Answer, LeaderHint]]:
    """The partition results whose leader is known to this broker."""
    for topic_partition, answer in refused:
        hint = replicas.leader_hint(topic_partition)
        if hint != UNKNOWN:
            yield answer, hint


def _endpoints(
    context: RequestContext, hints: Iterable[tuple[object, LeaderHint]], make: type[Endpoint]
) -> list[Endpoint]:
    """The endpoints of these leaders on the client's listener, without duplicates."""
    found: list[Endpoint] = []
    for broker in {hint.leader_id: hint.broker for _, hint in hints}.values():
        address = None if broker is None else broker.address(context.listener_name)
        if broker is not None and address is not None:
            host, port = address
            found.append(make(node_id=broker.broker_id, host=host, port=port, rack=broker.rack))
    return found
