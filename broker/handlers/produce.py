"""Produce (KIP-98 record format and later)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable

from broker.registry import CloseConnection, RequestContext, api
from broker.replica_manager import ReplicaManager
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import ProduceRequest, ProduceResponse
from protocol.record_format import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
)
from protocol.record_validation import RecordValidationError
from protocol.records import CompressionType, RecordBatch
from protocol.topic_partition import TopicPartition, is_internal
from storage.appendable_log import LogAppendInfo
from storage.disk_reserve import DiskReserveError

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that Kafka lets write to internal topics (AdminUtils.ADMIN_CLIENT_ID)."""

FIRST_VERSION_OF_MAGIC_2 = 3
FIRST_VERSION_OF_ZSTD = 7
VALID_ACKS = (-1, 0, 1)
_LENGTH = struct.Struct(">i")
NO_OFFSET = -1
SMALLEST_RECORD_BYTES = 14
"""A record of message format 0 without key and value (Kafka's LegacyRecord.RECORD_OVERHEAD_V0)."""

Topic = ProduceResponse.TopicProduceResponse
Partition = ProduceResponse.PartitionProduceResponse
_Waiting = tuple[list[Partition], int, TopicPartition, asyncio.Future[None]]
"""An answer that has to wait for a flush, as its place in its topic's answers."""


class ProduceHandlers:
    """Appends client batches.

    Versions 0-2 are advertised and answered, because librdkafka before 2.11.1 gives up compression when they are
    missing (KAFKA-18659), but what they carry, message formats 0 and 1, is refused with
    UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    @api(ApiKey.PRODUCE, versions=(0, 11))
    def produce(
        self, context: RequestContext, request: ProduceRequest
    ) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
        """Append every partition's batch; acks=0 is answered by silence, or by hanging up when something failed."""
        topics: list[Topic] = []
        failure: ErrorCode | None = None
        waiting: list[_Waiting] = []
        for topic_data in request.topic_data:
            if not topic_data.partition_data:
                continue
            answers: list[Partition] = []
            topics.append(Topic(name=topic_data.name, partition_responses=answers))
            for data in topic_data.partition_data:
                topic_partition = TopicPartition(topic_data.name, data.index)
                try:
                    info = self._append(context, request, topic_partition, data.records)
                except ApiError as error:
                    failure = error.error_code
                    answers.append(self._refusal(topic_partition, error))
                    continue
                if info.awaits_flush:
                    flushed = self._replica_manager.when_flushed(topic_partition, info)
                    waiting.append((answers, len(answers), topic_partition, flushed))
                answers.append(
                    Partition(
                        index=data.index,
                        error_code=ErrorCode.NONE,
                        base_offset=info.first_offset,
                        log_append_time_ms=info.log_append_time_ms,
                        log_start_offset=info.log_start_offset,
                    )
                )
        if waiting:
            return self._after_flush(topics, failure, waiting, request.acks)
        return _answer(topics, failure, request.acks)

    async def _after_flush(
        self, topics: list[Topic], failure: ErrorCode | None, waiting: list[_Waiting], acks: int
    ) -> ProduceResponse | None:
        """Answer once every partition is flushed, or could not be. What is asked for together is flushed together."""
        for answers, index, topic_partition, flushed in waiting:
            try:
                await flushed
            except ApiError as error:
                failure = error.error_code
                answers[index] = self._refusal(topic_partition, error)
        return _answer(topics, failure, acks)

    def _append(
        self,
        context: RequestContext,
        request: ProduceRequest,
        topic_partition: TopicPartition,
        records: memoryview | bytes | None,
    ) -> LogAppendInfo:
        if request.acks not in VALID_ACKS:
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not one of -1, 0 and 1")
        if is_internal(topic_partition.topic) and context.client_id != ADMIN_CLIENT_ID:
            raise RequestError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic_partition.topic}"
            )
        batch = client_batch(memoryview(records or b""), context.api_version)
        return self._replica_manager.append(topic_partition, batch, required_acks=request.acks)

    def _refusal(self, topic_partition: TopicPartition, error: ApiError) -> Partition:
        refusal = Partition(
            index=topic_partition.partition,
            error_code=error.error_code,
            base_offset=NO_OFFSET,
            log_append_time_ms=NO_OFFSET,
            log_start_offset=NO_OFFSET
            if isinstance(error, RequestError)
            else self._replica_manager.log_start_offset_after(error, topic_partition),
        )
        if isinstance(error, DiskReserveError) or (
            isinstance(error, RequestError) and error.error_code is ErrorCode.CORRUPT_MESSAGE
        ):
            refusal.error_message = error.message
        if isinstance(error, RecordValidationError):
            refusal.error_message = error.message
            refusal.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            ]
        return refusal


def _answer(topics: list[Topic], failure: ErrorCode | None, acks: int) -> ProduceResponse | None:
    if acks:
        return ProduceResponse(responses=topics)
    if failure is not None:
        raise CloseConnection(f"a produce request with acks=0 failed with {failure.name}")
    return None


class RequestError(ApiError):
    """What is sent can be no produced batch, so that no log was asked to take it."""


def client_batch(records: memoryview, version: int) -> memoryview:
    """The one batch that a Produce request of `version` has for a partition (Kafka's ProduceRequest.validateRecords).

    Bytes behind it that are no whole batch are cut off, as Kafka does. Raises RequestError with INVALID_RECORD,
    CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE, TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a transactional batch
    (there are no transactions yet) or, for versions with older formats, UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    if (
        version >= FIRST_VERSION_OF_ZSTD
        and len(records) >= HEADER_BYTES
        and records[MAGIC_AT] == MAGIC_V2
        and _LENGTH.unpack_from(records, LENGTH_AT)[0] == len(records) - LOG_OVERHEAD_BYTES
        and not records[ATTRIBUTES_AT + 1] & TRANSACTIONAL_FLAG
    ):
        return records  # what clients send, settled without looking any closer
    if version < FIRST_VERSION_OF_MAGIC_2:
        raise RequestError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Produce version {version} carries message format 0 or 1; this broker stores format 2 only",
        )
    size = _first_batch_size(records)
    if size is None:
        raise RequestError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one record batch per partition",
        )
    if records[MAGIC_AT] != MAGIC_V2:
        raise RequestError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2",
        )
    if size < HEADER_BYTES:
        return records  # the log says what is wrong with it
    batch = RecordBatch(records)
    if batch.is_transactional:
        raise RequestError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "A transactional batch came, but there are no transactions"
        )
    if version < FIRST_VERSION_OF_ZSTD and batch.compression is CompressionType.ZSTD:
        raise RequestError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
    if _first_batch_size(records[size:]) is not None:
        raise RequestError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain exactly one record batch per "
            "partition",
        )
    return records[:size]


def _first_batch_size(records: memoryview) -> int | None:
    """Bytes of the first batch, None when there is no whole one (Kafka's ByteBufferLogInputStream).

    Raises RequestError CORRUPT_MESSAGE when a length or magic is none that a batch can have.
    """
    if len(records) <= LOG_OVERHEAD_BYTES:
        return None
    length: int = _LENGTH.unpack_from(records, LENGTH_AT)[0]
    if length < SMALLEST_RECORD_BYTES:
        raise RequestError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({SMALLEST_RECORD_BYTES})",
        )
    if len(records) <= MAGIC_AT:
        return None
    magic = (records[MAGIC_AT] ^ 0x80) - 0x80
    if not 0 <= magic <= MAGIC_V2:
        raise RequestError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    size = length + LOG_OVERHEAD_BYTES
    return size if size <= len(records) else None
