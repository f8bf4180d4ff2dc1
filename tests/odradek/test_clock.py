"""Time that a test moves, with real clients and without a sleep."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

import odradek
from tests.kit.waiting import eventually

CONFIG = {
    "offsets.retention.minutes": 60,
    "connections.max.idle.ms": 600_000,
    "log.cleaner.backoff.ms": 1000,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01,
    "min.compaction.lag.ms": 3_600_000,
    "delete.retention.ms": 86_400_000,
    "segment.ms": 60_000,
}


def consumer(broker: odradek.Broker, **settings: Any) -> Consumer:
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    client.subscribe(["t"])
    return client


def member_ids(broker: odradek.Broker) -> list[str]:
    group = broker.group("billing")
    return [] if group is None else [each["member_id"] for each in group["members"]]


def polled_until_stable(broker: odradek.Broker, client: Consumer) -> list[str]:
    """Poll until the group is stable; returns the ids of its members."""

    def look() -> list[str]:
        client.poll(0.05)
        group = broker.group("billing")
        return member_ids(broker) if group is not None and group["state"] == "Stable" else []

    return eventually("the group is stable", look, bool)


def test_retention_by_time(broker: odradek.Broker) -> None:
    topic = broker.create_topic("t", config={"retention.ms": 3_600_000})
    topic.produce([b"v"] * 1000)
    broker.clock.advance(minutes=59)
    assert topic.earliest() == 0
    broker.clock.advance(hours=1)
    assert (topic.earliest(), broker.records("t")) == (1000, [])


def test_retention_by_size(broker: odradek.Broker) -> None:
    topic = broker.create_topic("t", config={"retention.bytes": 10_000, "segment.bytes": 5_000})
    for _ in range(10):
        topic.produce([b"v" * 4_000])
    assert topic.earliest() == 0
    broker.clock.advance(minutes=6)  # log.retention.check.interval.ms
    assert 7 <= topic.earliest() <= 8


def test_segments_roll_by_time(broker: odradek.Broker) -> None:
    topic = broker.create_topic("t", config={"segment.ms": 60_000, "retention.bytes": 1})
    topic.produce([b"a"])
    broker.clock.advance(30)
    topic.produce([b"b"])
    broker.clock.advance(minutes=2)
    topic.produce([b"c"])
    broker.clock.advance(minutes=6)
    assert [each.value for each in broker.records("t")] == [b"c"]


def test_compaction_waits_for_its_lag(broker: odradek.Broker) -> None:
    broker.create_topic("t", config=COMPACTED)
    for value in ("1", "2", "3"):
        broker.produce("t", value, key="k")
    broker.clock.advance(minutes=2)
    broker.produce("t", "end", key="other")  # rolls the segment
    broker.clock.advance(minutes=50)
    assert len(broker.records("t")) == 4
    broker.clock.advance(minutes=30)
    assert [each.value for each in broker.records("t")] == [b"3", b"end"]


def test_a_tombstone_goes_after_its_retention(broker: odradek.Broker) -> None:
    broker.create_topic("t", config=COMPACTED)
    broker.produce("t", "1", key="k")
    broker.produce("t", None, key="k")
    broker.clock.advance(minutes=2)
    for hours in (2, 25, 2):
        broker.produce("t", "end", key="other")
        broker.clock.advance(hours=hours)
    assert None not in [each.value for each in broker.records("t")]


def test_members_stay_over_a_jump_unless_they_are_silent(broker: odradek.Broker) -> None:
    broker.create_topic("t")
    client = consumer(broker)
    before = polled_until_stable(broker, client)
    broker.clock.advance(hours=5)
    assert member_ids(broker) == before
    broker.clock.advance(50, silent_clients=True)
    assert member_ids(broker) == []
    after = polled_until_stable(broker, client)
    assert set(after).isdisjoint(before)
    client.close()


def test_a_static_member_stays_until_its_session_ends(broker: odradek.Broker) -> None:
    broker.create_topic("t")
    client = consumer(broker, **{"group.instance.id": "one", "session.timeout.ms": 30_000})
    before = polled_until_stable(broker, client)
    client.close()  # a static member does not leave
    broker.clock.advance(20, silent_clients=True)
    assert member_ids(broker) == before
    broker.clock.advance(11, silent_clients=True)
    assert member_ids(broker) == []


def test_committed_offsets_expire(broker: odradek.Broker) -> None:
    broker.create_topic("t").produce(["v"])
    client = consumer(broker)
    assert client.poll(60) is not None
    client.commit(asynchronous=False)
    client.close()
    broker.clock.advance(minutes=50)
    assert broker.lag("billing") == {("t", 0): 0}
    broker.clock.advance(minutes=30)
    assert broker.lag("billing") == {}


def test_a_transaction_times_out(broker: odradek.Broker) -> None:
    broker.create_topic("t")
    client = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "shop",
            "transaction.timeout.ms": 600_000,
            "message.timeout.ms": 600_000,
        }
    )
    client.init_transactions(60)
    client.begin_transaction()
    client.produce("t", b"late")
    assert client.flush(60) == 0
    broker.clock.advance(minutes=5)
    assert len(broker.records("t", isolation="read_uncommitted")) == 1
    broker.clock.advance(minutes=6)
    assert broker.records("t") == []
    broker.produce("t", "next")
    assert [each.value for each in broker.records("t")] == [b"next"]
    with pytest.raises(KafkaException):
        client.commit_transaction(60)


def test_idle_connections_close(broker: odradek.Broker) -> None:
    broker.create_topic("t")
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    client.list_topics(timeout=60)
    broker.clock.advance(hours=1)
    asked = len(broker.requests(api="ApiVersions"))
    client.list_topics(timeout=60)
    assert len(broker.requests(api="ApiVersions")) == asked  # on the same connection
    broker.clock.advance(hours=1, silent_clients=True)

    def connections() -> int:
        client.list_topics(timeout=60)
        return len(broker.requests(api="ApiVersions"))

    eventually("the client connects again", connections, lambda count: count > asked)


def test_a_long_poll_ends(broker: odradek.Broker) -> None:
    broker.create_topic("t")
    client = consumer(broker, **{"fetch.wait.max.ms": 250_000, "socket.timeout.ms": 300_000})
    client.poll(0)

    def fetches() -> list[dict[str, Any]]:
        client.poll(0.01)
        return broker.requests(api="Fetch")

    eventually("a Fetch waits", fetches, bool)
    (waiting,) = fetches()[-1:]
    assert waiting["duration_ms"] is None
    broker.clock.advance(300)
    answered = broker.requests(api="Fetch")[0]
    assert answered["duration_ms"] >= 250_000
    client.close()


def test_the_wall_clock_is_set(broker: odradek.Broker) -> None:
    topic = broker.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    broker.clock.at(datetime(2031, 5, 17, 12, 0, tzinfo=UTC))
    topic.produce([b"v"])
    stamped = datetime.fromtimestamp(broker.records("t")[0].timestamp / 1000, UTC)
    assert timedelta(0) <= stamped - datetime(2031, 5, 17, 12, 0, tzinfo=UTC) < timedelta(minutes=5)


def test_frozen_time_stands_still(broker: odradek.Broker) -> None:
    broker.clock.freeze()
    before = broker.clock.now()
    time.sleep(0.02)  # what is tested is that this changes nothing
    assert broker.clock.now() == before
    broker.clock.advance(1)
    assert broker.clock.now() == before + timedelta(seconds=1)
    broker.clock.unfreeze()
    eventually("time goes on", broker.clock.now, lambda now: now > before + timedelta(seconds=1))


def test_time_does_not_go_back(broker: odradek.Broker) -> None:
    with pytest.raises(odradek.OdradekError, match="advance_ms is not at least 0: -1000"):
        broker.clock.advance(-1)
