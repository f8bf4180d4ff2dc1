"""Power loss on a real file system: a separate ext4 is shut down under a busy broker, and mounted again.

EXT4_IOC_SHUTDOWN without a flush of the journal has the effect of a power cut: unfsynced data is lost. But it takes a
millisecond or two, and an fsync in that time may return without an error, though its data is lost (seen with threads
that only write and fsync, on Linux 6.18). So the broker is stopped meanwhile: a computer without power acknowledges
nothing.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.steady_load import Sender, create_topics, judge
from tests.compat.test_kill_loop import SETTINGS, await_more
from tests.kit.broker_process import BrokerProcess
from tests.kit.small_disk import mount_again, shut_down, small_disk
from tests.kit.waiting import eventually

DISK_MEGABYTES = 256


def freeze(broker: BrokerProcess, *, between_calls: bool) -> None:
    """Stop the broker: it sends nothing once this returns. With `between_calls`, none of its threads waits for the disk
    either.
    """
    broker.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{broker.pid}/task")
    for task in tasks.iterdir() if between_calls else [tasks / str(broker.pid)]:
        eventually(f"{task} stops", (task / "stat").read_text, lambda stat: ") T " in stat, pause_s=0.001)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, DISK_MEGABYTES, ext4_only=True) as mounted_at:
        yield mounted_at


@pytest.mark.parametrize("cuts", [2, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_what_is_acknowledged_with_flush_messages_1_survives(
    cuts: int, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(cuts)
    broker = BrokerProcess(tmp_path / "broker", {**SETTINGS, "log.dirs": str(disk / "data")})
    broker.start()
    config = {"flush.messages": "1", "segment.bytes": "100000"}
    create_topics(broker.address, {"flushed": config, "plain": {"segment.bytes": "100000"}})
    flushed = [Sender("once", broker.address, "flushed", idempotent=True)]
    flushed.append(Sender("again", broker.address, "flushed", idempotent=False))
    # Proves that the cuts are real: some records acknowledged without a flush are lost.
    plain: list[Sender] = []
    try:
        for sender in flushed:
            sender.start()
        for turn in range(cuts):
            plain.append(Sender(f"plain{turn}", broker.address, "plain", idempotent=False))
            plain[-1].start()
            await_more(broker, [*flushed, plain[-1]], 30 + chance.randrange(60))
            freeze(broker, between_calls=False)
            acknowledged = [list(sender.acknowledged) for sender in plain]
            shut_down(disk, cuts_power=True)
            broker.kill()
            mount_again(disk)
            broker.start()
            plain[-1].stop()
            # Ignore the records sent after the restart.
            for sender, before in zip(plain, acknowledged, strict=True):
                sender.acknowledged = before
        await_more(broker, flushed, 20)
        for sender in flushed:
            sender.stop()
        verdict, gone = judge(broker.address, flushed), judge(broker.address, plain)
    finally:
        assert broker.stop() == 0
    with capsys.disabled():
        print(f"\npower cuts {cuts}; flush.messages=1: {verdict}; without: {gone}")
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.acknowledged > 50 * cuts
    assert gone.lost > 0, "the power cuts took nothing: they prove nothing"


def test_a_broker_whose_disk_fails_says_so_and_ends(disk: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", {**SETTINGS, "log.dirs": str(disk / "data")})
    broker.start()
    create_topics(broker.address, {"flushed": {"flush.messages": "1"}})
    senders = [Sender(name, broker.address, "flushed", idempotent=name == "once") for name in ("once", "again")]
    try:
        for sender in senders:
            sender.start()
        await_more(broker, senders, 50)
        freeze(broker, between_calls=True)
        shut_down(disk, cuts_power=True)
        broker.send_signal(signal.SIGCONT)
        assert broker.wait() != 0
        mount_again(disk)
        broker.start()
        await_more(broker, senders, 20)
        for sender in senders:
            sender.stop()
        verdict = judge(broker.address, senders)
    finally:
        assert broker.stop() == 0
    assert (verdict.lost, verdict.doubled) == (0, 0)
    said = broker.output.read_text()
    assert f"Stopping serving logs in dir {disk / 'data'}" in said
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
