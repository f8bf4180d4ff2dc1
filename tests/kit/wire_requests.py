"""Helpers that build common requests: one topic, one partition, values without keys."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.headers import RequestHeader
from protocol.messages.metadata import MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.topics import CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from protocol.records.batch import Record, build_batch, read_batches
from protocol.wire.schema import Request


def request_bytes(request: Request, version: int, correlation_id: int = 1, client_id: str = "test") -> bytes:
    """A request with its header, but without the length prefix."""
    header = RequestHeader(
        request_api_key=int(request.api_key),
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return header.to_bytes(request.api_key.request_header_version(version)) + request.to_bytes(version)


def framed(payload: bytes) -> bytes:
    """`payload` with its length in front."""
    return len(payload).to_bytes(4, "big") + payload


def new_topic(name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> CreateTopicsRequest:
    wanted = CreateTopicsRequest.CreatableTopicConfig
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[wanted(name=key, value=value) for key, value in (configs or {}).items()],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000)


def delete_topics(*names: str) -> DeleteTopicsRequest:
    """By name, so up to version 5."""
    return DeleteTopicsRequest(topics=[], topic_names=list(names), timeout_ms=5000)


def metadata(*topics: str) -> MetadataRequest:
    wanted = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=[wanted(name=name) for name in topics], allow_auto_topic_creation=False)


def list_offsets(topic: str, timestamp: int, partition: int = 0) -> ListOffsetsRequest:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
    return ListOffsetsRequest(replica_id=-1, topics=[named])


def delete_records(topic: str, offset: int, partition: int = 0) -> DeleteRecordsRequest:
    """Delete the records before `offset`; -1 is the high watermark."""
    before = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
    named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[before])
    return DeleteRecordsRequest(topics=[named], timeout_ms=10_000)


def produce(topic: str, values: list[bytes], acks: int = 1) -> ProduceRequest:
    records = [Record(0, 1_700_000_000_000, None, value, []) for value in values]
    return produce_records(topic, records, acks)


def produce_records(topic: str, records: list[Record], acks: int = 1) -> ProduceRequest:
    return produce_batch(topic, build_batch(records), acks)


def produce_batch(topic: str, batch: bytes, acks: int = 1, partition: int = 0) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    named = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[named])


def fetch(topic: str, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )


def values_in(response: object) -> list[bytes | None]:
    assert isinstance(response, FetchResponse)
    records = response.responses[0].partitions[0].records
    return [record.value for batch in read_batches(memoryview(records or b"")) for record in batch.records()]
