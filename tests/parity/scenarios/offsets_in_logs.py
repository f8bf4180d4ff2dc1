"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the start and end of partitions."""

from __future__ import annotations

from protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from protocol.messages.topics import DeleteRecordsRequest
from tests.parity.scenarios.fetch import fetch, filled
from tests.parity.subject import TIMESTAMP, Subject, scenario


def list_offsets(
    b: Subject,
    topic: str,
    *timestamps: int,
    version: int = 9,
    partition: int = 0,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    replica_id: int = -1,
) -> None:
    """Ask for each timestamp in a separate request."""
    for timestamp in timestamps:
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=current_leader_epoch, timestamp=timestamp
        )
        named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
        b.ask(ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation_level, topics=[named]), version)


@scenario
def ends(b: Subject) -> None:
    list_offsets(b, filled(b), -1, -2, -3, -4, -5)


@scenario
def ends_of_an_empty_partition(b: Subject) -> None:
    list_offsets(b, b.topic(), -1, -2, -3, -4, -5, 0, TIMESTAMP)


@scenario
def ends_in_every_version(b: Subject) -> None:
    topic = filled(b)
    for version in range(1, 10):
        list_offsets(b, topic, -1, -2, -3, -4, -5, version=version, isolation_level=int(version > 1))


@scenario
def version_0(b: Subject) -> None:
    topic = filled(b)
    for timestamp, most in ((-1, 1), (-1, 5), (-2, 1), (TIMESTAMP, 1), (0, 1), (-3, 1)):
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=most)
        named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
        b.ask(ListOffsetsRequest(replica_id=-1, topics=[named]), 0)


@scenario
def by_timestamp(b: Subject) -> None:
    topic = b.topic()
    for number in range(4):
        b.produce(topic, b"a", b"b", base_timestamp=TIMESTAMP + 10 * number)
    list_offsets(
        b, topic, 0, TIMESTAMP - 1, TIMESTAMP, TIMESTAMP + 1, TIMESTAMP + 2, TIMESTAMP + 30, TIMESTAMP + 31,
        TIMESTAMP + 32,
    )  # fmt: skip


@scenario
def by_timestamp_out_of_order(b: Subject) -> None:
    topic = b.topic()
    for delta in (50, 10, 90, 20):
        b.produce(topic, b"a", b"b", base_timestamp=TIMESTAMP + delta)
    list_offsets(b, topic, TIMESTAMP, TIMESTAMP + 20, TIMESTAMP + 51, TIMESTAMP + 52, TIMESTAMP + 91, -3)


@scenario
def by_timestamp_across_segments(b: Subject) -> None:
    topic = b.topic(configs={"segment.bytes": "200", "index.interval.bytes": "1"})
    for number in range(8):
        b.produce(topic, b"value", base_timestamp=TIMESTAMP + 10 * number)
    list_offsets(b, topic, TIMESTAMP, TIMESTAMP + 35, TIMESTAMP + 40, TIMESTAMP + 71, -3)


@scenario
def by_timestamp_in_a_compressed_batch(b: Subject) -> None:
    from protocol.records.compression import CompressionType

    topic = b.topic()
    b.produce(topic, b"a", b"b", b"c", compression=CompressionType.GZIP)
    list_offsets(b, topic, TIMESTAMP + 1, TIMESTAMP + 2, -3)


@scenario
def records_without_timestamps(b: Subject) -> None:
    topic = b.topic()
    b.produce(topic, b"a", base_timestamp=-1)
    list_offsets(b, topic, 0, -3)


@scenario
def timestamps_without_a_meaning(b: Subject) -> None:
    list_offsets(b, filled(b), -6, -100, -(2**63))


@scenario
def missing_partitions(b: Subject) -> None:
    list_offsets(b, b.name("missing"), -1)
    list_offsets(b, b.name("missing"), -1, version=1)
    list_offsets(b, b.topic(), -1, partition=5)


