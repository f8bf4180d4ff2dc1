"""UpdateMetadata, to and from Kafka's message.

Encodes UPDATE_METADATA_VERSION and decodes all versions. Drops the epochs of live brokers (decoded as -1) and leader
recovery states. On the wire, a deleted topic is a topic whose partitions have leader -2.
"""

from __future__ import annotations

from typing import Final

from broker.inter_broker.command_codec import (
    FULL,
    INCREMENTAL,
    UNKNOWN,
    UPDATE_METADATA_VERSION,
    check_topics,
    partition_states,
)
from cluster.controller.commands import NO_EPOCH, TopicStates, UpdateMetadata
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.znodes import Endpoint
from environment.slices import Slices, in_slices
from protocol.errors import ApiError, ErrorCode
from protocol.messages.cluster_commands import UpdateMetadataRequest
from protocol.uuids import Uuid
from protocol.wire.encoded_items import ItemEncoder

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Indexed by their number on the wire (Kafka class `SecurityProtocol`)."""

LEADER_DURING_DELETE: Final = -2
"""The leader of a partition that is deleted."""

FIRST_VERSION_WITH_ENDPOINTS: Final = 1
FIRST_VERSION_WITH_LISTENERS: Final = 3

_MetadataState = UpdateMetadataRequest.UpdateMetadataPartitionState
_MetadataTopic = UpdateMetadataRequest.UpdateMetadataTopicState
_LiveBroker = UpdateMetadataRequest.UpdateMetadataBroker
_Endpoint = UpdateMetadataRequest.UpdateMetadataEndpoint


async def update_metadata_request(command: UpdateMetadata, slices: Slices) -> UpdateMetadataRequest:
    """Encode a command."""
    version = UPDATE_METADATA_VERSION
    topics = ItemEncoder(_MetadataTopic, UpdateMetadataRequest, version)
    for states, are_deleted in ((command.topics, False), (command.deleted_topics, True)):
        for topic in states:
            partitions = ItemEncoder(_MetadataState, UpdateMetadataRequest, version)
            async for image in in_slices(topic.partitions, slices):
                partitions.add(_metadata_state(image, is_deleted=are_deleted))
            topics.add(
                _MetadataTopic(topic_name=topic.topic, topic_id=topic.topic_id, partition_states=partitions.array())
            )
    return UpdateMetadataRequest(
        controller_id=command.controller_id,
        controller_epoch=command.controller_epoch,
        broker_epoch=command.broker_epoch,
        type=FULL if command.is_full else INCREMENTAL if command.marks_full else UNKNOWN,
        topic_states=topics.array(),
        live_brokers=[_live_broker(broker) for broker in command.live_brokers.values()],
    )


def _metadata_state(image: PartitionImage, *, is_deleted: bool) -> _MetadataState:
    return _MetadataState(
        partition_index=image.partition,
        controller_epoch=image.controller_epoch,
        leader=LEADER_DURING_DELETE if is_deleted else image.leader,
        leader_epoch=image.leader_epoch,
        isr=list(image.isr),
        zk_version=image.partition_epoch,
        replicas=list(image.replicas),
        offline_replicas=list(image.offline_replicas),
    )


def _live_broker(broker: BrokerImage) -> _LiveBroker:
    endpoints = [
        _Endpoint(
            port=endpoint.port,
            host=endpoint.host,
            listener=name,
            security_protocol=SECURITY_PROTOCOLS.index(endpoint.security_protocol),
        )
        for name, endpoint in broker.endpoints.items()
    ]
    return _LiveBroker(id=broker.broker_id, endpoints=endpoints, rack=broker.rack)


async def update_metadata_command(request: UpdateMetadataRequest, version: int, slices: Slices) -> UpdateMetadata:
    """Decode a command of `version`. A topic is deleted if any of its partitions is. Raises INVALID_REQUEST for an
    unknown security protocol, and as `check_topics`.
    """
    topics: dict[tuple[str, Uuid], list[PartitionImage]] = {}
    deleted: dict[tuple[str, Uuid], None] = {}
    found = partition_states(request.ungrouped_partition_states, request.topic_states)
    async for name, topic_id, state in in_slices(found, slices):
        if state.leader == LEADER_DURING_DELETE:
            deleted[name, topic_id] = None
        topics.setdefault((name, topic_id), []).append(
            PartitionImage(
                partition=state.partition_index,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                replicas=tuple(state.replicas),
                isr=tuple(state.isr),
                partition_epoch=state.zk_version,
                controller_epoch=state.controller_epoch,
                offline_replicas=tuple(state.offline_replicas),
            )
        )
    states = {key: TopicStates(*key, tuple(images)) for key, images in topics.items()}
    await check_topics(states.values(), slices)
    return UpdateMetadata(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
        live_brokers={broker.id: _broker_image(broker, version) for broker in request.live_brokers},
        topics=tuple(topic for key, topic in states.items() if key not in deleted),
        deleted_topics=tuple(states[key] for key in deleted),
        is_full=request.type == FULL,
        marks_full=request.type != UNKNOWN,
    )


def _broker_image(broker: _LiveBroker, version: int) -> BrokerImage:
    if version < FIRST_VERSION_WITH_ENDPOINTS:
        plaintext = SECURITY_PROTOCOLS[0]
        only = Endpoint(plaintext, broker.v0_host, broker.v0_port, plaintext)
        return BrokerImage(broker.id, NO_EPOCH, {plaintext: only})
    endpoints: dict[str, Endpoint] = {}
    for each in broker.endpoints:
        if not 0 <= each.security_protocol < len(SECURITY_PROTOCOLS):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown security protocol {each.security_protocol}")
        security_protocol = SECURITY_PROTOCOLS[each.security_protocol]
        name = each.listener if version >= FIRST_VERSION_WITH_LISTENERS else security_protocol
        endpoints[name] = Endpoint(name, each.host, each.port, security_protocol)
    return BrokerImage(broker.id, NO_EPOCH, endpoints, broker.rack or None)
