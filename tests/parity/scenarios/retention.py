"""Retention, and the records that it keeps: both brokers check for old segments every 100 ms."""

from __future__ import annotations

import time
from typing import Any

from protocol.messages.configs import IncrementalAlterConfigsRequest
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.messages.topics import DeleteRecordsRequest
from tests.parity.scenarios.configs_alter import restored
from tests.parity.scenarios.fetch import fetch
from tests.parity.subject import Subject, produce_request, scenario
from tests.parity.subject import batch as batch_of

HOUR_MS = 3_600_000
TOPIC, BROKER = 2, 4
EARLIEST, LATEST = -2, -1


def hours_ago(hours: float) -> int:
    """A record's timestamp."""
    return int(time.time() * 1000 - hours * HOUR_MS)


def filled(b: Subject, *hours: float, suffix: str = "t", **configs: str) -> str:
    """A topic with one segment for each age in hours."""
    given = {"segment.bytes": "100", **{key.replace("_", "."): value for key, value in configs.items()}}
    topic = b.topic(suffix, configs=given)
    for age in hours:
        b.produce(topic, b"a value of some length", keys=True, base_timestamp=hours_ago(age))
    return topic


def offset_at(b: Subject, topic: str, timestamp: int) -> int:
    """The offset from ListOffsets; not noted."""
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
    answer: ListOffsetsResponse = b.quietly(ListOffsetsRequest(replica_id=-1, topics=[named]), 6)
    return answer.topics[0].partitions[0].offset


def segments(b: Subject, topic: str) -> list[int]:
    """The base offsets of a log's segments, and its end, from version 0 of ListOffsets."""
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=LATEST, max_num_offsets=100)
    named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
    answer: Any = b.quietly(ListOffsetsRequest(replica_id=-1, topics=[named]), 0)
    return list(answer.topics[0].partitions[0].old_style_offsets)


def until_earliest(b: Subject, topic: str, offset: int) -> None:
    """Wait for the log start, and note both ends."""
    b.until(lambda: offset_at(b, topic, EARLIEST) >= offset)
    b.note("ends", [offset_at(b, topic, EARLIEST), offset_at(b, topic, LATEST)])


def after_a_round(b: Subject, topic: str, suffix: str = "clock") -> None:
    """Note both ends of a topic after another check of every log."""
    other = filled(b, 9, 0, suffix=suffix, retention_ms=str(HOUR_MS))
    b.until(lambda: offset_at(b, other, EARLIEST) == 1)
    b.produce(other, b"a value of some length", base_timestamp=hours_ago(0))
    b.note("ends", [offset_at(b, topic, EARLIEST), offset_at(b, topic, LATEST)])


def alter(b: Subject, name: str, key: str, value: str | None, resource_type: int = TOPIC) -> None:
    """Set a key, or remove it with None."""
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name=key, config_operation=0 if value is not None else 1, value=value
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=[change]
    )
    b.quietly(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)


@scenario
def by_time(b: Subject) -> None:
    topic = filled(b, 9, 8, 0, retention_ms=str(HOUR_MS))
    until_earliest(b, topic, 2)
    b.ask(fetch(b, topic, 1), 17)
    b.note("by timestamp", offset_at(b, topic, hours_ago(20)))


