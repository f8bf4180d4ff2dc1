"""A deleted topic is gone: from the disk, from the checkpoints, and from the next topic of its name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.offsets import ListOffsetsRequest
from protocol.messages.produce import ProduceRequest
from protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from protocol.records.batch import build_values_batch
from protocol.uuids import ZERO_UUID
from protocol.wire.schema import Request
from tests.kit.broker_process import BrokerProcess
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.memory_file_system import Fault, MemoryFileSystem, PowerCut, SimulatedCrash
from tests.kit.waiting import eventually
from tests.kit.wire_client import ConnectionClosed, WireClient
from tests.kit.wire_requests import delete_records, metadata, new_topic, produce_batch, values_in

DATA = "/data"


def creation(name: str) -> CreateTopicsRequest:
    return new_topic(name, 2, {"segment.bytes": "200"})


def deletion(name: str) -> DeleteTopicsRequest:
    topic = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)
    return DeleteTopicsRequest(topics=[topic], timeout_ms=5000)


def produced(name: str, value: bytes) -> ProduceRequest:
    return produce_batch(name, build_values_batch([value], 0), acks=-1)


def fetched(topic_id: Any, offset: int = 0) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic_id=topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])


class Client:
    """Sends requests to an in-process broker, and retries."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.wire: Wire = broker.connect()

    async def ask(self, request: Request, version: int) -> Any:
        return await self.wire.ask(request, version)

    async def create(self, name: str) -> None:
        answer = await self.ask(creation(name), 7)
        assert answer.topics[0].error_code == ErrorCode.NONE

    async def delete(self, name: str) -> None:
        answer = await self.ask(deletion(name), 6)
        assert answer.responses[0].error_code == ErrorCode.NONE

    async def produce(self, name: str, *values: bytes) -> None:
        for value in values:
            answer = await self.ask(produced(name, value), 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    async def topic_id(self, name: str) -> Any:
        topic = (await self.ask(metadata(name), 12)).topics[0]
        return topic.topic_id if topic.error_code == ErrorCode.NONE else None

    async def values(self, name: str) -> list[bytes | None]:
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[partition])
        listed = await self.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 6)
        start = listed.topics[0].partitions[0].offset
        topic_id = await self.topic_id(name)
        found: list[bytes | None] = []
        while more := values_in(await self.ask(fetched(topic_id, start + len(found)), 13)):
            found += more
        return found


def on_disk(disk: MemoryFileSystem, name: str) -> list[str]:
    return [info.name for info in disk.list_dir(DATA) if info.name.startswith(name)]


def checkpointed(disk: MemoryFileSystem, name: str) -> list[str]:
    """The checkpoints that contain a topic."""
    files = [info.name for info in disk.list_dir(DATA) if info.name.endswith("-checkpoint")]
    return [file for file in files if f"{name} ".encode() in disk.read_file(f"{DATA}/{file}")]


def test_the_next_topic_of_the_name_has_nothing_of_the_one_before_also_after_a_kill() -> None:
    broker = InProcessBroker()

    async def first_life() -> None:
        await broker.__aenter__()
        client = Client(broker)
        await client.create("t")
        await client.produce("t", *[b"old %d" % number for number in range(6)])
        await client.ask(delete_records("t", 4), 2)
        old_id = await client.topic_id("t")
        await client.delete("t")
        await client.create("t")
        assert await client.topic_id("t") != old_id
        answer = await client.ask(fetched(old_id), 13)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert await client.values("t") == []
        await client.produce("t", b"new")

    async def second_life() -> None:
        async with broker:
            client = Client(broker)
            assert await client.values("t") == [b"new"]

    asyncio.run(first_life())
    broker.file_system.kill_process()
    asyncio.run(second_life())


def test_what_a_checkpoint_knows_of_a_topic_that_is_gone_is_not_believed_of_the_next_one() -> None:
    """The state left by a process that died between renaming a directory and writing the checkpoints."""
    broker = InProcessBroker()

    async def first_life() -> None:
        await broker.__aenter__()
        await Client(broker).create("other")

    async def second_life() -> None:
        await broker.__aenter__()
        client = Client(broker)
        assert checkpointed(broker.file_system, "t") == []
        await client.create("t")
        await client.produce("t", b"new")

    async def third_life() -> None:
        async with broker:
            assert await Client(broker).values("t") == [b"new"]

    asyncio.run(first_life())
    broker.file_system.kill_process()
    for name in ("log-start-offset", "cleaner-offset"):
        broker.file_system.write_file(f"{DATA}/{name}-checkpoint", b"0\n1\nt 0 4\n")
    asyncio.run(second_life())
    broker.file_system.kill_process()
    asyncio.run(third_life())


