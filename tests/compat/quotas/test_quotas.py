"""librdkafka's clients stay within their quotas: two of one user share one, and another is not slowed."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsRequest
from protocol.messages.quotas import AlterClientQuotasRequest
from tests.kit.broker_process import BrokerProcess, free_port
from tests.kit.scraping import scrape
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import framed, request_bytes

pytestmark = pytest.mark.slow

LIMIT = 1_000_000
LIMITED = ("a", "b")
FREE = "free"
LEAST = 0.6 * LIMIT
"""A late client has a burst, which repeats whenever it leaves the window and leaves two thirds of the rate.
`test_quota_rates` measures the rate over a longer time.
"""
WINDOW_S = 3
"""The window of the rate: two whole samples of a second, and the current one."""
MEASURED_S = 6
MOST_TIMES = 3
"""The limit of measurements until one fits: on a busy machine clients use less, and make up for it in a burst."""
VALUE = b"x" * 4000


def connect(broker: BrokerProcess) -> WireClient:
    host, _, port = broker.address.rpartition(":")
    return WireClient(host, int(port))


def set_quotas(client: WireClient, parts: dict[str, str | None], **limits: float | None) -> None:
    """Set quotas of an entity, or remove those that are None."""
    entity, change = AlterClientQuotasRequest.EntityData, AlterClientQuotasRequest.OpData
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[entity(entity_type=kind, entity_name=name) for kind, name in parts.items()],
                ops=[change(key=key, value=limit or 0.0, remove=limit is None) for key, limit in limits.items()],
            )
        ],
        validate_only=False,
    )
    answer: Any = client.ask(request, 1)
    assert answer.entries[0].error_code == ErrorCode.NONE, answer


class Traffic:
    """Clients in threads, and the bytes of values that each has sent or received. For the first window the limited ones
    together stay exactly at the rate, so that no burst repeats.
    """

    def __init__(self, work: Callable[[Traffic, str], None]) -> None:
        self.bytes: Counter[str] = Counter()
        self.throttled: Counter[str] = Counter()
        self.began_s = self._paced_s = time.monotonic()
        self._paced_bytes: Counter[str] = Counter()
        self.ended = threading.Event()
        self._threads = [threading.Thread(target=work, args=(self, name)) for name in (*LIMITED, FREE)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def may_go_on(self, name: str) -> bool:
        """Whether a client may send now. The free one leaves processor time for others."""
        now_s = time.monotonic()
        if name == FREE:
            return self.bytes[name] < (now_s - self.began_s) * 3 * LIMIT
        paced_s = now_s - self._paced_s
        done = self.bytes[name] - self._paced_bytes[name]
        return paced_s > 2 * WINDOW_S or done < paced_s * LIMIT / len(LIMITED)

    def _pace_anew(self) -> None:
        """Pause the limited clients until the window is empty, and start them again."""
        self._paced_s = time.monotonic() + WINDOW_S + 1
        self._paced_bytes = self.bytes.copy()

    @property
    def limited_bytes(self) -> int:
        """The bytes of the limited clients together."""
        return sum(self.bytes[name] for name in LIMITED)

    def rates(self) -> Iterator[float]:
        """Bytes per second of the limited clients together at full load, one measurement after another. They never get
        more than the rate plus the burst of a window.
        """
        for number in range(MOST_TIMES):
            if number:
                self._pace_anew()
            time.sleep(max(self._paced_s + 2 * WINDOW_S + 1 - time.monotonic(), 0))
            before, began_s = self.limited_bytes, time.monotonic()
            time.sleep(MEASURED_S)
            now_s = time.monotonic()
            assert self.limited_bytes < 1.05 * LIMIT * (now_s - self.began_s + WINDOW_S)
            yield (self.limited_bytes - before) / (now_s - began_s)


@contextmanager
def limited_broker(directory: Path, quota: str) -> Iterator[tuple[str, int]]:
    """The address of a broker that has a quota for a user's clients and a separate one for one of them; and its metrics
    port.
    """
    port = free_port()
    settings = {"quota.window.num": str(WINDOW_S), "metrics.listener": f"127.0.0.1:{port}"}
    broker = BrokerProcess(directory, settings)
    broker.start()
    try:
        with connect(broker) as client:
            set_quotas(client, {"user": "ANONYMOUS"}, **{quota: LIMIT})
            set_quotas(client, {"user": "ANONYMOUS", "client-id": FREE}, **{quota: 1e12})
        yield broker.address, port
    finally:
        assert broker.stop() == 0


def check_rate(traffic: Traffic, port: int, metric: str) -> None:
    """The limited clients get the rate of the quota, and the other one more."""
    rates = []
    for rate in traffic.rates():
        rates.append(round(rate))
        if LEAST < rate < 1.05 * LIMIT:
            break
    else:
        pytest.fail(f"{LIMIT} bytes per second were allowed, and there were {rates}")
    assert all(traffic.bytes[name] > LIMIT for name in LIMITED), "both have their share"
    assert all(traffic.throttled[name] for name in LIMITED)
    assert traffic.bytes[FREE] > traffic.limited_bytes
    assert not traffic.throttled[FREE]
    samples = scrape(port)
    shared, own = (("client_id", ""), ("user", "ANONYMOUS")), (("client_id", FREE), ("user", "ANONYMOUS"))
    assert LEAST < samples[f"{metric}_byte_rate", shared] < 1.2 * LIMIT
    assert samples[f"{metric}_throttle_time", shared] > 0
    assert samples[f"{metric}_throttle_time", own] == 0


def test_producers(tmp_path: Path) -> None:
    with limited_broker(tmp_path, "producer_byte_rate") as (address, port):

        def produce(traffic: Traffic, name: str) -> None:
            def on_delivery(error: object, message: object) -> None:
                if error is None:
                    traffic.bytes[name] += len(VALUE)

            def on_throttle(event: object) -> None:
                traffic.throttled[name] += getattr(event, "throttle_time", 0) > 0

            producer = Producer(
                {
                    "bootstrap.servers": address,
                    "client.id": name,
                    "batch.size": 32_768,
                    "queue.buffering.max.kbytes": 1000,
                    "throttle_cb": on_throttle,
                }
            )
            while not traffic.ended.is_set():
                try:
                    if traffic.may_go_on(name):
                        producer.produce(name, VALUE, on_delivery=on_delivery)
                        producer.poll(0)
                        continue
                except BufferError:
                    pass
                producer.poll(0.01)
            producer.purge()
            producer.flush(10)

        with Traffic(produce) as traffic:
            check_rate(traffic, port, "kafka_server_produce")


def test_consumers(tmp_path: Path) -> None:
    with limited_broker(tmp_path, "consumer_byte_rate") as (address, port):
        producer = Producer({"bootstrap.servers": address, "client.id": FREE})
        for _ in range(45 * LIMIT // len(VALUE)):
            producer.produce("t", VALUE)
            producer.poll(0)
            if len(producer) > 10_000:
                producer.flush()
        assert producer.flush(60) == 0

        def consume(traffic: Traffic, name: str) -> None:
            def on_throttle(event: object) -> None:
                traffic.throttled[name] += getattr(event, "throttle_time", 0) > 0

            consumer = Consumer(
                {
                    "bootstrap.servers": address,
                    "client.id": name,
                    "group.id": name,
                    "fetch.message.max.bytes": 1 << 20 if name == FREE else 1 << 16,
                    "queued.max.messages.kbytes": 2048 if name == FREE else 128,
                    "throttle_cb": on_throttle,
                }
            )
            consumer.assign([TopicPartition("t", 0, 0)])
            while not traffic.ended.is_set():
                if not traffic.may_go_on(name):
                    time.sleep(0.01)
                    continue
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    traffic.bytes[name] += len(message.value() or b"")
            consumer.close()

        with Traffic(consume) as traffic:
            check_rate(traffic, port, "kafka_server_fetch")


def test_connections(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    host, _, port = broker.address.rpartition(":")
    try:
        with ExitStack() as stack:
            admin = stack.enter_context(connect(broker))
            set_quotas(admin, {"ip": None}, connection_creation_rate=1)
            connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
            served = []
            for connection in connections:
                connection.settimeout(60)
                with suppress(ConnectionError):
                    connection.sendall(framed(request_bytes(ApiVersionsRequest(), 0)))
                    served.append(bool(connection.recv(1)))
            assert served[:10] == [True] * 10, "the burst of a whole window"
            assert served.count(True) <= 12, "the others are closed after some time, unserved"
            set_quotas(admin, {"ip": "127.0.0.1"}, connection_creation_rate=1000)
            for _ in range(20):
                with connect(broker) as client:
                    client.ask(ApiVersionsRequest(), 0)
    finally:
        assert broker.stop() == 0
