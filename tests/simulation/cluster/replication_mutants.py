"""Deliberate bugs in how logs are replicated. The seeds of clusters must find each of them.

Like `tests.simulation.mutants`, for clusters of several brokers. "M5" and the like name a bug that other
implementations had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

from broker.replication import replica_fetcher
from broker.replication.alter_partition_manager import AlterPartitionManager, PartitionAlterer
from broker.replication.replica_fetcher import ReplicaFetcher
from cluster.metadata_image import PartitionImage
from cluster.replication import partition as partitions
from cluster.replication.follower import Decision, Step, after_offsets
from cluster.replication.isr import InSyncReplicas, IsrChange
from cluster.replication.partition import Partition
from cluster.replication.reads import FetchParams
from protocol.errors import ApiError, ErrorCode
from storage.log.leader_epoch import LeaderEpochFileCache
from tests.simulation.mutants import Mutant, registered, replaced

REPLICATION_MUTANTS: dict[str, Mutant] = {}

_mutant = registered(REPLICATION_MUTANTS)


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
    with replaced(partitions, "diverging_epoch", lambda _log, _epoch, _offset: None):
        yield


@_mutant
def _leader_epochs_not_checked() -> Iterator[None]:
    """M3: a leader serves requests of any leader epoch."""
    with replaced(Partition, "check_epoch", lambda _self, _epoch: None):
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


@_mutant
def _epochs_not_noted() -> Iterator[None]:
    """M4: where a leader epoch begins in a log is not noted, once there is an entry for an older one."""
    original = LeaderEpochFileCache.assign

    def assign(self: LeaderEpochFileCache, epoch: int, start_offset: int) -> None:
        if not self.entries:
            original(self, epoch, start_offset)

    with replaced(LeaderEpochFileCache, "assign", assign):
        yield


@_mutant
def _unanswered_changes_given_up() -> Iterator[None]:
    """M11: a change of the ISR whose answer is lost counts as refused, though the controller may have made it."""
    original = AlterPartitionManager._send

    async def send(self: AlterPartitionManager, controller: PartitionAlterer, changes: Sequence[IsrChange]) -> float:
        await original(self, controller, changes)
        for change in changes:
            partition = self._find(change.topic_partition)
            if partition is not None and partition.in_sync is not None and partition.in_sync.pending is change:
                partition.in_sync.complete_change()
        return 0.0

    with replaced(AlterPartitionManager, "_send", send):
        yield


@_mutant
def _followers_never_begin_anew() -> Iterator[None]:
    """M15: a follower whose log ends below the start of its leader's asks again, and again."""

    def after(log: Any, leader_start_offset: int, leader_end_offset: int) -> Decision:
        decision = after_offsets(log, leader_start_offset, leader_end_offset)
        return Decision(Step.RETRY_LATER) if decision.step is Step.TRUNCATE_FULLY else decision

    with replaced(replica_fetcher, "after_offsets", after):
        yield


@_mutant
def _high_watermark_falls() -> Iterator[None]:
    """The high watermark of a leader falls back to the end of a follower that has caught up again."""

    def advance(self: Partition) -> bool:
        before, end_offset = self.high_watermark, self.log.local.flush_limit_offset
        if self.in_sync is not None:
            if len(self.image.isr) < self.effective_min_isr:
                return False
            end_offset = self.in_sync.committed_end(self.image, end_offset)
        self.high_watermark = max(end_offset, self.log.log_start_offset)
        return self.high_watermark > before

    with replaced(Partition, "advance_high_watermark", advance):
        yield


@_mutant
def _followers_confirm_what_is_not_flushed() -> Iterator[None]:
    """M20: a follower asks for more before it has flushed what flush.messages tells it to."""

    async def flush_nothing(_self: Any) -> None:
        return None

    with replaced(ReplicaFetcher, "_flush_what_is_due", flush_nothing):
        yield


@_mutant
def _lost_leadership_is_no_known_error() -> Iterator[None]:
    """M28: a produce to a broker that does not lead is answered UNKNOWN_SERVER_ERROR."""

    def does_not_lead(self: Partition) -> ApiError:
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"this broker does not lead {self.topic_partition}")

    with replaced(Partition, "_does_not_lead", does_not_lead):
        yield