@pytest.mark.parametrize("mode", [None, PowerCut.LOSE, PowerCut.REORDER])
@pytest.mark.parametrize("after", [False, True])
def test_a_deletion_ends_wherever_it_was_interrupted(mode: PowerCut | None, after: bool) -> None:
    finished, at = False, 0
    while not finished:
        at += 1
        finished = delete_with_a_crash(at, mode, after=after)
    assert at > 20


def delete_with_a_crash(at: int, mode: PowerCut | None, *, after: bool) -> bool:
    """Delete a topic and recreate it, with a crash at call number `at`; returns whether there were fewer calls."""
    broker = InProcessBroker(log_segment_delete_delay_ms="0")
    disk = broker.file_system
    acknowledged: list[str] = []
    calls = 0

    def inject(operation: str, path: str) -> Fault | None:
        """Kill the process at the call, and fail all later ones: a dead process does nothing."""
        nonlocal calls
        calls += 1
        if calls < at:
            return None
        return Fault(crash_after=True) if after and calls == at else Fault(crash_before=True)

    async def first_life() -> None:
        await broker.__aenter__()
        client = Client(broker)
        await client.create("t")
        await client.produce("t", b"old 0", b"old 1")
        await client.ask(delete_records("t", 1), 2)
        disk.inject = inject
        await client.delete("t")
        acknowledged.append("deleted")
        await client.create("t")
        acknowledged.append("created")
        await client.produce("t", b"new")
        acknowledged.append("produced")

    async def second_life() -> None:
        async with broker:
            client = Client(broker)
            if "produced" in acknowledged and mode is None:
                assert await client.values("t") == [b"new"]
            elif "created" in acknowledged:
                assert await client.values("t") in ([], [b"new"])
            elif "deleted" in acknowledged:
                assert await client.topic_id("t") is None or await client.values("t") == []
            if await client.topic_id("t") is not None:
                await client.delete("t")
            await broker.server.serving.logs.maintenance.delete_files()
            await broker.server.serving.logs.maintenance.delete_files()
            assert on_disk(disk, "t") == []
            assert checkpointed(disk, "t") == []

    try:
        asyncio.run(first_life())
    except (SimulatedCrash, ConnectionError, TimeoutError):  # or no process is left to answer
        if calls < at:
            raise
    disk.inject = lambda operation, path: None
    if mode is None:
        disk.kill_process()
    else:
        disk.cut_power(mode, lambda count: at % count)
    broker.clock.ms += 1
    asyncio.run(second_life())
    return calls < at


def test_nothing_is_left_on_a_real_disk_also_after_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"log.segment.delete.delay.ms": "300"})

    def ask(request: Request, version: int) -> Any:
        host, _, port = broker.address.rpartition(":")
        with WireClient(host, int(port)) as client:
            return client.ask(request, version)

    def left() -> list[str]:
        return [path.name for path in (tmp_path / "data").glob("t-*")]

    broker.start()
    try:
        for turn in range(3):
            assert ask(creation("t"), 7).topics[0].error_code == ErrorCode.NONE
            topic_id = ask(metadata("t"), 12).topics[0].topic_id
            for value in (b"a", b"b"):
                ask(produced("t", value), 9)
            assert values_in(ask(fetched(topic_id), 13)) == [b"a", b"b"]
            assert ask(deletion("t"), 6).responses[0].error_code == ErrorCode.NONE
            gone = ask(fetched(topic_id), 13).responses[0].partitions[0].error_code
            assert gone == ErrorCode.UNKNOWN_TOPIC_ID
            if turn:
                broker.kill()
                broker.start()
            eventually("nothing is left", left, lambda names: not names)
    finally:
        broker.kill()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_consumer_that_does_not_read_is_not_left_waiting(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promised data is deleted before the socket can take it."""
    monkeypatch.setenv("ODRADEK_LOOP", loop)
    value, count = bytes(1_000_000), 30
    broker = BrokerProcess(tmp_path, {"log.segment.delete.delay.ms": "0", "log.cleaner.enable": "false"})
    broker.start()
    try:
        host, _, port = broker.address.rpartition(":")
        with WireClient(host, int(port)) as client, WireClient(host, int(port)) as slow:
            client.ask(new_topic("t"), 7)
            now_ms = time.time_ns() // 1_000_000
            for _ in range(count):
                client.ask(produce_batch("t", build_values_batch([value], now_ms), acks=-1), 9)
            wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=count * 2_000_000)
            request = FetchRequest(
                max_wait_ms=0, min_bytes=0, topics=[FetchRequest.FetchTopic(topic="t", partitions=[wanted])]
            )
            slow.send(request, 12)
            slow.await_bytes()
            client.ask(deletion("t"), 6)
            eventually("nothing is left", lambda: not list((tmp_path / "data").glob("t-*")))
            with contextlib.suppress(ConnectionClosed, ConnectionError):
                assert values_in(slow.receive(FetchRequest, 12)) == [value] * count
    finally:
        assert broker.stop() == 0
    said = broker.output.read_text()
    assert "Traceback" not in said
    assert " ERROR " not in said
