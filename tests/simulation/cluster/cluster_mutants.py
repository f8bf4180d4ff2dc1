"""Deliberate bugs in what makes brokers a cluster, each of which the seeds have to find.

As `tests.simulation.mutants`, for clusters of several brokers. "M5" and the like name a trap that others fell into.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.controller.commands import Command, CommandFence
from cluster.replication.partition import Partition
from storage.log.unified_log import UnifiedLog
from tests.simulation.mutants import Mutant, registered, replaced

CLUSTER_MUTANTS: dict[str, Mutant] = {}

_mutant = registered(CLUSTER_MUTANTS)


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
def _old_controllers_obeyed() -> Iterator[None]:
    """M9: a broker takes commands of any controller epoch."""

    def admit(self: CommandFence, command: Command) -> None:
        self.controller_epoch = command.controller_epoch

    with replaced(CommandFence, "admit", admit):
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
