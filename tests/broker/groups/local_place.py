"""Our group handlers in this process. They have a separate clock: waiting costs no time, and runs are deterministic."""

from __future__ import annotations

import asyncio
import inspect
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from broker.groups.group_coordinator_service import GroupCoordinatorService
from broker.handlers.coordinators import CoordinatorHandlers
from broker.handlers.group_offsets import GroupOffsetHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.producer_ids import ProducerIdHandlers
from broker.metadata.auto_topic_creation import InternalTopicCreator
from broker.network.registry import HandlerRegistry, Later, RequestContext, Waiting
from broker.transactions.marker_sender import MarkerSender
from broker.transactions.transaction_coordinator_service import ProducerIds, TransactionCoordinatorService
from cluster.coordinators.results import TransactionalProducer
from cluster.groups.group_config import GroupConfig
from cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from cluster.znodes import Endpoint, ProducerIdBlock
from environment.contract import Clock
from protocol.errors import ApiError, ErrorCode
from protocol.messages import RESPONSE_TYPES
from protocol.records.batch import Record, build_batch, read_batches
from protocol.topic_partition import CONSUMER_OFFSETS
from protocol.uuids import Uuid
from protocol.wire.schema import Request, Response
from tests.broker.groups.group_fixture import OFFSETS_PARTITIONS
from tests.kit.environment import InlineExecutor, uuid_of

T = TypeVar("T")

START_MS = 1_700_000_000_000
CONFIG = GroupConfig(
    group_initial_rebalance_delay_ms=300,
    group_min_session_timeout_ms=100,
    group_max_session_timeout_ms=20_000,
    group_max_size=4,
)
"""`group_fixture.SETTINGS`."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while it is idle, and then at once."""

    def __init__(self) -> None:
        super().__init__(_NoWait(self))
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s


