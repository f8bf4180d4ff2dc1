"""librdkafka has several batches in flight when the first is temporarily refused, though it is already stored.

It takes such a refusal as proof that nothing is stored. When a later batch is out of order, it begins a new producer
epoch and resends everything in it; then no broker can recognize what is already stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.network.registry import CloseConnection
from broker.replication.replica_manager import ReplicaManager
from cluster.replication.partition import Partition
from protocol.errors import ApiError
from protocol.topic_partition import TopicPartition
from storage.log.log_appender import LogAppendInfo
from tests.compat.steady_load import IMPATIENT, stored_batches
from tests.kit.in_process_cluster import InProcessCluster

RECORDS = 10
LOST = 1
"""The batch whose answer is lost."""
FIRST_REFUSED = 2
"""It is then resent, together with the next one."""
PARTITION = TopicPartition("t", 0)
Refuse = Callable[[Partition, bool], None]


def below_min_isr(partition: Partition, refuses: bool) -> None:
    """Make the partition refuse acks=all, or accept it again."""
    isr, replicas = ((0,), (0, 1)) if refuses else ((0, 1), (0, 1))
    partition.image = partition.image.replace(isr=isr, replicas=replicas)
    partition.log.local.config = partition.log.local.config.replace(min_insync_replicas=2)


def not_leading(partition: Partition, refuses: bool) -> None:
    """Move the partition's leadership away, or back."""
    if refuses:
        partition.resign(partition.image)
    else:
        partition.become_leader(partition.image, 0)


def without_room(partition: Partition, refuses: bool) -> None:
    """Make the disk full, or free it."""
    directory = partition.log.directory
    directory.is_reserve_reached = refuses
    directory.headroom_bytes = 0 if refuses else 1 << 30


class Script:
    """Loses the answer of the first batch, and refuses some of the later ones."""

    def __init__(self, refuse: Refuse, last_refused: int) -> None:
        self._refuse = refuse
        self._append = ReplicaManager.append
        self._last_refused = last_refused
        self._batches = 0
        self.refusals: list[str] = []

    def append(
        self, manager: ReplicaManager, topic_partition: TopicPartition, records: memoryview, **options: Any
    ) -> LogAppendInfo:
        """Replaces `ReplicaManager.append`."""
        if topic_partition != PARTITION:
            return self._append(manager, topic_partition, records, **options)
        self._batches += 1
        number, partition = self._batches, manager.partition(topic_partition)
        if number == FIRST_REFUSED:
            self._refuse(partition, True)
        if number == self._last_refused + 1:
            self._refuse(partition, False)
        try:
            info = self._append(manager, topic_partition, records, **options)
        except ApiError as error:
            self.refusals.append(error.error_code.name)
            raise
        if number == LOST:
            raise CloseConnection("the answer is lost")
        return info


def send_all(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(PARTITION.topic, 1, 1)])[PARTITION.topic].result(20)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "message.timeout.ms": 0,
            **IMPATIENT,
        }
    )
    for number in range(RECORDS):
        producer.produce(PARTITION.topic, b"%d" % number, partition=PARTITION.partition)
    assert producer.flush(20) == 0


@pytest.mark.parametrize(
    ("refuse", "last_refused", "refusal"),
    [
        (below_min_isr, 3, "NOT_ENOUGH_REPLICAS"),
        (below_min_isr, 20, "NOT_ENOUGH_REPLICAS"),
        (not_leading, 3, "NOT_LEADER_OR_FOLLOWER"),
        (without_room, 4, "KAFKA_STORAGE_ERROR"),
        (without_room, 20, "KAFKA_STORAGE_ERROR"),
    ],
)
def test_everything_is_stored_once_and_in_one_producer_epoch(
    refuse: Refuse, last_refused: int, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with InProcessCluster(1) as cluster:
            address = cluster.address(0)
            await asyncio.to_thread(send_all, address)
            batches = await asyncio.to_thread(lambda: list(stored_batches(address, *PARTITION)))
            assert {batch.producer_epoch for batch in batches} == {0}
            values = [record.value for batch in batches for record in batch.records()]
            assert values == [b"%d" % number for number in range(RECORDS)]

    script = Script(refuse, last_refused)

    def append(
        manager: ReplicaManager, topic_partition: TopicPartition, records: memoryview, **options: Any
    ) -> LogAppendInfo:
        return script.append(manager, topic_partition, records, **options)

    monkeypatch.setattr(ReplicaManager, "append", append)
    asyncio.run(scenario())
    assert refusal in script.refusals
