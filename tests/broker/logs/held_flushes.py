"""A broker whose fsyncs a test holds and releases, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from protocol.errors import ErrorCode
from protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.topics import CreateTopicsResponse
from protocol.records.batch import Record, build_batch
from protocol.topic_partition import TopicPartition
from storage.log.local_log import LocalLog
from storage.log.log_flush import FlushTask, run_together
from storage.log.unified_log import UnifiedLog
from tests.kit.environment import InlineExecutor
from tests.kit.in_process import InProcessBroker, Wire
from tests.kit.memory_file_system import MemoryFileSystem
from tests.kit.waiting import turns
from tests.kit.wire_requests import fetch, new_topic, values_in

T = TypeVar("T")


class HeldFlushes(InlineExecutor):
    """Runs everything at once, except for flushes, which wait for `finish` while `held`."""

    def __init__(self) -> None:
        self.held = True
        self.rounds: list[int] = []
        """The number of logs flushed in each round so far."""
        self._waiting: list[tuple[set[LocalLog], Callable[[], None]]] = []
        self._logs: set[LocalLog] = set()

    def run(self, function: Callable[..., T], /, *args: object) -> Awaitable[T]:
        if function is not run_together:
            return super().run(function, *args)
        if not self.held:
            return super().run(function, *args)
        if not self._waiting:
            self.rounds.append(0)
        tasks: list[FlushTask] = args[0]  # type: ignore[assignment]
        self.rounds[-1] += len(tasks)
        assert not self._logs & {task.log for task in tasks}, "two fsyncs of one log at a time"
        self._logs |= {task.log for task in tasks}
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def carry_out() -> None:
            future.set_result(function(*args))

        self._waiting.append(({task.log for task in tasks}, carry_out))
        return future

    def is_flushing_of(self, log: UnifiedLog) -> bool:
        """Whether a pending round contains `log`."""
        return log.local in self._logs

    @property
    def is_flushing(self) -> bool:
        """Whether a round is pending."""
        return bool(self._waiting)

    async def finish(self, log: UnifiedLog | None = None) -> None:
        """Let the disk finish the pending flushes, or only those of `log` and the ones batched with it."""
        self._carry_out(log)
        await turns()

    def let_go(self) -> None:
        """Stop holding flushes."""
        self.held = False
        self._carry_out()

    def _carry_out(self, log: UnifiedLog | None = None) -> None:
        done = [each for each in self._waiting if log is None or log.local in each[0]]
        self._waiting = [each for each in self._waiting if each not in done]
        for logs, carry_out in done:
            self._logs -= logs
            carry_out()


class HeldFlushesBroker(InProcessBroker):
    """A broker whose disk finishes a flush on command."""

    def __init__(self, file_system: MemoryFileSystem | None = None, **settings: str) -> None:
        super().__init__(**settings)
        self.disk = self.executor = HeldFlushes()
        if file_system is not None:
            self.file_system = file_system

    async def __aexit__(self, *_: object) -> None:
        self.disk.let_go()
        await super().__aexit__(*_)

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> Wire:
        """Create a topic; returns a connection."""
        wire = self.connect()
        given = {key.replace("_", "."): value for key, value in configs.items()}
        created = await wire.ask(new_topic(name, partitions, given), 7)
        assert isinstance(created, CreateTopicsResponse)
        assert created.topics[0].error_code == ErrorCode.NONE, created.topics[0].error_message
        return wire

    def produce(self, request: ProduceRequest) -> asyncio.Task[ProduceResponse]:
        """Produce on a separate connection."""

        async def ask() -> ProduceResponse:
            response = await self.connect().ask(request, 11)
            assert isinstance(response, ProduceResponse)
            return response

        return asyncio.create_task(ask())

    async def latest(self, topic: str, version: int = 7) -> tuple[ErrorCode, int]:
        """The end of partition 0 by ListOffsets."""
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-1)
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])]
        response = await self.connect().ask(ListOffsetsRequest(replica_id=-1, topics=topics), version)
        assert isinstance(response, ListOffsetsResponse)
        (found,) = response.topics[0].partitions
        return ErrorCode(found.error_code), found.offset

    def log(self, topic: str) -> UnifiedLog:
        """The log of a topic's partition 0."""
        manager = self.server.serving.logs.log_manager
        assert manager is not None
        return manager.logs[TopicPartition(topic, 0)]

    def kill(self) -> MemoryFileSystem:
        """The disk as the next broker finds it after this one is killed."""
        self.file_system.kill_process()
        return self.file_system.copy()


def request(
    topic: str, *values: bytes, partitions: int = 1, acks: int = 1, sequence: int | None = None
) -> ProduceRequest:
    """One batch of `values` for each of the first `partitions`; with `sequence` from an idempotent producer."""
    producer = {} if sequence is None else {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    batch = build_batch([Record(0, 1_700_000_000_000, None, value, []) for value in values], **producer)
    data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index in range(partitions)]
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    )


def outcomes(response: ProduceResponse) -> list[tuple[ErrorCode, int]]:
    """(error, base offset) of each partition."""
    return [
        (ErrorCode(each.error_code), each.base_offset)
        for topic in response.responses
        for each in topic.partition_responses
    ]


async def values(wire: Wire, topic: str, offset: int = 0) -> list[bytes | None]:
    """The values that a consumer gets from `offset` on."""
    return values_in(await wire.ask(fetch(topic, offset), 12))