class _NoWait(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everybody waits for ever")
        if not ready and timeout:
            self._loop.now_s += timeout
        return ready


class LoopClock(Clock):
    """A Clock on a loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1000)

    def monotonic_s(self) -> float:
        return self._loop.time()


class CountingRandom:
    """Ids in order."""

    def __init__(self) -> None:
        self._ids = count(1)

    def randrange(self, stop: int) -> int:
        return next(self._ids) % stop

    def uuid(self) -> Uuid:
        return Uuid.version_4(next(self._ids))


class MemoryLog:
    """A CoordinatorLog of byte batches. `failures` apply to the next appends (None: success); `held` delays them."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[bytes]] = {index: [] for index in range(OFFSETS_PARTITIONS)}
        self.next_offsets = dict.fromkeys(range(OFFSETS_PARTITIONS), 0)
        self.failures: deque[ErrorCode | None] = deque()
        self.held: list[Callable[[], None]] | None = None

    def partition_count(self) -> int:
        return OFFSETS_PARTITIONS

    def append(
        self, partition: int, records: Sequence[Record], producer: TransactionalProducer | None = None
    ) -> asyncio.Future[int]:
        assert producer is None
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        failure = self.failures.popleft() if self.failures else None

        def write() -> None:
            if failure is not None:
                future.set_exception(ApiError(failure, "the log fails"))
                return
            base_offset = self.next_offsets[partition]
            self.partitions[partition].append(build_batch(records, base_offset=base_offset))
            self.next_offsets[partition] += len(records)
            future.set_result(base_offset)

        if self.held is None:
            write()
        else:
            self.held.append(write)
        return future

    def release(self) -> None:
        """Execute the held appends."""
        held, self.held = self.held or [], None
        for write in held:
            write()

    def most_record_bytes(self, partition: int) -> int:
        return 1_048_588

    def is_empty(self, partition: int) -> bool:
        return not self.partitions[partition]

    async def load(self, partition: int, take: Callable[[memoryview], int | None]) -> None:
        for batch in list(self.partitions[partition]):
            await asyncio.sleep(0.001)
            take(memoryview(batch))

    def records(self) -> list[Record]:
        """All records written, partition by partition."""
        return [
            record
            for batches in self.partitions.values()
            for batch in read_batches(memoryview(b"".join(batches)))
            for record in batch.records()
        ]


class Local:
    """Our handlers in this process."""

    port = 9092

    def __init__(self, config: GroupConfig = CONFIG, log: MemoryLog | None = None) -> None:
        self.loop = VirtualTimeLoop()
        self.log = log or MemoryLog()
        clock, random = LoopClock(self.loop), CountingRandom()
        self.service = GroupCoordinatorService(config, self.log, clock, random, InlineExecutor())
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", self.port, "PLAINTEXT")
        self.image = MetadataImage(cluster_id="c", brokers={0: BrokerImage(0, 1, {"PLAINTEXT": endpoint})})
        self.created: list[str] = []
        self.on_create: Callable[[], None] = lambda: None
        self._blocks = count()
        self._add_topic(CONSUMER_OFFSETS, OFFSETS_PARTITIONS)
        self.transactions: Any = TransactionCoordinatorService(
            MemoryLog(), clock, InlineExecutor(), MarkerSender(lambda: self.image, lambda _: None),
            lambda _: 0, ProducerIds(self._allocate_block).next_id, max_timeout_ms=1000, id_expiration_ms=1000,
        )  # fmt: skip
        """It coordinates nothing: the dialogues contain no transactions."""
        self.registry = HandlerRegistry(
            [
                GroupHandlers(self.service),
                GroupOffsetHandlers(self.service, lambda: self.image),
                CoordinatorHandlers(
                    self.service, self.transactions, lambda: self.image, InternalTopicCreator(self._ensure)
                ),
                ProducerIdHandlers(ProducerIds(self._allocate_block), self.transactions),
            ]
        )
        self.run(self._elect)
        self._expiry = self.loop.create_task(self._expire_offsets())

    def run(self, function: Callable[[], T | Awaitable[T]]) -> T:
        """Call `function` on the loop, and wait for its result if it is awaitable."""

        async def call() -> T:
            result = function()
            return await result if inspect.isawaitable(result) else result  # type: ignore[return-value]

        return self.loop.run_until_complete(call())

    def close(self) -> None:
        self._expiry.cancel()
        self.run(self.service.close)
        self.sleep(0)
        self.loop.close()

    def timers(self) -> int:
        """The number of timers on the loop."""
        return sum(not timer.cancelled() for timer in self.loop._scheduled)  # type: ignore[attr-defined]

    def connect(self, client_id: str) -> LocalConnection:
        return LocalConnection(self, client_id)

    def sleep(self, seconds: float) -> None:
        self.run(lambda: asyncio.sleep(seconds))

    def create_topic(self, name: str, partitions: int) -> None:
        self._add_topic(name, partitions)

    def delete_topic(self, name: str) -> None:
        self.image = self.image.with_topics(removed=[name])
        self.run(lambda: self.service.topics_deleted([name]))

    def _add_topic(self, name: str, partitions: int) -> None:
        images = tuple(PartitionImage(index, 0, 0, (0,), (0,), 0, 0) for index in range(partitions))
        topic = TopicImage(name, uuid_of(len(self.image.topics) + 1), images)
        self.image = self.image.with_topics([topic])

    async def _ensure(self, name: str) -> None:
        self.created.append(name)
        self.on_create()

    async def _allocate_block(self) -> ProducerIdBlock:
        first = next(self._blocks) * 1000
        return ProducerIdBlock(0, first, first + 999)

    def _elect(self) -> None:
        for partition in range(OFFSETS_PARTITIONS):
            self.service.elected(partition)

    async def _expire_offsets(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self.service.expire_offsets()


class LocalConnection:
    """A connection to `Local`: every request and answer goes through its bytes, as on a wire."""

    def __init__(self, place: Local, client_id: str, address: str = "127.0.0.1") -> None:
        self._place = place
        self._address = address
        self._client_id = client_id
        self._answers: deque[asyncio.Future[Response]] = deque()

    def send(self, request: Request, version: int) -> None:
        route = self._place.registry.routes[int(request.api_key)]
        assert route.min_version <= version <= route.max_version
        decoded = type(request).decode(memoryview(request.to_bytes(version)), version)
        context = RequestContext(version, self._client_id, self._address, "PLAINTEXT")

        async def handle() -> asyncio.Future[Response]:
            reply = route.handle(context, decoded)
            if isinstance(reply, Waiting):
                waiting: asyncio.Future[Response] = reply.future
                return waiting
            if isinstance(reply, Later):
                later: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
                reply.then(lambda of, value: None if later.cancelled() else later.set_result(of.response(value)))
                return later
            if not inspect.isawaitable(reply):
                done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
                assert reply is not None
                done.set_result(reply)
                return done
            return asyncio.ensure_future(reply)  # type: ignore[arg-type]

        self._answers.append(self._place.loop.run_until_complete(handle()))

    def receive(self, request_type: type[Request], version: int) -> Response:
        answer = self._answers.popleft()

        async def wait() -> Response:
            return await asyncio.wait_for(answer, 60)

        response = self._place.loop.run_until_complete(wait())
        decoded: Response = RESPONSE_TYPES[request_type.api_key].decode(memoryview(response.to_bytes(version)), version)
        return decoded

    def ask(self, request: Request, version: int) -> Response:
        self.send(request, version)
        return self.receive(type(request), version)

    def has_answer(self) -> bool:
        """Whether the next answer has arrived."""
        return self._answers[0].done()

    def hang_up(self) -> None:
        """Stop waiting for answers."""
        for answer in self._answers:
            answer.cancel()
        self._answers.clear()
