"""Retention from a client's view: rounds of a whole broker, with each topic's configuration."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.configs import IncrementalAlterConfigsRequest
from protocol.records.batch import Record, build_batch
from tests.kit import wire_requests
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.waiting import eventually_async, eventually_on_loop

TOPIC, BROKER = 2, 4
EARLIEST, LATEST = -2, -1
DAY_MS = 24 * 3_600_000
ROUNDS = {"log_retention_check_interval_ms": "1", "log_initial_task_delay_ms": "1"}


async def create(wire: Wire, name: str, **configs: str) -> None:
    given = {key.replace("_", "."): value for key, value in {"segment_bytes": "100", **configs}.items()}
    answer: Any = await wire.ask(wire_requests.new_topic(name, configs=given), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE


async def produce(wire: Wire, topic: str, *timestamps: int) -> None:
    """One batch, and one segment, for each timestamp."""
    for timestamp in timestamps:
        batch = build_batch([Record(0, timestamp, b"key", b"value" * 5)])
        answer: Any = await wire.ask(wire_requests.produce_batch(topic, batch, acks=-1), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def alter(wire: Wire, resource_type: int, name: str, key: str, value: str) -> None:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=[change]
    )
    answer: Any = await wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert answer.responses[0].error_code == ErrorCode.NONE


async def earliest(wire: Wire, topic: str) -> int:
    answer: Any = await wire.ask(wire_requests.list_offsets(topic, EARLIEST), 6)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


async def delete_records(wire: Wire, topic: str, offset: int) -> int:
    answer: Any = await wire.ask(wire_requests.delete_records(topic, offset), 2)
    low_watermark: int = answer.topics[0].partitions[0].low_watermark
    return low_watermark


async def until_earliest(wire: Wire, topic: str, offset: int) -> None:
    await eventually_async(f"{topic} begins at {offset}", lambda: earliest(wire, topic), lambda seen: seen == offset)


def segments_of(broker: InProcessBroker, topic: str) -> list[str]:
    names = [info.name for info in broker.file_system.list_dir(f"/data/{topic}-0")]
    return sorted(name for name in names if name.endswith(".log"))


def test_a_topics_own_limits_and_the_brokers_and_changes_of_both(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with InProcessBroker(**ROUNDS, log_retention_hours="48") as broker:
            now = broker.clock.ms
            wire = broker.connect()
            await create(wire, "default")
            await create(wire, "short", retention_ms=str(DAY_MS // 2))
            await create(wire, "compacted", cleanup_policy="compact", retention_ms="1")
            for topic in ("default", "short", "compacted"):
                await produce(wire, topic, now - 3 * DAY_MS, now - DAY_MS, now)
            await until_earliest(wire, "default", 1)
            await until_earliest(wire, "short", 2)
            await alter(wire, TOPIC, "short", "retention.bytes", "0")
            await until_earliest(wire, "short", 3)
            await alter(wire, BROKER, "", "log.retention.ms", str(DAY_MS // 2))
            await until_earliest(wire, "default", 2)
            assert await earliest(wire, "compacted") == 0
            await produce(wire, "short", now)
            await until_earliest(wire, "short", 4)

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.name == "kafka.log.UnifiedLog"]
    assert any(
        line.startswith("[UnifiedLog partition=short-0, dir=/data] Deleting segment LogSegment(baseOffset=0, ")
        and line.endswith(
            f"due to log retention time {DAY_MS // 2}ms breach based on the largest record timestamp in the segment"
        )
        for line in lines
    )
    assert (
        "[UnifiedLog partition=default-0, dir=/data] Incremented log start offset to 2 due to segment deletion" in lines
    )


def test_deleted_records_do_not_come_back_and_their_segments_go_in_the_next_round() -> None:
    broker = InProcessBroker()

    async def first_life() -> None:
        await broker.__aenter__()
        wire = broker.connect()
        await create(wire, "t", retention_ms="-1")
        await produce(wire, "t", *[broker.clock.ms] * 4)
        assert await delete_records(wire, "t", 3) == 3
        assert len(segments_of(broker, "t")) == 4

    async def second_life() -> None:
        async with broker:
            assert await earliest(broker.connect(), "t") == 3

    asyncio.run(first_life())
    broker.file_system.kill_process()
    asyncio.run(second_life())


def test_a_round_removes_what_delete_records_gave_up_also_in_a_compacted_topic() -> None:
    async def scenario() -> None:
        async with InProcessBroker(**ROUNDS) as broker:
            wire = broker.connect()
            await create(wire, "t", retention_ms="-1")
            await produce(wire, "t", *[broker.clock.ms] * 4)
            await delete_records(wire, "t", 2)
            await alter(wire, TOPIC, "t", "cleanup.policy", "compact")
            await eventually_on_loop("two segments", lambda: len(segments_of(broker, "t")) == 2, pause_s=0.001)
            assert segments_of(broker, "t") == ["00000000000000000002.log", "00000000000000000003.log"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("policy", "end"), [("delete", 1), ("compact", 3)])
def test_logs_are_loaded_by_their_own_topics_configuration(policy: str, end: int) -> None:
    """A sealed segment without its last batch has lost data, unless Kafka's compaction may have removed it."""
    broker = InProcessBroker(log_cleaner_enable="false")
    path = "/data/t-0/00000000000000000000.log"

    async def first_life() -> None:
        await broker.__aenter__()
        wire = broker.connect()
        await create(wire, "t", cleanup_policy=policy, segment_bytes="250")
        await produce(wire, "t", *[broker.clock.ms] * 3)
        assert len(segments_of(broker, "t")) == 2

    async def second_life() -> None:
        async with broker:
            answer: Any = await broker.connect().ask(wire_requests.list_offsets("t", LATEST), 6)
            assert answer.topics[0].partitions[0].offset == end

    asyncio.run(first_life())
    broker.file_system.kill_process()
    data = broker.file_system.read_file(path)
    assert len(data) % 2 == 0
    broker.file_system.write_file(path, data[: len(data) // 2])
    broker.file_system.remove("/data/recovery-point-offset-checkpoint")  # it would rule out such a gap
    asyncio.run(second_life())
