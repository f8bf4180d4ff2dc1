"""Deliberate bugs in the broker, of different kinds. The simulation must find each of them.

A mutant changes one thing while it is applied, as a mistake there would. If no seed finds a mutant, the simulation does
not check that behavior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from inspect import signature
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from broker.network.large_request import LargeRequest
from broker.network.registry import ANYTHING
from broker.replication.stray_logs import StrayLogs
from cluster.groups.committed_offsets import CommittedOffsets
from cluster.replication.partition import Partition
from protocol.errors import ApiError
from storage.log.log_flush import FlushTask
from storage.log.producer_state import ProducerStateManager
from storage.log_manager import LogManager
from storage.recovery import segment_recovery
from storage.segment.checked_batches import CheckedBatches
from storage.segment.log_segment import LogSegment

Mutant = Callable[[], AbstractContextManager[object]]

MUTANTS: dict[str, Mutant] = {}


def registered(table: dict[str, Mutant]) -> Callable[[Callable[[], Iterator[None]]], Mutant]:
    """Register a mutant in a table under its name."""

    def register(make: Callable[[], Iterator[None]]) -> Mutant:
        mutant = table[make.__name__.strip("_").replace("_", "-")] = contextmanager(make)
        return mutant

    return register


_mutant = registered(MUTANTS)


def mutant_named(
    name: str | None, table: Mapping[str, Mutant] = MappingProxyType(MUTANTS)
) -> AbstractContextManager[object] | None:
    """The mutant of that name, to be applied. Raises KeyError."""
    return None if name is None else table[name]()


def replaced(owner: object, name: str, bug: Callable[..., object]) -> AbstractContextManager[object]:
    """Replace `owner.name` by `bug`, which must take as many parameters: otherwise each call would fail, and any check
    would find it.
    """
    original = getattr(owner, name)
    if len(signature(bug).parameters) != len(signature(original).parameters):
        raise TypeError(f"the bug for {name} takes {signature(bug)}, and what it replaces {signature(original)}")
    return patch.object(owner, name, bug)


@_mutant
def _acknowledged_before_fsync() -> Iterator[None]:
    """A flush task reports success without syncing anything."""
    with replaced(FlushTask, "_collect", lambda _self, _epochs, _closing: None):
        yield


@_mutant
def _producers_forgotten_in_recovery() -> Iterator[None]:
    """Recovery does not read the producers' sequence numbers from the log."""

    def replay(self: ProducerStateManager, batch: Any) -> None:
        self.map_end_offset = max(self.map_end_offset, batch.next_offset)

    with replaced(ProducerStateManager, "replay", replay):
        yield


@_mutant
def _duplicates_appended() -> Iterator[None]:
    """A batch that a producer resends is appended as a new one."""
    with replaced(ProducerStateManager, "check", lambda _self, _batch, _offset, _origin, _guard=None: None):
        yield


@_mutant
def _zombie_members_commit() -> Iterator[None]:
    """Every commit is accepted, whatever its generation."""
    original = CommittedOffsets._group_to_commit

    def group_to_commit(self: CommittedOffsets, now: Any, group_id: str, who: Any) -> Any:
        try:
            return original(self, now, group_id, who)
        except ApiError:
            group = self._table.groups.get(group_id)
            if group is None:
                raise
            return group

    with replaced(CommittedOffsets, "_group_to_commit", group_to_commit):
        yield


@_mutant
def _groups_not_loaded() -> Iterator[None]:
    """A restarted broker begins with no groups and no committed offsets."""
    with replaced(ReplicatedCoordinatorLog, "is_empty", lambda _self, _partition: True):
        yield


@_mutant
def _deleted_log_found_again() -> Iterator[None]:
    """A deleted topic's log stays in place, and the next topic of the name starts with its records."""
    with (
        replaced(LogManager, "delete", lambda _self, _partition, _now_ms: None),
        replaced(LogManager, "_check_topic_id", lambda _self, _log, _topic_id: None),
        replaced(StrayLogs, "make_room_for", lambda _self, _partition, _topic_id: None),
    ):
        yield


@_mutant
def _lost_append_acknowledged() -> Iterator[None]:
    """M26: an append that the disk refuses, as it is full or fails, counts as done."""
    original = LogSegment.append

    def append(self: LogSegment, records: Any, last: Any, time: Any, time_offset: Any, interval: Any) -> None:
        with suppress(OSError):
            original(self, records, last, time, time_offset, interval)

    with replaced(LogSegment, "append", append):
        yield


@_mutant
def _failed_fsync_taken_for_a_success() -> Iterator[None]:
    """A flush whose fsync failed advances the recovery point, and waiting requests are acknowledged."""
    original = FlushTask.complete

    def complete(self: FlushTask) -> None:
        self.error = None
        original(self)

    with replaced(FlushTask, "complete", complete):
        yield


@_mutant
def _batches_of_the_disk_not_checked() -> Iterator[None]:
    """Batches that a segment held when it was opened are served unchecked."""

    def check(self: CheckedBatches, start: int, stop: int) -> None:
        self.unverified_end = 0

    with replaced(CheckedBatches, "check", check):
        yield


@_mutant
def _readers_see_unflushed_records() -> Iterator[None]:
    """The high watermark does not wait for the fsync that the topic requires."""

    def advance(self: Partition) -> bool:
        moved = self.high_watermark < self.log.log_end_offset
        self.high_watermark = self.log.log_end_offset
        return moved

    with replaced(Partition, "advance_high_watermark", advance):
        yield


@_mutant
def _recovery_cuts_one_batch_too_many() -> Iterator[None]:
    """Recovery after a crash truncates the last whole batch of a segment along with the torn one."""
    original = segment_recovery._valid_batches

    def without_the_last(
        segment: LogSegment, limit: int, recovery_point: int, on_bytes: Callable[[int], None]
    ) -> Iterator[Any]:
        yield from list(original(segment, limit, recovery_point, on_bytes))[:-1]

    with replaced(segment_recovery, "_valid_batches", without_the_last):
        yield


@_mutant
def _requests_pass_a_large_one() -> Iterator[None]:
    """The next request of a connection is handled between two slices of the one before it."""
    original = LargeRequest.serve

    async def serve(self: LargeRequest) -> Any:
        self._mark_effective(ANYTHING)
        return await original(self)

    with replaced(LargeRequest, "serve", serve):
        yield
