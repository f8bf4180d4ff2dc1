"""Deliberate bugs in what makes brokers a cluster, each of which the seeds have to find.

As `tests.simulation.mutants`, for clusters of several brokers. "M5" and the like name a trap that others fell into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

from broker.controller import office
from cluster.controller import elections, start_up
from cluster.controller.commands import Command, CommandFence
from cluster.controller.context import ControllerContext
from cluster.controller.transactions import ControllerTerm, fenced
from cluster.metadata_image import PartitionImage
from cluster.replication.in_sync_replicas import InSyncReplicas
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams
from cluster.zookeeper.coordination import Operation
from protocol.errors import ApiError
from storage.log.unified_log import UnifiedLog
from tests.simulation.mutants import Mutant, registered, replaced

CLUSTER_MUTANTS: dict[str, Mutant] = {}

_mutant = registered(CLUSTER_MUTANTS)


@_mutant
def _followers_cut_at_their_high_watermark() -> Iterator[None]:
    """M1: a replica that becomes a follower drops what is above its own high watermark, which it hears of late."""
    original = Partition.resign

    def resign(self: Partition, image: PartitionImage) -> None:
        original(self, image)
        with suppress(ApiError):
            self.log.truncate_to(self.high_watermark, 0)

    with replaced(Partition, "resign", resign):
        yield


@_mutant
def _divergence_not_told() -> Iterator[None]:
    """M2: a leader does not look whether a follower's log has split from its own."""
    with replaced(Partition, "_diverging_epoch", lambda _self, _epoch, _offset: None):
        yield


@_mutant
def _leader_epochs_not_checked() -> Iterator[None]:
    """M3: a leader serves requests of any leader epoch."""

    def check_leader(self: Partition, _epoch: int) -> None:
        if not self.is_leader:
            raise self._does_not_lead()

    with replaced(Partition, "check_leader", check_leader):
        yield


@_mutant
def _leader_epoch_without_an_entry() -> Iterator[None]:
    """M4: a new leader does not note where its epoch begins before it appends."""
    with replaced(UnifiedLog, "assign_epoch_start_offset", lambda _self, _epoch: None):
        yield


@_mutant
def _followers_join_too_early() -> Iterator[None]:
    """M5: a follower joins the ISR wherever its log ends."""
    original = InSyncReplicas.expansion

    def expansion(self: Any, name: Any, topic_id: Any, image: Any, broker_id: int, _least_offset: int) -> Any:
        return original(self, name, topic_id, image, broker_id, 0)

    with replaced(InSyncReplicas, "expansion", expansion):
        yield


@_mutant
def _joining_replicas_not_awaited() -> Iterator[None]:
    """M6: the high watermark does not wait for a replica that the controller may have added to the ISR already."""

    def committed_end(self: InSyncReplicas, image: PartitionImage, end_offset: int) -> int:
        return min([end_offset, *(self.followers[each].log_end_offset for each in image.isr if each in self.followers)])

    with replaced(InSyncReplicas, "committed_end", committed_end):
        yield


@_mutant
def _leaving_replicas_not_awaited() -> Iterator[None]:
    """M6: the high watermark does not wait for a replica that the controller has not removed from the ISR yet."""
    original = InSyncReplicas.committed_end

    def committed_end(self: InSyncReplicas, image: PartitionImage, end_offset: int) -> int:
        if self.pending is not None:
            image = image.replace(isr=self.pending.broker_ids)
        return original(self, image, end_offset)

    with replaced(InSyncReplicas, "committed_end", committed_end):
        yield


@_mutant
def _returned_brokers_trusted() -> Iterator[None]:
    """M7: a new controller takes a broker that has registered again for the one that was in the ISR."""
    with replaced(start_up, "_without_bounced", lambda partition, _written_at, _context: partition):
        yield


@_mutant
def _controllers_write_without_a_fence() -> Iterator[None]:
    """M9: a controller that was deposed goes on writing to the tree."""

    def unfenced(operations: Iterable[Operation], term: ControllerTerm, max_bytes: int) -> Iterator[list[Operation]]:
        for transaction in fenced(operations, term, max_bytes):
            yield transaction[1:]

    with replaced(office, "fenced", unfenced):
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
    original = elections.settled

    def settled(partition: PartitionImage, context: ControllerContext) -> Any:
        alive = [each for each in partition.replicas if context.is_online(each, partition)]
        if alive and not any(context.is_online(each, partition) for each in partition.isr):
            return elections.next_state(partition, alive[0], (alive[0],), context)
        return original(partition, context)

    with replaced(elections, "settled", settled):
        yield


@_mutant
def _followers_believe_what_they_do_not_have() -> Iterator[None]:
    """M13: a follower's high watermark is its leader's, however far it has come itself."""
    original = Partition.append_as_follower

    @wraps(original)
    def append_as_follower(self: Partition, records: memoryview, **given: Any) -> int:
        added = original(self, records, **given)
        self.high_watermark = max(self.high_watermark, given["leader_high_watermark"])
        return added

    with replaced(Partition, "append_as_follower", append_as_follower):
        yield


@_mutant
def _readers_see_what_is_not_committed() -> Iterator[None]:
    """M14: a consumer is given all that the leader has."""
    original = Partition.read

    @wraps(original)
    def read(self: Partition, params: FetchParams, fetch_offset: int, max_bytes: int, **given: Any) -> Any:
        before = self.high_watermark
        if params.replica_id < 0:
            self.high_watermark = self.log.log_end_offset
        try:
            return original(self, params, fetch_offset, max_bytes, **given)
        finally:
            self.high_watermark = before

    with replaced(Partition, "read", read):
        yield


@_mutant
def _producers_forgotten_by_new_leaders() -> Iterator[None]:
    """M16: a new leader does not know which sequence numbers its log has."""
    original = Partition.become_leader

    def become_leader(self: Partition, image: PartitionImage, monotonic_ms: int = 0) -> None:
        original(self, image, monotonic_ms)
        self.log.producer_state.entries.clear()

    with replaced(Partition, "become_leader", become_leader):
        yield


@_mutant
def _acknowledged_before_it_is_committed() -> Iterator[None]:
    """acks=all is answered as soon as the leader has appended."""

    def is_acknowledged(self: Partition, _last_offset: int, _required_acks: int) -> bool:
        if not self.is_leader:
            raise self._does_not_lead()
        return True

    with replaced(Partition, "is_acknowledged", is_acknowledged):
        yield
