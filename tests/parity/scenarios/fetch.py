"""Fetch: results, limits, sessions, topic ids, isolation, and errors."""

from __future__ import annotations

from typing import Any

from protocol.messages.fetch import FetchRequest
from protocol.uuids import ZERO_UUID, Uuid
from tests.kit.environment import uuid_of
from tests.parity.subject import Subject, batch, produce_request, scenario

FIRST_VERSION_WITH_IDS = 13
UNKNOWN_ID = uuid_of(0x1234)


def fetch(
    b: Subject,
    topic: str,
    offset: int = 0,
    *,
    version: int = 17,
    partition: int = 0,
    partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    topic_id: Uuid | None = None,
    **options: Any,
) -> FetchRequest:
    """A request for one partition, by id or by name depending on the version."""
    wanted = FetchRequest.FetchPartition(
        partition=partition,
        current_leader_epoch=current_leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_fetched_epoch,
        partition_max_bytes=partition_max_bytes,
    )
    if version >= FIRST_VERSION_WITH_IDS:
        named = FetchRequest.FetchTopic(topic_id=topic_id or b.topic_id(topic), partitions=[wanted])
    else:
        named = FetchRequest.FetchTopic(topic=topic, partitions=[wanted])
    return request([named], **options)


def request(topics: list[FetchRequest.FetchTopic], **options: Any) -> FetchRequest:
    """A request that does not wait."""
    return FetchRequest(**{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 24, "topics": topics, **options})


def filled(b: Subject, suffix: str = "t", batches: int = 3) -> str:
    """A topic whose partition 0 has batches of two records each."""
    topic = b.topic(suffix)
    for number in range(batches):
        b.produce(topic, b"a%d" % number, b"b%d" % number)
    return topic


@scenario
def from_the_start_in_every_version(b: Subject) -> None:
    topic = filled(b)
    for version in range(4, 18):
        b.ask(fetch(b, topic, version=version), version)


@scenario
def versions_before_4(b: Subject) -> None:
    topic = filled(b)
    for version in range(4):
        b.ask(fetch(b, topic, version=version), version)


@scenario
def from_the_middle(b: Subject) -> None:
    topic = filled(b)
    for offset in (1, 2, 3, 5, 6):
        b.ask(fetch(b, topic, offset), 17)


@scenario
def out_of_range(b: Subject) -> None:
    topic = filled(b)
    for offset in (7, 1_000_000, -1, -2):
        b.ask(fetch(b, topic, offset), 17)


@scenario
def empty_partition(b: Subject) -> None:
    topic = b.topic()
    b.ask(fetch(b, topic), 17)
    b.ask(fetch(b, topic, version=4), 4)


@scenario
def missing_partition(b: Subject) -> None:
    topic = filled(b)
    b.ask(fetch(b, topic, partition=7), 17)
    b.ask(fetch(b, topic, partition=-1), 17)
    b.ask(fetch(b, topic, partition=7, version=12), 12)


@scenario
def missing_topic_by_name(b: Subject) -> None:
    for version in (4, 12):
        b.ask(fetch(b, b.name("missing"), version=version), version)


@scenario
def unknown_topic_id(b: Subject) -> None:
    b.ask(fetch(b, "", topic_id=UNKNOWN_ID), 17)
    b.ask(fetch(b, "", topic_id=UNKNOWN_ID, version=13), 13)


@scenario
def zero_topic_id(b: Subject) -> None:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    b.ask(request([FetchRequest.FetchTopic(topic_id=ZERO_UUID, partitions=[wanted])]), 17)


@scenario
def partition_limit_below_a_batch(b: Subject) -> None:
    topic = filled(b)
    for limit in (0, 1, 80, 200):
        b.ask(fetch(b, topic, partition_max_bytes=limit), 17)


@scenario
def request_limit_below_a_batch(b: Subject) -> None:
    topic = filled(b)
    for limit in (0, 1, 200):
        b.ask(fetch(b, topic, max_bytes=limit), 17)


@scenario
def request_limit_over_several_partitions(b: Subject) -> None:
    topics = [filled(b, "a"), filled(b, "b")]
    wanted = [
        FetchRequest.FetchTopic(
            topic=topic,
            partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
        )
        for topic in topics
    ]
    for limit in (1, 100, 250, 1 << 20):
        b.ask(request(wanted, max_bytes=limit), 12)


@scenario
def negative_limits(b: Subject) -> None:
    topic = filled(b)
    b.ask(fetch(b, topic, partition_max_bytes=-1), 17)
    b.ask(fetch(b, topic, max_bytes=-1), 17)


@scenario
def waits_for_bytes_and_gives_up(b: Subject) -> None:
    topic = filled(b)
    b.ask(fetch(b, topic, 6, max_wait_ms=50, min_bytes=1), 17)
    b.ask(fetch(b, topic, 0, max_wait_ms=50, min_bytes=1 << 20), 17)


