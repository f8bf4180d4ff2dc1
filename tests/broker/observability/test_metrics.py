"""Metrics over HTTP, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from urllib.error import HTTPError

import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.metrics_core import Metric

from broker.observability import metrics
from broker.observability.metric_definitions import DEFINITIONS
from broker.observability.scrape_server import MOST_SCRAPES
from tests.broker.handlers.test_client_quota_handlers import alter
from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.environment import CountedSlices
from tests.kit.in_process import InProcessBroker
from tests.kit.scraping import scrape, scraped_families
from tests.kit.waiting import eventually
from tests.kit.wire_requests import fetch, new_topic, produce


def test_connections_that_send_nothing_keep_no_scrape_waiting() -> None:
    """Each used to hold a thread for as long as it liked, and so did connections that read nothing."""
    server = metrics.MetricsServer("127.0.0.1:0")
    threads = threading.active_count()
    try:
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60, ("127.0.0.2", 0)))
                for _ in range(3 * MOST_SCRAPES)
            ]
            assert "python_info" in {family.name for family in scraped_families(server.port)}
            closed = silent[: 2 * MOST_SCRAPES]
            assert [each.recv(1) for each in closed] == [b""] * len(closed)
            eventually("their threads end", threading.active_count, lambda count: count <= threads + MOST_SCRAPES)
            assert scraped_families(server.port)
        eventually("all threads end", threading.active_count, lambda count: count == threads)
    finally:
        server.close()


def test_what_clients_do_is_counted(tmp_path: Path) -> None:
    port = free_port()
    broker = BrokerProcess(tmp_path, {"metrics.listener": f"127.0.0.1:{port}", "log.flush.interval.messages": "1"})
    broker.start()
    try:
        producer = Producer({"bootstrap.servers": broker.address})
        for _ in range(10):
            producer.produce("counted", b"x" * 100)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["counted"])
        read = 0
        while read < 10:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            read += 1
        consumer.commit(asynchronous=False)
        samples = scrape(port)
        topic = (("topic", "counted"),)
        assert samples["kafka_server_brokertopicmetrics_messagesin_total", topic] == 10
        assert samples["kafka_server_brokertopicmetrics_bytesin_total", topic] > 1000
        assert samples["kafka_server_brokertopicmetrics_bytesout_total", topic] > 1000
        partition = (("partition", "0"), ("topic", "counted"))
        assert samples["kafka_log_log_logendoffset", partition] == 10
        assert samples["kafka_log_log_size", partition] > 1000
        assert samples["kafka_network_requestmetrics_requests_total", (("request", "Produce"),)] >= 1
        assert samples["kafka_network_requestmetrics_failures_total", (("request", "Produce"),)] == 0
        assert samples["kafka_coordinator_group_groupmetadatamanager_numgroups", ()] == 1
        assert samples["kafka_coordinator_group_groupmetadatamanager_numoffsets", ()] == 1
        assert samples["kafka_server_replicamanager_leadercount", ()] == 51
        assert samples["kafka_server_socket_server_metrics_connection_count", (("listener", "PLAINTEXT"),)] >= 2
        flushes = "kafka_log_logflushstats"
        assert 2 <= samples[f"{flushes}_rounds_total", ()] <= samples[f"{flushes}_logs_total", ()]
        assert samples[f"{flushes}_time_seconds_total", ()] > 0
        assert samples["kafka_log_logcleaner_deadthreadcount", ()] == 0
        directory = (("logDirectory", str(tmp_path / "data")),)
        assert samples["kafka_log_logcleanermanager_uncleanable_partitions_count", directory] == 0
        assert samples["process_resident_memory_bytes", ()] > 0
        consumer.close()
    finally:
        assert broker.stop() == 0


def test_every_defined_metric_is_served_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> list[Metric]:
        async with InProcessBroker(metrics_listener="127.0.0.1:0") as broker:
            client = broker.connect()
            await client.ask(new_topic("t", 1), 7)
            every = dict.fromkeys(
                ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"), 1e9
            )
            await alter(client, ({"client-id": "test"}, {**every}), ({"ip": None}, {"connection_creation_rate": 1e9}))
            client = broker.connect()
            await client.ask(produce("t", [b"x"]), 9)
            await client.ask(fetch("t", 0), 11)
            await client.ask(new_topic("u", 1), 7)
            assert broker.server.metrics_server is not None
            return await asyncio.to_thread(scraped_families, broker.server.metrics_server.port)

    served = [family for family in asyncio.run(scenario()) if family.name.startswith(("kafka_", "odradek_"))]
    assert sorted((family.name, family.type, family.documentation) for family in served) == sorted(
        (each.name, each.type.value, each.meaning) for each in DEFINITIONS
    )
    labels = {sample.name: set(sample.labels) for family in served for sample in family.samples}
    assert labels.items() <= {each.sample_name: set(each.labels) for each in DEFINITIONS}.items()
    without_samples = {each.sample_name for each in DEFINITIONS} - set(labels)
    assert without_samples == {"kafka_coordinator_group_groupmetadatamanager_numgroups_by_state"}, "there is no group"


def test_without_a_listener_nothing_is_imported_or_opened(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    assert "Metrics are served" not in broker.output.read_text()


OWNERS = tuple(f"{ROOT}/{package}/" for package in ("broker", "cluster", "zookeeper", "storage", "protocol", "config"))


def test_nothing_that_the_loop_owns_is_read_on_another_thread() -> None:
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWNERS):
            called.add(f"{frame.f_code.co_filename}: {frame.f_code.co_qualname}")

    async def scenario() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        broker = InProcessBroker(metrics_listener="127.0.0.1:0")
        broker.clock = CountedSlices(1)
        async with broker:
            wire = broker.connect()
            await wire.ask(new_topic("t", 2), 7)
            await wire.ask(produce("t", [b"a", b"b"]), 11)
            assert broker.server.metrics_server is not None
            threading.setprofile(note)
            try:
                return await asyncio.to_thread(scrape, broker.server.metrics_server.port)
            finally:
                threading.setprofile(None)

    assert sys.getprofile() is None
    samples = asyncio.run(scenario())
    assert samples["kafka_log_log_logendoffset", (("partition", "0"), ("topic", "t"))] == 2
    assert {each for each in called if "/scrape_server.py: " not in each} == {
        f"{metrics.__file__}: BrokerCollector.collect"
    }


def test_a_scrape_fails_when_the_loop_is_too_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with InProcessBroker(metrics_listener="127.0.0.1:0") as broker:
            assert broker.server.metrics_server is not None
            loop, port = asyncio.get_running_loop(), broker.server.metrics_server.port
            released = threading.Event()
            scraping = loop.run_in_executor(None, scrape, port)
            scraping.add_done_callback(lambda _: released.set())
            loop.call_soon(released.wait, 1)
            with pytest.raises(HTTPError, match="500") as failed:
                await scraping
            failed.value.close()
            assert await asyncio.to_thread(scrape, port)

    monkeypatch.setattr(metrics, "SCRAPE_TIMEOUT_S", 0.05)
    asyncio.run(scenario())
