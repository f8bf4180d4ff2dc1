"""A broker obeys its controller's commands, except stale ones (Kafka 3.9's ReplicaManager)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from broker.replication.hosted_partitions import HostedPartitions
from cluster.controller.commands import (
    EPOCH_DURING_DELETE,
    NO_NUMBER,
    CommandFence,
    LeaderAndIsr,
    StoppedReplica,
    StopReplica,
    TopicStates,
)
from cluster.metadata_image import PartitionImage
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from protocol.uuids import Uuid
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.kit.environment import CountedSlices, uuid_of
from tests.kit.memory_file_system import Fault, MemoryFileSystem
from tests.kit.waiting import turns

ME, OTHER = 1, 2
A, B = "/a", "/b"
ID, LATER_ID = uuid_of(11), uuid_of(12)
T0 = TopicPartition("t", 0)


class Broker:
    """Broker 1, registered with epoch 50, with two disks."""

    def __init__(self, disks: MemoryFileSystem | None = None) -> None:
        self.disks = disks or MemoryFileSystem()
        self.logs = LogManager(self.disks, [A, B], LogConfig(), on_directory_failure=lambda *_: None)
        self.logs.directories.lock()
        loads = self.logs.begin_load(0)
        for load in loads:
            load.work()
        self.logs.complete_load(loads)
        self.fence = CommandFence()
        self.fence.broker_epoch = 50
        self.changed: list[TopicPartition] = []
        self.led: list[tuple[TopicPartition, bool]] = []
        self.hosted = HostedPartitions(
            ME,
            self.logs,
            CountedSlices(20),
            self.fence,
            lambda _topic: LogConfig(),
            changed=self.changed.append,
            flush=lambda _log: None,
        )
        self.hosted.add_leadership_listener(lambda partition, leads: self.led.append((partition, leads)))
        self.hosted.strays.complete_deletions_with(self._note_settlement)
        self.at_settlement: list[list[str]] = []
        """`directories`, at each time when checkpoints had to forget strays."""

    async def _note_settlement(self) -> None:
        self.at_settlement.append(self.directories())

    async def lead(
        self,
        *states: PartitionImage,
        topic: str = "t",
        topic_id: Uuid = ID,
        is_new: bool = False,
        is_full: bool = False,
        controller_epoch: int = 7,
        broker_epoch: int = 50,
        number: int = NO_NUMBER,
    ) -> dict[int, ErrorCode]:
        """Send LeaderAndIsr; returns the answer by partition number."""
        topics = (TopicStates(topic, topic_id, states, is_new),) if states else ()
        command = LeaderAndIsr(9, controller_epoch, broker_epoch, number, topics, is_full)
        answer = await self.hosted.become_leader_or_follower(command)
        return {each.partition: error_code for each, error_code in answer.items()}

    async def stop(
        self,
        leader_epoch: int = EPOCH_DURING_DELETE,
        *,
        delete: bool = True,
        controller_epoch: int = 7,
        broker_epoch: int = 50,
        number: int = NO_NUMBER,
    ) -> ErrorCode:
        """Send StopReplica for t-0."""
        command = StopReplica(9, controller_epoch, broker_epoch, number, (StoppedReplica(T0, leader_epoch, delete),))
        return (await self.hosted.stop_replicas(command))[T0]

    def directories(self) -> list[str]:
        """The directories of logs on both disks."""
        return [info.name for path in (A, B) for info in self.disks.list_dir(path) if info.is_dir]

    def next_life(self) -> Broker:
        """Replace the process."""
        self.logs.directories.unlock()
        return Broker(self.disks)

    def break_disk(self, path: str) -> None:
        """Make every call to a directory fail, and let the broker notice."""
        self.disks.inject = lambda _operation, at: Fault(errno.EIO) if at.startswith(path) else None
        self.logs.directories.take_offline(path, "broken")
        self.hosted.directory_failed(path)


def state(
    leader: int = ME, epoch: int = 3, number: int = 0, replicas: tuple[int, ...] = (ME, OTHER), version: int = 1
) -> PartitionImage:
    return PartitionImage(number, leader, epoch, replicas, replicas, version, 7)


def on_loop(scenario: Callable[[Broker], Awaitable[None]]) -> Callable[[], None]:
    """Decorate a test with a new broker."""

    def test() -> None:
        asyncio.run(scenario(Broker()))  # type: ignore[arg-type]

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


def role(broker: Broker) -> tuple[bool, int]:
    partition = broker.hosted.partition(T0)
    return partition.is_leader, partition.leader_epoch


@on_loop
async def test_a_replica_is_made_leads_and_resigns(broker: Broker) -> None:
    assert await broker.lead(state(), is_new=True) == {0: ErrorCode.NONE}
    assert role(broker) == (True, 3)
    assert await broker.lead(state(leader=OTHER, epoch=4)) == {0: ErrorCode.NONE}
    assert role(broker) == (False, 4)
    assert broker.led == [(T0, True), (T0, False)]


@pytest.mark.parametrize(
    ("epochs", "refusal"),
    [
        ({"controller_epoch": 6}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"broker_epoch": 49}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_a_command_of_the_past_changes_nothing(epochs: dict[str, int], refusal: ErrorCode) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.lead(state(), is_new=True)
        before = broker.directories()
        for send in (
            broker.lead(state(leader=OTHER, epoch=9), **epochs),
            broker.lead(state(number=1), is_new=True, **epochs),
            broker.lead(state(), topic="u", is_full=True, **epochs),
            broker.stop(**epochs),
            broker.stop(delete=False, **epochs),
        ):
            with pytest.raises(ApiError) as caught:
                await send
            assert caught.value.error_code is refusal
        assert role(broker) == (True, 3)
        assert broker.directories() == before
        assert list(broker.hosted.partitions) == [T0]
        assert broker.fence.controller_epoch == 7

    asyncio.run(scenario(Broker()))


@on_loop
async def test_a_newer_controller_and_an_unknown_broker_epoch_are_obeyed(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    assert await broker.lead(state(epoch=4), controller_epoch=8, broker_epoch=-1) == {0: ErrorCode.NONE}
    broker.fence.registration_ended()
    assert await broker.lead(state(epoch=5), controller_epoch=8, broker_epoch=60) == {0: ErrorCode.NONE}
    with pytest.raises(ApiError):
        await broker.lead(state(epoch=6))


@on_loop
async def test_a_leader_epoch_that_is_not_newer_changes_nothing(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    for epoch in (3, 2):
        answer = await broker.lead(state(leader=OTHER, epoch=epoch, version=9))
        assert answer == {0: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.stop(2) is ErrorCode.FENCED_LEADER_EPOCH
    assert role(broker) == (True, 3)


@on_loop
async def test_a_broker_that_resigned_leads_again_when_it_is_told_so(broker: Broker) -> None:
    """M10: its session was gone, so another leader may have been elected meanwhile."""
    await broker.lead(state(), is_new=True)
    broker.hosted.resign_all()
    assert not role(broker)[0]
    assert await broker.lead(state()) == {0: ErrorCode.NONE}
    assert role(broker) == (True, 3)
    broker.hosted.resign_all()
    assert await broker.lead(state(leader=OTHER, epoch=4)) == {0: ErrorCode.NONE}
    assert await broker.lead(state()) == {0: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert role(broker) == (False, 4)


@on_loop
async def test_one_partition_that_is_refused_does_not_hold_back_the_others(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    answer = await broker.lead(state(), state(number=1), state(number=2, replicas=(OTHER,)))
    assert answer == {
        0: ErrorCode.STALE_CONTROLLER_EPOCH,
        1: ErrorCode.NONE,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert sorted(broker.directories()) == ["t-0", "t-1"]


@on_loop
async def test_another_topic_id_is_refused(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    assert await broker.lead(state(epoch=9), topic_id=LATER_ID) == {0: ErrorCode.INCONSISTENT_TOPIC_ID}
    assert role(broker) == (True, 3)


@on_loop
async def test_a_broker_that_leaves_the_replica_list_resigns_and_keeps_the_log(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    answer = await broker.lead(state(leader=OTHER, epoch=4, replicas=(OTHER,)))
    assert answer == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert role(broker) == (False, 4)
    assert broker.led[-1] == (T0, False)
    assert broker.changed[-1] == T0, "who waits looks again"
    assert broker.directories() == ["t-0"]


@on_loop
async def test_only_a_stop_replica_that_says_so_deletes_the_log(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    assert await broker.stop(4, delete=False) is ErrorCode.NONE
    assert broker.hosted.partitions == {}
    assert broker.directories() == ["t-0"]
    assert broker.led[-1] == (T0, False)
    assert await broker.stop() is ErrorCode.NONE, "of a log that no partition holds, too"
    (name,) = broker.directories()
    assert name.endswith("-delete")


@on_loop
async def test_a_full_command_sets_aside_what_it_does_not_know(broker: Broker) -> None:
    await broker.lead(state(), state(number=1), is_new=True)
    await broker.lead(state(), topic="gone", is_new=True)
    broker = broker.next_life()
    await broker.lead(state(), topic="t", is_full=True)
    assert sorted(name.rpartition("-")[2] for name in broker.directories()) == ["0", "stray", "stray"]
    assert [len(names) for names in broker.at_settlement] == [3]


@on_loop
async def test_a_full_command_stops_the_partitions_it_does_not_know(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    await broker.lead(state(), topic="u", is_full=True, controller_epoch=8)
    assert list(broker.hosted.partitions) == [TopicPartition("u", 0)]
    assert (T0, False) in broker.led


@on_loop
async def test_a_late_copy_of_a_full_command_sets_nothing_aside(broker: Broker) -> None:
    await broker.lead(state(), topic="u", is_full=True, number=2)
    await broker.lead(state(), is_new=True, number=3)
    with pytest.raises(ApiError, match="comes after"):
        await broker.lead(state(), topic="u", is_full=True, number=1)
    assert sorted(broker.directories()) == ["t-0", "u-0"]
    broker.fence.registered(51)
    await broker.lead(state(), topic="u", is_full=True, broker_epoch=51, number=1)
    assert list(broker.hosted.partitions) == [TopicPartition("u", 0)]


@on_loop
async def test_a_late_copy_of_a_deletion_does_not_delete_the_next_topic_of_the_name(broker: Broker) -> None:
    await broker.lead(state(epoch=0), is_new=True, number=1)
    await broker.stop(number=3)
    await broker.lead(state(epoch=0), topic_id=LATER_ID, is_new=True, number=4)
    with pytest.raises(ApiError, match="comes after"):
        await broker.stop(number=2)
    assert broker.hosted.partitions[T0].log.topic_id == LATER_ID


@on_loop
async def test_an_empty_first_command_moves_nothing(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    broker = broker.next_life()
    await broker.lead(is_full=True)
    assert broker.directories() == ["t-0"]


@on_loop
async def test_a_command_that_is_not_full_moves_nothing(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    broker = broker.next_life()
    await broker.lead(state(), topic="u")
    assert sorted(broker.directories()) == ["t-0", "u-0"]


@on_loop
async def test_a_stray_does_not_become_the_log_of_a_new_topic(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    broker = broker.next_life()
    assert await broker.lead(state(epoch=0), topic_id=LATER_ID, is_new=True) == {0: ErrorCode.NONE}
    assert broker.hosted.partition(T0).log.topic_id == LATER_ID
    assert sorted(name.rpartition("-")[2] for name in broker.directories()) == ["0", "stray"]


@on_loop
async def test_checkpoints_forget_a_stray_before_a_log_of_its_name_is_made(broker: Broker) -> None:
    """After a crash, the high watermark and the log start of the stray would apply to the new log."""
    for is_full in (False, True):
        await broker.lead(state(), is_new=True)
        broker = broker.next_life()
        await broker.lead(state(epoch=0), topic_id=LATER_ID, is_new=True, is_full=is_full)
        ((*_, stray),) = broker.at_settlement
        assert stray.endswith("-stray")
        broker = Broker()


@on_loop
async def test_a_replica_on_a_broken_disk_keeps_its_epoch(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    broker.break_disk(A)
    assert (T0, False) in broker.led
    with pytest.raises(ApiError) as caught:
        broker.hosted.partition(T0)
    assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    for epoch in (2, 3, 4):
        for is_new in (True, False):
            assert await broker.lead(state(epoch=epoch), is_new=is_new) == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    assert await broker.stop(3, delete=False) is ErrorCode.FENCED_LEADER_EPOCH, "it knows of epoch 4"
    assert not broker.hosted.partitions


@on_loop
async def test_a_replica_without_room_keeps_its_epoch_until_it_is_made(broker: Broker) -> None:
    broker.disks.inject = lambda _operation, path: Fault(errno.ENOSPC) if path.endswith(".log") else None
    assert await broker.lead(state(), is_new=True) == {0: ErrorCode.NONE}
    assert await broker.lead(state(epoch=2)) == {0: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.lead(state(leader=OTHER, epoch=5)) == {0: ErrorCode.NONE}
    broker.disks.inject = lambda _operation, _path: None
    await broker.hosted.retry_failed_logs()
    assert role(broker) == (False, 5)
    assert await broker.lead(state(epoch=4)) == {0: ErrorCode.STALE_CONTROLLER_EPOCH}
    assert role(broker) == (False, 5)


@on_loop
async def test_a_replica_without_room_follows_a_tree_that_was_set_back(broker: Broker) -> None:
    broker.disks.inject = lambda _operation, path: Fault(errno.ENOSPC) if path.endswith(".log") else None
    assert await broker.lead(state(leader=OTHER, epoch=5), is_new=True) == {0: ErrorCode.NONE}
    broker.fence.broker_epoch = 60
    assert await broker.lead(state(epoch=3), is_full=True, broker_epoch=60) == {0: ErrorCode.NONE}
    broker.disks.inject = lambda _operation, _path: None
    await broker.hosted.retry_failed_logs()
    assert role(broker) == (True, 3)


@on_loop
async def test_a_topic_of_the_name_is_made_again_while_its_disk_is_away(broker: Broker) -> None:
    await broker.lead(state(), is_new=True)
    broker.break_disk(A)
    assert await broker.stop() is ErrorCode.NONE
    assert await broker.lead(state(epoch=0), topic_id=LATER_ID, is_new=True) == {0: ErrorCode.NONE}
    assert broker.hosted.partition(T0).log.directory.path == B
    assert role(broker) == (True, 0)


@on_loop
async def test_a_disk_that_fails_while_replicas_are_made(broker: Broker) -> None:
    """The command's replicas are created in the other directory; the answer never refers to a discarded log."""
    many = [state(number=number) for number in range(60)]
    await broker.lead(*many[:4], topic="old", topic_id=LATER_ID, is_new=True)
    making = asyncio.ensure_future(broker.lead(*many, is_new=True))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker.break_disk(B)
    answer = await making
    assert set(answer.values()) == {ErrorCode.NONE}
    for each in many:
        partition = broker.hosted.partition(TopicPartition("t", each.partition))
        assert partition.is_leader
        assert partition.log.directory.path == A
    again = await broker.lead(*many[:4], topic="old", topic_id=LATER_ID)
    assert sorted(again.values()) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 2 + [ErrorCode.KAFKA_STORAGE_ERROR] * 2


