"""Moves between log directories respect their limit, and exclude the cleaner: an in-memory broker on virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker.replication import replica_alter_log_dirs
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.records.batch import Record
from protocol.topic_partition import TopicPartition
from storage.io import file_system as throttle
from tests.broker.replication.test_replica_alter_log_dirs import A, B, alter, directories, is_at, play
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.waiting import eventually_on_loop
from tests.kit.wire_requests import fetch, new_topic, produce, produce_records, values_in

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER = 4
SET, DELETE = 0, 1


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_alter_log_dirs, "STEP_BYTES", 1000)
    monkeypatch.setattr(replica_alter_log_dirs, "RETRY_S", 0.01)
    monkeypatch.setattr(throttle, "LONGEST_SLEEP_S", 0.001)


async def configure(wire: Wire, name: str, value: str | None) -> ErrorCode:
    """Set or (None) delete the limit of broker `name`, "" for all."""
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name=RATE, config_operation=DELETE if value is None else SET, value=value
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name=name, configs=[change]
    )
    response = await wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    return ErrorCode(response.responses[0].error_code)


async def described(wire: Wire, name: str) -> list[str | None]:
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name=name, configuration_keys=[RATE]
    )
    response = await wire.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=False), 4)
    assert isinstance(response, DescribeConfigsResponse)
    return [each.value for each in response.results[0].configs]


async def fill(wire: Wire, count: int = 40) -> None:
    await wire.ask(new_topic("t"), 7)
    for number in range(count):
        await wire.ask(produce("t", [b"%d" % number + b"." * 100]), 11)


async def rest() -> None:
    """Wait long enough for everything that may happen now."""
    for _ in range(5):
        await asyncio.sleep(0.002)


def test_moves_keep_to_the_limit() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await fill(wire)
        moves = broker.server.serving.logs.moves
        assert await configure(wire, "0", "1000") is ErrorCode.NONE
        await alter(wire, B, ("t", 0))
        began_ms = broker.clock.ms
        arrived = is_at(broker, B)
        while not arrived():
            await rest()
            step = 250 + 200  # a quarter of a second's share, and the rest of a batch
            assert moves.copied_bytes <= (broker.clock.ms - began_ms) + step
            broker.clock.ms += 100
        assert moves.copied_bytes > 5000
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"%d" % number + b"." * 100 for number in range(40)]

    play(scenario)


def test_the_limit_changes_during_a_move() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await fill(wire)
        moves = broker.server.serving.logs.moves
        assert await configure(wire, "", "0") is ErrorCode.NONE
        await alter(wire, B, ("t", 0))
        broker.clock.ms += 10_000_000
        await rest()
        assert (moves.copied_bytes, moves.max_lag) == (0, 40)
        # The broker's own value takes precedence over the default of all.
        assert await configure(wire, "0", "1") is ErrorCode.NONE
        await rest()
        once = moves.copied_bytes
        assert 0 < once < 1000
        assert await configure(wire, "0", None) is ErrorCode.NONE
        await rest()
        assert moves.copied_bytes == once
        assert await configure(wire, "", None) is ErrorCode.NONE
        await eventually_on_loop("the move", is_at(broker, B))
        assert (moves.max_lag, moves.failed_partitions) == (0, 0)

    play(scenario)


def test_the_broker_stops_while_a_move_waits() -> None:
    async def scenario(_broker: InProcessBroker, wire: Wire) -> None:
        await fill(wire)
        await configure(wire, "0", "0")
        await alter(wire, B, ("t", 0))
        await rest()

    play(scenario)


def test_a_move_that_waits_is_given_up() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await fill(wire)
        await configure(wire, "0", "0")
        await alter(wire, B, ("t", 0))
        await rest()
        await alter(wire, A, ("t", 0))
        await eventually_on_loop("the end of the move", lambda: broker.server.serving.logs.moves._task is None)
        assert broker.server.serving.logs.moves.copied_bytes == 0
        assert directories(broker, A) == ["t-0"]

    play(scenario)


@pytest.mark.parametrize("value", ["-1", "x", "", "9223372036854775808"])
def test_bad_limits(value: str) -> None:
    async def scenario(_broker: InProcessBroker, wire: Wire) -> None:
        for name in ("", "0"):
            assert await configure(wire, name, value) is ErrorCode.INVALID_REQUEST
            assert await described(wire, name) == []

    play(scenario)


def test_a_limit_in_the_file_is_none() -> None:
    """As in Kafka, only a dynamic configuration sets the limit."""

    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await fill(wire)
        await alter(wire, B, ("t", 0))
        await eventually_on_loop("the move", is_at(broker, B))

    play(scenario, **{RATE: "0"})


async def new_compacted_topic(wire: Wire) -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0"}
    await wire.ask(new_topic("t", configs=configs), 7)


async def write(wire: Wire, clock_ms: int, count: int) -> None:
    for number in range(count):
        record = Record(0, clock_ms, b"key %d" % (number % 3), b"%d" % number + b"." * 60)
        await wire.ask(produce_records("t", [record]), 11)


def flush(broker: InProcessBroker) -> None:
    """Only flushed records are cleaned."""
    assert broker.server.serving.logs.log_manager is not None
    broker.server.serving.logs.log_manager.logs[TopicPartition("t", 0)].flush(broker.clock.ms)


def checkpoint(broker: InProcessBroker, path: str) -> list[str]:
    """The entries of cleaner-offset-checkpoint."""
    name = f"{path}/cleaner-offset-checkpoint"
    if not broker.file_system.exists(name):
        return []
    return bytes(broker.file_system.read_file(name)).decode().splitlines()[2:]


def test_a_compacted_log_is_cleaned_before_and_after_its_move_and_not_during(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        cleaner = broker.server.serving.logs.cleaner
        await new_compacted_topic(wire)
        await write(wire, broker.clock.ms, 30)
        thread = cleaner._threads[0]
        flush(broker)
        assert await cleaner.clean_filthiest(thread)
        (entry,) = checkpoint(broker, A)
        assert len(values_in(await wire.ask(fetch("t", 0), 12))) < 10
        await configure(wire, "0", "0")
        await alter(wire, B, ("t", 0))
        await write(wire, broker.clock.ms, 30)
        flush(broker)
        assert not await cleaner.clean_filthiest(thread)
        assert checkpoint(broker, A) == [entry]
        await configure(wire, "0", None)
        await eventually_on_loop("the move", is_at(broker, B))
        await eventually_on_loop("the end of the move", lambda: checkpoint(broker, A) == [])
        assert checkpoint(broker, B) == [entry]
        flush(broker)
        assert await cleaner.clean_filthiest(thread)
        assert checkpoint(broker, B) != [entry]
        assert f"dirty section = [{entry.split()[-1]}, " in caplog.text.splitlines()[-1]

    with caplog.at_level(logging.INFO, "kafka.log.LogCleaner"):
        play(scenario, log_cleaner_backoff_ms="100000000")
