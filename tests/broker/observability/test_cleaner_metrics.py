"""Metrics of compaction and of moves, as Prometheus reads them, including damage found by the cleaner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.scraping import scrape
from tests.kit.waiting import eventually

PATIENCE_S = 60
VALUE = b"." * 400
DAMAGED = 3
"""The record whose value is damaged."""

NAMES = {
    "kafka_log_logcleaner_cleaner_recopy_percent",
    "kafka_log_logcleaner_deadthreadcount",
    "kafka_log_logcleaner_max_buffer_utilization_percent",
    "kafka_log_logcleaner_max_clean_time_secs",
    "kafka_log_logcleaner_max_compaction_delay_secs",
    "kafka_log_logcleanermanager_max_dirty_percent",
    "kafka_log_logcleanermanager_time_since_last_run_ms",
    "kafka_log_logcleanermanager_uncleanable_bytes",
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "kafka_log_logmanager_logdirectoryoffline",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_server_alterlogdirsreplication_bytes_total",
    "kafka_server_replicaalterlogdirsmanager_failedpartitionscount",
    "kafka_server_replicaalterlogdirsmanager_maxlag",
    "odradek_log_corruptions_total",
}
"""Kafka's MBeans of `LogCleaner`, `LogCleanerManager`, `LogManager` and `ReplicaAlterLogDirsManager`, and our own."""


class Broker:
    """A broker with a compacted topic of small segments, which the cleaner has not seen yet."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        settings = {
            "metrics.listener": f"127.0.0.1:{self.port}",
            "log.cleaner.backoff.ms": "50",
            "log.scrub.interval.ms": "100",
        }
        self.process = BrokerProcess(directory, {**settings, "log.cleaner.enable": "false"})
        self.process.start()
        admin = AdminClient({"bootstrap.servers": self.process.address})
        config = {"cleanup.policy": "compact", "segment.bytes": "1100", "min.cleanable.dirty.ratio": "0"}
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": self.process.address, "linger.ms": 0})
        for number in range(10):
            producer.produce("t", key=b"key %d" % (number % 2), value=b"%d " % number + VALUE)
            assert producer.flush(PATIENCE_S) == 0
        assert self.process.stop() == 0
        self.process = BrokerProcess(directory, settings)
        self.files = directory / "data" / "t-0"

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for (each, _), value in scrape(self.port).items() if each == name)

    def until(self, name: str, value: float) -> None:
        eventually(f"{name} is {value}", lambda: self.total(name), lambda found: found == value)

    def lines(self, text: str) -> list[str]:
        return [line for line in self.process.output.read_text().splitlines() if text in line]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.process.stop()


def test_every_number_has_its_name(broker: Broker) -> None:
    broker.process.start()
    samples = {name for name, _ in scrape(broker.port)}
    assert samples >= NAMES
    assert {name for name in samples if name.startswith("kafka_log_logclean")} <= NAMES, "names that nobody listed"
    assert broker.total("kafka_log_logcleanermanager_uncleanable_partitions_count") == 0


def test_damage_that_the_cleaner_meets_is_told_once_and_counted(broker: Broker) -> None:
    (path,) = (path for path in broker.files.glob("*.log") if b"%d " % DAMAGED + VALUE in path.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(b"%d " % DAMAGED + VALUE) + 50] ^= 4
    path.write_bytes(content)
    broker.process.start()
    broker.until("kafka_log_logcleanermanager_uncleanable_partitions_count", 1)
    assert broker.total("kafka_log_logcleanermanager_uncleanable_bytes") > 0
    assert broker.total("odradek_log_corruptions_total") == 1
    # The scrub finds it, too.
    eventually("a full pass", lambda: broker.total("odradek_log_scrub_last_full_pass_timestamp_seconds"))
    (told,) = broker.lines("(kafka.log.UnifiedLog)")
    assert f"{path} is corrupt at byte " in told
    assert f"offsets {DAMAGED} to {DAMAGED} cannot be read" in told
    (set_aside,) = broker.lines("Marking its partition (t-0) as uncleanable")
    assert f"{path} is corrupt at byte " in set_aside
    assert broker.total("odradek_log_corruptions_total") == 1
    assert broker.total("kafka_log_logcleaner_deadthreadcount") == 0
