"""Several log directories of Apache Kafka and of this broker: moves between them, and one that fails.

These brokers are not those of the scenarios, because they lose a directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.log_dirs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.offsets import ListOffsetsRequest
from protocol.messages.topics import DeleteTopicsRequest
from protocol.records.batch import Record, build_batch, read_batches
from tests.kit.apache_kafka import ApacheKafka
from tests.kit.broker_process import BrokerProcess
from tests.parity.cleaning import active_base, clean_until
from tests.parity.scenarios.configs_alter import DELETE, SET, Change, await_value, incremental
from tests.parity.scenarios.configs_bad_values import ALTER_LOG_DIRS_RATE
from tests.parity.scenarios.configs_describe import BROKER
from tests.parity.scenarios.fetch import fetch
from tests.parity.subject import TIMESTAMP, Subject, Target, batch, produce_request
from tests.parity.transcript import Plain, differences

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "log.retention.ms": "-1",
    "log.cleaner.backoff.ms": "100",
    # These checkpoints make the broker notice the missing directory.
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "200",
}


class Directories:
    """The log directories of one broker; the first is `data`."""

    def __init__(self, target: Target) -> None:
        self.paths = [target.data_directory, f"{target.data_directory}-2", f"{target.data_directory}-3"]

    def take_away(self, number: int) -> None:
        """Make creating files in the directory fail; open files stay open."""
        path = Path(self.paths[number])
        path.rename(f"{path}.gone")
        path.write_text("no directory")


def alter(b: Subject, path: str, *partitions: tuple[str, list[int]], version: int = 2, quietly: bool = False) -> Any:
    """Request moves of partitions."""
    topics = [
        AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=name, partitions=indexes)
        for name, indexes in partitions
    ]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=topics)])
    return b.quietly(request, version) if quietly else b.ask(request, version)


def describe(b: Subject, *wanted: tuple[str, list[int]]) -> None:
    """Note the directories of partitions."""
    topics = [DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=each) for topic, each in wanted]
    b.ask(DescribeLogDirsRequest(topics=topics), 4)


def where(b: Subject, topic: str, count: int) -> dict[int, str]:
    """The directory of every partition; one being moved is omitted."""
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=list(range(count)))
    found: dict[int, str] = {}
    moving = set()
    for result in b.quietly(DescribeLogDirsRequest(topics=[wanted]), 4).results:
        for each in result.topics:
            for partition in each.partitions:
                found[partition.partition_index] = result.log_dir
                if partition.is_future_key:
                    moving.add(partition.partition_index)
    return {index: path for index, path in found.items() if index not in moving}


def await_move(b: Subject, topic: str, partition: int, path: str) -> None:
    """Wait until a partition has moved.

    Kafka shows its log in the new directory before the partition uses that one; if the directory were lost in between,
    the partition would never be reported offline. A read must wait for the partition.
    """
    b.until(lambda: where(b, topic, partition + 1).get(partition) == path)
    b.quietly(fetch(b, topic, partition=partition), 17)


def move(b: Subject, topic: str, partition: int, path: str) -> None:
    """Move one partition and wait until it is there."""
    answer = alter(b, path, (topic, [partition]), quietly=True)
    assert answer.results[0].partitions[0].error_code == ErrorCode.NONE, answer
    await_move(b, topic, partition, path)


def placement(b: Subject, directories: Directories) -> None:
    """New logs go to the directory with the fewest."""
    topic = b.topic("placed", 7)
    counts = list(where(b, topic, 7).values())
    b.note("partitions by directory", sorted(counts.count(path) for path in directories.paths))


def moves(b: Subject, directories: Directories) -> None:
    """Moves between directories, and their results."""
    one, two, three = directories.paths
    topic = b.topic("moved")
    for number in range(5):
        b.produce(topic, b"%d" % number)
    move(b, topic, 0, one)
    for version, path in enumerate((two, three, one)):
        alter(b, path, (topic, [0]), version=version)
        await_move(b, topic, 0, path)
        describe(b, (topic, [0]))
        b.ask(produce_request(topic, batch(b"next")), 11)
        b.ask(fetch(b, topic), 17)


def refusals(b: Subject, directories: Directories) -> None:
    """Refused requests."""
    one, two, _ = directories.paths
    topic = b.topic("t")
    alter(b, "/elsewhere", (topic, [0]))
    alter(b, one + "/", (topic, [0]))
    alter(b, two, (topic, [7]))
    alter(b, two, (b.name("missing"), [0]))
    alter(b, two, ("x" * 249, [0]))
    alter(b, two, ("x" * 208, [0]))
    alter(b, two, (topic, [0, 7]), (b.name("missing"), [0, 1]))
    alter(b, two)


def preference(b: Subject, directories: Directories) -> None:
    """A replica that does not exist yet is created in the requested directory."""
    three = directories.paths[2]
    alter(b, three, (b.name("wanted"), [0, 1, 2]), quietly=True)
    topic = b.topic("wanted", 3)
    b.note("all in the third", sorted(where(b, topic, 3).items()))


def the_same_directory(b: Subject, directories: Directories) -> None:
    """A move to the replica's own directory changes nothing."""
    topic = b.topic("still")
    move(b, topic, 0, directories.paths[1])
    alter(b, directories.paths[1], (topic, [0]))
    describe(b, (topic, [0]))


