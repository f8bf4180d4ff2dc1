"""The same brokers with coroutines, for tests that run on an event loop.

    async with odradek.aio.Broker() as broker:
        await broker.create_topic("orders")
        async with broker.expect("orders") as got:
            await app.order("A1")

Each coroutine calls the method of `odradek.Broker` of its name on a thread, so the loop goes on.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from odradek import brokers, clusters, kafka_under_test
from odradek.control import Record
from odradek.kafka_under_test import KafkaUnderTest

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
K = TypeVar("K", bound=KafkaUnderTest)


class Wrapper(Generic[S_co]):
    """Has the methods of `sync` as coroutines."""

    def __init__(self, sync: S_co) -> None:
        self.sync = sync


def coroutine(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[Wrapper[S], P], Coroutine[Any, Any, R]]:
    """The method, called on a thread."""

    @functools.wraps(method)
    async def call(self: Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(getattr(self.sync, method.__name__), *args, **kwargs)

    return call


class Topic(Wrapper[kafka_under_test.Topic]):
    """See `odradek.Topic`."""

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self.sync.name

    produce = coroutine(kafka_under_test.Topic.produce)
    records = coroutine(kafka_under_test.Topic.records)
    earliest = coroutine(kafka_under_test.Topic.earliest)
    latest = coroutine(kafka_under_test.Topic.latest)


class Fault(Wrapper[kafka_under_test.Fault]):
    """See `odradek.Fault`."""

    @property
    def id(self) -> int:
        """The number of the fault."""
        return self.sync.id

    async def hits(self) -> int:
        """The number of requests that it has hit."""
        return await asyncio.to_thread(lambda: self.sync.hits)

    remove = coroutine(kafka_under_test.Fault.remove)
    described = coroutine(kafka_under_test.Fault.described)


def fault(method: Callable[..., kafka_under_test.Fault]) -> Callable[..., Coroutine[Any, Any, Fault]]:
    """A method that sets a fault, called on a thread."""

    @functools.wraps(method)
    async def call(self: Wrapper[brokers.Broker], /, *args: Any, **kwargs: Any) -> Fault:
        return Fault(await asyncio.to_thread(method, self.sync, *args, **kwargs))

    return call


class Clock(Wrapper[brokers.Clock]):
    """See the clock of `odradek.Broker`."""

    now = coroutine(brokers.Clock.now)
    now_ms = coroutine(brokers.Clock.now_ms)
    advance = coroutine(brokers.Clock.advance)
    freeze = coroutine(brokers.Clock.freeze)
    unfreeze = coroutine(brokers.Clock.unfreeze)
    at = coroutine(brokers.Clock.at)


class Disk(Wrapper[brokers.Disk]):
    """See the disk of `odradek.Broker`."""

    fill = coroutine(brokers.Disk.fill)
    slow = coroutine(brokers.Disk.slow)
    fail_fsync = coroutine(brokers.Disk.fail_fsync)
    heal = coroutine(brokers.Disk.heal)
    described = coroutine(brokers.Disk.described)


class Kafka(Wrapper[K]):
    """The verbs that a broker and a cluster share."""

    async def start(self) -> Self:
        """Start it; returns it when it serves."""
        await asyncio.to_thread(self.sync.start)
        return self

    async def __aenter__(self) -> Self:
        return self if self.sync.is_running else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    stop = coroutine(KafkaUnderTest.stop)
    reset = coroutine(KafkaUnderTest.reset)
    prepare_reset = coroutine(KafkaUnderTest.prepare_reset)
    snapshot = coroutine(KafkaUnderTest.snapshot)
    restore = coroutine(KafkaUnderTest.restore)
    check_faults = coroutine(KafkaUnderTest.check_faults)
    report = coroutine(KafkaUnderTest.report)

    @property
    def is_running(self) -> bool:
        """Whether it runs, and is not paused."""
        return self.sync.is_running

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return self.sync.bootstrap_servers

    def client_config(self, library: str) -> dict[str, Any]:
        """The settings for a client library; see `odradek.Broker.client_config`."""
        return self.sync.client_config(library)

    create_user = coroutine(KafkaUnderTest.create_user)

    async def create_topic(self, name: str, partitions: int = 1, **options: Any) -> Topic:
        """Create a topic."""
        return Topic(await asyncio.to_thread(self.sync.create_topic, name, partitions, **options))

    def topic(self, name: str) -> Topic:
        """A topic by its name, whether it exists or not."""
        return Topic(self.sync.topic(name))

    delete_topic = coroutine(KafkaUnderTest.delete_topic)
    alter_config = coroutine(KafkaUnderTest.alter_config)
    topics = coroutine(KafkaUnderTest.topics)
    describe_topics = coroutine(KafkaUnderTest.describe_topics)
    records = coroutine(KafkaUnderTest.records)
    produce = coroutine(KafkaUnderTest.produce)

    @asynccontextmanager
    async def expect(self, topic: str, count: int = 1, **options: Any) -> AsyncIterator[list[Record]]:
        """Wait at the end of the block until `count` records have been appended to `topic` in it."""
        expecting = self.sync.expect(topic, count, **options)
        got = await asyncio.to_thread(expecting.__enter__)
        yield got
        await asyncio.to_thread(expecting.__exit__, None, None, None)

    fail = fault(KafkaUnderTest.fail)
    delay = fault(KafkaUnderTest.delay)
    hang = fault(KafkaUnderTest.hang)
    close_connection = fault(KafkaUnderTest.close_connection)
    throttle = fault(KafkaUnderTest.throttle)
    send_half = fault(KafkaUnderTest.send_half)
    answer_twice = fault(KafkaUnderTest.answer_twice)
    double_batches = fault(KafkaUnderTest.double_batches)
    corrupt = fault(KafkaUnderTest.corrupt)
    unknown_schema = fault(KafkaUnderTest.unknown_schema)
    clear_faults = coroutine(KafkaUnderTest.clear_faults)
    requests = coroutine(KafkaUnderTest.requests)
    groups = coroutine(KafkaUnderTest.groups)
    group = coroutine(KafkaUnderTest.group)
    lag = coroutine(KafkaUnderTest.lag)
    await_assigned = coroutine(KafkaUnderTest.await_assigned)
    await_committed = coroutine(KafkaUnderTest.await_committed)
    await_lag = coroutine(KafkaUnderTest.await_lag)


class Broker(Kafka[brokers.Broker]):
    """See `odradek.Broker`."""

    def __init__(self, sync: brokers.Broker | None = None, **options: Any) -> None:
        """`options` are those of `odradek.Broker`."""
        super().__init__(brokers.Broker(**options) if sync is None else sync)

    kill = coroutine(brokers.Broker.kill)
    restart = coroutine(brokers.Broker.restart)
    pause = coroutine(brokers.Broker.pause)
    resume = coroutine(brokers.Broker.resume)
    shut_down = coroutine(brokers.Broker.shut_down)

    @property
    def state(self) -> brokers.State:
        """Whether the process runs, is paused, or has ended."""
        return self.sync.state

    @property
    def control_url(self) -> str:
        """The address of the control API."""
        return self.sync.control_url

    @property
    def control_token(self) -> str:
        """The bearer token of the control API."""
        return self.sync.control_token

    @property
    def clock(self) -> Clock:
        """The broker's time."""
        return Clock(self.sync.clock)

    @property
    def disk(self) -> Disk:
        """The broker's disk."""
        return Disk(self.sync.disk)

    compact = coroutine(brokers.Broker.compact)
    apply_retention = coroutine(brokers.Broker.apply_retention)
    faults = coroutine(brokers.Broker.faults)


