"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords at leaders, followers and others."""

from __future__ import annotations

from typing import Any

from protocol.messages.fetch import FetchRequest
from protocol.messages.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from protocol.messages.topics import DeleteRecordsRequest, DeleteRecordsResponse
from tests.parity.cluster.subject import CONTROLLER, OTHER, STOPPED, ClusterSubject, cluster_scenario
from tests.parity.scenarios.fetch import fetch
from tests.parity.subject import batch, produce_request

CONSUMER, DEBUGGING, STRANGER = -1, -2, 77
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
STALE, CURRENT, FUTURE = 0, 1, 5
"""Leader epochs of a topic after one more election."""


def filled(b: ClusterSubject, *replicas: int, records: int = 3) -> str:
    """A topic of one partition led by broker 0, with records that all replicas have and know to be committed."""
    topic = b.replicated("t", replicas)
    for number in range(records):
        b.produce(topic, b"%d" % number)
    for follower in replicas[1:]:
        with b.at(follower):
            b.until(lambda: _high_watermark(b, topic) == records)
    return topic


def _high_watermark(b: ClusterSubject, topic: str) -> int:
    return int(b.quietly(fetch(b, topic, version=12), 12).responses[0].partitions[0].high_watermark)


def _log_start(b: ClusterSubject, topic: str) -> int:
    return int(b.quietly(fetch(b, topic, 3, version=12), 12).responses[0].partitions[0].log_start_offset)


def list_offsets(
    b: ClusterSubject,
    topic: str,
    timestamp: int = LATEST,
    *,
    replica_id: int = CONSUMER,
    leader_epoch: int = -1,
    version: int = 7,
) -> None:
    """ListOffsets of partition 0, into the transcript."""
    asked = ListOffsetsRequest.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=leader_epoch
    )
    named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])
    b.ask(ListOffsetsRequest(replica_id=replica_id, topics=[named]), version)


def end_of_epoch(b: ClusterSubject, topic: str, epoch: int, *, current: int = -1, version: int = 4) -> None:
    """OffsetForLeaderEpoch of partition 0, into the transcript."""
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    named = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[asked])
    b.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[named]), version)


def delete_records(b: ClusterSubject, topic: str, offset: int) -> DeleteRecordsResponse:
    """DeleteRecords of partition 0, into the transcript."""
    asked = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    named = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[asked])
    response: DeleteRecordsResponse = b.ask(DeleteRecordsRequest(topics=[named], timeout_ms=10_000), 2)
    return response


def as_follower(b: ClusterSubject, topic: str, replica_id: int, version: int = 12, **options: Any) -> None:
    """Fetch as a replicating broker, into the transcript."""
    b.ask(fetch(b, topic, version=version, replica_id=replica_id, **options), version)


@cluster_scenario
def produce_to_a_follower(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    with b.at(OTHER):
        for version in (3, 7, 9):
            for acks in (1, -1):
                b.ask(produce_request(topic, batch(b"a"), acks=acks), version)
    b.describe(topic)


@cluster_scenario
def produce_to_a_broker_without_a_replica(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1))
    with b.at(STOPPED):
        b.ask(produce_request(topic, batch(b"a")), 9)
        b.ask(produce_request(b.name("missing"), batch(b"a")), 9)
        b.ask(produce_request(topic, batch(b"a"), partition=4), 9)


@cluster_scenario
def produce_for_all_in_sync(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1, 2), configs={"min.insync.replicas": "3"})
    for version in (3, 9):
        b.ask(produce_request(topic, batch(b"a", b"b")), version)


@cluster_scenario
def produce_for_more_in_sync_than_there_are(b: ClusterSubject) -> None:
    topic = b.replicated("t", (0, 1), configs={"min.insync.replicas": "3"})
    for acks in (-1, 1):
        b.ask(produce_request(topic, batch(b"a"), acks=acks), 9)


