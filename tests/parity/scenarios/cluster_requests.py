"""Requests to the controller: AlterPartition, ControlledShutdown and AllocateProducerIds of brokers that it refuses."""

from __future__ import annotations

from protocol.messages.cluster_requests import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
)
from tests.kit.environment import uuid_of
from tests.parity.subject import Subject, scenario

ME, STRANGER = 0, 99
OLD = 1
"""The epoch of an earlier registration of broker 0."""


def alter(b: Subject, broker_id: int, broker_epoch: int, version: int) -> None:
    """AlterPartition for a topic that does not exist."""
    message = AlterPartitionRequest
    data = message.PartitionData(
        partition_index=0, leader_epoch=0, partition_epoch=0, new_isr=[ME] if version < 3 else []
    )
    if version >= 3:
        data.new_isr_with_epochs = [message.BrokerState(broker_id=ME)]
    topic = message.TopicData(topic_name=f"{b.prefix}-t", topic_id=uuid_of(4711), partitions=[data])
    b.ask(message(broker_id=broker_id, broker_epoch=broker_epoch, topics=[topic]), version)


@scenario
def alter_partition_of_an_older_registration(b: Subject) -> None:
    for version in range(4):
        alter(b, ME, OLD, version)


@scenario
def alter_partition_of_a_stranger(b: Subject) -> None:
    for version in range(4):
        alter(b, STRANGER, OLD, version)


@scenario
def controlled_shutdown_of_an_older_registration(b: Subject) -> None:
    for version in (2, 3):
        b.ask(ControlledShutdownRequest(broker_id=ME, broker_epoch=OLD), version)


@scenario
def controlled_shutdown_of_a_stranger(b: Subject) -> None:
    for version in (1, 2, 3):
        b.ask(ControlledShutdownRequest(broker_id=STRANGER, broker_epoch=OLD), version)


@scenario
def producer_ids_for_an_older_registration(b: Subject) -> None:
    b.ask(AllocateProducerIdsRequest(broker_id=ME, broker_epoch=OLD), 0)


@scenario
def producer_ids_for_a_stranger(b: Subject) -> None:
    b.ask(AllocateProducerIdsRequest(broker_id=STRANGER, broker_epoch=OLD), 0)
