"""A small real disk, filled and freed under a real broker with producers and consumers, again and again."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProduceResponse,
)
from protocol.records import Record, build_batch, read_batches
from tests.broker.test_in_process import fetch
from tests.broker_process import BrokerProcess
from tests.compat.batches import produce_batch
from tests.small_disk import fill, small_disk, usable_bytes
from tests.wire_client import ConnectionClosed, WireClient

MB = 1 << 20
DISK_MB = 64
RESERVE = 8 * MB
TOPIC = "t"
PATIENCE_S = 60.0
SETTINGS = {
    "log.segment.delete.delay.ms": "100",
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
    "log.segment.bytes": str(2 * MB),
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "1",
    "log.cleaner.enable": "false",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, DISK_MB) as mounted_at:
        yield mounted_at


def connect(broker: BrokerProcess) -> WireClient:
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)


class Sender(threading.Thread):
    """Appends batches of different sizes for ever, also through the broker's death, and notes what is acknowledged."""

    def __init__(self, broker: BrokerProcess, number: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, bytes] = {}
        """By offset, how each record begins."""
        self.refusals: list[tuple[ErrorCode, str | None]] = []
        self.stopping = threading.Event()
        self._broker = broker
        self._random = random.Random(number)
        self._number = number

    def run(self) -> None:
        sent = 0
        while not self.stopping.is_set():
            with contextlib.suppress(OSError, ConnectionClosed), connect(self._broker) as client:
                while not self.stopping.is_set():
                    sent += 1
                    self._send(client, b"%d/%d/" % (self._number, sent))
            time.sleep(0.02)

    def _send(self, client: WireClient, name: bytes) -> None:
        size = self._random.choice((10, 1000, 50_000, 200_000))
        value = name + self._random.randbytes(64) + bytes(size)
        response = client.ask(produce_batch(TOPIC, build_batch([Record(0, 1_700_000_000_000, None, value)])), 11)
        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == ErrorCode.NONE:
            self.acknowledged[answer.base_offset] = value[: len(name) + 64]
        else:
            self.refusals.append((ErrorCode(answer.error_code), answer.error_message))
            time.sleep(0.05)


