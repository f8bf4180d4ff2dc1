"""Partitions with unusable files report errors, and the others are served."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from tests.kit.broker_process import BrokerProcess
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import delete_topics, fetch, new_topic, produce, values_in


def old_message(magic: int, payload: bytes) -> bytes:
    """A log entry of message format 0 or 1 (Kafka class LegacyRecord): no key, `payload` as value."""
    body = bytes([magic, 0]) + (struct.pack(">q", 1_700_000_000_000) if magic else b"")
    body += struct.pack(">ii", -1, len(payload)) + payload
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def connect(broker: BrokerProcess) -> WireClient:
    host, port = broker.address.split(":")
    return WireClient(host, int(port))


@pytest.mark.parametrize(("magic", "size"), [(0, 1), (1, 10), (1, 5000)])
def test_a_segment_of_an_older_format_is_refused_by_name(tmp_path: Path, magic: int, size: int) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    with connect(broker) as client:
        for topic in ("old", "new"):
            client.ask(new_topic(topic), 7)
            client.ask(produce(topic, [b"v"]), 9)
    broker.stop()
    segment = tmp_path / "data" / "old-0" / f"{0:020d}.log"
    content = old_message(magic, b"x" * size)
    segment.write_bytes(content)
    broker.start()
    try:
        with connect(broker) as client:
            produced = client.ask(produce("old", [b"v"]), 9)
            assert produced.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[attr-defined]
            fetched = client.ask(fetch("old", 0), 12)
            assert fetched.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[attr-defined]
            assert values_in(client.ask(fetch("new", 0), 12)) == [b"v"]
    finally:
        broker.stop()
    assert f"The log of old-0 cannot be used: {segment}" in broker.output.read_text()
    assert segment.read_bytes() == content


@pytest.mark.parametrize("tail", [None, bytes(50), bytes(5000)], ids=["half a batch", "zeros", "many zeros"])
def test_a_torn_tail_is_cut_off_after_a_kill_and_said(tmp_path: Path, tail: bytes | None) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    with connect(broker) as client:
        client.ask(new_topic("t"), 7)
        for number in range(20):
            client.ask(produce("t", [b"%d" % number]), 9)
    broker.kill()
    segment = tmp_path / "data" / "t-0" / f"{0:020d}.log"
    garbage = segment.read_bytes()[:50] if tail is None else tail
    with segment.open("ab") as file:
        file.write(garbage)
    broker.start()
    try:
        with connect(broker) as client:
            assert values_in(client.ask(fetch("t", 0), 12)) == [b"%d" % number for number in range(20)]
            answer = client.ask(produce("t", [b"next"]), 9)
            assert answer.responses[0].partition_responses[0].base_offset == 20  # type: ignore[attr-defined]
    finally:
        broker.stop()
    assert f"Recovered t-0: truncated {len(garbage)} bytes" in broker.output.read_text()


def test_directories_of_deleted_topics_that_a_power_cut_brought_back_are_set_aside(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    with connect(broker) as client:
        client.ask(new_topic("t"), 7)
        client.ask(produce("t", [b"of the old topic"]), 9)
        broker.stop()
    data = tmp_path / "data"
    shutil.copytree(data / "t-0", tmp_path / "old")
    shutil.copytree(data / "t-0", tmp_path / "older")
    broker.start()
    with connect(broker) as client:
        client.ask(delete_topics("t"), 5)
        client.ask(new_topic("t"), 7)
    broker.kill()
    shutil.rmtree(data / "t-0")
    (tmp_path / "old").rename(data / "t-0")
    (tmp_path / "older").rename(data / "forgotten-3")
    broker.start()
    try:
        with connect(broker) as client:
            client.ask(produce("t", [b"of the new topic"]), 9)
            assert values_in(client.ask(fetch("t", 0), 12)) == [b"of the new topic"]
        (stray,) = data.glob("t-0.*-stray")
        assert b"of the old topic" in (stray / f"{0:020d}.log").read_bytes()
        (forgotten,) = data.glob("forgotten-3.*-stray")
        for name, path in (("t-0", stray), ("forgotten-3", forgotten)):
            assert f"No topic exists for the log {data}/{name}; it was renamed to {path}" in broker.output.read_text()
        broker.stop()
        broker.start()
        assert stray.is_dir()
        assert forgotten.is_dir()
    finally:
        broker.stop()
