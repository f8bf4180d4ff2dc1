"""The wall clock is set back by a day: timeouts must follow the time that really passed."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.topic_partition import TopicPartition
from tests.kit.in_process import InProcessBroker, Wire, play
from tests.kit.wire_requests import delete_topics, new_topic, produce

DAY_MS = 24 * 3_600_000


def test_deleted_files_go_after_their_delay() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        def left() -> list[str]:
            return [info.name for info in broker.file_system.list_dir("/data") if info.name.startswith("t-")]

        await wire.ask(new_topic("t"), 7)
        await wire.ask(delete_topics("t"), 5)
        await broker.server.serving.logs.maintenance.delete_files()
        broker.clock.set_back_ms = DAY_MS
        broker.clock.ms += 59_000
        await broker.server.serving.logs.maintenance.delete_files()
        assert len(left()) == 1
        broker.clock.ms += 1_000
        await broker.server.serving.logs.maintenance.delete_files()
        assert left() == []

    play(scenario)


def test_flush_ms_is_kept() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await wire.ask(new_topic("t", configs={"flush.ms": "5000"}), 7)
        manager = broker.server.serving.logs.log_manager
        assert manager is not None
        log = manager.logs[TopicPartition("t", 0)]
        for _ in range(2):
            answer = await wire.ask(produce("t", [b"x"]), 11)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
            broker.clock.set_back_ms += DAY_MS
            broker.clock.ms += 5_000
            await broker.server.serving.logs.maintenance.flush()
            await broker.server.serving.logs.replicas.group_commit.idle()
            assert log.recovery_point == log.log_end_offset

    play(scenario)
