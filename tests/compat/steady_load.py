"""Producers that send without a pause while their broker dies repeatedly, and the check of its records."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.batch import RecordBatch, read_batches
from tests.kit.wire_client import WireClient

PATIENCE_S = 60.0
PARTITIONS = 2
GROUP = "steady"
UNKNOWN_OFFSET = -1
SHOWN_DOUBLES = 10
IMPATIENT = {
    # The broker is back in a fraction of a second: a client that waits longer before a retry tests nothing.
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    # librdkafka looks up the new leader once a second, while a broker is down. It may then need a second answer.
    "topic.metadata.refresh.interval.ms": 100,
    "log_level": 3,
    "log.connection.close": False,
    # An answer may be lost, and a host may be gone.
    "socket.timeout.ms": 5_000,
    "api.version.request.timeout.ms": 2_000,
    "socket.connection.setup.timeout.ms": 2_000,
}


def create_topics(address: str, topics: dict[str, dict[str, str]], *, replication_factor: int = 1) -> None:
    """Create topics by name with their configurations."""
    admin = AdminClient({"bootstrap.servers": address})
    new = [NewTopic(name, PARTITIONS, replication_factor, config=config) for name, config in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_S)


class Sender(threading.Thread):
    """One producer on all partitions of one topic. Values are `name/partition/number`, with consecutive numbers."""

    partitions = tuple(range(PARTITIONS))

    most_in_flight = 100
    """The limit of unacknowledged records."""
    records_of_a_batch = 20
    records_of_a_burst = 1
    """Records sent without a pause: a kill should hit appends at all stages, not a full buffer."""

    def __init__(self, name: str, address: str, topic: str, *, idempotent: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.topic = topic
        self.idempotent = idempotent
        self.sent = [0] * PARTITIONS
        self.acknowledged: list[tuple[int, int, int]] = []
        """(partition, number, offset) in the order of the acknowledgements. The offset is negative if librdkafka infers
        from later acknowledgements that a record was written, but not where.
        """
        self.refused: list[str] = []
        self.stopping = threading.Event()
        self.security: dict[str, str] = {}
        """Settings of librdkafka for a secured listener, and its address."""

    def run(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "enable.idempotence": self.idempotent,
            "acks": "all" if self.idempotent else "1",
            "linger.ms": 1,
            "batch.num.messages": self.records_of_a_batch,
            "message.timeout.ms": 0,  # never: unacknowledged records are resent forever
            **({} if self.idempotent else {"message.send.max.retries": 1_000_000}),
            **IMPATIENT,
            **self.security,
        }
        producer = Producer(settings)
        partitions = itertools.cycle(self.partitions)
        while not self.stopping.is_set():
            if len(producer) >= self.most_in_flight:
                producer.poll(0.01)
                continue
            partition = next(partitions)
            value = b"%s/%d/%d" % (self.name.encode(), partition, self.sent[partition])
            self.sent[partition] += 1
            producer.produce(self.topic, value=value, partition=partition, on_delivery=self._delivered)
            producer.poll(0)
            if sum(self.sent) % self.records_of_a_burst == 0:
                time.sleep(0.001)
        producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        value = message.value()
        assert value is not None
        _, partition, number = value.split(b"/")
        offset = message.offset()
        self.acknowledged.append((int(partition), int(number), UNKNOWN_OFFSET if offset is None else offset))

    def stop(self) -> None:
        """Stop sending, and wait until every record in flight is acknowledged."""
        self.stopping.set()
        self.join(PATIENCE_S * 2)
        assert not self.is_alive(), f"{self.name} does not end"


class Committer(threading.Thread):
    """A group that commits 1, 2, 3, ... and records the acknowledged commits."""

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
        """The broker's committed offset is not older than the last acknowledged one."""
        consumer = self._consumer()
        (found,) = consumer.committed([TopicPartition(self.target.topic, 0)], timeout=PATIENCE_S)
        consumer.close()
        assert self.acknowledged <= found.offset <= self.tried, (self.acknowledged, found.offset, self.tried)


def leader_address(address: str, topic: str, partition: int) -> str:
    """`host:port` of the broker that leads a partition; `address` are brokers of its cluster."""
    metadata = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(topic, timeout=PATIENCE_S)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    return f"{leader.host}:{leader.port}"


def stored_batches(address: str, topic: str, partition: int) -> Iterator[RecordBatch]:
    """Every batch that a consumer gets from the leader, from the beginning."""
    host, port = leader_address(address, topic, partition).split(":")
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
                return
            for batch in batches:
                batch.ensure_valid()
                yield batch
            offset = batches[-1].next_offset


