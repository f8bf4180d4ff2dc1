"""Committed batches are told from others."""

from __future__ import annotations

from tests.simulation.cluster.replica_bytes import Batch, CommittedBatches


def test_same_batches_are_the_same() -> None:
    committed = CommittedBatches()
    batches = [Batch(0, 2, 0, 7), Batch(3, 3, 0, 8), Batch(4, 9, 1, 9)]
    assert [committed.compare(batch) for batch in batches + batches] == [None] * 6
    assert committed.end == 10


def test_other_records_epoch_or_bounds_are_a_difference() -> None:
    committed = CommittedBatches()
    committed.compare(Batch(0, 2, 0, 7))
    committed.compare(Batch(3, 5, 0, 8))
    for other in (Batch(3, 5, 0, 9), Batch(3, 5, 1, 8), Batch(3, 4, 0, 8), Batch(4, 5, 0, 8)):
        assert committed.compare(other) is not None
