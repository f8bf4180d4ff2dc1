"""Helpers that build requests of transactional producers: one topic partition, values without keys."""

from __future__ import annotations

from collections.abc import Sequence

from client.groups import GroupMetadata
from protocol.messages.coordinators import FindCoordinatorRequest
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.producer_ids import InitProducerIdRequest
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition, by_topic

START_MS = 1_700_000_000_000
TRANSACTION = 1


def find_coordinator(transactional_id: str) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[transactional_id])


def init(
    transactional_id: str, timeout_ms: int = 60_000, producer_id: int = -1, producer_epoch: int = -1
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def _topics(partitions: Sequence[TopicPartition]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]


def add_partitions(
    transactional_id: str, producer_id: int, producer_epoch: int, *partitions: TopicPartition
) -> AddPartitionsToTxnRequest:
    """The request of a client, up to version 3."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=_topics(partitions),
    )


def verify(
    transactional_id: str, producer_id: int, producer_epoch: int, *partitions: TopicPartition
) -> AddPartitionsToTxnRequest:
    """The request of a broker, from version 4 on."""
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=True,
        topics=_topics(partitions),
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def produce_in_transaction(
    transactional_id: str | None,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    values: Sequence[bytes],
    at: TopicPartition,
    *,
    is_transactional: bool = True,
) -> ProduceRequest:
    batch = build_batch(
        [Record(0, START_MS, None, value) for value in values],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
    data = ProduceRequest.PartitionProduceData(index=at.partition, records=memoryview(batch))
    topic = ProduceRequest.TopicProduceData(name=at.topic, partition_data=[data])
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=5000, topic_data=[topic])


def end(transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, committed=commit
    )


def add_offsets(transactional_id: str, producer_id: int, producer_epoch: int, group_id: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group_id
    )


def commit_offsets(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group: str | GroupMetadata,
    at: TopicPartition,
    offset: int,
) -> TxnOffsetCommitRequest:
    """A commit by group id alone, or with the member's id and generation (KIP-447)."""
    member = GroupMetadata(group) if isinstance(group, str) else group
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=at.partition, committed_offset=offset, committed_metadata=""
    )
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=at.topic, partitions=[partition])
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=member.group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=[topic],
    )


def fetch_offset(group_id: str, at: TopicPartition, *, require_stable: bool = False) -> OffsetFetchRequest:
    """For versions from 8 on."""
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name=at.topic, partition_indexes=[at.partition])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[topic])
    return OffsetFetchRequest(groups=[group], require_stable=require_stable)


def write_marker(
    producer_id: int, producer_epoch: int, *partitions: TopicPartition, coordinator_epoch: int = 0, commit: bool = False
) -> WriteTxnMarkersRequest:
    topics = [
        WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=commit,
        topics=topics,
        coordinator_epoch=coordinator_epoch,
    )
    return WriteTxnMarkersRequest(markers=[marker])
