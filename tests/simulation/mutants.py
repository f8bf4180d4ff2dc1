"""Deliberate bugs in the broker, of different kinds, each of which the simulation has to find.

A mutant changes one thing while it is applied, as a mistake there would. What no seed ever finds is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import signature
from typing import Any
from unittest.mock import patch

from broker.groups.coordinator_log import ReplicatedCoordinatorLog
from cluster.groups.committed_offsets import CommittedOffsets
from cluster.replication.partition import Partition
from protocol.errors import ApiError
from storage.log.log_flush import FlushTask
from storage.log.producer_state import ProducerStateManager
from storage.recovery import segment_recovery

Mutant = Callable[[], AbstractContextManager[object]]

MUTANTS: dict[str, Mutant] = {}


def _mutant(make: Callable[[], Iterator[None]]) -> Mutant:
    """Registers a mutant under its name."""
    mutant = contextmanager(make)
    MUTANTS[make.__name__.strip("_").replace("_", "-")] = mutant
    return mutant


def mutant_named(name: str | None) -> AbstractContextManager[object] | None:
    """The mutant of that name, to be applied. Raises KeyError."""
    return None if name is None else MUTANTS[name]()


def _replaced(owner: object, name: str, bug: Callable[..., object]) -> AbstractContextManager[object]:
    """`owner.name` is `bug`, which has to take as many parameters: else each call fails, and any check finds that."""
    original = getattr(owner, name)
    if len(signature(bug).parameters) != len(signature(original).parameters):
        raise TypeError(f"the bug for {name} takes {signature(bug)}, and what it replaces {signature(original)}")
    return patch.object(owner, name, bug)


@_mutant
def _acknowledged_before_fsync() -> Iterator[None]:
    """A flush task says that it is done, and has synced nothing."""
    with _replaced(FlushTask, "_collect", lambda _self, _epochs, _closing: None):
        yield


@_mutant
def _producers_forgotten_in_recovery() -> Iterator[None]:
    """Recovery does not learn from the log which sequence numbers producers have used."""

    def replay(self: ProducerStateManager, batch: Any) -> None:
        self.map_end_offset = max(self.map_end_offset, batch.next_offset)

    with _replaced(ProducerStateManager, "replay", replay):
        yield


@_mutant
def _duplicates_appended() -> Iterator[None]:
    """A batch that a producer sends again is taken for a new one."""
    with _replaced(ProducerStateManager, "check", lambda _self, _batch, _offset, _origin: None):
        yield


@_mutant
def _zombie_members_commit() -> Iterator[None]:
    """Whoever commits is believed, whatever generation it is of."""
    original = CommittedOffsets._group_to_commit

    def group_to_commit(self: CommittedOffsets, now: Any, group_id: str, who: Any) -> Any:
        try:
            return original(self, now, group_id, who)
        except ApiError:
            group = self._table.groups.get(group_id)
            if group is None:
                raise
            return group

    with _replaced(CommittedOffsets, "_group_to_commit", group_to_commit):
        yield


@_mutant
def _groups_not_loaded() -> Iterator[None]:
    """A restarted broker begins with no groups and no committed offsets."""
    with _replaced(ReplicatedCoordinatorLog, "is_empty", lambda _self, _partition: True):
        yield


@_mutant
def _readers_see_unflushed_records() -> Iterator[None]:
    """The high watermark does not wait for the fsync that the topic asks for."""

    def advance(self: Partition) -> bool:
        moved = self.high_watermark < self.log.log_end_offset
        self.high_watermark = self.log.log_end_offset
        return moved

    with _replaced(Partition, "advance_high_watermark", advance):
        yield


@_mutant
def _recovery_cuts_one_batch_too_many() -> Iterator[None]:
    """Of a segment that is looked at after a crash the last whole batch is cut off with what is torn."""
    original = segment_recovery._without_impostor

    def without_the_last(held_from: int, batches: Iterator[Any]) -> Iterator[Any]:
        found = list(original(held_from, batches))
        yield from found[:-1]

    with _replaced(segment_recovery, "_without_impostor", without_the_last):
        yield
