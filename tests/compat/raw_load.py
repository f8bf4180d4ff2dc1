"""Producers and a consumer on one partition that never pause, whatever happens to their broker, and the check of the
result.

They use the protocol directly, so that they see every error that a client library would retry silently.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from protocol.errors import ErrorCode
from protocol.messages.produce import ProduceResponse
from protocol.messages.topics import DeleteRecordsResponse
from protocol.records.batch import Record, build_batch, read_batches
from tests.kit.broker_process import BrokerProcess
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import delete_records, fetch, produce_batch

TOPIC = "t"
PATIENCE_S = 60.0


def connect(broker: BrokerProcess) -> WireClient:
    """A connection."""
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


class Sender(threading.Thread):
    """Appends batches of different sizes forever, across the broker's deaths, and records the acknowledged ones."""

    def __init__(self, broker: BrokerProcess, number: int, sizes: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, bytes] = {}
        """The beginning of each record, by offset."""
        self.refusals: list[tuple[ErrorCode, str | None]] = []
        self.stopping = threading.Event()
        self._broker = broker
        self._random = random.Random(number)
        self._number = number
        self._sizes = sizes

    def run(self) -> None:
        sent = 0
        while not self.stopping.is_set():
            with contextlib.suppress(OSError, ConnectionClosed), connect(self._broker) as client:
                while not self.stopping.is_set():
                    sent += 1
                    self._send(client, b"%d/%d/" % (self._number, sent))
            time.sleep(0.02)

    def _send(self, client: WireClient, name: bytes) -> None:
        size = self._random.choice(self._sizes)
        value = name + self._random.randbytes(64) + bytes(size)
        response = client.ask(
            produce_batch(TOPIC, build_batch([Record(0, 1_700_000_000_000, None, value)]), acks=-1), 11
        )
        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == ErrorCode.NONE:
            self.acknowledged[answer.base_offset] = value[: len(name) + 64]
        else:
            self.refusals.append((ErrorCode(answer.error_code), answer.error_message))
            time.sleep(0.05)


class Reader(threading.Thread):
    """Reads from the log start forever, across the broker's deaths; records its progress."""

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
    """The log start: where a reader continues after OFFSET_OUT_OF_RANGE."""
    response = client.ask(delete_records(TOPIC, 0), 2)
    assert isinstance(response, DeleteRecordsResponse)
    return int(response.topics[0].partitions[0].low_watermark)


def delete_all(client: WireClient) -> ErrorCode:
    """Delete all records; returns the answer."""
    response = client.ask(delete_records(TOPIC, -1), 2)
    assert isinstance(response, DeleteRecordsResponse)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def judge(client: WireClient, senders: list[Sender], log_start: int) -> int:
    """Check that all acknowledged records from the log start on exist at their offsets; returns their number."""
    # Copy atomically: the senders may continue meanwhile.
    noted = [each.acknowledged.copy() for each in senders]
    expected = {offset: value for each in noted for offset, value in each.items() if offset >= log_start}
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
def load(
    broker: BrokerProcess, sizes: Sequence[int] = (10, 1000, 50_000, 200_000)
) -> Iterator[tuple[list[Sender], Reader]]:
    """Run two producers of records of these sizes and a consumer for the duration of a block."""
    senders, reader = [Sender(broker, number, sizes) for number in range(2)], Reader(broker)
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
            assert not thread.is_alive(), "a request was never answered"


def count(senders: list[Sender]) -> int:
    """Acknowledged records."""
    return sum(len(each.acknowledged) for each in senders)


def goes_on(senders: list[Sender]) -> Callable[[], bool]:
    """Whether more records are acknowledged than now."""
    before = count(senders)
    return lambda: count(senders) > before + 5
