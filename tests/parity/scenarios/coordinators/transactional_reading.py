"""Reads by isolation level of logs with open, committed and aborted transactions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from protocol.messages.fetch import FetchRequest
from protocol.messages.offsets import ListOffsetsRequest
from protocol.messages.topics import DeleteRecordsRequest
from protocol.records.batch import read_batches
from protocol.topic_partition import TopicPartition
from tests.kit.transactions.requests import START_MS
from tests.kit.wire_requests import delete_records, list_offsets
from tests.parity.scenarios.producers import describe as describe_producers
from tests.parity.subject import Subject, scenario_for_each
from tests.parity.transactional_producer import Producer, coordinated, read


class Writers:
    """Two transactional producers, `one` and `two`, and batches without a producer, into partition 0 of one topic."""

    def __init__(self, b: Subject) -> None:
        self.b, name = b, coordinated(b)
        # Markers are years younger than the records: that must not roll a segment, which would eventually be deleted.
        self.topic = b.topic(configs={"segment.ms": str(1 << 60)})
        self.producers = {"one": Producer(b, name).begin(), "two": Producer(b, b.name("two")).begin()}
        self.sequences = dict.fromkeys(self.producers, 0)

    def play(self, *steps: str) -> None:
        """`one` and `two` write a batch; `one+` commits, `one-` aborts; `plain` is a batch without a producer."""
        for step in steps:
            producer = self.producers.get(name := step.rstrip("+-"))
            if producer is None:
                self.b.produce(self.topic, b"plain", base_timestamp=START_MS)
            elif step == name:
                producer.add(TopicPartition(self.topic, 0))
                producer.write(self.topic, self.sequences[name], name.encode())
                self.sequences[name] += 1
            else:
                producer.end(commit=step.endswith("+"))
                producer.settle()


LOGS: dict[str, tuple[str, ...]] = {
    "open": ("one",),
    "open_behind_plain": ("plain", "one", "plain"),
    "committed": ("one", "one", "one+", "plain"),
    "aborted": ("one", "one", "one-", "plain"),
    "interleaved": ("one", "two", "plain", "two-", "one", "one+"),
    "one_open_one_ended": ("one", "two", "two+", "plain"),
    "aborted_again_and_again": ("one", "one-", "one", "one-", "two", "two-", "plain"),
    "aborted_then_open": ("one", "one-", "two", "one", "plain"),
}
Question = Callable[[Subject, Writers], None]


def _fetch(b: Subject, topic: str, offset: int, *, isolation: int, limit: int = 1 << 20) -> None:
    """Notes which batches are read, not their bytes: producer ids differ. Kafka also sends part of the next one."""
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=limit)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    asked = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=topics)
    (data,) = b.quietly(asked, 11).responses[0].partitions
    batches = [each.base_offset for each in read_batches(memoryview(data.records or b""))]
    aborted = data.aborted_transactions
    told = None if aborted is None else [each.first_offset for each in aborted]
    b.note("Fetch", [data.error_code, data.high_watermark, data.last_stable_offset, batches, told])


def each_offset(b: Subject, writers: Writers) -> None:
    for isolation, offset in product((0, 1), (*range(9), 99, -1)):
        _fetch(b, writers.topic, offset, isolation=isolation)


def few_bytes(b: Subject, writers: Writers) -> None:
    for isolation, offset, size in product((0, 1), range(4), (0, 1, 100)):
        _fetch(b, writers.topic, offset, isolation=isolation, limit=size)


def offsets_by_time(b: Subject, writers: Writers) -> None:
    for isolation, timestamp in product((0, 1), (-1, -2, 0, START_MS, START_MS + 1, 1 << 60)):
        for version in (2, 7):
            asked: ListOffsetsRequest = list_offsets(writers.topic, timestamp)
            asked.isolation_level = isolation
            b.ask(asked, version)


def deleted_records(b: Subject, writers: Writers) -> None:
    for before in (1, -1):
        asked: DeleteRecordsRequest = delete_records(writers.topic, before)
        b.ask(asked, 2)
        read(b, writers.topic) if before > 0 else _fetch(b, writers.topic, 0, isolation=1)
        offsets_by_time(b, writers)


def both_isolation_levels(b: Subject, writers: Writers) -> None:
    known = {each.producer_id: name for name, each in writers.producers.items()}
    for isolation in (0, 1):
        read(b, writers.topic, isolation_level=isolation)
    describe_producers(b, writers.topic, 0, known=known)
    writers.play("one-", "two+")
    for isolation in (0, 1):
        read(b, writers.topic, isolation_level=isolation)
    describe_producers(b, writers.topic, 0, known=known)


QUESTIONS: tuple[Question, ...] = (each_offset, few_bytes, offsets_by_time, deleted_records, both_isolation_levels)


@scenario_for_each({f"{ask.__name__}.{name}": (ask, steps) for ask, (name, steps) in product(QUESTIONS, LOGS.items())})
def of_logs(b: Subject, row: tuple[Question, tuple[str, ...]]) -> None:
    ask, steps = row
    writers = Writers(b)
    writers.play(*steps)
    ask(b, writers)
