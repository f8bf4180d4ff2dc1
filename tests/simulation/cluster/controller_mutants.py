"""Deliberate bugs in the controller, in the brokers' sessions and on their disks. The seeds of clusters must find each
of them, as with `replication_mutants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from broker.controller import broker_changes, controller_term
from broker.controller.cluster_membership import ClusterMembership
from broker.replication.truncated_logs import TruncatedLogs
from cluster.controller import elections, start_up
from cluster.controller.commands import Command, CommandFence
from cluster.controller.context import ControllerContext
from cluster.controller.transactions import ControllerEpoch, fenced
from cluster.metadata_image import BrokerImage, PartitionImage
from cluster.znodes import NO_LEADER, BrokerRegistration, PartitionState
from storage.directory import log_directories
from storage.recovery import log_directory_survey
from tests.kit.memory_file_system import MemoryFileSystem
from tests.simulation.mutants import Mutant, registered, replaced
from zookeeper.coordination import Operation

CONTROLLER_MUTANTS: dict[str, Mutant] = {}

_mutant = registered(CONTROLLER_MUTANTS)


@_mutant
def _returned_brokers_trusted() -> Iterator[None]:
    """M7: a new controller takes a broker that has registered again for the one that was in the ISR."""
    with replaced(start_up, "_bounced", lambda _partition, _written_at, _context: ()):
        yield


@_mutant
def _controllers_write_without_a_fence() -> Iterator[None]:
    """M9: a controller that was deposed goes on writing to the tree."""

    def unfenced(operations: Iterable[Operation], epoch: ControllerEpoch, max_bytes: int) -> Iterator[list[Operation]]:
        for transaction in fenced(operations, epoch, max_bytes):
            yield transaction[1:]

    with replaced(controller_term, "fenced", unfenced):
        yield


@_mutant
def _old_controllers_obeyed() -> Iterator[None]:
    """M9: a broker takes commands of any controller epoch."""

    def admit(self: CommandFence, command: Command) -> None:
        self.controller_epoch = command.controller_epoch

    with replaced(CommandFence, "admit", admit):
        yield


@_mutant
def _anybody_may_lead() -> Iterator[None]:
    """M12: when no member of the ISR lives any live replica is elected."""
    original = elections.online_state

    def online_state(topic: str, partition: PartitionImage, context: ControllerContext) -> Any:
        alive = [each for each in partition.replicas if context.is_online(each, partition)]
        if alive and not any(context.is_online(each, partition) for each in partition.isr):
            return elections.next_state(topic, partition, alive[0], (alive[0],), context)
        return original(topic, partition, context)

    with replaced(elections, "online_state", online_state):
        yield


@_mutant
def _cut_logs_trusted() -> Iterator[None]:
    """M22: a replica whose log recovery cut below its high watermark is in sync, and may lead."""
    with (
        replaced(TruncatedLogs, "refuses", lambda _self, _log, _state: False),
        replaced(start_up, "without_truncated_replicas", lambda topic, _brokers: topic),
        replaced(broker_changes, "without_truncated_replicas", lambda topic, _brokers: topic),
    ):
        yield


@_mutant
def _new_session_with_the_old_epoch() -> Iterator[None]:
    """M10: a broker that registers again in a new session goes on under the epoch of the last one."""
    original = ClusterMembership._register

    async def register(self: ClusterMembership, wanted: BrokerRegistration) -> BrokerImage:
        before = self.broker_epoch
        broker = await original(self, wanted)
        if before >= 0:
            self._fence.broker_epoch, self._fence._is_registered = before, False
        return broker

    with replaced(ClusterMembership, "_register", register):
        yield


@_mutant
def _isr_emptied() -> Iterator[None]:
    """When the last member of an ISR goes the ISR is empty, and nobody knows who had all that is committed."""
    original = elections.online_state

    def online_state(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
        state = original(topic, partition, context)
        if state is not None and state.leader == NO_LEADER:
            return elections.next_state(topic, partition, NO_LEADER, (), context)
        return state

    with replaced(elections, "online_state", online_state):
        yield


@_mutant
def _leader_not_in_the_isr() -> Iterator[None]:
    """M12: when no member of the ISR lives another replica leads, and the ISR stays."""
    original = elections.online_state

    def online_state(topic: str, partition: PartitionImage, context: ControllerContext) -> PartitionState | None:
        alive = [each for each in partition.replicas if context.may_lead(each, partition)]
        if alive and not any(each in alive for each in partition.isr):
            return elections.next_state(topic, partition, alive[0], partition.isr, context)
        return original(topic, partition, context)

    with replaced(elections, "online_state", online_state):
        yield


@_mutant
def _elections_without_a_new_epoch() -> Iterator[None]:
    """A new leader leads in the epoch of the last one."""

    def next_state(
        _topic: str, partition: PartitionImage, leader: int, isr: tuple[int, ...], context: ControllerContext
    ) -> PartitionState:
        return PartitionState(leader, partition.leader_epoch, isr, context.controller_epoch)

    with replaced(elections, "next_state", next_state):
        yield


@_mutant
def _names_not_synced() -> Iterator[None]:
    """M23: directories are not fsynced, so that new and renamed files may be gone, or old ones back."""
    with replaced(MemoryFileSystem, "sync_dir", lambda _self, _path: None):
        yield


@_mutant
def _clean_stop_remembered() -> Iterator[None]:
    """M24: the mark of a clean stop stays where it is, so that the crash that follows looks clean too."""

    def take(file_system: Any, directory: str) -> Any:
        found = log_directories.take_clean_shutdown(file_system, directory)
        if found is not None:
            log_directories.write_clean_shutdown(file_system, directory, found.broker_epoch)
        return found

    with replaced(log_directory_survey, "take_clean_shutdown", take):
        yield
