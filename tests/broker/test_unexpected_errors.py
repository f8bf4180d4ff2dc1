"""An unexpected error leaves no state behind: the task that owns the state continues or retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.controller import broker_requests
from broker.controller.active_controller import ActiveController
from broker.controller.broker_requests import BrokerRequests
from broker.controller.topic_changes import TopicChanges
from broker.logs.group_commit import GroupCommit
from broker.metadata import dynamic_configs
from broker.metadata.dynamic_configs import Refreshing
from broker.replication import alter_partition_manager
from broker.replication.alter_partition_manager import AlterPartitionManager
from cluster.controller.commands import LeaderAndIsr, UpdateMetadata
from cluster.controller.context import ControllerContext
from cluster.controller.topics import NewTopic
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.replication.isr import InSyncReplicas, IsrChange, IsrRules
from cluster.replication.partition import Partition
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.log.unified_log import UnifiedLog
from tests.broker.replication.test_hosted_partitions import Broker, state
from tests.kit.controller.controller_cluster import ControllerCluster
from tests.kit.coordination_fixtures import in_loop
from tests.kit.environment import InlineExecutor, ManualClock
from tests.kit.memory_file_system import MemoryFileSystem
from tests.kit.waiting import eventually_on_loop
from tests.storage.support import T0, TOPIC_ID, open_manager
from zookeeper.commit_queue import CommitQueue, CommitResult
from zookeeper.durable_tree import DurableTree

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Bugs:
    """Raises KeyError for the first `count` calls, and counts the calls."""

    def __init__(self, count: int = 1) -> None:
        self.left = count
        self.calls = 0

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def buggy(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.left:
                self.left -= 1
                raise KeyError("bug")
            return call(*arguments, **named)

        return buggy


def test_an_answer_about_the_isr_that_cannot_be_processed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the change stays pending, and the ISR never changes again."""
    bugs = Bugs()
    monkeypatch.setattr(alter_partition_manager, "PAUSE_AFTER_BUG_S", 0)
    monkeypatch.setattr(
        alter_partition_manager, "complete_change", bugs.before(alter_partition_manager.complete_change)
    )

    class Controller:
        """Has already applied the change, and says so each time."""

        asked = 0

        async def alter_partition(self, _broker_id: int, _epoch: int, changes: Any) -> dict[Any, PartitionImage]:
            self.asked += 1
            return {each.topic_partition: applied for each in changes}

    async def scenario() -> None:
        manager, _ = open_manager(MemoryFileSystem())
        log = manager.get_or_create(A, TOPIC_ID, manager.default_config, T0)
        partition = Partition(A, log, 0, PartitionImage(0, 1, 3, (1, 2), (1,), 4, 7), IsrRules())
        partition.in_sync = InSyncReplicas(IsrRules())
        change = partition.in_sync.pending = IsrChange(A, TOPIC_ID, 3, 4, ((1, -1), (2, -1)))
        sender = AlterPartitionManager(1, lambda: 50, lambda _: partition, lambda _: None, lambda _: None)
        sender.connect(controller)
        sender.submit(change)
        await eventually_on_loop("it is settled", lambda: partition.image.isr == (1, 2), pause_s=0.001)
        assert partition.in_sync.pending is None
        await sender.close()

    applied, controller = PartitionImage(0, 1, 3, (1, 2), (1, 2), 5, 7), Controller()
    asyncio.run(scenario())
    assert controller.asked == 2


@pytest.mark.parametrize(("bug_count", "arrives"), [(2, True), (3, False)])
def test_a_command_whose_sending_fails_is_sent_again_some_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bug_count: int, arrives: bool
) -> None:
    monkeypatch.setattr(broker_requests, "PAUSE_AFTER_BUG_S", 0)
    bugs, sent = Bugs(bug_count), []

    class Channel:
        async def leader_and_isr(self, command: LeaderAndIsr) -> dict[TopicPartition, ErrorCode]:
            return bugs.before(lambda: sent.append(command) or {})()  # type: ignore[func-returns-value, no-any-return]

        async def update_metadata(self, command: UpdateMetadata) -> None:
            sent.append(command)

        def close(self) -> None:
            """Do nothing: no one waits for it."""

    async def scenario() -> None:
        other = BrokerImage(2, 1, {})
        context = ControllerContext(1, 7, [BrokerImage(1, 1, {}), other])
        channel: Any = Channel()
        requests = BrokerRequests(context, channel, lambda _: channel, lambda *_: None)
        requests.add_broker(other)
        requests._senders[2].send(LeaderAndIsr(1, 7, 1))
        requests._senders[2].send(UpdateMetadata(1, 7, 1))
        await eventually_on_loop("the next one", lambda: sent and isinstance(sent[-1], UpdateMetadata), pause_s=0.001)
        await requests.close()

    asyncio.run(scenario())
    assert [type(each) for each in sent] == [LeaderAndIsr, UpdateMetadata][not arrives :]
    assert caplog.text.count("Traceback") == 1


