"""One of two real disks fails under a broker, is missing at the next start, and comes back."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchResponse
from protocol.messages.metadata import MetadataResponse
from protocol.messages.produce import ProduceResponse
from tests.compat.raw_load import connect
from tests.kit.broker_process import BrokerProcess
from tests.kit.small_disk import mount_again, shut_down, small_disk
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import fetch, metadata, new_topic, produce, values_in


def errors(client: WireClient, topic: str, value: bytes) -> tuple[ErrorCode, ErrorCode]:
    """The errors of Produce and Fetch."""
    produced, fetched = client.ask(produce(topic, [value]), 11), client.ask(fetch(topic, 0), 12)
    assert isinstance(produced, ProduceResponse)
    assert isinstance(fetched, FetchResponse)
    return (
        ErrorCode(produced.responses[0].partition_responses[0].error_code),
        ErrorCode(fetched.responses[0].partitions[0].error_code),
    )


def leader(client: WireClient, topic: str) -> tuple[int, list[int]]:
    response = client.ask(metadata(topic), 9)
    assert isinstance(response, MetadataResponse)
    partition = response.topics[0].partitions[0]
    return partition.leader_id, list(partition.offline_replicas)


BROKEN = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
SOUND = (ErrorCode.NONE, ErrorCode.NONE)


def test_one_of_two_disks(tmp_path: Path) -> None:
    with small_disk(tmp_path, 64, ext4_only=True) as disk:
        broker = BrokerProcess(
            tmp_path / "run",
            {
                "log.dirs": f"{tmp_path / 'data'},{disk / 'data'}",
                "log.dir.reserve.bytes": "1000000",
                "log.retention.ms": "-1",  # the records are years old
            },
        )
        broker.start()
        try:
            with connect(broker) as client:
                for topic in ("one", "two"):
                    client.ask(new_topic(topic), 7)
                    assert errors(client, topic, b"before") == SOUND
                assert (disk / "data" / "two-0").is_dir()
                shut_down(disk)
                eventually("a failing disk", lambda: errors(client, "two", b"fails") == BROKEN)
                eventually("no leader", lambda: leader(client, "two") == (-1, [0]))
                assert errors(client, "one", b"while it is away") == SOUND
                client.ask(new_topic("three"), 7)
                assert errors(client, "three", b"elsewhere") == SOUND
            assert broker.stop() == 0
            broker.start()
            with connect(broker) as client:
                eventually("no leader after a start", lambda: leader(client, "two") == (-1, [0]))
                assert errors(client, "two", b"fails") == BROKEN
                assert errors(client, "one", b"while it is away") == SOUND
            assert broker.stop() == 0
            mount_again(disk)
            broker.start()
            with connect(broker) as client:
                assert leader(client, "two") == (0, [])
                assert errors(client, "two", b"after") == SOUND
                assert values_in(client.ask(fetch("two", 0), 12)) == [b"before", b"after"]
                assert values_in(client.ask(fetch("one", 0), 12)) == [b"before", *[b"while it is away"] * 2]
            assert broker.stop() == 0
        finally:
            broker.kill()
    said = broker.output.read_text()
    assert f"Stopping serving logs in dir {disk / 'data'}" in said
    assert "Traceback" not in said
