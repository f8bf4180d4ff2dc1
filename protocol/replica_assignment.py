"""Assigning replicas to brokers: Kafka's rack-aware round robin with shifting followers (Kafka's AdminUtils).

Without racks, partition p starts at broker `start_index + p`, and its followers are the next brokers, shifted by one
more each time the round robin has visited all brokers. With racks, brokers are ordered so that neighbours are in
different racks, and a follower's broker is skipped while it or its rack already holds the partition and another one
does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from protocol.errors import ApiError, ErrorCode

Assignment = tuple[tuple[int, ...], ...]
"""Replicas by partition number; the first of each is the preferred leader."""


def check_assignable(racks: Mapping[int, str | None], partitions: int, replication_factor: int) -> None:
    """Raise ApiError, with Kafka's words, if the partitions cannot be assigned to the brokers in `racks`:
    INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR or, if only some brokers have a rack, UNKNOWN_SERVER_ERROR.
    """
    if partitions <= 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(racks):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {len(racks)}.",
        )
    if None in racks.values() and any(rack is not None for rack in racks.values()):
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Not all brokers have rack information for replica rack aware assignment.",
        )


def assign_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    replica_shift: int,
    first_partition: int = 0,
) -> Assignment:
    """Replicas for `partitions` partitions numbered from `first_partition`, on the brokers in `racks`.

    `start_index` and `replica_shift` are in [0, number of brokers). Raises as `check_assignable`.
    """
    check_assignable(racks, partitions, replication_factor)
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    arranged = alternate_racks(known) if known else sorted(racks)
    rack_count = len(set(known.values()))
    result: list[tuple[int, ...]] = []
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(arranged) == 0:
            replica_shift += 1
        first = (partition + start_index) % len(arranged)
        if replication_factor == 1:
            result.append((arranged[first],))
            continue
        # Kafka shifts by whole racks, so that the followers' racks keep alternating.
        candidates = _followers(arranged, first, replica_shift * max(rack_count, 1))
        result.append(_pick(arranged[first], candidates, known, replication_factor))
    return tuple(result)


def refuse_mixed_racks(racks: Mapping[int, str | None]) -> None:
    """Raise ApiError UNKNOWN_SERVER_ERROR, with Kafka's words, if only some of the brokers have a rack."""
    if len({rack is None for rack in racks.values()}) > 1:
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information.",
        )


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Order brokers so that neighbours are in different racks: one of each rack in turn, racks by name, brokers by
    id.
    """
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for broker in chain.from_iterable(rounds) if broker is not None]


def _followers(arranged: Sequence[int], first: int, shift: int) -> Iterator[int]:
    """The brokers to try after the first, in order, repeated endlessly."""
    others = len(arranged) - 1
    step = 0
    while others:
        yield arranged[(first + 1 + (shift + step) % others) % len(arranged)]
        step += 1


def _pick(leader: int, candidates: Iterator[int], racks: Mapping[int, str], replication_factor: int) -> tuple[int, ...]:
    replicas = [leader]
    used_racks = {racks.get(leader)}
    all_racks: set[str | None] = set(racks.values()) or {None}
    while len(replicas) < replication_factor:
        broker = next(candidates)
        rack = racks.get(broker)
        if broker in replicas or (rack in used_racks and used_racks != all_racks):
            continue
        replicas.append(broker)
        used_racks.add(rack)
    return tuple(replicas)
