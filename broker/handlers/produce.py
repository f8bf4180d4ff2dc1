"""Produce (KIP-98 record format and later)."""

from __future__ import annotations

import struct
from collections.abc import Awaitable

from broker.registry import CloseConnection, RequestContext, api
from broker.replica_manager import ReplicaManager
from protocol.api_keys import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import ProduceRequest, ProduceResponse
from protocol.record_format import HEADER_BYTES, LENGTH_AT, LOG_OVERHEAD_BYTES, MAGIC_AT, MAGIC_V2
from protocol.records import CompressionType, RecordBatch, read_batches
from protocol.topic_partition import TopicPartition, is_internal
from storage.log_validator import RecordValidationError
from storage.unified_log import LogAppendInfo

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that Kafka lets write to internal topics (AdminUtils.ADMIN_CLIENT_ID)."""

FIRST_VERSION_OF_MAGIC_2 = 3
FIRST_VERSION_OF_ZSTD = 7
VALID_ACKS = (-1, 0, 1)
_LENGTH = struct.Struct(">i")
NO_OFFSET = -1

Topic = ProduceResponse.TopicProduceResponse
Partition = ProduceResponse.PartitionProduceResponse


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
        to_flush: list[TopicPartition] = []
        for topic_data in request.topic_data:
            topic = Topic(name=topic_data.name, partition_responses=[])
            topics.append(topic)
            for data in topic_data.partition_data:
                topic_partition = TopicPartition(topic_data.name, data.index)
                try:
                    info = self._append(context, request, topic_partition, data.records)
                except ApiError as error:
                    failure = error.error_code
                    topic.partition_responses.append(self._refusal(topic_partition, error))
                    continue
                if self._replica_manager.must_flush(topic_partition):
                    to_flush.append(topic_partition)
                topic.partition_responses.append(
                    Partition(
                        index=data.index,
                        error_code=ErrorCode.NONE,
                        base_offset=info.first_offset,
                        log_append_time_ms=info.log_append_time_ms,
                        log_start_offset=info.log_start_offset,
                    )
                )
        if request.acks == 0 and failure is not None:
            raise CloseConnection(f"a produce request with acks=0 failed with {failure.name}")
        response = ProduceResponse(responses=topics) if request.acks else None
        if to_flush:
            return self._after_flush(to_flush, response)
        return response

    async def _after_flush(
        self, partitions: list[TopicPartition], response: ProduceResponse | None
    ) -> ProduceResponse | None:
        """flush.messages asks for the records on disk before the acknowledgement."""
        for topic_partition in partitions:
            await self._replica_manager.flush(topic_partition)
        return response

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
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic_partition.topic}"
            )
        view = memoryview(records or b"")
        check_client_batch(view, context.api_version)
        return self._replica_manager.append(topic_partition, view, required_acks=request.acks)

    def _refusal(self, topic_partition: TopicPartition, error: ApiError) -> Partition:
        refusal = Partition(
            index=topic_partition.partition,
            error_code=error.error_code,
            base_offset=NO_OFFSET,
            log_append_time_ms=NO_OFFSET,
            log_start_offset=self._replica_manager.log_start_offset_after(error, topic_partition),
        )
        if isinstance(error, RecordValidationError):
            refusal.error_message = str(error)
            refusal.record_errors = [
                ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            ]
        return refusal


def check_client_batch(records: memoryview, version: int) -> None:
    """What a Produce request of `version` may carry (Kafka's ProduceRequest.validateRecords).

    Raises INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE or, for versions that carry older formats,
    UNSUPPORTED_FOR_MESSAGE_FORMAT.
    """
    if (
        version >= FIRST_VERSION_OF_ZSTD
        and len(records) >= HEADER_BYTES
        and records[MAGIC_AT] == MAGIC_V2
        and _LENGTH.unpack_from(records, LENGTH_AT)[0] == len(records) - LOG_OVERHEAD_BYTES
    ):
        return  # what clients send, settled without looking any closer
    if version < FIRST_VERSION_OF_MAGIC_2:
        raise ApiError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Produce version {version} carries message format 0 or 1; this broker stores format 2 only",
        )
    if not records:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one record batch per partition",
        )
    batch = RecordBatch(records)
    if batch.magic != MAGIC_V2:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2",
        )
    if batch.compression is CompressionType.ZSTD and version < FIRST_VERSION_OF_ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
    if len(records) > batch.size_in_bytes and next(read_batches(records[batch.size_in_bytes :]), None) is not None:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain exactly one record batch per "
            "partition",
        )