def read_partition(address: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """(offset, value) of every record that a consumer gets from the leader, from the beginning."""
    return [
        (record.offset, record.value or b"")
        for batch in stored_batches(address, topic, partition)
        for record in batch.records()
    ]


class Copy(NamedTuple):
    """One of several records with the same value, and its batch."""

    offset: int
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class Double(NamedTuple):
    """A value that occurs in a partition more than once."""

    topic: str
    partition: int
    value: bytes
    copies: tuple[Copy, ...]

    @property
    def is_of_new_epochs(self) -> bool:
        """Whether the producer sent each copy in another epoch, so that no broker could recognize the duplicates."""
        return len({(copy.producer_id, copy.producer_epoch) for copy in self.copies}) == len(self.copies)

    def __str__(self) -> str:
        how = "each in another producer epoch" if self.is_of_new_epochs else "IN ONE PRODUCER EPOCH"
        copies = "".join(f"\n    {copy}" for copy in self.copies)
        return f"{self.topic}-{self.partition} has {self.value!r} {len(self.copies)} times, {how}:{copies}"


def find_doubles(address: str, topic: str, partition: int, values: Collection[bytes]) -> list[Double]:
    """How each of these values came to occur in the partition more than once."""
    copies: dict[bytes, list[Copy]] = {value: [] for value in values}
    for batch in stored_batches(address, topic, partition):
        origin = (
            batch.base_offset, batch.partition_leader_epoch,
            batch.producer_id, batch.producer_epoch, batch.base_sequence,
        )  # fmt: skip
        for record in batch.records():
            if record.value in copies:
                copies[record.value].append(Copy(record.offset, *origin))
    return [Double(topic, partition, value, tuple(found)) for value, found in copies.items()]


@dataclass
class Verdict:
    """The comparison of the records found with those acknowledged."""

    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    refused: list[str] = field(default_factory=list)
    doubles: list[Double] = field(default_factory=list)
    """The `doubled` values, if the comparison finds them."""

    def __iadd__(self, other: Verdict) -> Self:
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.doubled += other.doubled
        self.reordered += other.reordered
        self.refused += other.refused
        self.doubles += other.doubles
        return self

    @property
    def is_good(self) -> bool:
        """Whether everything sent was acknowledged, and exists once and in order."""
        return not (self.lost or self.doubled or self.reordered or self.refused)

    def __str__(self) -> str:
        doubles = "".join(f"\n  {double}" for double in self.doubles[:SHOWN_DOUBLES])
        return f"acknowledged records {self.acknowledged}, lost: {self.lost}, doubled: {self.doubled}{doubles}"


def compare(address: str, senders: Iterable[Sender]) -> Verdict:
    """Compare one topic's records, as the leaders at these addresses have them, with those of its senders.

    Fails at once for gaps in the offsets and for records that were never sent. `doubled` counts the values that an
    idempotent sender has more than once, `reordered` those that follow a later one.
    """
    senders = list(senders)
    verdict = Verdict()
    by_name = {sender.name: sender for sender in senders}
    found: list[dict[int, bytes]] = []
    present: dict[str, set[tuple[int, int]]] = {name: set() for name in by_name}
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
            present[name].add((partition, int(number)))
        doubled: list[bytes] = []
        for sender in senders:
            if sender.idempotent:
                times = Counter(numbers[sender.name])
                verdict.doubled += sum(count - 1 for count in times.values())
                verdict.reordered += sum(later < number for number, later in pairwise(times))
                doubled += [b"%s/%d/%d" % (sender.name.encode(), partition, each) for each in times if times[each] > 1]
        if doubled:
            verdict.doubles += find_doubles(address, senders[0].topic, partition, doubled)
    for sender in senders:
        verdict.refused += sender.refused
        verdict.acknowledged += len(sender.acknowledged)
        for partition, number, offset in sender.acknowledged:
            if offset < 0:
                verdict.lost += (partition, number) not in present[sender.name]
                continue
            expected = b"%s/%d/%d" % (sender.name.encode(), partition, number)
            verdict.lost += found[partition].get(offset) != expected
    return verdict


def judge(address: str, senders: Iterable[Sender]) -> Verdict:
    """Like `compare`, but fails for values out of order, and for refused records."""
    verdict = compare(address, senders)
    assert verdict.reordered == 0
    assert not verdict.refused, verdict.refused[:3]
    return verdict
