"""The in-process broker serves the same requests as a real one."""

import asyncio

from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchResponse
from protocol.messages.produce import ProduceResponse
from protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsResponse, CreateTopicsResponse
from protocol.records.batch import Record, read_batches
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.wire_requests import fetch, new_topic, produce, produce_records, values_in


def test_records_come_back() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            created = await wire.ask(new_topic("t"), 7)
            assert isinstance(created, CreateTopicsResponse)
            assert created.topics[0].error_code == ErrorCode.NONE
            produced = await wire.ask(produce("t", [b"a", b"b"]), 11)
            assert isinstance(produced, ProduceResponse)
            assert produced.responses[0].partition_responses[0].base_offset == 0
            assert values_in(await wire.ask(fetch("t", 0), 12)) == [b"a", b"b"]

    asyncio.run(scenario())


def test_a_waiting_fetch_is_answered_when_records_come() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire, other = broker.connect(), broker.connect()
            await wire.ask(new_topic("t"), 7)
            waiting = asyncio.ensure_future(wire.ask(fetch("t", 0, max_wait_ms=60_000), 12))
            await asyncio.sleep(0)
            assert not waiting.done()
            await other.ask(produce("t", [b"late"]), 11)
            assert values_in(await waiting) == [b"late"]

    asyncio.run(scenario())


def test_more_partitions_than_anybody_needs_are_refused() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            refused = await wire.ask(new_topic("huge", 2**31 - 1), 7)
            assert isinstance(refused, CreateTopicsResponse)
            assert refused.topics[0].error_code == ErrorCode.POLICY_VIOLATION
            await wire.ask(new_topic("t"), 7)
            grow = CreatePartitionsRequest(
                topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2**31 - 1, assignments=None)],
                timeout_ms=1000,
                validate_only=False,
            )
            grown = await wire.ask(grow, 3)
            assert isinstance(grown, CreatePartitionsResponse)
            assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION

    asyncio.run(scenario())


def test_a_fetch_from_a_cold_disk_is_answered_all_the_same() -> None:
    async def scenario() -> None:
        async with InProcessBroker() as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t"), 7)
            for number in range(50):
                await wire.ask(produce("t", [b"%d" % number] * 10), 11)
            tries = 0

            def is_cold(path: str, position: int) -> bool:
                nonlocal tries
                tries += 1
                return tries % 3 != 0

            broker.file_system.is_cold = is_cold
            for offset in (7, 123, 250, 499):
                values = values_in(await wire.ask(fetch("t", offset), 12))
                assert values[offset % 10] == b"%d" % (offset // 10)
            assert tries

    asyncio.run(scenario())


async def read_all(wire: Wire, topic: str, end: int) -> list[bytes | None]:
    """All values below offset `end`; a fetch returns those of one segment."""
    found: list[bytes | None] = []
    offset = 0
    while offset < end:
        response = await wire.ask(fetch(topic, offset), 12)
        assert isinstance(response, FetchResponse)
        for batch in read_batches(memoryview(response.responses[0].partitions[0].records or b"")):
            found += [record.value for record in batch.records()]
            offset = batch.next_offset
    return found


def test_a_compacted_topic_is_compacted_in_process() -> None:
    async def scenario() -> None:
        settings = {"log_cleanup_policy": "compact", "log_segment_bytes": "300", "log_cleaner_backoff_ms": "1"}
        async with InProcessBroker(**settings) as broker:
            wire = broker.connect()
            await wire.ask(new_topic("t"), 7)
            for number in range(20):
                records = [Record(0, 1_700_000_000_000, key, b"%d" % number, []) for key in (b"a", b"b")]
                await wire.ask(produce_records("t", records), 11)
            await broker.server.serving.logs.maintenance.flush()  # only flushed records are compacted
            while len(found := await read_all(wire, "t", 40)) > 8:
                await asyncio.sleep(0.001)
            assert found[-2:] == [b"19", b"19"]

    asyncio.run(scenario())
