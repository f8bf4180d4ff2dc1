"""The controller over its whole life: first start, topics, restarts, interrupted work, foreign log directories."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.controller.controller_term import ControllerSettings
from broker.zookeeper.kafka_zk_client import ClusterError
from cluster.controller.commands import LeaderAndIsr
from cluster.controller.start_up import FoundReplica
from cluster.controller.topics import NewTopic, TopicPlan, deletion_mark
from cluster.metadata_image import MetadataImage
from cluster.znodes import PERSISTENT_PATHS, PartitionState, partition_path, partition_state_path, partitions_path
from protocol.config_resources import ConfigResourceType
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import CONSUMER_OFFSETS, TopicPartition
from protocol.uuids import ZERO_UUID
from tests.kit.controller.controller_fixtures import CLUSTER_ID, Cluster
from tests.kit.coordination_fixtures import Machine, in_loop
from tests.kit.environment import uuid_of
from tests.kit.memory_file_system import Fault
from tests.kit.waiting import turns
from zookeeper.coordination import Create, Delete


async def create(cluster: Cluster, name: str, partitions: int = 2, **config: str) -> None:
    given = {key.replace("_", "."): value for key, value in config.items()}
    outcome = await cluster.service.create_topics([NewTopic(name, partitions, 1, config=given)])
    assert isinstance(outcome[name], TopicPlan), outcome


@in_loop
async def test_a_first_start_lays_out_the_tree_and_takes_office() -> None:
    cluster = await Cluster().start()
    tree = await cluster.tree()
    assert set(PERSISTENT_PATHS) <= set(tree)
    assert tree["/controller_epoch"] == b"1"
    assert b'"brokerid":0' in (tree["/controller"] or b"")
    assert tree["/cluster/id"] == f'{{"version":"1","id":"{CLUSTER_ID}"}}'.encode()
    assert cluster.image.cluster_id == CLUSTER_ID
    assert cluster.image.controller_id == 0
    registered = await cluster.coordination.exists("/brokers/ids/0")
    assert registered is not None
    assert registered.ephemeral_owner == cluster.coordination.session_id
    assert cluster.image.brokers[0].epoch == registered.czxid
    assert [new for _, new in cluster.published] == [cluster.image]


@in_loop
async def test_a_cluster_without_an_id_gets_one_and_keeps_it() -> None:
    machine = Machine()
    cluster = await Cluster(machine).join(None)
    assert len(cluster.image.cluster_id) == 22
    await cluster.close()
    again = await Cluster(machine).join(None)
    assert again.image.cluster_id == cluster.image.cluster_id


@in_loop
async def test_another_clusters_log_directory_is_refused() -> None:
    cluster = await Cluster().start()
    await cluster.close()
    with pytest.raises(ClusterError, match=CLUSTER_ID):
        await Cluster(cluster.machine).join("AAAAAAAAAAAAAAAAAAAAAA")


@in_loop
async def test_a_second_broker_of_the_same_id_is_refused() -> None:
    cluster = await Cluster().start()
    twin = Cluster(cluster.machine, ensemble=cluster.ensemble)
    with pytest.raises(ClusterError, match="already registered with the id 0"):
        await twin.start()


@in_loop
async def test_a_topic_is_there_with_leaders_when_its_creation_returns() -> None:
    cluster = await Cluster().start()
    await create(cluster, "orders", 3, retention_ms="1000")
    topic = cluster.image.topics["orders"]
    assert [(each.leader, each.leader_epoch, each.isr, each.partition_epoch) for each in topic.partitions] == [
        (0, 0, (0,), 0)
    ] * 3
    assert cluster.image.topic_names[topic.topic_id] == "orders"
    assert cluster.image.config(ConfigResourceType.TOPIC, "orders") == {"retention.ms": "1000"}
    assert cluster.published[-1][1] is cluster.image
    tree = await cluster.tree()
    assert tree["/config/topics/orders"] == b'{"version":1,"config":{"retention.ms":"1000"}}'
    assert tree[partition_state_path("orders", 2)] == PartitionState(0, 0, (0,), 1).encode()
    assert tree["/brokers/topics/orders/partitions"] is None


@in_loop
async def test_one_topic_is_one_fsync() -> None:
    cluster = await Cluster().start()
    before = cluster.machine.executor.runs
    await create(cluster, "orders", 100)
    assert cluster.machine.executor.runs - before == 1


@in_loop
async def test_topics_survive_a_restart_and_a_kill() -> None:
    cluster = await Cluster().start()
    await create(cluster, "orders", 3, cleanup_policy="compact")
    topic = cluster.image.topics["orders"]
    cluster = await cluster.restart()
    assert cluster.image.topics["orders"] == topic
    assert cluster.image.config(ConfigResourceType.TOPIC, "orders") == {"cleanup.policy": "compact"}
    assert cluster.image.controller_epoch == 2
    cluster = await cluster.restart(kill=True, unclean=True)
    assert cluster.image.controller_epoch == 3
    assert [
        (each.leader, each.leader_epoch, each.partition_epoch) for each in cluster.image.topics["orders"].partitions
    ] == [(0, 1, 1)] * 3
    state = (await cluster.coordination.get(partition_state_path("orders", 0)))[0]
    assert state == PartitionState(0, 1, (0,), 3).encode()


@in_loop
async def test_broker_epochs_grow() -> None:
    cluster = await Cluster().start()
    first = cluster.image.brokers[0].epoch
    cluster = await cluster.restart(kill=True)
    assert cluster.image.brokers[0].epoch > first


@in_loop
async def test_a_deleted_topic_leaves_nothing_and_can_be_created_at_once() -> None:
    cluster = await Cluster().start()
    before = await cluster.tree()
    await create(cluster, "orders", 3, retention_ms="1")
    first = cluster.image.topics["orders"]
    await cluster.service.delete_topics(["orders", "never-there"])
    assert await cluster.tree() == before
    assert cluster.image.topics == {}
    assert first.topic_id not in cluster.image.topic_names
    assert cluster.image.config(ConfigResourceType.TOPIC, "orders") == {}
    await create(cluster, "orders")
    assert cluster.image.topics["orders"].topic_id != first.topic_id


@in_loop
async def test_replicas_are_dropped_before_the_nodes() -> None:
    cluster = await Cluster().start()
    await create(cluster, "orders")
    seen: list[bool] = []

    def listen(_old: MetadataImage, new: MetadataImage) -> None:
        if "orders" not in new.topics:
            seen.append(cluster.ensemble._queue.tree.exists("/brokers/topics/orders") is not None)

    cluster.cache.add_listener(listen)
    await cluster.service.delete_topics(["orders"])
    assert seen == [True]


@in_loop
async def test_an_interrupted_deletion_is_finished_at_the_next_start() -> None:
    cluster = await Cluster().start()
    await create(cluster, "doomed")
    await create(cluster, "kept")
    await cluster.coordination.multi(
        [deletion_mark("doomed"), deletion_mark("almost-gone"), Create("/config/topics/almost-gone")]
    )
    cluster = await cluster.restart(kill=True)
    assert set(cluster.image.topics) == {"kept"}
    # Listeners learn of the deletion, to drop their state of the topic; clients never see it.
    assert all("doomed" not in new.topics for _, new in cluster.published)
    assert [new for old, new in cluster.published if "doomed" in old.topics]
    tree = await cluster.tree()
    assert not [path for path in tree if "doomed" in path or "almost-gone" in path]


@in_loop
async def test_a_deletion_interrupted_between_its_last_transactions_is_finished_too() -> None:
    cluster = await Cluster().start()
    await create(cluster, "doomed", 2)
    await cluster.coordination.multi(
        [
            deletion_mark("doomed"),
            *[
                Delete(path(number))
                for number in range(2)
                for path in (lambda n: partition_state_path("doomed", n), lambda n: partition_path("doomed", n))
            ],
            Delete(partitions_path("doomed")),
        ]
    )
    cluster = await cluster.restart(kill=True)
    assert not [path for path in await cluster.tree() if "doomed" in path]


@in_loop
async def test_a_half_created_topic_is_completed_at_the_next_start() -> None:
    cluster = await Cluster().start()
    await create(cluster, "whole", 2)
    data = (await cluster.coordination.get("/brokers/topics/whole"))[0]
    await cluster.coordination.multi([Create("/config/topics/half", b'{"version":1,"config":{}}')])
    await cluster.coordination.multi([Create("/brokers/topics/half", data)])
    cluster = await cluster.restart(kill=True)
    assert [each.leader for each in cluster.image.topics["half"].partitions] == [0, 0]
    assert (await cluster.tree())[partition_state_path("half", 1)] == PartitionState(0, 0, (0,), 2).encode()


@in_loop
async def test_logs_that_no_tree_knows_are_adopted() -> None:
    topic_id = uuid_of(77)
    found = [
        FoundReplica("orders", 2, topic_id, leader_epoch=4),
        FoundReplica("orders", 0, topic_id),
        FoundReplica("old", 0, None, leader_epoch=0),
        FoundReplica(CONSUMER_OFFSETS, 1, uuid_of(78)),
    ]
    cluster = await Cluster().start(found)
    orders, old = cluster.image.topics["orders"], cluster.image.topics["old"]
    assert orders.topic_id == topic_id
    assert [(each.leader, each.leader_epoch, each.isr) for each in orders.partitions] == [
        (0, 0, (0,)),
        (0, 0, (0,)),
        (0, 5, (0,)),
    ]
    assert old.topic_id != ZERO_UUID
    assert old.partitions[0].leader_epoch == 1
    assert cluster.image.cluster_id == CLUSTER_ID
    # Without its configuration, retention would delete the groups' offsets.
    assert cluster.image.config(2, CONSUMER_OFFSETS) == {"cleanup.policy": "compact"}
    assert cluster.image.config(2, "orders") == {"retention.ms": "-1", "retention.bytes": "-1"}
    before = cluster.image
    cluster = await cluster.restart()
    assert (cluster.image.topics, cluster.image.configs) == (before.topics, before.configs)


@in_loop
async def test_logs_are_not_adopted_into_a_cluster_that_has_been_alive() -> None:
    cluster = await Cluster().start([])
    await cluster.close()
    again = await Cluster(cluster.machine).start([FoundReplica("stray", 0, uuid_of(5))])
    assert again.image.topics == {}


@in_loop
async def test_partitions_are_added() -> None:
    cluster = await Cluster().start()
    await create(cluster, "orders", 2)
    before = cluster.image.topics["orders"]
    await cluster.service.create_partitions("orders", 4, None, validate_only=True)
    assert cluster.image.topics["orders"] is before
    await cluster.service.create_partitions("orders", 4, None)
    topic = cluster.image.topics["orders"]
    assert topic.partitions[:2] == before.partitions
    assert [each.leader for each in topic.partitions] == [0] * 4
    assert topic.topic_id == before.topic_id
    cluster = await cluster.restart()
    assert cluster.image.topics["orders"] == topic


@in_loop
async def test_configs_are_replaced_and_announced() -> None:
    cluster = await Cluster().start()
    await create(cluster, "orders")
    await cluster.configs.alter_configs({(ConfigResourceType.TOPIC, "orders"): {"retention.ms": "5"}})
    await cluster.configs.alter_configs({(ConfigResourceType.BROKER, "0"): {"log.cleaner.threads": "2"}})
    await cluster.configs.alter_configs({(4, ""): {"log.retention.ms": "7"}})
    assert cluster.image.config(2, "orders") == {"retention.ms": "5"}
    assert cluster.image.config(4, "0") == {"log.cleaner.threads": "2"}
    assert cluster.image.config(4, "") == {"log.retention.ms": "7"}
    tree = await cluster.tree()
    assert tree["/config/brokers/<default>"] == b'{"version":1,"config":{"log.retention.ms":"7"}}'
    assert tree["/config/changes/config_change_0000000000"] == b'{"version":2,"entity_path":"topics/orders"}'
    assert tree["/config/changes/config_change_0000000002"] == b'{"version":2,"entity_path":"brokers/<default>"}'
    configs = cluster.image.configs
    cluster = await cluster.restart()
    assert cluster.image.configs == configs
    await cluster.configs.alter_configs({(4, ""): {}})
    assert (4, "") not in cluster.image.configs
    errors = await cluster.configs.alter_configs({(2, "missing"): {}, (2, "orders"): {"retention.ms": "6"}})
    assert {resource: error.error_code for resource, error in errors.items()} == {
        (2, "missing"): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert cluster.image.config(2, "orders") == {"retention.ms": "6"}


@in_loop
async def test_old_notices_of_configs_are_purged() -> None:
    cluster = await Cluster().start()
    await cluster.configs.alter_configs({(4, "0"): {"a": "1"}})
    cluster.machine.clock.ms += 14 * 60 * 1000
    await cluster.configs.alter_configs({(4, "0"): {"a": "2"}})
    assert len((await cluster.coordination.children("/config/changes"))[0]) == 2
    cluster.machine.clock.ms += 2 * 60 * 1000
    await cluster.configs.alter_configs({(4, "0"): {"a": "3"}})
    assert (await cluster.coordination.children("/config/changes"))[0] == [
        "config_change_0000000001",
        "config_change_0000000002",
    ]


@in_loop
async def test_producer_ids_never_repeat() -> None:
    cluster = await Cluster().start()
    blocks = list(await asyncio.gather(*[cluster.allocate_producer_ids() for _ in range(3)]))
    cluster = await cluster.restart(kill=True)
    blocks.append(await cluster.allocate_producer_ids())
    assert [(block.first, block.last) for block in blocks] == [(0, 999), (1000, 1999), (2000, 2999), (3000, 3999)]


@in_loop
async def test_internal_topics_are_created_once_with_their_own_settings() -> None:
    cluster = await Cluster().start()
    await asyncio.gather(*[cluster.auto_topics.ensure_internal_topic(CONSUMER_OFFSETS) for _ in range(5)])
    assert len(cluster.image.topics[CONSUMER_OFFSETS].partitions) == 5
    assert cluster.image.config(2, CONSUMER_OFFSETS) == {"cleanup.policy": "compact"}
    assert len([each for each in cluster.channel.commands if isinstance(each, LeaderAndIsr)]) == 1


@in_loop
async def test_auto_creation_answers_as_kafka_does() -> None:
    cluster = await Cluster().start()
    cluster.machine.executor.held = True
    first = asyncio.ensure_future(cluster.auto_topics.create("orders"))
    await turns()
    assert await cluster.auto_topics.create("orders") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.machine.executor.release()
    assert await first is ErrorCode.LEADER_NOT_AVAILABLE
    assert len(cluster.image.topics["orders"].partitions) == 2
    assert await cluster.auto_topics.create("a.b") is ErrorCode.LEADER_NOT_AVAILABLE
    assert await cluster.auto_topics.create("a_b") is ErrorCode.INVALID_TOPIC_EXCEPTION


@in_loop
async def test_auto_creation_with_too_few_brokers() -> None:
    cluster = await Cluster(settings=ControllerSettings(default_replication_factor=3)).start()
    assert await cluster.auto_topics.create("orders") is ErrorCode.INVALID_REPLICATION_FACTOR


@in_loop
async def test_a_change_goes_on_when_its_caller_leaves() -> None:
    cluster = await Cluster().start()
    cluster.machine.executor.held = True
    asked = asyncio.ensure_future(cluster.service.create_topics([NewTopic("orders", 1, 1)]))
    await turns()
    asked.cancel()
    await turns()
    cluster.machine.executor.release()
    await turns()
    assert "orders" in cluster.image.topics


@in_loop
async def test_concurrent_creations_of_one_topic_create_it_once() -> None:
    cluster = await Cluster().start()
    outcomes = await asyncio.gather(*[cluster.service.create_topics([NewTopic("orders", 1, 1)]) for _ in range(4)])
    created = [outcome for outcome in outcomes if isinstance(outcome["orders"], TopicPlan)]
    refused = [outcome["orders"] for outcome in outcomes if isinstance(outcome["orders"], ApiError)]
    assert len(created) == 1
    assert {error.error_code for error in refused} == {ErrorCode.TOPIC_ALREADY_EXISTS}


@in_loop
async def test_a_failing_disk_is_not_answered_with_success() -> None:
    cluster = await Cluster().start()
    cluster.machine.disk.inject = lambda operation, _path: Fault(errno=errno.EIO) if operation == "flush" else None
    outcome = (await cluster.service.create_topics([NewTopic("orders", 1, 1)]))["orders"]
    assert isinstance(outcome, ApiError)
    assert outcome.error_code is ErrorCode.NOT_CONTROLLER
    assert "orders" not in cluster.image.topics
    assert len(cluster.machine.failures) == 1


@in_loop
async def test_an_update_of_one_topic_shares_all_others() -> None:
    cluster = await Cluster().start()
    await create(cluster, "big", 1000)
    big = cluster.image.topics["big"]
    await create(cluster, "small", 1)
    await cluster.service.delete_topics(["small"])
    assert cluster.image.topics["big"] is big
    assert cluster.image.partition(TopicPartition("big", 999)) is big.partitions[999]
    assert cluster.image.partition(TopicPartition("big", 1000)) is None
    assert cluster.image.leader_of(TopicPartition("none", 0)) == -1


@in_loop
async def test_ten_thousand_partitions() -> None:
    """Creating a topic of this size must be one transaction, and reading it back must not take minutes: `in_loop` sets
    the limit.
    """
    cluster = await Cluster().start()
    await create(cluster, "huge", 10_000)
    cluster = await cluster.restart(unclean=True)
    assert len(cluster.image.topics["huge"].partitions) == 10_000