def test_a_read_that_fails_when_a_watch_has_fired_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_configs, "PAUSE_AFTER_BUG_S", 0)
    bugs, read = Bugs(), asyncio.Event()

    async def refresh() -> None:
        bugs.before(read.set)()

    async def scenario() -> None:
        reading = Refreshing("read-acls", refresh)
        reading.begin()
        await eventually_on_loop("it is read", read.is_set, pause_s=0.001)
        await reading.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["prepare_flush", "on_flushed"])
def test_a_flush_that_fails_holds_up_no_other_log(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    async def scenario() -> None:
        manager, _ = open_manager(MemoryFileSystem())
        first, second = (manager.get_or_create(each, TOPIC_ID, manager.default_config, T0) for each in (A, B))
        bugs, failed = Bugs(), []
        flushed = bugs.before(lambda _log: None) if step == "on_flushed" else lambda _log: None
        if step == "prepare_flush":
            monkeypatch.setattr(UnifiedLog, "prepare_flush", bugs.before(UnifiedLog.prepare_flush))
        commit = GroupCommit(InlineExecutor(), ManualClock(), flushed, lambda log, _error: failed.append(log))
        waiting = [commit.wait(log, 0) for log in (first, second)]
        async with asyncio.timeout(30):
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            await commit.idle()
            await commit.wait(first, 0)
        assert isinstance(errors[0], ApiError)
        assert errors[0].error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (errors[1], failed) == (None, [first])

    asyncio.run(scenario())


def test_an_outcome_that_cannot_be_given_holds_up_no_other() -> None:
    async def scenario() -> None:
        tree = DurableTree.open(MemoryFileSystem(), "/", 0)
        queue = CommitQueue(tree, InlineExecutor(), ManualClock(), lambda _error: None)
        outcomes: list[CommitResult] = []
        give = Bugs().before(outcomes.append)
        for number in range(3):
            queue.write(lambda number=number: number, give)  # type: ignore[misc]
        await eventually_on_loop("the others have theirs", lambda: [each.result for each in outcomes] == [1, 2])
        await queue.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("leader", [1, 2], ids=["leads", "follows"])
@pytest.mark.parametrize("bug_count", [1, 2])
def test_a_role_that_cannot_be_taken_is_the_matter_of_one_partition(
    monkeypatch: pytest.MonkeyPatch, bug_count: int, leader: int
) -> None:
    """It is tried twice. Then the controller learns that the replica is offline, and elects another leader."""
    method = "become_leader" if leader == 1 else "resign"

    async def scenario() -> None:
        broker = Broker()
        await broker.lead(state(number=0, epoch=2), state(number=1, epoch=2), is_new=True)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, method, Bugs(bug_count).before(getattr(Partition, method)))
            answer = await broker.lead(state(number=0, leader=leader), state(number=1, leader=leader))
        is_offline = bug_count == 2 and leader == 1
        assert answer == {0: ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE, 1: ErrorCode.NONE}
        later = ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NONE
        assert await broker.lead(state(number=0, epoch=4)) == {0: later}
        assert (A in broker.hosted.partitions) is not is_offline

    asyncio.run(scenario())


def test_a_listener_of_leadership_that_fails_leaves_no_leader_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        broker = Broker()
        listener = Bugs(3).before(lambda *_: None)
        broker.hosted.add_leadership_listener(listener)
        assert await broker.lead(state(number=0), is_new=True) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
        assert broker.led[-1] == (A, False)
        assert not broker.hosted.partitions

    asyncio.run(scenario())


@in_loop
async def test_a_controller_that_fails_to_react_makes_room_for_the_next() -> None:
    """Its context may not match the tree any more. The next controller, or the same one after its next election, reads
    the tree.
    """
    cluster = await ControllerCluster().start()
    await cluster.create("t", (3, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActiveController, "set_live_brokers", Bugs(100).before(ActiveController.set_live_brokers))
        await cluster.members[3].membership.close()
        await cluster.until(
            "another leader", lambda: all(cluster.members[each].cache.image.leader_of(A) == 2 for each in (1, 2))
        )


@in_loop
async def test_a_controller_that_fails_after_it_has_written_makes_room_for_the_next() -> None:
    """The topic is in the tree, but no broker knows about it."""
    cluster = await ControllerCluster().start()
    before = cluster.controller.cache.image.controller_epoch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerRequests, "leader_and_isr", Bugs().before(BrokerRequests.leader_and_isr))
        new_topic = NewTopic("t", assignment={0: (1, 2)})
        with pytest.raises(KeyError):
            await cluster.controller.service.create_topics([new_topic])
    await cluster.until("the brokers know", lambda: cluster.told("t", 1, (1, 2)))
    assert cluster.members[1].cache.image.controller_epoch > before


@in_loop
async def test_a_controller_that_fails_before_it_writes_stays() -> None:
    """Otherwise any client that triggers a bug could depose each controller."""
    cluster = await ControllerCluster().start()
    controller = cluster.controller
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicChanges, "create", Bugs().before(TopicChanges.create))
        with pytest.raises(KeyError):
            await controller.service.create_topics([NewTopic("t")])
    assert cluster.controller is controller
    await cluster.create("t", (1, 2))
