"""Timestamp types of records, how far off a timestamp may be, and lookups by timestamp."""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.errors import ErrorCode
from protocol.messages.produce import ProduceResponse
from protocol.records.compression import CompressionType
from tests.parity.scenarios.fetch import fetch
from tests.parity.scenarios.offsets_in_logs import list_offsets
from tests.parity.scenarios.retention import alter, offset_at
from tests.parity.subject import TIMESTAMP, Subject, batch, produce_request, scenario

HOUR_MS = 3_600_000
MAX_TIMESTAMP = -3


def hours_from_now(hours: float) -> int:
    """A record's timestamp."""
    return int(time.time() * 1000 + hours * HOUR_MS)


def produced_at(b: Subject, topic: str, *hours: float) -> None:
    """Produce one record for each age, in hours from now."""
    for number in hours:
        b.ask(produce_request(topic, batch(b"a", base_timestamp=hours_from_now(number))), 9)


@scenario
def too_old(b: Subject) -> None:
    limits = {"message.timestamp.before.max.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(12 * HOUR_MS)}
    produced_at(b, b.topic(configs=limits), -2, -0.5, 13)


@scenario
def too_new(b: Subject) -> None:
    limits = {"message.timestamp.before.max.ms": str(12 * HOUR_MS), "message.timestamp.after.max.ms": str(HOUR_MS)}
    produced_at(b, b.topic(configs=limits), 2, 0.5, -13)


@scenario
def only_some_records_out_of_bounds(b: Subject) -> None:
    topic = b.topic(configs={"message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "10000000"})
    b.ask(produce_request(topic, batch(b"a", b"b", b"c", base_timestamp=hours_from_now(-1))), 9)


@scenario
def the_old_single_limit(b: Subject) -> None:
    produced_at(b, b.topic(configs={"message.timestamp.difference.max.ms": str(HOUR_MS)}), -2, 2, -0.5, 0.5)


@scenario
def the_old_single_limit_and_a_new_one(b: Subject) -> None:
    one = {"message.timestamp.difference.max.ms": str(HOUR_MS), "message.timestamp.before.max.ms": str(3 * HOUR_MS)}
    produced_at(b, b.topic("before", configs=one), -2, 2, -4, 0.5)
    other = {"message.timestamp.difference.max.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(3 * HOUR_MS)}
    produced_at(b, b.topic("after", configs=other), -2, 2, 4, -0.5)


@scenario
def limits_do_not_matter_with_log_append_time(b: Subject) -> None:
    configs = {
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "0",
        "message.timestamp.after.max.ms": "0",
    }
    produced_at(b, b.topic(configs=configs), -2, 2)


def alter_and_wait(
    b: Subject,
    topics: tuple[str, str],
    key: str,
    value: str | None,
    shows: Callable[[ProduceResponse.PartitionProduceResponse], bool],
) -> None:
    """Alter two topics, and wait until it applies: until an old record for the second one gets this answer.

    A probe of the first one might leave records there. But changes apply in order.
    """
    for topic in topics:
        alter(b, topic, key, value)

    def counts() -> bool:
        request = produce_request(topics[1], batch(b"a", base_timestamp=hours_from_now(-2)))
        answer: ProduceResponse = b.quietly(request, 9)
        return shows(answer.responses[0].partition_responses[0])

    b.until(counts)


@scenario
def limits_that_change(b: Subject) -> None:
    topic = b.topic(configs={"message.timestamp.after.max.ms": str(HOUR_MS)})
    both = topic, b.topic("clock")
    produced_at(b, topic, -2)
    key = "message.timestamp.before.max.ms"
    alter_and_wait(b, both, key, str(HOUR_MS), lambda answer: answer.error_code == ErrorCode.INVALID_TIMESTAMP)
    produced_at(b, topic, -2)
    alter_and_wait(b, both, key, None, lambda answer: answer.error_code == ErrorCode.NONE)
    produced_at(b, topic, -2)


@scenario
def found_by_log_append_time(b: Subject) -> None:
    topic = b.topic(configs={"message.timestamp.type": "LogAppendTime"})
    before = hours_from_now(0)
    for codec in (CompressionType.NONE, CompressionType.GZIP):
        b.produce(topic, b"a", b"b", b"c", compression=codec)
        time.sleep(0.01)
    b.ask(fetch(b, topic), 12)
    b.note("found", [offset_at(b, topic, at) for at in (0, TIMESTAMP, before, before + HOUR_MS)])
    list_offsets(b, topic, MAX_TIMESTAMP)


@scenario
def log_append_time_begins_and_ends(b: Subject) -> None:
    topic = b.topic()
    both = topic, b.topic("clock")
    b.produce(topic, b"a", b"b")
    key = "message.timestamp.type"
    alter_and_wait(b, both, key, "LogAppendTime", lambda answer: answer.log_append_time_ms > 0)
    b.produce(topic, b"c", b"d")
    alter_and_wait(b, both, key, "CreateTime", lambda answer: answer.log_append_time_ms < 0)
    b.produce(topic, b"e", b"f")
    b.ask(fetch(b, topic), 12)
    b.note("found", [offset_at(b, topic, at) for at in (0, TIMESTAMP + 1, TIMESTAMP + 2, hours_from_now(1))])
    list_offsets(b, topic, MAX_TIMESTAMP)


@scenario
def found_in_compressed_batches(b: Subject) -> None:
    for codec in CompressionType:
        if codec is CompressionType.NONE:
            continue
        topic = b.topic(codec.name.lower(), configs={"index.interval.bytes": "1"})
        for start in (0, 100, 50):
            b.produce(topic, b"a", b"b", b"c", b"d", base_timestamp=TIMESTAMP + start, compression=codec)
        list_offsets(b, topic, TIMESTAMP + 2, TIMESTAMP + 4, TIMESTAMP + 52, TIMESTAMP + 103, TIMESTAMP + 104, -3)


@scenario
def the_first_of_equal_largest_timestamps(b: Subject) -> None:
    topic = b.topic(configs={"segment.bytes": "200"})
    for start in (5, 9, 3, 9, 1):
        b.produce(topic, b"a value", b"another", base_timestamp=TIMESTAMP + start)
    list_offsets(b, topic, MAX_TIMESTAMP, TIMESTAMP + 9, TIMESTAMP + 10, TIMESTAMP + 11)


@scenario
def found_behind_the_log_start(b: Subject) -> None:
    from tests.parity.scenarios.offsets_in_logs import delete_records

    topic = b.topic()
    for start in (0, 10, 20):
        b.produce(topic, b"a", b"b", b"c", base_timestamp=TIMESTAMP + start)
    delete_records(b, topic, 4)
    list_offsets(b, topic, 0, TIMESTAMP + 2, TIMESTAMP + 11, MAX_TIMESTAMP)
