"""Producers that never rest while their broker dies again and again, and the judge of what it has afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.messages import FetchRequest, FetchResponse
from protocol.records.batch import read_batches
from tests.kit.wire_client import WireClient

PATIENCE_S = 60.0
MOST_IN_FLIGHT = 100
"""Records of one producer that wait for their acknowledgement at most."""
PARTITIONS = 2
GROUP = "steady"
IMPATIENT = {
    # The broker is back in a fraction of a second: who waits longer before he tries again tests nothing.
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "log_level": 3,
    "log.connection.close": False,
}


def create_topics(address: str, topics: dict[str, dict[str, str]], *, replication_factor: int = 1) -> None:
    """Create topics by name with their configurations."""
    admin = AdminClient({"bootstrap.servers": address})
    new = [NewTopic(name, PARTITIONS, replication_factor, config=config) for name, config in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_S)


class Sender(threading.Thread):
    """One producer on all partitions of one topic. Values are `name/partition/number`, numbers without a gap."""

    def __init__(self, name: str, address: str, topic: str, *, idempotent: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.topic = topic
        self.idempotent = idempotent
        self.sent = [0] * PARTITIONS
        self.acknowledged: list[tuple[int, int, int]] = []
        """(partition, number, offset) in the order of the acknowledgements."""
        self.refused: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        settings = {
            "bootstrap.servers": self.address,
            "enable.idempotence": self.idempotent,
            "acks": "all" if self.idempotent else "1",
            "linger.ms": 1,
            "batch.num.messages": 20,
            "message.timeout.ms": 0,  # never: what is not acknowledged is sent again until it is
            **({} if self.idempotent else {"message.send.max.retries": 1_000_000}),
            **IMPATIENT,
        }
        producer = Producer(settings)
        partition = 0
        while not self.stopping.is_set():
            if len(producer) >= MOST_IN_FLIGHT:
                producer.poll(0.01)
                continue
            partition = (partition + 1) % PARTITIONS
            value = b"%s/%d/%d" % (self.name.encode(), partition, self.sent[partition])
            self.sent[partition] += 1
            producer.produce(self.topic, value=value, partition=partition, on_delivery=self._delivered)
            # Paced: a kill is to meet appends at all their stages, not a full buffer.
            producer.poll(0)
            time.sleep(0.001)
        producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        value = message.value()
        assert value is not None
        _, partition, number = value.split(b"/")
        self.acknowledged.append((int(partition), int(number), message.offset() or 0))

    def stop(self) -> None:
        """Send nothing more, and wait for the acknowledgement of what is under way."""
        self.stopping.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive(), f"{self.name} does not end"


class Committer(threading.Thread):
    """A group that commits 1, 2, 3, ... and knows what was acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.target = TopicPartition(topic, 0)
        self.acknowledged = self.tried = 0
        self.address = address
        self.stopping = threading.Event()

    def _consumer(self) -> Consumer:
        return Consumer(
            {"bootstrap.servers": self.address, "group.id": GROUP, "enable.auto.commit": False, **IMPATIENT}
        )

    def run(self) -> None:
        consumer = self._consumer()
        while not self.stopping.is_set():
            self.tried += 1
            self.target.offset = self.tried
            try:
                consumer.commit(offsets=[self.target], asynchronous=False)
            except KafkaException:
                time.sleep(0.02)
            else:
                self.acknowledged = self.tried
            time.sleep(0.002)
        consumer.close()

    def stop(self) -> None:
        """Commit nothing more."""
        self.stopping.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive(), "a commit never returned"

    def check(self) -> None:
        """The broker knows an offset that is not older than the last one it acknowledged."""
        consumer = self._consumer()
        (found,) = consumer.committed([TopicPartition(self.target.topic, 0)], timeout=PATIENCE_S)
        consumer.close()
        assert self.acknowledged <= found.offset <= self.tried, (self.acknowledged, found.offset, self.tried)


def leader_address(address: str, topic: str, partition: int) -> str:
    """`host:port` of the broker that leads a partition; `address` are brokers of its cluster."""
    metadata = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(topic, timeout=PATIENCE_S)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    return f"{leader.host}:{leader.port}"


def read_partition(address: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """(offset, value) of every record that a consumer is given by the leader, from the beginning."""
    host, port = leader_address(address, topic, partition).split(":")
    records: list[tuple[int, bytes]] = []
    offset = 0
    with WireClient(host, int(port)) as client:
        while True:
            wanted = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            topics = [FetchRequest.FetchTopic(topic=topic, partitions=[wanted])]
            response = client.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), 12)
            assert isinstance(response, FetchResponse)
            (answer,) = response.responses[0].partitions
            assert answer.error_code == ErrorCode.NONE, answer.error_code
            batches = list(read_batches(memoryview(answer.records or b"")))
            if not batches:
                assert offset == answer.high_watermark
                return records
            for batch in batches:
                batch.ensure_valid()
                records += [(record.offset, record.value or b"") for record in batch.records()]
            offset = batches[-1].next_offset


@dataclass
class Verdict:
    """The comparison of the records found with those acknowledged."""

    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0

    def __str__(self) -> str:
        return f"acknowledged records {self.acknowledged}, lost: {self.lost}, doubled: {self.doubled}"


def judge(address: str, senders: Iterable[Sender]) -> Verdict:
    """Compare one topic's records, as the leaders at these addresses have them, with what its senders know.

    Fails at once for holes in the offsets, for records that nobody sent, and for values of an idempotent sender that
    are not in the order of their numbers. `doubled` counts the values that an idempotent sender has more than once.
    """
    senders = list(senders)
    verdict = Verdict()
    by_name = {sender.name: sender for sender in senders}
    found: list[dict[int, bytes]] = []
    for partition in range(PARTITIONS):
        records = read_partition(address, senders[0].topic, partition)
        assert [offset for offset, _ in records] == list(range(len(records))), "offsets are not dense"
        found.append(dict(records))
        numbers: dict[str, list[int]] = {name: [] for name in by_name}
        for offset, value in records:
            name, wanted_partition, number = value.decode().split("/")
            assert int(wanted_partition) == partition, (offset, value)
            assert int(number) < by_name[name].sent[partition], f"nobody sent {value!r}"
            numbers[name].append(int(number))
        for sender in senders:
            if sender.idempotent:
                times = Counter(numbers[sender.name])
                verdict.doubled += sum(count - 1 for count in times.values())
                assert list(times) == sorted(times), f"{sender.name} is out of order in partition {partition}"
    for sender in senders:
        assert not sender.refused, sender.refused[:3]
        verdict.acknowledged += len(sender.acknowledged)
        for partition, number, offset in sender.acknowledged:
            expected = b"%s/%d/%d" % (sender.name.encode(), partition, number)
            verdict.lost += found[partition].get(offset) != expected
    return verdict