def write(b: Subject, topic: str, names: Iterable[str]) -> None:
    """A batch of 100 kB for each name, which is a key; `again` is a key in each of them."""
    for name in names:
        rows = [Record(0, TIMESTAMP, key, bytes(50_000)) for key in (name.encode(), b"again")]
        b.quietly(produce_request(topic, build_batch(rows)), 11)


def newest(b: Subject, topic: str) -> dict[str, int]:
    """The offset of the newest record of each key."""
    offsets: dict[str, int] = {}
    following = 0
    while True:
        answer = b.quietly(fetch(b, topic, offset=following), 17).responses[0].partitions[0]
        batches = [each for each in read_batches(memoryview(answer.records or b"")) if each.next_offset > following]
        if not batches:
            return offsets
        offsets |= {bytes(record.key or b"").decode(): record.offset for each in batches for record in each.records()}
        following = batches[-1].next_offset


def limit(b: Subject, value: str | None) -> None:
    """Limit the bytes per second that moves may copy."""
    # Kafka shows a value before it applies, but finishes one change before it begins the next.
    for key in (ALTER_LOG_DIRS_RATE, "follower.replication.throttled.rate"):
        change: Change = (key, DELETE if value is None else SET, value)
        incremental(b, (BROKER, "0", [change]))
        await_value(b, BROKER, "0", key, value)


def compaction(b: Subject, directories: Directories) -> None:
    """A compacted log is not cleaned while it is moved, and its clean offset moves along."""
    one, two, _ = directories.paths
    configs = {"cleanup.policy": "compact", "segment.bytes": "250000", "min.cleanable.dirty.ratio": "0.01"}
    topic = b.topic("compacted", configs=configs)
    move(b, topic, 0, one)
    write(b, topic, map(str, range(30)))
    b.until(lambda: clean_until(one, topic) == active_base(one, topic))
    b.note("clean before the move", clean_until(one, topic))
    limit(b, "1")
    alter(b, two, (topic, [0]))
    b.until(lambda: where(b, topic, 1) == {} and any(Path(two).glob(f"{topic}-0*-future")))
    write(b, topic, map(str, range(10)))
    time.sleep(2)  # twenty rounds of the cleaner
    b.note("where it is meanwhile", where(b, topic, 1))
    b.note("clean during the move", clean_until(one, topic))
    limit(b, None)
    await_move(b, topic, 0, two)
    b.until(lambda: clean_until(two, topic) == active_base(two, topic))
    b.until(lambda: clean_until(one, topic) is None)
    b.note("what is left", newest(b, topic))


