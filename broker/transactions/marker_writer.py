"""Writes transaction markers to partitions led here (Kafka: `KafkaApis.handleWriteTxnMarkersRequest`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.replication.replica_manager import ReplicaManager
from cluster.coordinators.results import TransactionalProducer
from cluster.replication.partition import ACKS_ALL
from environment.contract import Clock
from environment.slices import in_slices
from protocol.errors import ApiError, ErrorCode
from protocol.records.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from protocol.value import Value
from storage.log.log_validator import AppendOrigin


class Marker(Value):
    """The end of a producer's transaction in some partitions. Leaders reject it if they know a newer
    coordinator epoch.
    """

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    partitions: Sequence[TopicPartition]


MarkerResults = Mapping[tuple[int, TopicPartition], ErrorCode]
"""Results by producer id and partition. A missing entry means that the outcome is unknown."""


class MarkerWriter:
    """Appends a control batch to each partition. Markers for __consumer_offsets go through the group coordinator, which
    must apply or discard the offsets of the transaction.
    """

    def __init__(
        self, replica_manager: ReplicaManager, groups: GroupCoordinatorService, clock: Clock, timeout_ms: int
    ) -> None:
        """A marker that is not replicated within `timeout_ms` gets REQUEST_TIMED_OUT."""
        self._replica_manager = replica_manager
        self._groups = groups
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def write(self, markers: Sequence[Marker]) -> MarkerResults:
        """Write markers. Returns when each is replicated or has failed."""
        outcome: dict[tuple[int, TopicPartition], ErrorCode] = {}
        waiting: list[tuple[int, TopicPartition, int]] = []
        decided: list[tuple[int, TopicPartition, asyncio.Future[ErrorCode]]] = []
        for marker in markers:
            async for topic_partition in in_slices(marker.partitions, self._clock):
                at = marker.producer_id, topic_partition
                outcome[at] = ErrorCode.NONE
                try:
                    if topic_partition.topic == CONSUMER_OFFSETS:
                        answer = self._write_to_offsets(topic_partition.partition, marker)
                        if isinstance(answer, asyncio.Future):
                            decided.append((*at, answer))
                        else:
                            outcome[at] = answer
                        continue
                    last_offset = self._append(topic_partition, marker)
                except ApiError as error:
                    outcome[at] = error.error_code
                    continue
                if last_offset is not None:
                    waiting.append((*at, last_offset))
        if waiting:
            errors = await self._replica_manager.when_acknowledged(
                [each[1:] for each in waiting], list, required_acks=ACKS_ALL, timeout_ms=self._timeout_ms
            )
            for (producer_id, topic_partition, _), failure in zip(waiting, errors, strict=True):
                if failure is not None:
                    outcome[producer_id, topic_partition] = failure.error_code
        for producer_id, topic_partition, answered in decided:
            outcome[producer_id, topic_partition] = await answered
        return outcome

    def _append(self, topic_partition: TopicPartition, marker: Marker) -> int | None:
        """Append a marker. Returns its offset if the caller must wait for replication."""
        batch = build_end_txn_marker(
            _end_of(marker),
            timestamp=self._clock.now_ms(),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
        )
        info = self._replica_manager.append(
            topic_partition,
            memoryview(bytearray(batch)),
            required_acks=ACKS_ALL,
            origin=AppendOrigin.COORDINATOR,
        )
        return None if info.is_acknowledged else info.last_offset

    def _write_to_offsets(self, partition: int, marker: Marker) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Write a marker through the group coordinator. While that is loading, the leader must not write to its log, so
        the sender gets an error that makes it retry.
        """
        try:
            runtime = self._groups.runtime_at(partition)
        except ApiError:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        producer = TransactionalProducer(marker.producer_id, marker.producer_epoch, ends=True)
        outcome = runtime.handle(runtime.shard.offsets.end_transaction, producer, _end_of(marker))
        return self._groups.responses.respond(outcome, _same)


def _end_of(marker: Marker) -> EndTxnMarker:
    kind = ControlRecordType.COMMIT if marker.is_commit else ControlRecordType.ABORT
    return EndTxnMarker(kind, marker.coordinator_epoch)


def _same(error_code: ErrorCode) -> ErrorCode:
    return error_code
