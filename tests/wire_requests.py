"""Requests that many tests send, in few words: one topic, one partition, values without keys."""

from __future__ import annotations

from protocol.messages import CreateTopicsRequest, FetchRequest, FetchResponse, ProduceRequest
from protocol.records import Record, build_batch, read_batches


def new_topic(name: str, partitions: int = 1) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def produce(topic: str, values: list[bytes], acks: int = 1) -> ProduceRequest:
    records = [Record(0, 1_700_000_000_000, None, value, []) for value in values]
    return produce_records(topic, records, acks)


def produce_records(topic: str, records: list[Record], acks: int = 1) -> ProduceRequest:
    batch = build_batch(records)
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )


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