def failure(b: Subject, directories: Directories) -> None:
    """The third directory is gone: its replicas are unavailable, the others work on."""
    one, _, three = directories.paths
    lost, kept = b.topic("lost"), b.topic("kept")
    both = b.topic("both", 2)
    for topic in (lost, kept, both):
        b.produce(topic, b"before")
    move(b, lost, 0, three)
    move(b, kept, 0, one)
    move(b, both, 0, one)
    move(b, both, 1, three)
    directories.take_away(2)
    b.quietly(produce_request(lost, batch(b"notices")), 11)

    def is_offline() -> bool:
        results = b.quietly(DescribeLogDirsRequest(topics=[]), 4).results
        return any(result.error_code == ErrorCode.KAFKA_STORAGE_ERROR for result in results)

    b.until(is_offline)
    for topic, partition in ((lost, 0), (both, 1)):
        b.until(lambda topic=topic, partition=partition: b.metadata(topic).topics[0].partitions[partition].error_code)  # type: ignore[misc]
    for topic in (lost, kept, both):
        for version in (0, 4, 12):
            asked = [MetadataRequest.MetadataRequestTopic(name=topic)]
            options = {"allow_auto_topic_creation": False} if version else {}
            b.ask(MetadataRequest(topics=asked, **options), version)
    for topic, partition in ((lost, 0), (kept, 0), (both, 1)):
        b.ask(produce_request(topic, batch(b"after"), partition=partition), 11)
        b.ask(fetch(b, topic, partition=partition), 17)
        latest = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        b.ask(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[latest])],
            ),
            7,
        )
    describe(b, (lost, [0]), (kept, [0]), (both, [0, 1]))
    alter(b, three, (kept, [0]))
    alter(b, one, (lost, [0]))
    fresh = b.topic("fresh", 4)
    b.note("not in the third", three not in where(b, fresh, 4).values())
    b.ask(produce_request(fresh, batch(b"new")), 11)
    b.ask(DeleteTopicsRequest(topics=[], topic_names=[kept], timeout_ms=30_000), 5)


PARTS = (placement, moves, refusals, preference, the_same_directory, compaction, failure)


def play_all(target: Target) -> dict[str, dict[str, Plain]]:
    """Every part's transcript."""
    transcripts = {}
    for part in PARTS:
        subject = Subject(target, part.__name__)
        try:
            part(subject, Directories(target))
        except AssertionError as error:
            subject.note("failed", str(error))
        finally:
            subject.close()
            transcripts[part.__name__] = subject.transcript
    return transcripts


KNOWN: dict[tuple[str, str], str] = {}
"""(part, path) -> the reason for the difference."""


def test_several_directories(tmp_path: Path) -> None:
    kafka_at, ours_at = tmp_path / "kafka", tmp_path / "ours"
    settings = {
        at: SETTINGS | {"log.dirs": ",".join(str(at / name) for name in ("data", "data-2", "data-3"))}
        for at in (kafka_at, ours_at)
    }
    kafka, ours = ApacheKafka(kafka_at, settings[kafka_at]), BrokerProcess(ours_at, settings[ours_at])
    try:
        with ThreadPoolExecutor(2) as players:
            list(players.map(lambda broker: broker.start(), (kafka, ours)))
            targets = Target(kafka.address, str(kafka_at / "data")), Target(ours.address, str(ours_at / "data"))
            expected, actual = players.map(play_all, targets)
    finally:
        kafka.stop()
        ours.kill()
    found = [
        (part, path, theirs, mine)
        for part in expected
        for path, theirs, mine in differences(expected[part], actual[part])
    ]
    report = "\n".join(
        f"{part}: {path}\n    Kafka: {json.dumps(theirs)}\n    ours:  {json.dumps(mine)}"
        for part, path, theirs, mine in found
        if (part, path) not in KNOWN
    )
    assert not report, report
    assert {(part, path) for part, path, _, _ in found} == set(KNOWN)
