"""A compacted replica moves from one log directory to the next during writes and cleaning, by a broker that is killed
again and again: deleted keys stay deleted, and every other key has its newest acknowledged value.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path

from protocol.errors import ErrorCode
from protocol.messages.produce import ProduceResponse
from protocol.messages.topics import CreateTopicsResponse
from protocol.records.batch import Record, build_batch, read_batches
from tests.broker.test_in_process import fetch
from tests.compat.raw_load import PATIENCE_S, TOPIC, connect
from tests.compat.test_moving_replicas import NAMES, broker_with_directories, move_through_a_kill
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import new_topic, produce_batch
from tests.parity.cleaning import clean_until

KEYS = 40
KILLS = 6
PAUSE_S = 0.001
"""The pause between two records: the cleaner, a process of low priority, must keep up."""
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    # The second cleaning removes a tombstone: the worst case for a copy that still has the deleted record.
    "delete.retention.ms": "0",
}


class Writer(threading.Thread):
    """Gives keys new values, or deletes them, forever, across the broker's deaths."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.count = 0
        self.possible: dict[bytes, set[bytes | None]] = {}
        """By key, the newest acknowledged value, and the later unanswered ones."""
        self._broker = broker
        self._random = random.Random(1)

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(OSError, ConnectionClosed), connect(self._broker) as client:
                while not self.stopping.wait(PAUSE_S):
                    self._write(client)
            time.sleep(0.02)

    def _write(self, client: WireClient) -> None:
        key = b"key %d" % self._random.randrange(KEYS)
        value = None if self._random.random() < 0.3 else b"%d " % self.count + bytes(200)
        self.possible.setdefault(key, {None}).add(value)
        record = Record(0, time.time_ns() // 1_000_000, key, value)
        response = client.ask(produce_batch(TOPIC, build_batch([record]), acks=-1), 11)
        assert isinstance(response, ProduceResponse)
        if response.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
            self.possible[key] = {value}
            self.count += 1


def create(client: WireClient) -> None:
    response = client.ask(new_topic(TOPIC, configs=CONFIGS), 7)
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].error_code == ErrorCode.NONE


def read_all(client: WireClient) -> list[Record]:
    records: list[Record] = []
    following = 0
    while True:
        partition = client.ask(fetch(TOPIC, following), 12).responses[0].partitions[0]  # type: ignore[attr-defined]
        assert partition.error_code == ErrorCode.NONE, ErrorCode(partition.error_code).name
        batches = list(read_batches(memoryview(partition.records or b"")))
        if not batches:
            return records
        records += [record for batch in batches for record in batch.records() if record.offset >= following]
        following = batches[-1].next_offset


def await_cleaning(path: Path, clean: int) -> None:
    """Wait until the partition is clean beyond that offset."""
    eventually("a cleaning", lambda: (clean_until(path, TOPIC) or 0) > clean)


def test_nothing_deleted_comes_back(tmp_path: Path) -> None:
    broker = broker_with_directories(tmp_path, **{"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "20"})
    broker.start()
    writer = Writer(broker)
    chance = random.Random(2)
    try:
        with connect(broker) as client:
            create(client)
        writer.start()
        place, clean = NAMES[0], 0
        for number in range(KILLS):
            await_cleaning(tmp_path / place, clean)
            name = NAMES[(number + 1) % len(NAMES)]
            move_through_a_kill(broker, tmp_path / name, chance.random() * 0.06)
            place, clean = name, clean_until(tmp_path / name, TOPIC) or 0
            assert clean > 0, "how far it is clean has gone with it"
        # If the last kill hit the end of a move, the old directory's entry disappears with the next cleaning.
        await_cleaning(tmp_path / place, clean)
        writer.stopping.set()
        writer.join(PATIENCE_S)
        assert not writer.is_alive(), "a request was never answered"
        with connect(broker) as client:
            records = read_all(client)
        assert len(records) < writer.count, "it was cleaned"
        found = {bytes(record.key or b""): record.value for record in records}
        wrong = {
            key: (found.get(key), possible)
            for key, possible in writer.possible.items()
            if (None if found.get(key) is None else bytes(found[key] or b"")) not in possible
        }
        assert not wrong
        others = [tmp_path / name for name in NAMES if name != place]
        eventually("the end of the last move", lambda: [clean_until(each, TOPIC) for each in others] == [None, None])
        assert broker.stop() == 0
    finally:
        writer.stopping.set()
        broker.kill()
    assert "Traceback" not in broker.output.read_text()
    assert "cleaned log" in broker.output.read_text()
