"""Bringing a follower's log back to something that its leader's log has too: what takes a thread, or a question."""

from __future__ import annotations

import logging
from typing import Protocol, TypeVar

from broker.environment.contract import Clock, Executor
from cluster.replication.follower import Decision, after_offsets
from cluster.replication.partition import Partition
from protocol.errors import ApiError, ErrorCode
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.topic_partition import TopicPartition
from protocol.value import Value
from protocol.wire.schema import Request, Response
from storage.log.truncation import TruncationTask

logger = logging.getLogger("kafka.server.ReplicaFetcherThread")

R = TypeVar("R", bound=Response)

LIST_OFFSETS_VERSION = 9
LATEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP = -1, -4


class LeaderConnection(Protocol):
    """The part of `InterBrokerClient` that a fetcher needs."""

    async def ask(self, request: Request, response_type: type[R], version: int, timeout_ms: int | None = None) -> R: ...

    def close(self) -> None: ...


class FetcherSettings(Value):
    """Kafka's replica.fetch.* of this broker, and its id."""

    broker_id: int
    max_bytes: int
    response_max_bytes: int
    min_bytes: int
    wait_max_ms: int
    backoff_ms: int


class FollowerRepairs:
    """For the replicas that follow the broker `leader_id`. Nothing may be appended to a log that is repaired."""

    def __init__(self, leader_id: int, broker_id: int, clock: Clock, executor: Executor) -> None:
        self._leader_id = leader_id
        self._broker_id = broker_id
        self._clock = clock
        self._executor = executor

    async def ask_for_offsets(self, connection: LeaderConnection, partition: Partition, leader_epoch: int) -> Decision:
        """Where the leader's log ends and begins, and what is to be done then. Raises DisconnectedError, and ApiError
        for an error answered.
        """
        name = partition.topic_partition
        end_offset = await self._list_offset(connection, name, leader_epoch, LATEST_TIMESTAMP)
        start_offset = await self._list_offset(connection, name, leader_epoch, EARLIEST_LOCAL_TIMESTAMP)
        return after_offsets(partition.log, start_offset, end_offset)

    async def _list_offset(
        self, connection: LeaderConnection, topic_partition: TopicPartition, leader_epoch: int, timestamp: int
    ) -> int:
        asked = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=topic_partition.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name=topic_partition.topic, partitions=[asked])
        request = ListOffsetsRequest(replica_id=self._broker_id, topics=[topic])
        response = await connection.ask(request, ListOffsetsResponse, LIST_OFFSETS_VERSION)
        listed = response.topics[0].partitions[0]
        if listed.error_code:
            raise ApiError(ErrorCode.of(listed.error_code), f"broker {self._leader_id} did not tell its offsets")
        return listed.offset

    async def truncate(self, partition: Partition, offset: int) -> None:
        """Drop what is at `offset` and behind it. Raises ApiError KAFKA_STORAGE_ERROR."""
        name, high_watermark = partition.topic_partition, partition.high_watermark
        if offset < high_watermark:
            logger.warning("Truncating %s to offset %d, below its high watermark %d", name, offset, high_watermark)
        else:
            logger.info("Truncating %s to offset %d", name, offset)
        await self._run(partition, partition.begin_truncation(offset, self._clock.now_ms()))

    async def begin_anew(self, partition: Partition, offset: int) -> None:
        """Drop everything, and begin at `offset`. Raises ApiError KAFKA_STORAGE_ERROR."""
        logger.info("%s begins anew at offset %d", partition.topic_partition, offset)
        await self._run(partition, partition.begin_new_start(offset, self._clock.now_ms()))

    async def _run(self, partition: Partition, task: TruncationTask) -> None:
        await self._executor.run(task.run)
        partition.end_truncation(task)
