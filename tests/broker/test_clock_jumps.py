"""The wall clock is set back by a day: what was promised for a time counts from what really passed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from protocol.errors import ErrorCode
from protocol.messages import CreateTopicsRequest, DeleteTopicsRequest
from protocol.topic_partition import TopicPartition
from tests.broker.in_process import InProcessBroker, Wire
from tests.broker.seams import ManualClock
from tests.wire_requests import new_topic, produce

DAY_MS = 24 * 3_600_000


class TwoClocks(ManualClock):
    """The wall clock may be set; the other one goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.set_back_ms = 0

    def now_ms(self) -> int:
        return self.ms - self.set_back_ms


def play(scenario: Callable[[InProcessBroker, TwoClocks, Wire], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = InProcessBroker()
        clock = broker.clock = TwoClocks()
        async with broker:
            await scenario(broker, clock, broker.connect())

    asyncio.run(run())


def test_deleted_files_go_after_their_delay() -> None:
    async def scenario(broker: InProcessBroker, clock: TwoClocks, wire: Wire) -> None:
        def left() -> list[str]:
            return [info.name for info in broker.file_system.list_dir("/data") if info.name.startswith("t-")]

        await wire.ask(new_topic("t"), 7)
        await wire.ask(DeleteTopicsRequest(topics=[], topic_names=["t"], timeout_ms=1000), 5)
        await broker.server._upkeep.delete_files()
        clock.set_back_ms = DAY_MS
        clock.ms += 59_000
        await broker.server._upkeep.delete_files()
        assert len(left()) == 1
        clock.ms += 1_000
        await broker.server._upkeep.delete_files()
        assert left() == []

    play(scenario)


def test_flush_ms_is_kept() -> None:
    async def scenario(broker: InProcessBroker, clock: TwoClocks, wire: Wire) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t",
            num_partitions=1,
            replication_factor=1,
            assignments=[],
            configs=[CreateTopicsRequest.CreatableTopicConfig(name="flush.ms", value="5000")],
        )
        await wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
        manager = broker.server._log_manager
        assert manager is not None
        log = manager.logs[TopicPartition("t", 0)]
        for _ in range(2):
            answer = await wire.ask(produce("t", [b"x"]), 11)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
            clock.set_back_ms += DAY_MS
            clock.ms += 5_000
            await broker.server._upkeep.flush()
            await broker.server._replica_manager.group_commit.idle()
            assert log.recovery_point == log.log_end_offset

    play(scenario)