class Cluster(Kafka[clusters.Cluster]):
    """See `odradek.Cluster`."""

    def __init__(self, brokers: int = 3, *, sync: clusters.Cluster | None = None, **options: Any) -> None:
        """`brokers` and `options` are those of `odradek.Cluster`."""
        super().__init__(clusters.Cluster(brokers, **options) if sync is None else sync)

    @property
    def brokers(self) -> list[int]:
        """The ids of all brokers, whether they run or not."""
        return self.sync.brokers

    def broker(self, broker_id: int) -> Broker:
        """One broker."""
        return Broker(self.sync.broker(broker_id))

    kill = coroutine(clusters.Cluster.kill)
    stop_broker = coroutine(clusters.Cluster.stop_broker)
    restart = coroutine(clusters.Cluster.restart)
    pause = coroutine(clusters.Cluster.pause)
    resume = coroutine(clusters.Cluster.resume)
    add_broker = coroutine(clusters.Cluster.add_broker)
    partition = coroutine(clusters.Cluster.partition)
    isolate = coroutine(clusters.Cluster.isolate)
    cut = coroutine(clusters.Cluster.cut)
    latency = coroutine(clusters.Cluster.latency)
    heal = coroutine(clusters.Cluster.heal)
    await_leader = coroutine(clusters.Cluster.await_leader)
    await_isr = coroutine(clusters.Cluster.await_isr)
    await_controller = coroutine(clusters.Cluster.await_controller)
    move = coroutine(clusters.Cluster.move)
    move_coordinator = coroutine(clusters.Cluster.move_coordinator)
    expire_session = coroutine(clusters.Cluster.expire_session)