class Reader(threading.Thread):
    """Reads for ever, also through the broker's death, from the log start on; notes how far it came."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.offset = 0
        self.errors: set[ErrorCode] = set()
        self._broker = broker

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(OSError, ConnectionClosed), connect(self._broker) as client:
                while not self.stopping.is_set():
                    self._read(client)
            time.sleep(0.02)

    def _read(self, client: WireClient) -> None:
        response = client.ask(fetch(TOPIC, self.offset, max_wait_ms=100), 12)
        partition = response.responses[0].partitions[0]  # type: ignore[attr-defined]
        if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.offset = max(partition.log_start_offset, client_start(client))
        elif partition.error_code:
            self.errors.add(ErrorCode(partition.error_code))
            time.sleep(0.05)
        for batch in read_batches(memoryview(partition.records or b"")):
            batch.ensure_valid()
            self.offset = batch.next_offset


def client_start(client: WireClient) -> int:
    """The log start: where an out of range reader goes on."""
    response = client.ask(delete_request(0), 2)
    assert isinstance(response, DeleteRecordsResponse)
    return int(response.topics[0].partitions[0].low_watermark)


def delete_request(offset: int) -> DeleteRecordsRequest:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=TOPIC, partitions=[partition])], timeout_ms=10_000
    )


def create(client: WireClient, topic: str) -> tuple[ErrorCode, str | None]:
    new = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    response = client.ask(CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    assert isinstance(response, CreateTopicsResponse)
    return ErrorCode(response.topics[0].error_code), response.topics[0].error_message


def delete_all(client: WireClient) -> int:
    """Delete all records; gives the log start."""
    response = client.ask(delete_request(-1), 2)
    assert isinstance(response, DeleteRecordsResponse)
    answer = response.topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return int(answer.low_watermark)


def judge(client: WireClient, senders: list[Sender], log_start: int) -> int:
    """Everything acknowledged from the log start on is there, at its offset; gives how much that was."""
    expected = {offset: value for each in senders for offset, value in each.acknowledged.items() if offset >= log_start}
    offset, found = log_start, {}
    while True:
        partition = client.ask(fetch(TOPIC, offset), 12).responses[0].partitions[0]  # type: ignore[attr-defined]
        assert partition.error_code == ErrorCode.NONE, ErrorCode(partition.error_code).name
        batches = list(read_batches(memoryview(partition.records or b"")))
        for batch in batches:
            batch.ensure_valid()
            assert batch.base_offset == offset, "offsets follow each other"
            offset = batch.next_offset
            for record in batch.records():
                found[record.offset] = record.value
        if not batches:
            break
    missing = [at for at, value in expected.items() if not (found.get(at) or b"").startswith(value)]
    assert not missing, f"{len(missing)} acknowledged records are lost: {sorted(missing)[:10]}"
    return len(expected)


@contextlib.contextmanager
def load(broker: BrokerProcess) -> Iterator[tuple[list[Sender], Reader]]:
    """Two producers and a consumer for a block."""
    senders, reader = [Sender(broker, number) for number in range(2)], Reader(broker)
    threads: list[Sender | Reader] = [*senders, reader]
    for thread in threads:
        thread.start()
    try:
        yield senders, reader
    finally:
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def count(senders: list[Sender]) -> int:
    return sum(len(each.acknowledged) for each in senders)


def goes_on(senders: list[Sender]) -> Callable[[], bool]:
    before = count(senders)
    return lambda: count(senders) > before + 5


def test_the_reserve_is_kept_through_cycles_restarts_and_a_kill(disk: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path / "run", {**SETTINGS, "log.dirs": str(disk / "data"), "log.dir.reserve.bytes": str(RESERVE)}
    )
    broker.start()
    try:
        with connect(broker) as client:
            assert create(client, TOPIC)[0] is ErrorCode.NONE
        with load(broker) as (senders, reader):
            for interruption in (None, broker.stop, broker.kill, None):
                for sender in senders:
                    sender.refusals.clear()
                until(lambda: all(each.refusals for each in senders), "a full disk")
                left = usable_bytes(disk)
                assert left > RESERVE - 2 * MB, f"only {left} bytes are left"
                error, message = senders[0].refusals[-1]
                assert error is ErrorCode.KAFKA_STORAGE_ERROR
                assert message is not None
                assert f"log.dir.reserve.bytes={RESERVE}" in message
                if interruption is not None:
                    interruption()
                    for sender in senders:
                        sender.refusals.clear()
                    broker.start()
                    until(lambda: all(each.refusals for each in senders), "a disk that is still full")
                with connect(broker) as client:
                    error, message = create(client, "refused")
                    assert (error, str(disk / "data") in (message or "")) == (ErrorCode.POLICY_VIOLATION, True)
                    assert judge(client, senders, client_start(client)) > 10
                    delete_all(client)
                until(goes_on(senders), "a producer that goes on")
            assert usable_bytes(disk) > RESERVE - 2 * MB
        with connect(broker) as client:
            judge(client, senders, client_start(client))
        assert reader.offset > 0
        assert reader.errors <= {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert {error for each in senders for error, _ in each.refusals} <= {ErrorCode.KAFKA_STORAGE_ERROR}
    finally:
        broker.kill()
    said = broker.output.read_text()
    assert said.count("clients cannot write there until space returns") >= 3
    assert "clients write again" in said
    assert "Traceback" not in said
    assert "Stopping serving logs" not in said


@pytest.mark.parametrize("end", ["kill", "stop", "none"])
def test_without_a_reserve_a_full_disk_corrupts_nothing(end: str, disk: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "run", {**SETTINGS, "log.dirs": str(disk / "data"), "log.dir.reserve.bytes": "0"})
    broker.start()
    ballast = disk / "ballast"
    try:
        with connect(broker) as client:
            assert create(client, TOPIC)[0] is ErrorCode.NONE
        with load(broker) as (senders, _):
            for _ in range(3):
                for sender in senders:
                    sender.refusals.clear()
                fill(ballast, 2 * MB)
                until(lambda: all(each.refusals for each in senders), "a full disk")
                fill(disk / "rest")
                time.sleep(0.5)
                if end != "none":
                    (broker.kill if end == "kill" else broker.stop)()
                (disk / "rest").unlink()
                ballast.unlink()
                if end != "none":
                    broker.start()
                until(goes_on(senders), "a producer that goes on")
                with connect(broker) as client:
                    assert judge(client, senders, client_start(client)) > 10
                    delete_all(client)
    finally:
        broker.kill()
    said = broker.output.read_text()
    assert "Traceback" not in said
    assert "Stopping serving logs" not in said
