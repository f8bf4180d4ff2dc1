"""Administration by the clients' own admin interfaces. Calls that a client lacks are skipped by name."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from tests.compat.driver_process import CLIENTS, T0, ClientError, Driver, Record
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import eventually

pytestmark = pytest.mark.parametrize("client", CLIENTS)


def test_a_topic_s_life(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=2, configs={})
    assert topic in driver.admin("topics")
    assert driver.admin("partitions", topic=topic) == 2
    with pytest.raises(ClientError) as raised:
        driver.admin("create_topic", topic=topic, partitions=2, configs={})
    assert raised.value.error is ErrorCode.TOPIC_ALREADY_EXISTS

    driver.admin("create_partitions", topic=topic, count=5)
    assert driver.admin("partitions", topic=topic) == 5
    with pytest.raises(ClientError) as raised:
        driver.admin("create_partitions", topic=topic, count=3)
    assert raised.value.error is ErrorCode.INVALID_PARTITIONS

    driver.produce(topic, [Record(b"of the first life", partition=4)])
    driver.admin("delete_topic", topic=topic)
    eventually("gone", lambda: driver.admin("topics"), lambda topics: topic not in topics)
    # The same name again, without the old records.
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    assert driver.consume(topic, 0, "latest")[0] == 0
    assert driver.produce(topic, [Record(b"of the second life")]) == [[0, 0]]


def test_a_bad_topic(driver: Driver, topic: str) -> None:
    with pytest.raises(ClientError) as raised:
        driver.admin("create_topic", topic="not/a/name", partitions=1, configs={})
    assert raised.value.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(ClientError) as raised:
        driver.admin("create_topic", topic=topic, partitions=1, configs={"cleanup.policy": "shred"})
    assert raised.value.error is ErrorCode.INVALID_CONFIG


def test_configs(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={"retention.ms": "3600000"})
    configs = driver.admin("describe_config", topic=topic)
    assert (configs["retention.ms"], configs["cleanup.policy"]) == ("3600000", "delete")
    driver.admin("alter_config", topic=topic, key="max.message.bytes", value="4242")
    changed = eventually(
        "the new value",
        lambda: driver.admin("describe_config", topic=topic),
        lambda configs: configs["max.message.bytes"] == "4242",
    )
    # aiokafka's only call is AlterConfigs, which resets unnamed keys.
    assert changed["retention.ms"] == ("604800000" if driver.client == "aiokafka" else "3600000")


def await_empty(driver: Driver, group: str) -> None:
    """A client that has left may not have waited for the broker's answer."""
    eventually("no member", lambda: driver.admin("describe_group", group=group), lambda it: it["state"] == "Empty")


def test_a_group_s_life(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=2, configs={})
    driver.produce(topic, [Record(b"one", partition=0), Record(b"two", partition=1)])
    group = f"group-of-{topic}"
    member = driver.join("member", group, topic)
    eventually("both records", member.state, lambda state: len(state.records) == 2)
    member.commit()
    assert group in driver.admin("groups")
    stable = {"state": "Stable", "assignor": "range", "members": [[f"{topic}-0", f"{topic}-1"]]}
    eventually("a stable group", lambda: driver.admin("describe_group", group=group), lambda found: found == stable)
    member.leave()
    await_empty(driver, group)
    assert driver.admin("committed", group=group) == {f"{topic}-0": 1, f"{topic}-1": 1}


def test_deleting_a_group(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    group = f"group-of-{topic}"
    member = driver.join("member", group, topic)
    eventually("a partition", member.state, lambda state: state.assignment == [f"{topic}-0"])
    member.leave()
    await_empty(driver, group)
    driver.admin("delete_group", group=group)
    assert group not in driver.admin("groups")


def test_deleting_records(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    driver.produce(topic, [Record(b"%d" % number) for number in range(10)])
    assert driver.admin("delete_records", topic=topic, partition=0, before=6) == 6
    position, consumed = driver.consume(topic, 4)
    assert position == 6
    assert [record.value for record in consumed] == [b"6", b"7", b"8", b"9"]


def test_listing_offsets(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=1, configs={})
    timestamps = [T0, T0 + 100, T0 + 900, T0 + 300]
    for timestamp_ms in timestamps:
        driver.produce(topic, [Record(b"value", timestamp_ms=timestamp_ms)])
    expected = {"earliest": 0, "latest": 4, "max_timestamp": 2, "timestamp": 1}
    found = {at: driver.admin("list_offset", topic=topic, partition=0, at=at, timestamp=T0 + 50) for at in expected}
    assert found == expected


def test_describing_the_cluster(driver: Driver, broker: BrokerProcess) -> None:
    found = driver.admin("describe_cluster")
    assert (found["brokers"], found["controller"]) == ([broker.address], 0)
    assert len(found["cluster_id"]) == 22


def test_describing_log_directories(driver: Driver, topic: str) -> None:
    driver.admin("create_topic", topic=topic, partitions=2, configs={})
    driver.produce(topic, [Record(bytes(1000))])
    sizes = driver.admin("describe_log_dirs", topic=topic)
    assert 1000 < sizes[f"{topic}-0"] < 1200
    assert sizes[f"{topic}-1"] == 0
