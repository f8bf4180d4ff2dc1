"""A broker under load is killed again and again: acknowledged records exist once and in order, and it always
restarts.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.compat.steady_load import PATIENCE_S, Committer, Sender, create_topics, judge
from tests.kit.broker_process import BrokerProcess

TOPICS = {
    "flushed": {"flush.messages": "1", "segment.bytes": "200000"},
    "plain": {"segment.bytes": "200000"},
}
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": "700",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "offsets.topic.num.partitions": "2",
}


def await_more(broker: BrokerProcess, senders: list[Sender], count: int) -> None:
    """Return once each sender has `count` more acknowledgements."""
    goals = [len(sender.acknowledged) + count for sender in senders]
    deadline = time.monotonic() + PATIENCE_S
    for sender, goal in zip(senders, goals, strict=True):
        while len(sender.acknowledged) < goal:
            if time.monotonic() > deadline:
                said = broker.output.read_text()[-3000:]
                raise AssertionError(f"{sender.name} is not served: {sender.refused[-1:]}; the broker said\n{said}")
            time.sleep(0.01)


KILLS = int(os.environ.get("ODRADEK_KILLS", "200"))


@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_nothing_acknowledged_is_lost_to_the_death_of_the_process(
    kills: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(kills)
    broker = BrokerProcess(tmp_path / "broker", SETTINGS)
    broker.start()
    create_topics(broker.address, TOPICS)
    senders = [
        Sender(f"{topic}-{kind}", broker.address, topic, idempotent=kind == "once")
        for topic in TOPICS
        for kind in ("once", "again")
    ]
    committer = Committer(broker.address, "plain")
    try:
        for thread in (*senders, committer):
            thread.start()
        for turn in range(kills):
            if turn % 10 == 9:
                time.sleep(chance.random() * 0.4)  # possibly before it has recovered from the previous kill
            else:
                await_more(broker, senders, 10 + chance.randrange(60))
            broker.kill()
            broker.start()
        await_more(broker, senders, 20)
        for thread in (*senders, committer):
            thread.stop()
        verdicts = {topic: judge(broker.address, [each for each in senders if each.topic == topic]) for topic in TOPICS}
        committer.check()
    finally:
        assert broker.stop() == 0
    with capsys.disabled():
        told = "; ".join(f"{topic}: {verdict}" for topic, verdict in verdicts.items())
        print(f"\nkills {kills}; {told}; commits acknowledged {committer.acknowledged}, lost: 0")
    for topic, verdict in verdicts.items():
        assert (verdict.lost, verdict.doubled) == (0, 0), topic
        assert verdict.acknowledged > 20 * kills
    said = broker.output.read_text()
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
