"""Restarts of brokers: on many partitions with much data, after a clean stop and after kill -9.

The gigabytes of many partitions are sparse files. Every second partition has a sealed segment with indexes; after its
first batch it is a hole. Every partition has an active segment with one batch, and a snapshot. Brokers do not read
sealed segments at their start, even after a kill; the files that they do read are as real brokers write them. Only
every second partition, because Apache Kafka keeps each segment open, and many machines limit a process to 20,000
descriptors.
"""

from __future__ import annotations

import contextlib
import re
import struct
import time
from pathlib import Path

from bench.brokers import Broker
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.records.batch import Record, build_batch
from storage.directory.checkpoints import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from storage.log.producer_state import encode_snapshot
from tests.kit.wire_client import ConnectionClosed, WireClient

_SEALED_BYTES = 4_000_000
"""Size of the sealed segment in every second partition: 20 GB for 10,000 partitions."""

_SEALED_RECORDS = 2_000
_LIMIT_S = 300
_POLL_S = 0.1
_LOADED = re.compile(r"Loaded (\d+) logs in (\d+)ms")


def launch_until_led(broker: Broker, topic: str, partitions: int) -> float:
    """Launch, and return the seconds until the metadata shows a leader for each of the `partitions`.

    Raises RuntimeError on timeout.
    """
    began = time.monotonic()
    broker.launch()
    while time.monotonic() < began + _LIMIT_S:
        with contextlib.suppress(OSError, ConnectionClosed), WireClient("127.0.0.1", broker.port) as client:
            while led(client, topic) < partitions:
                time.sleep(_POLL_S)
            return time.monotonic() - began
        time.sleep(0.01)
    raise RuntimeError(f"{broker.name} did not lead {partitions} partitions of {topic} after {_LIMIT_S} s")


def led(client: WireClient, topic: str, but_by: int = -1) -> int:
    """How many partitions of the topic have a leader other than `but_by`, according to the metadata."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    answer = client.ask(request, 8)
    assert isinstance(answer, MetadataResponse)
    partitions = answer.topics[0].partitions
    return sum(each.leader_id not in (-1, but_by) and each.error_code == ErrorCode.NONE for each in partitions)


def grow(data: Path, topic: str, partitions: int) -> None:
    """Add a batch to each partition of a cleanly stopped broker, and a sealed segment to the even ones."""
    now_ms = time.time_ns() // 1_000_000
    first = build_batch([Record(0, now_ms, None, b"x")])
    last = bytearray(build_batch([Record(0, now_ms, None, b"x" * 100)]))
    last[0:8] = _SEALED_RECORDS.to_bytes(8, "big")
    last[12:16] = bytes(4)  # leader epoch 0
    sealed, active = f"{0:020d}", f"{_SEALED_RECORDS:020d}"
    files_of_each: dict[str, bytes | bytearray] = {
        f"{active}.log": last,
        f"{active}.index": b"",
        f"{active}.timeindex": struct.pack(">qi", now_ms, 0),
        f"{active}.snapshot": encode_snapshot({}),
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
    }
    sealed_files: dict[str, bytes | bytearray] = {
        f"{sealed}.log": first,
        f"{sealed}.index": struct.pack(">ii", _SEALED_RECORDS - 1, _SEALED_BYTES - 1000),
        f"{sealed}.timeindex": struct.pack(">qi", now_ms, _SEALED_RECORDS - 1),
    }
    for number in range(partitions):
        directory = data / f"{topic}-{number}"
        files = files_of_each if number % 2 else files_of_each | sealed_files
        for path in directory.glob(f"{sealed}.*"):
            path.unlink()
        for name, content in files.items():
            (directory / name).write_bytes(content)
        if not number % 2:
            with (directory / f"{sealed}.log").open("ab") as file:
                file.truncate(_SEALED_BYTES)
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT):
        path = data / name
        others = [line for line in path.read_text().splitlines()[2:] if not line.startswith(f"{topic} ")]
        lines = [*others, *(f"{topic} {number} {_SEALED_RECORDS + 1}" for number in range(partitions))]
        path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def loading_s(broker: Broker) -> float:
    """How long the broker's last start took to load its logs, from its own log. Raises RuntimeError if missing."""
    said = _LOADED.findall((broker.directory / "broker.log").read_text())
    if not said:
        raise RuntimeError(f"{broker.name} did not say how long it took to load its logs")
    return int(said[-1][1]) / 1000
