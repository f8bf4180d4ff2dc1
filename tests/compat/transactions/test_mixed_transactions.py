"""Transactions over Apache Kafka 3.9.1 and Odradek in one cluster: each coordinates, and each writes markers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from protocol.errors import ErrorCode
from protocol.messages.coordinators import FindCoordinatorRequest, FindCoordinatorResponse
from tests.compat.test_mixed_cluster import APACHE, ODRADEK, Mixed, mixed, tree
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

GROUP, TRANSACTION = 0, 1
PATIENCE_S = 60.0


class Keys(NamedTuple):
    """A transactional id and a group coordinated by a broker."""

    transactional_id: str
    group: str


def keys_of(cluster: Mixed) -> dict[int, Keys]:
    """The keys, by coordinating broker."""
    host, _, port = cluster.odradek.address.rpartition(":")
    names = [f"key{number}" for number in range(20)]

    def found(key_type: int) -> dict[int, str]:
        with WireClient(host, int(port)) as client:
            response = client.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=names), 4)
        assert isinstance(response, FindCoordinatorResponse)
        return {each.node_id: each.key for each in response.coordinators if each.error_code == ErrorCode.NONE}

    both = {
        key_type: eventually("coordinators", lambda of=key_type: found(of), lambda seen: set(seen) == {APACHE, ODRADEK})
        for key_type in (GROUP, TRANSACTION)
    }
    return {broker: Keys(both[TRANSACTION][broker], both[GROUP][broker]) for broker in (APACHE, ODRADEK)}


def values_in(address: str, partition: int) -> list[str]:
    """All committed values."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    values = []
    try:
        consumer.assign([TopicPartition("t", partition, 0)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error, value = message.error(), message.value()
            if error is None and value is not None:
                values.append(value.decode())
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                return values
    finally:
        consumer.close()


def committed_offset(address: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition("t", 0)], timeout=PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


def transact(cluster: Mixed, transactional_id: str, value: str, group: str, offset: int, *, commit: bool) -> None:
    """One transaction over partitions and a group, by a new producer."""
    producer = Producer({"bootstrap.servers": cluster.addresses, "transactional.id": transactional_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("t", value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": cluster.addresses, "group.id": group})
    metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition("t", 0, offset)], metadata, PATIENCE_S)
    consumer.close()
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)


@pytest.mark.parametrize("controller", [APACHE, ODRADEK])
def test_either_coordinates_for_both(tmp_path: Path, controller: int) -> None:
    with mixed(tmp_path, controller, tree) as cluster:
        cluster.create_topic(at=cluster.apache_address)
        keys = keys_of(cluster)
        expected: list[str] = []
        offset = 0
        for coordinator in (APACHE, ODRADEK):
            for group_of in (APACHE, ODRADEK):
                transactional_id, group = keys[coordinator].transactional_id, keys[group_of].group
                for commit in (True, False):
                    offset += 1
                    value = f"{coordinator} {group_of} {commit}"
                    transact(cluster, transactional_id, value, group, offset, commit=commit)
                    if commit:
                        expected.append(value)
                        last = offset
                assert committed_offset(cluster.addresses, group) == last
        for partition in range(2):
            eventually(
                "the committed values",
                lambda of=partition: values_in(cluster.addresses, of),
                lambda seen: seen == expected,
            )
        cluster.check_replicas()
        said = cluster.odradek.output.read_text()
        assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