@on_loop
async def test_a_registration_that_ends_between_two_partitions_of_a_command(broker: Broker) -> None:
    """The broker then leads nothing, and ignores the rest of the command."""
    making = asyncio.ensure_future(broker.lead(*(state(number=number) for number in range(60)), is_new=True))
    await turns(2)
    assert 0 < len(broker.led) < 60
    broker.fence.registration_ended()
    broker.hosted.resign_all()
    with pytest.raises(ApiError) as caught:
        await making
    assert caught.value.error_code is ErrorCode.STALE_BROKER_EPOCH
    assert not any(each.is_leader for each in broker.hosted.partitions.values())


@on_loop
async def test_the_first_full_command_to_a_registration_may_be_of_an_older_tree(broker: Broker) -> None:
    """Later ones may not, nor may commands that are not full: they are late copies."""
    stale = {0: ErrorCode.STALE_CONTROLLER_EPOCH}
    await broker.lead(state(epoch=5), is_full=True)
    assert await broker.lead(state(epoch=3), is_full=True) == stale
    broker.hosted.resign_all()
    broker.fence.broker_epoch = 60
    assert await broker.lead(state(epoch=3), broker_epoch=60) == stale
    assert await broker.lead(state(epoch=3), is_full=True, broker_epoch=60) == {0: ErrorCode.NONE}
    assert role(broker) == (True, 3)