@scenario
def by_time_the_largest_timestamp_of_a_segment_counts(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": str(HOUR_MS), "segment.bytes": "220"})
    for age in (0.0, 9.0, 9.0, 0.0):
        b.produce(topic, b"a value of some length", base_timestamp=hours_ago(age))
    after_a_round(b, topic)


@scenario
def by_time_the_first_segment_that_stays_keeps_those_behind(b: Subject) -> None:
    topic = filled(b, 9, 0, 9, 9, 0, retention_ms=str(HOUR_MS))
    until_earliest(b, topic, 1)
    after_a_round(b, topic)


@scenario
def by_time_and_records_from_the_future(b: Subject) -> None:
    topic = filled(b, -9, 9, 9, 0, retention_ms=str(HOUR_MS))
    after_a_round(b, topic)


@scenario
def by_time_and_records_without_timestamps(b: Subject) -> None:
    topic = b.topic(configs={"retention.ms": str(HOUR_MS), "segment.bytes": "100"})
    for _ in range(3):
        b.produce(topic, b"a value of some length", base_timestamp=-1)
    after_a_round(b, topic)
    alter(b, topic, "retention.ms", "1")
    until_earliest(b, topic, 3)


@scenario
def by_time_with_log_append_time(b: Subject) -> None:
    topic = filled(b, 9, 9, 9, retention_ms=str(HOUR_MS), message_timestamp_type="LogAppendTime")
    after_a_round(b, topic)


@scenario
def everything_is_too_old(b: Subject) -> None:
    topic = filled(b, 9, 8, 7, retention_ms=str(HOUR_MS))
    until_earliest(b, topic, 3)
    b.until(lambda: len(segments(b, topic)) == 1)
    b.ask(fetch(b, topic, 3), 17)
    b.ask(fetch(b, topic, 2), 17)
    b.note("by timestamp", [offset_at(b, topic, timestamp) for timestamp in (0, -3)])
    answer = b.ask(produce_request(topic, batch_of(b"new", base_timestamp=hours_ago(0))), 9)
    assert answer is not None
    after_a_round(b, topic)


@scenario
def by_size(b: Subject) -> None:
    one = len(batch_of(b"a value of some length", keys=True))
    topic = filled(b, 3, 2, 1, 0, 0, suffix="exact", retention_bytes=str(3 * one))
    until_earliest(b, topic, 2)
    topic = filled(b, 3, 2, 1, 0, 0, suffix="above", retention_bytes=str(3 * one + 1))
    until_earliest(b, topic, 1)
    topic = filled(b, 3, 2, 1, 0, 0, suffix="below", retention_bytes=str(3 * one - 1))
    until_earliest(b, topic, 2)
    after_a_round(b, topic)


@scenario
def no_bytes_at_all(b: Subject) -> None:
    topic = filled(b, 3, 2, 1, retention_bytes="0")
    until_earliest(b, topic, 3)


@scenario
def no_time_at_all(b: Subject) -> None:
    topic = filled(b, 3, 2, 1, retention_ms="0")
    until_earliest(b, topic, 3)


@scenario
def for_ever(b: Subject) -> None:
    topic = filled(b, 1000, 2, 1, retention_ms="-1", retention_bytes="-1")
    after_a_round(b, topic)


@scenario
def negative_bytes_are_no_limit(b: Subject) -> None:
    topic = filled(b, 3, 2, 1, retention_bytes="-7")
    after_a_round(b, topic)


@scenario
def compacted_only(b: Subject) -> None:
    topic = filled(b, 9, 8, 0, retention_ms="1", retention_bytes="1", cleanup_policy="compact")
    after_a_round(b, topic)


@scenario
def compacted_and_deleted(b: Subject) -> None:
    topic = filled(
        b, 9, 8, 0, 0, retention_ms=str(HOUR_MS), cleanup_policy="compact,delete", min_cleanable_dirty_ratio="1"
    )
    # In Kafka the cleaner checks these, and it sleeps for long.
    with restored(b, "", "log.cleaner.backoff.ms"):
        alter(b, "", "log.cleaner.backoff.ms", "100", BROKER)
        until_earliest(b, topic, 2)


@scenario
def a_changed_limit(b: Subject) -> None:
    topic = filled(b, 9, 4, 0)
    after_a_round(b, topic)
    alter(b, topic, "retention.ms", str(5 * HOUR_MS))
    until_earliest(b, topic, 1)
    alter(b, topic, "retention.ms", None)
    after_a_round(b, topic, "second-clock")
    alter(b, topic, "retention.bytes", "1")
    until_earliest(b, topic, 2)


@scenario
def a_changed_policy(b: Subject) -> None:
    topic = filled(b, 9, 4, 0, cleanup_policy="compact", retention_ms=str(5 * HOUR_MS), min_cleanable_dirty_ratio="1")
    after_a_round(b, topic)
    alter(b, topic, "cleanup.policy", "delete")
    until_earliest(b, topic, 1)


@scenario
def deleted_records(b: Subject) -> None:
    topic = filled(b, 9, 8, 7, 6)
    b.note("segments", segments(b, topic))
    wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])
    b.ask(DeleteRecordsRequest(topics=[named], timeout_ms=10_000), 2)
    b.until(lambda: len(segments(b, topic)) == 3)
    b.note("segments", segments(b, topic))
    b.note("ends", [offset_at(b, topic, EARLIEST), offset_at(b, topic, LATEST)])
