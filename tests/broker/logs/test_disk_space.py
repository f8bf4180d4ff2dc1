"""A disk that is nearly full: clients are refused, the broker's internal writes continue, and it recovers."""

from __future__ import annotations

import errno
import logging
from functools import partial

import pytest

from broker.observability.metrics import log_directory_metrics
from protocol.errors import ErrorCode
from protocol.messages.log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from protocol.messages.produce import ProduceResponse
from protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsResponse
from storage.directory.checkpoints import CLEANER_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT
from tests.kit import in_process
from tests.kit.group_requests import commit
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.memory_file_system import Fault
from tests.kit.wire_requests import delete_records, delete_topics, fetch, new_topic, produce, values_in
from zookeeper.durable_tree import JOURNAL_NAME

MB = 1 << 20
RESERVE = 4 * MB
PAYLOAD = b"x" * 100_000


def small_disk(broker: InProcessBroker) -> None:
    broker.file_system.capacity_bytes = 10 * MB


play = partial(in_process.play, prepare=small_disk, log_dir_reserve_bytes=str(RESERVE))


async def send(wire: Wire, topic: str = "t", payload: bytes = PAYLOAD) -> tuple[ErrorCode, str | None]:
    response = await wire.ask(produce(topic, [payload]), 11)
    assert isinstance(response, ProduceResponse)
    result = response.responses[0].partition_responses[0]
    return ErrorCode(result.error_code), result.error_message


async def create(wire: Wire, topic: str) -> tuple[ErrorCode, str | None]:
    response = await wire.ask(new_topic(topic), 7)
    assert isinstance(response, CreateTopicsResponse)
    return ErrorCode(response.topics[0].error_code), response.topics[0].error_message


async def fill(wire: Wire) -> None:
    while (answer := await send(wire))[0] is ErrorCode.NONE:
        continue
    error, message = answer
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    assert message is not None
    assert message.startswith("Log directory /data has ")
    assert "log.dir.reserve.bytes=4194304" in message


def test_clients_are_refused_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        assert (await create(wire, "t"))[0] is ErrorCode.NONE
        await fill(wire)
        assert broker.file_system.disk_space("/data")[1] > RESERVE - MB
        error, message = await create(wire, "u")
        assert error is ErrorCode.POLICY_VIOLATION
        assert message is not None
        assert message.startswith("No log directory has space for new partitions. Log directory /data has ")
        grown = await wire.ask(
            CreatePartitionsRequest(
                topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=3, assignments=None)],
                timeout_ms=1000,
                validate_only=False,
            ),
            3,
        )
        assert isinstance(grown, CreatePartitionsResponse)
        assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION
        assert values_in(await wire.ask(fetch("t", 0), 12)) != []
        deleted = await wire.ask(delete_topics("t"), 5)
        assert deleted.responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
        for _ in range(2):
            broker.clock.ms += 60_001
            await broker.server.serving.logs.maintenance.delete_files()
        await broker.server.serving.directories.space.check()
        assert (await create(wire, "t"))[0] is ErrorCode.NONE
        assert (await send(wire))[0] is ErrorCode.NONE

    with caplog.at_level(logging.INFO, "kafka.log.LogManager"):
        play(scenario)
    said = [record.getMessage() for record in caplog.records if "bytes left" in record.getMessage()]
    assert len(said) == 2
    assert "clients cannot write there until space returns" in said[0]
    assert "clients write again" in said[1]