@scenario
def wakes_for_new_records(b: Subject) -> None:
    topic = filled(b)
    asked = fetch(b, topic, 6, max_wait_ms=10_000, min_bytes=1)
    with b.another() as consumer:
        consumer.send(asked, 17)
        # In Kafka, a Fetch during the append sees the old high watermark: it must wait by then.
        for _ in range(20):
            b.metadata(topic)
        b.produce(topic, b"new")
        b.note("woken", consumer.receive(FetchRequest, 17))


@scenario
def errors_do_not_wait(b: Subject) -> None:
    b.ask(fetch(b, filled(b), 99, max_wait_ms=10_000, min_bytes=1), 17)


@scenario
def read_committed(b: Subject) -> None:
    topic = filled(b)
    for version in (4, 11, 17):
        b.ask(fetch(b, topic, version=version, isolation_level=1), version)


@scenario
def unknown_isolation_level(b: Subject) -> None:
    b.ask(fetch(b, filled(b), isolation_level=2), 17)


@scenario
def leader_epochs(b: Subject) -> None:
    topic = filled(b)
    for epoch in (0, 1, 5):
        b.ask(fetch(b, topic, current_leader_epoch=epoch), 17)
    b.ask(fetch(b, topic, current_leader_epoch=1, version=9), 9)


@scenario
def last_fetched_epoch(b: Subject) -> None:
    topic = filled(b)
    for offset, epoch in ((2, 0), (6, 0), (7, 0), (2, 1), (2, 5)):
        b.ask(fetch(b, topic, offset, last_fetched_epoch=epoch), 17)


@scenario
def rack_is_ignored(b: Subject) -> None:
    b.ask(fetch(b, filled(b), rack_id="somewhere"), 17)


@scenario
def same_partition_twice(b: Subject) -> None:
    topic = filled(b)
    wanted = [FetchRequest.FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=1000) for at in (0, 2)]
    b.ask(request([FetchRequest.FetchTopic(topic_id=b.topic_id(topic), partitions=wanted)]), 17)


@scenario
def nothing(b: Subject) -> None:
    b.ask(request([]), 17)
    b.ask(request([]), 4)


@scenario
def from_unknown_replicas(b: Subject) -> None:
    topic = filled(b)
    b.ask(fetch(b, topic, version=11, replica_id=5), 11)
    state = FetchRequest.ReplicaState(replica_id=5, replica_epoch=1)
    b.ask(fetch(b, topic, version=17, replica_state=state), 17)


@scenario
def debugging_consumer(b: Subject) -> None:
    b.ask(fetch(b, filled(b), version=11, replica_id=-2), 11)


@scenario
def compressed_batches_are_kept(b: Subject) -> None:
    from protocol.records.compression import CompressionType

    topic = b.topic()
    for codec in CompressionType:
        if codec is not CompressionType.ZSTD:
            b.produce(topic, b"a" * 100, b"b" * 100, compression=codec)
    # Another library compresses to different bytes, but these were compressed here, for both brokers.
    b.ask(fetch(b, topic), 17)


@scenario
def zstd_before_version_10(b: Subject) -> None:
    from protocol.records.compression import CompressionType

    topic = b.topic()
    b.produce(topic, b"a" * 100, compression=CompressionType.ZSTD)
    for version in (9, 10):
        b.ask(fetch(b, topic, version=version), version)


@scenario
def zstd_topic_before_version_10(b: Subject) -> None:
    topic = b.topic(configs={"compression.type": "zstd"})
    b.produce(topic, b"a" * 100)
    b.ask(fetch(b, topic, version=9), 9)


@scenario
def log_append_time(b: Subject) -> None:
    topic = b.topic(configs={"message.timestamp.type": "LogAppendTime"})
    b.produce(topic, b"a", b"b")
    b.ask(fetch(b, topic), 17)


@scenario
def across_segments(b: Subject) -> None:
    topic = b.topic(configs={"segment.bytes": "200"})
    for number in range(6):
        b.produce(topic, b"value %d" % number)
    b.ask(fetch(b, topic), 17)
    b.ask(fetch(b, topic, 3), 17)


@scenario
def several_partitions(b: Subject) -> None:
    topic = b.topic(partitions=3)
    for partition in range(3):
        b.produce(topic, b"p%d" % partition, partition=partition)
    wanted = [
        FetchRequest.FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)
        for partition in (2, 0, 1)
    ]
    b.ask(request([FetchRequest.FetchTopic(topic_id=b.topic_id(topic), partitions=wanted)]), 17)


@scenario
def idempotent_batches_are_read_as_written(b: Subject) -> None:
    topic = b.topic()
    b.produce(topic, b"a", producer_id=77, producer_epoch=3, base_sequence=0)
    b.ask(fetch(b, topic), 17)


# -- sessions (KIP-227) ------------------------------------------------------------------------------------------------


