"""Metrics over HTTP, as Prometheus reads them."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.broker_process import BrokerProcess, free_port


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by (name, sorted labels)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


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


def test_without_a_listener_nothing_is_imported_or_opened(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    assert "Metrics are served" not in broker.output.read_text()