@cluster_scenario
def consume_from_a_follower(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    with b.at(OTHER):
        for version in (4, 9, 10, 11, 12, 15):
            b.ask(fetch(b, topic, version=version), version)
        for offset in (1, 2, 3, 4, -1):
            b.ask(fetch(b, topic, offset, version=12), 12)
        b.ask(fetch(b, topic, version=12, isolation_level=1), 12)


@cluster_scenario
def consume_from_a_broker_without_a_replica(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    with b.at(STOPPED):
        for version in (4, 11, 12, 15):
            b.ask(fetch(b, topic, version=version), version)
        b.ask(fetch(b, b.name("missing"), version=12), 12)


@cluster_scenario
def consume_in_a_rack(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    for version in (10, 11, 12, 15):
        b.ask(fetch(b, topic, version=version, rack_id="b"), version)
    for rack in ("a", "c", ""):
        b.ask(fetch(b, topic, version=12, rack_id=rack), 12)
    for offset in (3, 4):
        b.ask(fetch(b, topic, offset, version=12, rack_id="b", max_wait_ms=2000, min_bytes=1), 12)
    b.ask(fetch(b, topic, version=12, rack_id="b", current_leader_epoch=FUTURE), 12)
    with b.at(OTHER):
        b.ask(fetch(b, topic, version=12, rack_id="b"), 12)
        b.ask(fetch(b, topic, version=12, rack_id="a"), 12)


@cluster_scenario
def a_session_in_a_rack(b: ClusterSubject) -> None:
    topic = filled(b, 0, 2)
    response = b.ask(fetch(b, topic, version=12, rack_id="b", session_epoch=0), 12)
    again = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[], session_id=response.session_id, session_epoch=1, rack_id="b"
    )
    b.ask(again, 12)


@cluster_scenario
def consume_with_leader_epochs(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    b.elect_anew(topic)
    for broker_id in b.live:
        with b.at(broker_id):
            for epoch in (STALE, CURRENT, FUTURE):
                for version in (9, 12):
                    b.ask(fetch(b, topic, version=version, current_leader_epoch=epoch), version)


@cluster_scenario
def fetch_as_a_replica(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    for replica_id in (STOPPED, STRANGER, CONTROLLER):
        as_follower(b, topic, replica_id)
        as_follower(b, topic, replica_id, current_leader_epoch=0)
    as_follower(b, topic, OTHER, offset=3, current_leader_epoch=0)
    with b.at(OTHER):
        as_follower(b, topic, CONTROLLER)
        as_follower(b, topic, STOPPED, current_leader_epoch=0)
    with b.at(STOPPED):
        as_follower(b, topic, OTHER)


@cluster_scenario
def fetch_as_a_replica_that_has_split(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    b.elect_anew(topic)
    b.produce(topic, b"next")
    for offset, epoch in ((3, 0), (4, 0), (9, 0), (9, 1), (4, 1), (2, 1)):
        as_follower(b, topic, OTHER, offset=offset, last_fetched_epoch=epoch, current_leader_epoch=CURRENT)
    as_follower(b, topic, OTHER, offset=4, last_fetched_epoch=FUTURE, current_leader_epoch=CURRENT)


@cluster_scenario
def fetch_as_the_tool_that_compares_replicas(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    for broker_id in b.live:
        with b.at(broker_id):
            for version in (4, 10, 12):
                as_follower(b, topic, DEBUGGING, version)


@cluster_scenario
def offsets_at_leader_follower_and_another(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    for broker_id in b.live:
        with b.at(broker_id):
            for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, 0):
                list_offsets(b, topic, timestamp)
            list_offsets(b, topic, version=1)
            list_offsets(b, b.name("missing"))


@cluster_scenario
def offsets_for_replicas(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    for broker_id in b.live:
        with b.at(broker_id):
            for replica_id in (OTHER, STRANGER, DEBUGGING):
                list_offsets(b, topic, replica_id=replica_id)
                list_offsets(b, topic, 0, replica_id=replica_id)


@cluster_scenario
def offsets_with_leader_epochs(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    b.elect_anew(topic)
    for broker_id in b.live:
        with b.at(broker_id):
            for epoch in (STALE, CURRENT, FUTURE):
                for timestamp in (LATEST, EARLIEST, 0):
                    list_offsets(b, topic, timestamp, leader_epoch=epoch)


@cluster_scenario
def ends_of_epochs(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    b.elect_anew(topic)
    b.produce(topic, b"next")
    for epoch in (-1, 0, 1, 2, 9):
        for version in (0, 1, 3, 4):
            end_of_epoch(b, topic, epoch, version=version)


@cluster_scenario
def ends_of_epochs_at_followers_and_others(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    b.elect_anew(topic)
    for broker_id in (OTHER, STOPPED):
        with b.at(broker_id):
            end_of_epoch(b, topic, 0)
            end_of_epoch(b, b.name("missing"), 0)


@cluster_scenario
def ends_of_epochs_in_other_epochs(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    b.elect_anew(topic)
    for broker_id in b.live:
        with b.at(broker_id):
            for epoch in (STALE, CURRENT, FUTURE):
                end_of_epoch(b, topic, 0, current=epoch)


@cluster_scenario
def records_are_deleted_on_all_replicas(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1, 2)
    for offset in (1, 2, 9, -1, -2):
        delete_records(b, topic, offset)
    for broker_id in b.live:
        with b.at(broker_id):
            b.until(lambda: _log_start(b, topic) == 3)
            list_offsets(b, topic, EARLIEST, replica_id=DEBUGGING)


@cluster_scenario
def records_deleted_at_a_follower_and_another(b: ClusterSubject) -> None:
    topic = filled(b, 0, 1)
    for broker_id in (OTHER, STOPPED):
        with b.at(broker_id):
            delete_records(b, topic, 1)
    list_offsets(b, topic, EARLIEST)