@scenario
def same_partition_twice(b: Subject) -> None:
    topic = filled(b)
    wanted = [ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=at) for at in (-1, -2)]
    named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=wanted)
    b.ask(ListOffsetsRequest(replica_id=-1, topics=[named]), 9)


@scenario
def leader_epochs_of_readers(b: Subject) -> None:
    topic = filled(b)
    for epoch in (0, 1, 7):
        list_offsets(b, topic, -1, current_leader_epoch=epoch)


@scenario
def from_replicas(b: Subject) -> None:
    topic = filled(b)
    for replica_id in (-2, 5):
        list_offsets(b, topic, -1, replica_id=replica_id)


@scenario
def nothing(b: Subject) -> None:
    b.ask(ListOffsetsRequest(replica_id=-1, topics=[]), 9)
    b.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[]), 4)
    b.ask(DeleteRecordsRequest(topics=[], timeout_ms=1000), 2)


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------------------


def epoch_end(
    b: Subject, topic: str, epoch: int, *, version: int = 4, partition: int = 0, current_leader_epoch: int = -1
) -> None:
    """Request the end of one epoch."""
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current_leader_epoch, leader_epoch=epoch
    )
    named = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[wanted])
    b.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[named]), version)


@scenario
def epoch_ends(b: Subject) -> None:
    topic = filled(b)
    for epoch in (0, 1, 5, -1):
        epoch_end(b, topic, epoch)


@scenario
def epoch_end_in_every_version(b: Subject) -> None:
    topic = filled(b)
    for version in range(5):
        epoch_end(b, topic, 0, version=version)


@scenario
def epoch_end_of_an_empty_partition(b: Subject) -> None:
    topic = b.topic()
    epoch_end(b, topic, 0)
    epoch_end(b, topic, 1)


@scenario
def epoch_end_of_missing_partitions(b: Subject) -> None:
    epoch_end(b, b.name("missing"), 0)
    epoch_end(b, b.topic(), 0, partition=3)


@scenario
def epoch_end_and_the_reader_is_behind(b: Subject) -> None:
    topic = filled(b)
    for epoch in (0, 1, 7):
        epoch_end(b, topic, 0, current_leader_epoch=epoch)


# -- DeleteRecords -----------------------------------------------------------------------------------------------------


def delete_records(b: Subject, topic: str, *offsets: int, version: int = 2, partition: int = 0) -> None:
    """Delete before each offset, one request after the other."""
    for offset in offsets:
        wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition, offset=offset)
        named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[wanted])
        b.ask(DeleteRecordsRequest(topics=[named], timeout_ms=10_000), version)


@scenario
def delete_some(b: Subject) -> None:
    topic = filled(b)
    delete_records(b, topic, 3)
    list_offsets(b, topic, -2, -1)
    b.ask(fetch(b, topic, 3), 17)
    b.ask(fetch(b, topic, 2), 17)
    delete_records(b, topic, 2, 3, 5)
    list_offsets(b, topic, -2)


@scenario
def delete_all(b: Subject) -> None:
    topic = filled(b)
    delete_records(b, topic, -1)
    list_offsets(b, topic, -2, -1, -3, TIMESTAMP)
    b.produce(topic, b"new")
    b.ask(fetch(b, topic, 6), 17)


@scenario
def delete_in_every_version(b: Subject) -> None:
    topic = filled(b)
    for version in range(3):
        delete_records(b, topic, version + 1, version=version)


@scenario
def delete_out_of_range(b: Subject) -> None:
    topic = filled(b)
    delete_records(b, topic, 7, 100, -2, -100)


@scenario
def delete_from_missing_partitions(b: Subject) -> None:
    delete_records(b, b.name("missing"), 0)
    delete_records(b, b.topic(), 0, partition=4)


@scenario
def delete_from_a_compacted_topic(b: Subject) -> None:
    topic = b.topic(configs={"cleanup.policy": "compact"})
    b.produce(topic, b"a", keys=True)
    delete_records(b, topic, 1)


@scenario
def delete_from_an_internal_topic(b: Subject) -> None:
    b.coordinator(b.name("g"))
    delete_records(b, "__consumer_offsets", 0)
