"""Unreadable nodes: the broker serves everything else, names each such node once, and uses it again after a rewrite."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from broker.controller.active_controller import ActiveController
from cluster import znodes
from cluster.controller.commands import LeaderAndIsr, UpdateMetadata
from cluster.controller.topics import NewTopic
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.broker.controller.test_tree_changes import ask_for_election, read, until_gone, write
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.coordination_fixtures import in_loop, in_virtual_time

GARBAGE = b"gar{bage \xff"
DAMAGED_ASSIGNMENTS = [
    GARBAGE,
    b"",
    b"[]",
    b'{"version":2,"partitions":7}',
    b'{"version":2,"partitions":{"0":["x"]}}',
    b'{"version":2,"partitions":{"0":[4294967296]}}',
    b'{"version":2,"partitions":{"0":[]}}',
    b'{"version":2,"partitions":{"1":[1]}}',
    b'{"version":2,"partitions":{}}',
]
DAMAGED_STATES = [
    GARBAGE,
    b"",
    b'{"version":1,"leader":"x"}',
    b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":9999999999,"isr":[1]}',
]


async def epoch(cluster: ControllerCluster) -> int:
    return znodes.decode_controller_epoch(await read(cluster, znodes.CONTROLLER_EPOCH))


async def next_controller(cluster: ControllerCluster) -> None:
    """Stop the controller, and restart it once another broker is the controller."""
    gone = cluster.controller.broker_id
    before = await epoch(cluster)
    await cluster.members.pop(gone).kill()
    await cluster.until("another controller", lambda: any(each.service.is_active for each in cluster.members.values()))
    await cluster.start_broker(gone)
    await cluster.until("all know all", lambda: cluster.all_know([1, 2, 3]))
    assert await epoch(cluster) == before + 1


async def create(cluster: ControllerCluster, name: str) -> object:
    return (await cluster.controller.service.create_topics([NewTopic(name, assignment={0: (1, 2)})]))[name]


@pytest.mark.parametrize("data", DAMAGED_ASSIGNMENTS)
@in_loop
async def test_a_topic(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = await ControllerCluster().start()
    for name in ("healthy", "t"):
        await cluster.create(name, (1, 2, 3), (2, 3, 1))
    whole = await read(cluster, znodes.topic_path("t"))
    await write(cluster, znodes.topic_path("t"), data)
    await next_controller(cluster)
    await next_controller(cluster)
    assert not isinstance(await create(cluster, "new"), ApiError)
    await cluster.until("it is led", lambda: cluster.told("new", 1, (1, 2)))
    assert cluster.controller.cache.image.topics["healthy"].partitions[0].leader >= 0
    # If these named all topics, a broker would set the other topics' logs aside and forget their offsets.
    commands = [each for member in cluster.members.values() for each in member.inbox.commands]
    last_epoch = await epoch(cluster)
    last = [each for each in commands if each.controller_epoch == last_epoch]
    assert last
    assert not [each for each in last if isinstance(each, LeaderAndIsr | UpdateMetadata) and each.is_full]
    refused = await create(cluster, "t")
    assert isinstance(refused, ApiError)
    assert refused.error_code is ErrorCode.TOPIC_ALREADY_EXISTS
    await write(cluster, znodes.delete_topic_path("t"))
    await write(cluster, znodes.topic_path("t"), whole)
    await until_gone(cluster, znodes.topic_path("t"))  # it can be read now, so the requested deletion is executed
    assert await epoch(cluster) == last_epoch
    named = [each for each in caplog.messages if each.startswith("/brokers/topics/t cannot be understood")]
    assert 1 <= len(named) <= 3, "each of three brokers names it once"


@in_loop
async def test_a_topic_that_is_mended_goes_on_as_it_was() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    whole = await read(cluster, znodes.topic_path("t"))
    before = cluster.controller.cache.image.topics["t"]
    await write(cluster, znodes.topic_path("t"), GARBAGE)
    await next_controller(cluster)
    for member in cluster.members.values():
        member.inbox.commands.clear()
    await write(cluster, znodes.topic_path("t"), whole)
    await cluster.until("all are told", lambda: cluster.everywhere(lambda each: "t" in each.cache.image.topics))
    topic = cluster.controller.cache.image.topics["t"]
    assert topic.topic_id == before.topic_id
    assert topic.partitions[0].leader_epoch > before.partitions[0].leader_epoch
    await cluster.until("all have a role", lambda: cluster.everywhere(lambda each: each.role("t")))
    told = [each for member in cluster.members.values() for each in member.inbox.commands]
    topics = [topic for each in told if isinstance(each, LeaderAndIsr) for topic in each.topics if topic.topic == "t"]
    assert topics
    assert not any(topic.is_new for topic in topics), "a new topic's log is made on another disk if need be"


@pytest.mark.parametrize("data", DAMAGED_STATES)
@in_loop
async def test_the_state_of_a_partition(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3), (2, 3, 1))
    path = znodes.partition_state_path("t", 0)
    whole = await read(cluster, path)
    await write(cluster, path, data)
    await next_controller(cluster)
    topic = cluster.controller.cache.image.topics["t"]
    assert [each.leader >= 0 for each in topic.partitions] == [False, True]
    # Elections, moves and topic creations leave the node alone.
    await ask_for_election(cluster, ("t", 0), ("t", 1))
    await until_gone(cluster, znodes.PREFERRED_ELECTION)
    await cluster.controller.service.alter_reassignments({TopicPartition("t", 0): (1, 2)})
    await cluster.controller.service.create_topics([NewTopic("other", assignment={0: (1,)})])
    last_epoch = await epoch(cluster)
    assert await read(cluster, path) == data
    await write(cluster, path, whole)
    await cluster.until("it is led again", lambda: cluster.everywhere(lambda each: leader_of(each, "t") >= 0))
    assert await epoch(cluster) == last_epoch
    assert len([each for each in caplog.messages if each.startswith(f"{path} cannot be understood")]) == 1


def leader_of(member: Any, topic: str) -> int:
    image = member.cache.image.partition(TopicPartition(topic, 0))
    return -1 if image is None else image.leader


@in_loop
async def test_a_topic_with_a_damaged_state_can_be_deleted() -> None:
    cluster = await ControllerCluster().start()
    await cluster.create("t", (1, 2, 3))
    await write(cluster, znodes.partition_state_path("t", 0), GARBAGE)
    await next_controller(cluster)
    last_epoch = await epoch(cluster)
    await cluster.controller.service.delete_topics(["t"])
    await until_gone(cluster, znodes.topic_path("t"))
    assert await epoch(cluster) == last_epoch


@in_loop
async def test_who_the_controller_is() -> None:
    cluster = await ControllerCluster().start()
    last_epoch = await epoch(cluster)
    await write(cluster, znodes.CONTROLLER, GARBAGE)
    await cluster.until("a node that says it", lambda: any(m.service.is_active for m in cluster.members.values()))

    async def is_elected() -> None:
        while await epoch(cluster) == last_epoch or not any(m.service.is_active for m in cluster.members.values()):
            await asyncio.sleep(0)

    await asyncio.wait_for(is_elected(), 30)
    assert json.loads(await read(cluster, znodes.CONTROLLER) or b"")["brokerid"] == cluster.controller.broker_id


@in_loop
async def test_other_nodes_stop_no_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cluster = await ControllerCluster().start(1)
    for path in ("topics/t", "brokers/1", "brokers/<default>", "brokers/x", "users/u", "clients/c", "ips/1.2.3.4"):
        await write(cluster, f"/config/{path}", GARBAGE)
    for path in ("/brokers/ids/x", "/brokers/ids/77", znodes.REASSIGN_PARTITIONS, znodes.PRODUCER_ID_BLOCK):
        await write(cluster, path, GARBAGE)
    for path in (f"{znodes.CONFIG_CHANGES}/config_change_0000000000", f"{znodes.LOG_DIR_EVENTS}/log_dir_event_0"):
        await write(cluster, path, GARBAGE)
    await write(cluster, "/isr_change_notification/isr_change_0000000000", GARBAGE)
    member = await cluster.start_broker(2)
    found = await member.membership.zk_client.read_configs()
    assert found[2, "t"] == {"retention.ms": "-1", "retention.bytes": "-1"}, "what it was meant to keep stays"
    assert {each: config for each, config in found.items() if config} == {(2, "t"): found[2, "t"]}
    with pytest.raises(ApiError, match="/latest_producer_id_block cannot be understood"):
        await cluster.controller.service.allocate_producer_ids(2, member.epoch)
    assert "gar{bage" not in "".join(each for each in caplog.messages if "/config/" in each), "it may be a secret"
    await write(cluster, "/config/topics/t", znodes.encode_config({"retention.ms": "5"}))
    assert await member.membership.zk_client.read_config((2, "t")) == {"retention.ms": "5"}
    assert [each for each in caplog.messages if each.startswith("/config/topics/t can be read again")]


@in_loop
async def test_the_registration_of_the_controller_itself() -> None:
    cluster = await ControllerCluster().start()
    member = cluster.controller
    await write(cluster, znodes.broker_path(member.broker_id), GARBAGE)
    await cluster.members[2].expire()  # makes the controller read all registrations
    await cluster.create("t", (2, 3))
    assert member.service.is_active
    assert cluster.told("t", 2, (2, 3)), "the controller's own metadata too"


NODES = {
    "/brokers/topics/t": None,
    "/brokers/topics/t/partitions/0/state": None,
    "/brokers/ids/3": None,
    "/controller": None,
    "/brokers/seqid": None,
    "/feature": None,
    "/admin/delete_topics/t": None,
    "/admin/reassign_partitions": b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,3]}]}',
    "/admin/preferred_replica_election": b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
    "/log_dir_event_notification/log_dir_event_0000000001": b'{"version":1,"broker":1,"event":1}',
    "/config/changes/config_change_0000000009": b'{"version":2,"entity_path":"topics/t"}',
    "/config/topics/t": b'{"version":1,"config":{"retention.ms":"5"}}',
    "/config/brokers/1": b'{"version":1,"config":{"log.cleaner.threads":"1"}}',
    "/latest_producer_id_block": b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}',
}
"""Nodes to damage, with plausible data for those that the cluster has not written."""
STRANGE: list[Any] = [None, True, 0, -1, 2**31, 1.5, 1e308, "", "x", [], [1], [[1]], [None], {}, {"0": []}, {"a": 1}]


def damaged(random: Random, data: bytes) -> bytes:
    """Random bytes, a flipped bit, a truncated end, or JSON with a changed value."""
    match random.randrange(4):
        case 0:
            return random.randbytes(random.randrange(20))
        case 1:
            at = random.randrange(len(data) or 1)
            return data[:at] + bytes(byte ^ 1 << random.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]
        case 2:
            return data[: random.randrange(len(data) + 1)]
    value = json.loads(data or b"{}")
    inner = random.choice([each for each in (value, *value.values()) if isinstance(each, dict)])
    inner[random.choice([*inner, "x"])] = random.choice(STRANGE)
    return json.dumps(value).encode()


@pytest.mark.parametrize("seed", range(50))
def test_any_damage(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        random = Random(seed)
        cluster = await ControllerCluster().start()
        for name in ("h", "t"):
            await cluster.create(name, (1, 2, 3), (2, 3, 1))
        for path in random.sample(list(NODES), 3):
            await write(cluster, path, damaged(random, NODES[path] or await read(cluster, path) or b""))
        for broker_id in random.sample([1, 2, 3], 2):
            await asyncio.sleep(10)
            await cluster.members.pop(broker_id).kill()
            await cluster.start_broker(broker_id)
        await asyncio.sleep(60)
        topic = cluster.controller.cache.image.topics["h"]
        assert all(each.leader >= 0 for each in topic.partitions)
        assert await epoch(cluster) <= 10

    in_virtual_time(run)
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize("brokers", [1, 3])
def test_terms_that_fail_are_not_followed_by_the_next_at_once(brokers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "it cannot be taken")

    async def run() -> None:
        cluster = ControllerCluster()
        on_controller_failover = ActiveController.on_controller_failover
        monkeypatch.setattr(ActiveController, "on_controller_failover", refuse)
        for broker_id in range(1, brokers + 1):
            await cluster.start_broker(broker_id)
        await asyncio.sleep(60)
        first_minute = await epoch(cluster)
        await asyncio.sleep(600)
        assert first_minute <= 4 * brokers
        assert brokers <= (await epoch(cluster) - first_minute) / 10 <= 10
        monkeypatch.setattr(ActiveController, "on_controller_failover", on_controller_failover)
        await asyncio.sleep(30)
        assert cluster.controller.service.is_active

    in_virtual_time(run)


def test_an_epoch_that_cannot_be_read() -> None:
    async def run() -> None:
        cluster = await ControllerCluster().start(2)
        last_epoch = await epoch(cluster)
        await write(cluster, znodes.CONTROLLER_EPOCH, GARBAGE)
        await cluster.members.pop(cluster.controller.broker_id).kill()
        await cluster.start_broker(3)
        await asyncio.sleep(60)
        assert not any(each.service.is_active for each in cluster.members.values())
        await write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(last_epoch))
        await asyncio.sleep(30)
        assert cluster.controller.service.is_active

    in_virtual_time(run)
