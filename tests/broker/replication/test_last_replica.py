"""A leader with fewer in-sync replicas than min.insync.replicas has flushed all committed records (trap M8)."""

from __future__ import annotations

from protocol.errors import ErrorCode
from storage.log_config import LogConfig
from storage.log_manager import LogManager
from tests.broker.replication.nodes import Nodes, on_nodes
from tests.kit.memory_disk import PowerCut
from tests.kit.waiting import eventually_async, eventually_on_loop
from tests.simulation.cluster.cluster_mutants import PROCESS_MUTANTS
from tests.storage.support import values_in

MIN_ISR_2 = LogConfig(min_insync_replicas=2)
VALUES = [b"a", b"b"]


async def committed(nodes: Nodes) -> None:
    """Append records that all three brokers have, in their page caches only."""
    await nodes.tell(is_new=True)
    for value in VALUES:
        assert await nodes.acknowledged(1, nodes.append(1, value)) is ErrorCode.NONE
    for broker_id in (1, 2, 3):
        await eventually_on_loop("all have it", lambda each=broker_id: nodes[each].values() == VALUES, pause_s=0.001)
        assert nodes[broker_id].partition().log.recovery_point == 0


async def leave(nodes: Nodes, *broker_ids: int) -> None:
    """Cut off these followers of broker 1 and let them miss a record, until they are out of sync."""
    nodes.cut.update((each, 1) for each in broker_ids)
    nodes.append(1, b"missed", acks=1)

    async def isr() -> tuple[int, ...]:
        await nodes[1].replicas.check_lag()
        return nodes[1].partition().image.isr

    await eventually_async("they leave", isr, lambda isr: not set(broker_ids) & set(isr))


async def is_flushed(nodes: Nodes, broker_id: int) -> None:
    log = nodes[broker_id].partition().log
    await eventually_on_loop("the log is flushed", lambda: log.recovery_point == log.log_end_offset, pause_s=0.001)


def values_after_power_cut(nodes: Nodes, broker_id: int) -> list[bytes | None]:
    disks = nodes[broker_id].disks
    disks.cut_power(PowerCut.LOSE, lambda _count: 0)
    logs = LogManager(disks, ["/logs"], MIN_ISR_2, on_directory_failure=lambda _path, _reason: None)
    loads = logs.begin_load(0)
    for load in loads:
        load.work()
    logs.complete_load(loads)
    return [value for log in logs.logs.values() for _, value in values_in(log)]


@on_nodes(lag_ms=100, wait_max_ms=10, config=MIN_ISR_2)
async def test_the_leader_flushes_when_its_followers_have_left(nodes: Nodes) -> None:
    await committed(nodes)
    await leave(nodes, 3)
    await nodes[1].replicas.group_commit.idle()
    assert nodes[1].partition().log.recovery_point == 0  # still enough of them
    await leave(nodes, 2)
    await is_flushed(nodes, 1)
    assert values_after_power_cut(nodes, 1) == [*VALUES, b"missed", b"missed"]


@on_nodes(lag_ms=100, wait_max_ms=10, config=MIN_ISR_2)
async def test_without_the_flush_a_power_cut_takes_all(nodes: Nodes) -> None:
    with PROCESS_MUTANTS["last-replica-not-flushed"]():
        await committed(nodes)
        await leave(nodes, 2, 3)
        await nodes[1].replicas.group_commit.idle()
        assert values_after_power_cut(nodes, 1) == []


@on_nodes(config=MIN_ISR_2)
async def test_a_new_leader_that_is_left_alone_flushes(nodes: Nodes) -> None:
    await committed(nodes)
    nodes.elect(2, isr=(2,))
    await nodes.tell(2)
    await is_flushed(nodes, 2)
    assert values_after_power_cut(nodes, 2) == VALUES


@on_nodes(lag_ms=100, wait_max_ms=10)
async def test_where_one_replica_is_enough_nothing_is_flushed(nodes: Nodes) -> None:
    """min.insync.replicas=1 is Kafka's default, and would need a flush for each record from then on."""
    await committed(nodes)
    await leave(nodes, 2, 3)
    await nodes[1].replicas.group_commit.idle()
    assert nodes[1].partition().log.recovery_point == 0