@scenario
def session(b: Subject) -> None:
    topic = filled(b)
    opened = b.ask(fetch(b, topic, session_id=0, session_epoch=0), 17)
    identity = opened.session_id
    b.ask(request([], session_id=identity, session_epoch=1), 17)
    b.produce(topic, b"new")
    b.ask(fetch(b, topic, 6, session_id=identity, session_epoch=2), 17)
    b.ask(request([], session_id=identity, session_epoch=3), 17)
    b.ask(fetch(b, topic, 7, session_id=identity, session_epoch=4), 17)
    b.ask(request([], session_id=identity, session_epoch=5), 17)


@scenario
def session_with_an_empty_partition(b: Subject) -> None:
    topic = b.topic()
    identity = b.ask(fetch(b, topic, session_epoch=0), 17).session_id
    b.ask(request([], session_id=identity, session_epoch=1), 17)
    b.produce(topic, b"new")
    b.ask(request([], session_id=identity, session_epoch=2), 17)
    b.ask(request([], session_id=identity, session_epoch=3), 17)


@scenario
def session_of_nothing(b: Subject) -> None:
    b.ask(request([], session_epoch=0), 17)


@scenario
def session_epochs_that_do_not_fit(b: Subject) -> None:
    topic = filled(b)
    identity = b.ask(fetch(b, topic, session_epoch=0), 17).session_id
    b.ask(request([], session_id=identity, session_epoch=5), 17)
    b.ask(request([], session_id=identity, session_epoch=1), 17)
    b.ask(request([], session_id=identity, session_epoch=1), 17)


@scenario
def unknown_session(b: Subject) -> None:
    topic = filled(b)
    b.ask(fetch(b, topic, session_id=12345, session_epoch=1), 17)
    b.ask(fetch(b, topic, session_id=12345, session_epoch=0), 17)
    b.ask(fetch(b, topic, session_id=12345, session_epoch=-1), 17)
    b.ask(fetch(b, topic, session_id=0, session_epoch=3), 17)


@scenario
def session_closed(b: Subject) -> None:
    topic = filled(b)
    identity = b.ask(fetch(b, topic, session_epoch=0), 17).session_id
    b.ask(fetch(b, topic, session_id=identity, session_epoch=-1), 17)
    b.ask(request([], session_id=identity, session_epoch=1), 17)


@scenario
def session_replaced(b: Subject) -> None:
    topic = filled(b)
    identity = b.ask(fetch(b, topic, session_epoch=0), 17).session_id
    b.ask(fetch(b, topic, session_id=identity, session_epoch=0), 17)
    b.ask(request([], session_id=identity, session_epoch=1), 17)


@scenario
def session_forgets_partitions(b: Subject) -> None:
    first, second = filled(b, "a"), filled(b, "b")
    wanted = [
        FetchRequest.FetchTopic(
            topic_id=b.topic_id(topic),
            partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)],
        )
        for topic in (first, second)
    ]
    identity = b.ask(request(wanted, session_epoch=0), 17).session_id
    forgotten = [FetchRequest.ForgottenTopic(topic_id=b.topic_id(first), partitions=[0])]
    b.ask(request([], session_id=identity, session_epoch=1, forgotten_topics_data=forgotten), 17)
    b.ask(request([], session_id=identity, session_epoch=2), 17)
    forgotten = [FetchRequest.ForgottenTopic(topic_id=b.topic_id(second), partitions=[0])]
    b.ask(request([], session_id=identity, session_epoch=3, forgotten_topics_data=forgotten), 17)
    b.ask(request([], session_id=identity, session_epoch=4), 17)


@scenario
def session_with_names_then_ids(b: Subject) -> None:
    topic = filled(b)
    identity = b.ask(fetch(b, topic, version=12, session_epoch=0), 12).session_id
    b.ask(fetch(b, topic, 6, session_id=identity, session_epoch=1), 17)
    b.ask(request([], session_id=identity, session_epoch=1), 12)


@scenario
def session_with_an_error_partition(b: Subject) -> None:
    topic = filled(b)
    identity = b.ask(fetch(b, topic, partition=9, session_epoch=0), 17).session_id
    b.ask(request([], session_id=identity, session_epoch=1), 17)
    b.ask(request([], session_id=identity, session_epoch=2), 17)


@scenario
def session_and_a_deleted_topic(b: Subject) -> None:
    from protocol.messages.topics import DeleteTopicsRequest

    topic = filled(b)
    identity = b.ask(fetch(b, topic, 6, session_epoch=0), 17).session_id
    b.quietly(DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    b.until(lambda: b.metadata(topic).topics[0].error_code == 3)
    b.ask(request([], session_id=identity, session_epoch=1), 17)


@scenario
def while_producing_on_one_connection(b: Subject) -> None:
    topic = b.topic()
    asked = fetch(b, topic, max_wait_ms=500, min_bytes=1)
    # Answers keep the order of the requests, so the next request, a produce, is answered second.
    b.connection.send(asked, 17)
    b.connection.send(produce_request(topic, batch(b"a"), acks=1), 11)
    b.note("fetch", len(b.connection.receive(FetchRequest, 17).responses))
    from protocol.messages.produce import ProduceRequest

    b.note("produce", b.connection.receive(ProduceRequest, 11))
