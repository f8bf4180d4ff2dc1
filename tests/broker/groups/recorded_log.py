"""A log of __consumer_offsets that Apache Kafka wrote, and what Kafka then answered about it.

    python -m tests.broker.groups.recorded_log HOST:PORT

writes recorded/consumer_offsets.json again, from a fresh broker started with `group_fixture.SETTINGS`. It holds the raw
batches of the partitions, with transactional offsets (committed, aborted, open) among them, and the answers.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from protocol.messages.fetch import FetchRequest
from protocol.messages.group_admin import DeleteGroupsRequest, ListGroupsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.topic_partition import CONSUMER_OFFSETS
from tests.broker.groups.dialogue_steps import form, form_static, list_own
from tests.broker.groups.group_fixture import OFFSETS_PARTITIONS, GroupFixture, Remote
from tests.kit.group_requests import (
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    commit,
    delete_offsets,
    describe,
    fetch_groups,
    heartbeat,
    leave,
    subscription,
)
from tests.kit.wire_client import WireClient

RECORDED = Path(__file__).parent / "recorded" / "consumer_offsets.json"
NAME = "kafka-wrote"
TOPIC = f"{NAME}-t"


def write(fixture: GroupFixture) -> dict[str, Any]:
    """Make the broker write all kinds of records; returns the ids that `ask` needs."""
    topic = fixture.topic()
    assert topic == TOPIC
    static, static_generation = form_static(
        fixture, fixture.group("static"), "ab", protocols=[("range", subscription(topic))], session_ms=15_000
    )
    group = fixture.group("static")
    fixture.ask("a", commit(group, [(topic, 0, 5)], static["a"], static_generation, metadata="old"), COMMIT)
    request = commit(group, [(topic, 0, 6), (topic, 1, 7)], static["a"], static_generation, leader_epoch=0)
    fixture.ask("a", request, COMMIT)
    dynamic, dynamic_generation = form(fixture, fixture.group("dynamic"), "cd", rebalance_ms=9000)
    left, _ = form(fixture, fixture.group("left"), "e")
    fixture.ask("x", leave(fixture.group("left"), (left["e"], None)), 5)
    fixture.ask("x", commit(fixture.group("left"), [(topic, 0, 1)]), COMMIT)
    gone, _ = form(fixture, fixture.group("gone"), "f")
    fixture.ask("x", leave(fixture.group("gone"), (gone["f"], None)), 5)
    fixture.ask("x", DeleteGroupsRequest(groups_names=[fixture.group("gone")]), DELETE)
    simple = fixture.group("simple")
    fixture.ask("x", commit(simple, [(topic, 0, 1), (topic, 1, 2)], metadata="note \u00e9", leader_epoch=4), COMMIT)
    fixture.ask("x", delete_offsets(simple, {topic: [1]}), 0)
    fixture.ask("x", commit(fixture.group("expiry"), [(topic, 0, 3)], retention_ms=86_400_000_000), 4)
    return {
        "static": static,
        "static_generation": static_generation,
        "dynamic": dynamic,
        "dynamic_generation": dynamic_generation,
    }


def write_transactions(address: str) -> None:
    """Commit offsets in transactions: some committed, one aborted, two left open."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    def offsets_in(transaction: str, group: str, partition: int, offset: int, end: str) -> None:
        producer = Producer({"bootstrap.servers": address, "transactional.id": transaction})
        consumer = Consumer({"bootstrap.servers": address, "group.id": group})
        producer.init_transactions(10)
        producer.begin_transaction()
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, partition, offset)], metadata, 10)
        if end == "commit":
            producer.commit_transaction(10)
        elif end == "abort":
            producer.abort_transaction(10)
        else:
            _left_open.append(producer)
        consumer.close()

    offsets_in("t1", f"{NAME}-transactions", 0, 100, "commit")
    offsets_in("t2", f"{NAME}-transactions", 0, 200, "abort")
    offsets_in("t3", f"{NAME}-transactions", 1, 300, "commit")
    offsets_in("t4", f"{NAME}-transactions", 1, 400, "leave open")
    offsets_in("t5", f"{NAME}-open", 0, 500, "leave open")


_left_open: list[Any] = []


def ask(fixture: GroupFixture, ids: dict[str, Any]) -> None:
    """Send requests to a coordinator that has loaded the log."""
    groups = [
        fixture.group(each)
        for each in ("static", "dynamic", "left", "gone", "simple", "expiry", "transactions", "open")
    ]
    fixture.ask("x", describe(*groups), DESCRIBE)
    list_own(fixture, "x", ListGroupsRequest(), 5)
    fixture.ask("x", fetch_groups(dict.fromkeys(groups)), FETCH)
    fixture.ask("x", fetch_groups({group: {TOPIC: [0, 1]} for group in groups}, stable=True), FETCH)
    for who in "ab":
        fixture.ask(who, heartbeat(groups[0], ids["static"][who], ids["static_generation"], who), 4)
    for who in "cd":
        fixture.ask(who, heartbeat(groups[1], ids["dynamic"][who], ids["dynamic_generation"]), 4)


def read_partition(address: tuple[str, int], partition: int) -> bytes:
    """All batches of one partition of __consumer_offsets."""
    with WireClient(*address) as client:
        metadata: Any = client.ask(
            MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=CONSUMER_OFFSETS)], allow_auto_topic_creation=False
            ),
            12,
        )
        wanted = FetchRequest.FetchPartition(
            partition=partition, fetch_offset=0, log_start_offset=-1, partition_max_bytes=10_000_000
        )
        response: Any = client.ask(
            FetchRequest(
                replica_id=-1,
                max_wait_ms=1000,
                min_bytes=1,
                max_bytes=10_000_000,
                topics=[FetchRequest.FetchTopic(topic_id=metadata.topics[0].topic_id, partitions=[wanted])],
                forgotten_topics_data=[],
            ),
            13,
        )
        return bytes(response.responses[0].partitions[0].records)


def main(arguments: list[str]) -> None:
    """See the module."""
    host, port = arguments[0].rsplit(":", 1)
    place = Remote(host, int(port))
    place.await_coordinator("anybody")
    fixture = GroupFixture(place, NAME)
    ids = write(fixture)
    write_transactions(arguments[0])
    batches = [read_partition((host, int(port)), partition) for partition in range(OFFSETS_PARTITIONS)]
    fixture.transcript.clear()
    ask(fixture, ids)
    recorded = {
        "ids": ids,
        "partitions": [base64.b64encode(each).decode() for each in batches],
        "answers": fixture.transcript,
    }
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
