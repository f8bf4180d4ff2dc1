"""A small real disk, filled and freed under a real broker with producers and consumers, again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages.topics import CreateTopicsResponse
from tests.compat.raw_load import TOPIC, Sender, client_start, connect, delete_all, goes_on, judge, load
from tests.kit.broker_process import BrokerProcess
from tests.kit.small_disk import fill, small_disk, usable_bytes
from tests.kit.waiting import eventually
from tests.kit.wire_client import WireClient
from tests.kit.wire_requests import new_topic

MB = 1 << 20
DISK_MB = 64
RESERVE = 8 * MB
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


def create(client: WireClient, topic: str) -> tuple[ErrorCode, str | None]:
    response = client.ask(new_topic(topic), 7)
    assert isinstance(response, CreateTopicsResponse)
    return ErrorCode(response.topics[0].error_code), response.topics[0].error_message


def await_full(disk: Path, senders: list[Sender]) -> None:
    """Wait until no client can write and no deletion is pending: segments of deleted records are removed a while later,
    and a refusal before that does not last.
    """
    eventually("a disk without deleted segments", lambda: not list(disk.rglob("*.deleted")))
    for sender in senders:
        sender.refusals.clear()
    enough = RESERVE + RESERVE // 16  # with so much free space clients may write again
    eventually("a full disk", lambda: all(each.refusals for each in senders) and usable_bytes(disk) < enough)


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
                await_full(disk, senders)
                left = usable_bytes(disk)
                assert left > RESERVE - 2 * MB, f"only {left} bytes are left"
                error, message = senders[0].refusals[-1]
                assert error is ErrorCode.KAFKA_STORAGE_ERROR
                assert message is not None
                assert f"log.dir.reserve.bytes={RESERVE}" in message
                if interruption is not None:
                    interruption()
                    broker.start()
                    await_full(disk, senders)
                with connect(broker) as client:
                    error, message = create(client, "refused")
                    assert (error, str(disk / "data") in (message or "")) == (ErrorCode.POLICY_VIOLATION, True)
                    assert judge(client, senders, client_start(client)) > 10
                    assert delete_all(client) is ErrorCode.NONE
                eventually("a producer that goes on", goes_on(senders))
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
                eventually("a full disk", lambda: all(each.refusals for each in senders))
                fill(disk / "rest")
                time.sleep(0.5)
                if end != "none":
                    (broker.kill if end == "kill" else broker.stop)()
                    # On a completely full disk it may not start; that must not do further damage.
                    with contextlib.suppress(RuntimeError):
                        broker.start()
                    broker.kill()
                (disk / "rest").unlink()
                ballast.unlink()
                if end != "none":
                    broker.start()
                eventually("a producer that goes on", goes_on(senders))
                with connect(broker) as client:
                    assert judge(client, senders, client_start(client)) > 5
                    # The senders may have filled the disk again, without room to record the deletion until the deleted
                    # files are gone.
                    eventually("a deletion", lambda: delete_all(client) is ErrorCode.NONE)
    finally:
        broker.kill()
    said = broker.output.read_text()
    assert "Traceback" not in said
    if end == "none":
        assert "Stopping serving logs" not in said
