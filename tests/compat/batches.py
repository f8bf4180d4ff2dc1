"""Requests with a batch of the test's own."""

from __future__ import annotations

from protocol.messages import ProduceRequest


def produce_batch(topic: str, batch: bytes, *, acks: int = -1) -> ProduceRequest:
    """One batch for partition 0."""
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    )
