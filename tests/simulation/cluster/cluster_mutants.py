"""All deliberate bugs of clusters: those that the seeds must find, and those that only real threads can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.simulation.cluster.controller_mutants import CONTROLLER_MUTANTS
from tests.simulation.cluster.replication_mutants import REPLICATION_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant, registered, replaced
from tests.simulation.transactions.transaction_mutants import TRANSACTION_MUTANTS

_OF_ONE_BROKER = ("lost-append-acknowledged",)
CLUSTER_MUTANTS: dict[str, Mutant] = {
    **REPLICATION_MUTANTS,
    **CONTROLLER_MUTANTS,
    **{name: MUTANTS[name] for name in _OF_ONE_BROKER},
    **TRANSACTION_MUTANTS,
}

PROCESS_MUTANTS: dict[str, Mutant] = {}
"""Bugs outside the scope of the simulation. Each is planted by the test that it names."""


@registered(PROCESS_MUTANTS)
def _stuck_loops_not_noticed() -> Iterator[None]:
    """M27: a broker whose event loop does not turn keeps its session | test_kazoo_session.py"""
    from broker.zookeeper.kazoo_handler import LoopPulse

    with replaced(LoopPulse, "has_stopped", lambda _self: False):
        yield


@registered(PROCESS_MUTANTS)
def _last_replica_not_flushed() -> Iterator[None]:
    """M8: a leader whose followers have left keeps what is committed in its page cache | test_last_replica.py"""
    from broker.replication.alter_partition_manager import AlterPartitionManager

    original = AlterPartitionManager._is_answered

    def answered(self: AlterPartitionManager, change: Any, answer: Any) -> bool:
        flush, self._flush = self._flush, lambda _log: None
        try:
            return original(self, change, answer)
        finally:
            self._flush = flush

    with replaced(AlterPartitionManager, "_is_answered", answered):
        yield