def test_groups_commit_into_the_reserve() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await create(wire, "t")
        await fill(wire)
        await broker.server.serving.member.auto_topics.ensure_internal_topic("__consumer_offsets")
        for _ in range(3):
            answer = await wire.ask(commit("g", [("t", 0, 5)]), 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
        assert (await send(wire))[0] is ErrorCode.KAFKA_STORAGE_ERROR

    play(scenario)


def test_metrics_of_the_directories() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        log_manager = broker.server.serving.logs.log_manager
        assert log_manager is not None
        metrics = partial(log_directory_metrics, log_manager.directories)

        def value(name: str) -> float:
            (found,) = [metric for metric in metrics() if metric.name == name]
            (sample,) = found.samples
            return float(sample.value)

        assert value("odradek_log_directory_reserve_reached") == 0
        await create(wire, "t")
        await fill(wire)
        await broker.server.serving.directories.space.check()
        assert value("odradek_log_directory_reserve_reached") == 1
        assert RESERVE - MB < value("odradek_log_directory_usable_bytes") < RESERVE + MB
        assert value("kafka_log_logmanager_logdirectoryoffline") == 0
        assert value("kafka_log_logmanager_offlinelogdirectorycount") == 0
        log_manager.directories[0].failure = "broken"
        assert value("kafka_log_logmanager_logdirectoryoffline") == 1
        log_manager.directories[0].failure = None

    play(scenario)


def test_describe_log_dirs_tells_the_space_of_the_disk() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await create(wire, "t")
        for _ in range(3):
            await send(wire)
            response = await wire.ask(DescribeLogDirsRequest(topics=None), 4)
            assert isinstance(response, DescribeLogDirsResponse)
            (directory,) = response.results
            assert (directory.total_bytes, directory.usable_bytes) == broker.file_system.disk_space("/data")
            assert directory.total_bytes == 10 * MB
            (partition,) = directory.topics[0].partitions
            assert partition.partition_size == sum(
                info.size for info in broker.file_system.list_dir("/data/t-0") if info.name.endswith(".log")
            )
        assert partition.partition_size > 3 * len(PAYLOAD)

    play(scenario)


def test_a_full_disk_refuses_changes_of_topics_and_does_not_end_the_broker() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        assert (await create(wire, "t"))[0] is ErrorCode.NONE

        def fill_up() -> None:
            broker.file_system.inject = lambda operation, _path: Fault(errno.ENOSPC) if operation == "append" else None

        async def delete(topic: str) -> ErrorCode:
            answer = await wire.ask(delete_topics(topic), 5)
            return ErrorCode(answer.responses[0].error_code)  # type: ignore[attr-defined]

        fill_up()
        error, message = await create(wire, "u")
        assert error is ErrorCode.KAFKA_STORAGE_ERROR
        assert message is not None
        assert "/data/odradek-coordination.journal cannot grow" in message
        assert await delete("t") is ErrorCode.KAFKA_STORAGE_ERROR
        assert "t" in broker.server.serving.coordination.metadata.image.topics
        broker.file_system.inject = lambda _operation, _path: None
        assert (await create(wire, "u"))[0] is ErrorCode.NONE
        assert (await send(wire))[0] is ErrorCode.NONE
        # Now the disk fills up during a deletion: the marker is written, but the nodes cannot be removed.
        writes = 0

        def after_the_mark(operation: str, path: str) -> Fault | None:
            nonlocal writes
            writes += operation == "append" and path.endswith(JOURNAL_NAME)
            return Fault(errno.ENOSPC) if writes > 1 and operation == "append" else None

        broker.file_system.inject = after_the_mark
        assert await delete("t") is ErrorCode.NONE
        assert (await create(wire, "t"))[0] is ErrorCode.KAFKA_STORAGE_ERROR
        broker.file_system.inject = lambda _operation, _path: None
        assert (await create(wire, "t"))[0] is ErrorCode.NONE
        assert values_in(await wire.ask(fetch("t", 0), 12)) == []
        assert not broker.server.failed.is_set()

    play(scenario)


def test_a_log_that_finds_no_room_is_made_later(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        broker.file_system.inject = lambda operation, path: Fault(errno.ENOSPC) if path.endswith(".log") else None
        await create(wire, "t")
        replicas = broker.server.serving.logs.replicas.hosted
        for _ in range(2):  # rounds without room change nothing
            await replicas.retry_failed_logs()
            assert (await send(wire))[0] is ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.server.serving.coordination.metadata.image.topics["t"].partitions[0].offline_replicas == ()
        assert not broker.file_system.exists("/data/t-0")
        broker.file_system.inject = lambda _operation, _path: None
        await replicas.retry_failed_logs()
        assert (await send(wire))[0] is ErrorCode.NONE
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [PAYLOAD]
        await replicas.retry_failed_logs()
        assert values_in(await wire.ask(fetch("t", 0), 12)) == [PAYLOAD]

    with caplog.at_level(logging.INFO, "kafka.server.ReplicaManager"):
        play(scenario)
    said = [record.getMessage() for record in caplog.records if "available" in record.getMessage()]
    assert len(said) == 2
    assert said[0].startswith(
        "t-0 is not available here: KAFKA_STORAGE_ERROR: Error while creating log for t-0 in dir /data: "
    )
    assert said[1] == "t-0 is available again"


def test_a_topic_whose_log_found_no_room_can_be_deleted() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        broker.file_system.inject = lambda operation, path: Fault(errno.ENOSPC) if path.endswith(".log") else None
        await create(wire, "t")
        broker.file_system.inject = lambda _operation, _path: None
        deleted = await wire.ask(delete_topics("t"), 5)
        assert deleted.responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
        await broker.server.serving.logs.replicas.hosted.retry_failed_logs()
        assert (await send(wire))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(scenario, auto_create_topics_enable="false")


def test_a_checkpoint_that_finds_no_room_is_written_later() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await create(wire, "t")
        await send(wire, payload=b"x")
        maintenance = broker.server.serving.logs.maintenance
        broker.file_system.inject = lambda operation, _path: Fault(errno.ENOSPC) if operation == "write_file" else None
        await maintenance.checkpoint_high_watermarks()
        assert broker.server.serving.logs.log_manager is not None
        assert broker.server.serving.logs.log_manager.directories[0].failure is None
        answer = await wire.ask(delete_records("t", 1), 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[attr-defined]
        broker.file_system.inject = lambda _operation, _path: None
        await maintenance.checkpoint_high_watermarks()
        assert b"t 0 1" in broker.file_system.read_file("/data/replication-offset-checkpoint")
        answer = await wire.ask(delete_records("t", 1), 2)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]

    play(scenario)


@pytest.mark.parametrize("name", [CLEANER_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT])
def test_a_deleted_topic_can_be_made_again_once_there_is_room(name: str) -> None:
    """Without waiting for a round that writes the checkpoint which the full disk refused: cleaning may never happen."""

    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await create(wire, "t")
        await send(wire, payload=b"x")
        broker.file_system.inject = lambda _operation, path: Fault(errno.ENOSPC) if name in path else None
        answer = await wire.ask(delete_topics("t"), 5)
        assert answer.responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
        assert (await create(wire, "t"))[0] is ErrorCode.POLICY_VIOLATION
        broker.file_system.inject = lambda _operation, _path: None
        await broker.server.serving.logs.retry_refused_checkpoints()
        assert await create(wire, "t") == (ErrorCode.NONE, None)

    play(scenario)


def test_a_deleted_topic_that_a_full_disk_still_knows_is_not_made_again() -> None:
    async def scenario(broker: InProcessBroker, wire: Wire) -> None:
        await create(wire, "t")
        await send(wire, payload=b"x")
        maintenance, path = broker.server.serving.logs.maintenance, "/data/replication-offset-checkpoint"
        await maintenance.checkpoint_high_watermarks()
        broker.file_system.inject = lambda _operation, path: (
            Fault(errno.ENOSPC) if "replication-offset-checkpoint" in path else None
        )
        answer = await wire.ask(delete_topics("t"), 5)
        assert answer.responses[0].error_code == ErrorCode.NONE  # type: ignore[attr-defined]
        assert await create(wire, "t") == (
            ErrorCode.POLICY_VIOLATION,
            f"The disk is too full for {path}, which still know the deleted topic t.",
        )
        assert await create(wire, "u") == (ErrorCode.NONE, None)
        assert b"t 0 1" in broker.file_system.read_file(path)
        broker.file_system.inject = lambda _operation, _path: None
        await maintenance.checkpoint_high_watermarks()
        assert b"t 0 1" not in broker.file_system.read_file(path)
        assert await create(wire, "t") == (ErrorCode.NONE, None)
        assert await send(wire, payload=b"y") == (ErrorCode.NONE, None)

    play(scenario)
