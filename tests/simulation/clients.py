"""The clients of a seed: our own producer, consumer and admin functions, each in a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

from client import admin
from client.consumer import Consumer
from client.errors import ClientError
from client.groups import OffsetAndMetadata, fetch_offsets
from client.kafka_client import KafkaClient
from client.producer import Producer
from client.settings import ClientSettings, ConsumerSettings, ProducerSettings
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from tests.simulation import history
from tests.simulation.history import FAILED, OK, UNKNOWN
from tests.simulation.loop import Process
from tests.simulation.plan import Plan, ProducerPlan
from tests.simulation.topics import Topics
from tests.simulation.world import Machine, World

_REFUSED_SEND = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_TIMESTAMP})
_REFUSED_COMMIT = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)
_HARMLESS = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""Codes that are acceptable, though no retry cures them."""

Feed = Callable[[history.Event], None]
Main = Callable[[KafkaClient, str], Coroutine[Any, Any, None]]
"""The main function of a client process; it gets a client and the client's name as a reader."""


class Clients:
    """Starts clients of one cluster, which may be one broker, and records what they see."""

    def __init__(self, world: World, machines: list[Machine], plan: Plan, feed: Feed) -> None:
        self.world = world
        self.machines = machines
        self.cluster = machines[0].name if len(machines) == 1 else "cluster"
        """The first part of the names of its logs."""
        self.plan = plan
        self.processes: dict[str, Process] = {}
        self.unsent = 0
        """Records that a producer accepted, and that are neither delivered nor failed."""
        self.is_over = False
        """Whether producers have stopped sending."""
        self.reached: dict[str, dict[TopicPartition, int]] = {}
        """The offset after the furthest record read, by client name ("group" for all members) and partition."""
        self.topics = Topics(world, plan, self.cluster, feed, self._topic_deleted)
        self.damaged: dict[str, dict[int, None]] = {}
        """Offsets whose records the disk has lost, by log."""
        self.feed = feed
        self._lives: dict[str, int] = {}
        self._mains: dict[str, tuple[Main, Mapping[str, str]]] = {}
        self._commits = 0
        self._rng = Random(f"clients {world.seed}")

    def _topic_deleted(self, topic: str) -> None:
        """Readers start the next topic of the name from its beginning."""
        for reached in self.reached.values():
            for partition in [each for each in reached if each.topic == topic]:
                del reached[partition]
        for log in [each for each in self.damaged if each.startswith(f"{self.cluster}/{topic}-")]:
            del self.damaged[log]

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self, name: str, main: Main, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start a process of that name which runs `main` with a client configured with `settings`."""
        self._mains[name] = main, settings
        life = self._lives[name] = self._lives.get(name, 0) + 1
        process = self.processes[name] = Process(name, life)
        self.world.trace.note(name, f"starts, life {life}")
        self.world.loop.spawn(process, self._main(name, f"{name}/{life}"))

    def start_again(self, name: str) -> None:
        """Replace the process of this name if it was killed."""
        if not self.processes[name].alive:
            self.start(name, *self._mains[name])

    async def _main(self, name: str, reader: str) -> None:
        main, given = self._mains[name]
        addresses = ",".join(machine.address for machine in self.machines)
        common = {"bootstrap.servers": addresses, "client.id": name, **self.plan.client}
        settings = ClientSettings.parse({**common, **given})
        rng = Random(f"{name} {self.world.seed} {reader}")
        try:
            async with KafkaClient(settings, rng, self.world.network.of(name)) as client:
                await main(client, reader)
        except (ApiError, ClientError) as error:
            self.trouble(name, error)

    def trouble(self, name: str, error: Exception) -> None:
        """Record an error that no client should meet."""
        check = "C16" if isinstance(error, ApiError) and error.error_code == ErrorCode.CORRUPT_MESSAGE else "C15"
        self.feed(history.Trouble(self.now_s, check, f"{name}: {type(error).__name__}: {error}"))

    def kill(self, name: str) -> None:
        """kill -9 of a client."""
        process = self.processes[name]
        self.world.trace.note(name, "is killed")
        self.world.loop.kill(process)
        self.world.network.process_died(process)

    @property
    def now_s(self) -> float:
        """The world's time."""
        return self.world.loop.time()

    def log_of(self, partition: TopicPartition) -> str:
        """The name of a log in the history."""
        return f"{self.cluster}/{partition.topic}-{partition.partition}"

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions of the plan's topics."""
        return [TopicPartition(each.name, number) for each in self.plan.topics for number in range(each.partitions)]

    # -- producers -----------------------------------------------------------------------------------------------------

    def start_producers(self) -> None:
        """Start one process for each producer."""
        for plan in self.plan.producers:
            self.start(plan.name, lambda client, _reader, plan=plan: self._produce(client, plan))

    async def _produce(self, client: KafkaClient, plan: ProducerPlan) -> None:
        rng = Random(f"{plan.name} {self.world.seed}")
        partitions = [each for each in self.partitions if each.topic == plan.topic]
        clock = self.machines[0].clock
        pause_s = 2 * self.plan.active_s / plan.records * (plan.most_at_once + 1) / 2
        filler = b"." * plan.value_bytes
        number = 0
        producer = Producer(client, ProducerSettings.parse(plan.settings), lambda: clock.now_ms() - clock.skew_ms)
        while number < plan.records and not self.is_over:
            for _ in range(rng.randint(1, plan.most_at_once)):
                number += 1
                partition = rng.choice(partitions)
                value = b"%s %d %d%s" % (plan.name.encode(), self._lives[plan.name], number, filler)
                log = self.log_of(partition)
                self.feed(history.SendInvoked(self.now_s, plan.name, log, value, plan.idempotent))
                self.unsent += 1
                try:
                    sent = await producer.send(partition.topic, value, partition=partition.partition)
                except (ApiError, ClientError) as error:
                    self._settle(plan.name, log, value, FAILED, -1)
                    self.trouble(plan.name, error)
                else:
                    sent.add_done_callback(partial(self._sent, plan, log, value))
            if self.plan.keeps_pace:
                left_s = max(0.9 * self.plan.active_s - self.now_s, 0.0)
                pause_s = left_s * (plan.most_at_once + 1) / max(plan.records - number, 1)
            await asyncio.sleep(rng.random() * pause_s)
        await producer.flush()
        self.world.trace.note(plan.name, f"has sent {number} records")

    def _sent(self, plan: ProducerPlan, log: str, value: bytes, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._settle(plan.name, log, value, OK, future.result().offset)
            return
        code = error.error_code if isinstance(error, ApiError) else None
        self._settle(plan.name, log, value, FAILED if code in _REFUSED_SEND else UNKNOWN, -1)
        assert isinstance(error, Exception)
        # A recreated topic accepts any sequence as the producer's first, even of a batch that has predecessors.
        if code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not self.topics.was_renewed(plan.topic):
            self.trouble(plan.name, error)

    def _settle(self, _name: str, log: str, value: bytes, outcome: str, offset: int) -> None:
        self.unsent -= 1
        self.feed(history.SendDone(self.now_s, log, value, outcome, offset))

    # -- readers -------------------------------------------------------------------------------------------------------

    async def tail(self, client: KafkaClient, reader: str) -> None:
        """Read everything from the start, forever."""
        consumer = Consumer(client, self.consumer_settings({"auto.offset.reset": "earliest"}))
        consumer.assign(self.partitions)
        for partition in self.partitions:
            self.feed(history.Positioned(self.now_s, reader, self.log_of(partition), 0))
        while True:
            self._note_records(reader, "tail", await self.poll(consumer, reader, "tail"))

    async def poll(self, consumer: Consumer, reader: str, name: str) -> Mapping[TopicPartition, list[Any]]:
        """The next records of a consumer; none on an error that a reader would retry."""
        try:
            return await consumer.poll(1.0)
        except ApiError as error:
            if error.error_code == ErrorCode.CORRUPT_MESSAGE:
                self._pass_damage(consumer, reader, name, error)
                await asyncio.sleep(0.1)
                return {}
            if error.error_code not in _HARMLESS and not error.error_code.retriable:
                raise
            await asyncio.sleep(0.1)
            return {}

    def _pass_damage(self, consumer: Consumer, reader: str, name: str, error: ApiError) -> None:
        """Seek behind the damage, as the broker's documentation tells operators; without damage it is trouble."""
        passed = False
        for partition in consumer.assignment:
            log = self.log_of(partition)
            position = behind = consumer.position(partition)
            while behind is not None and behind in self.damaged.get(log, {}):
                behind += 1
            if behind is not None and behind != position:
                consumer.seek(partition, behind)
                reached = self.reached.setdefault(name, {})
                reached[partition] = max(behind, reached.get(partition, 0))
                self.feed(history.Positioned(self.now_s, reader, log, behind))
                passed = True
        if not passed:
            self.trouble(name, error)

    def _note_records(self, reader: str, name: str, taken: Mapping[TopicPartition, list[Any]]) -> None:
        reached = self.reached.setdefault(name, {})
        for partition, records in taken.items():
            log = self.log_of(partition)
            reached[partition] = max(records[-1].offset + 1, reached.get(partition, 0))
            for record in records:
                self.feed(history.Read(self.now_s, reader, log, record.offset, bytes(record.value)))

    def consumer_settings(self, given: dict[str, str]) -> ConsumerSettings:
        """The plan's settings, and `given`."""
        return ConsumerSettings.parse({**self.plan.consumer, **given})

    # -- groups --------------------------------------------------------------------------------------------------------

    async def be_member(self, client: KafkaClient, reader: str) -> None:
        """Read as a member of the group, and commit what was read, forever."""
        timeout_ms = self.plan.session_timeout_ms
        consumer = Consumer(
            client,
            self.consumer_settings(
                {
                    "group.id": "group",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": "false",
                    "session.timeout.ms": str(timeout_ms),
                    "heartbeat.interval.ms": str(timeout_ms // 4),
                    "max.poll.interval.ms": "20000",
                }
            ),
        )
        consumer.subscribe([each.name for each in self.plan.topics], Listener(self, consumer, reader, "group"))
        while True:
            taken = await self.poll(consumer, reader, "group")
            self._note_records(reader, "group", taken)
            if taken and self._rng.random() < 0.7:
                await self._commit(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        member = consumer._member
        assert member is not None
        numbers = []
        offsets = {}
        for partition in consumer.assignment:
            position = consumer.position(partition)
            if position is None:
                continue
            self._commits += 1
            numbers.append(self._commits)
            offsets[partition] = OffsetAndMetadata(position)
            self.feed(
                history.CommitInvoked(
                    self.now_s, "group", self.log_of(partition), self._commits, position, member.generation
                )
            )
        outcome = OK
        try:
            await consumer.commit(offsets)
        except ApiError as error:
            outcome = FAILED if error.error_code in _REFUSED_COMMIT and len(offsets) == 1 else UNKNOWN
            if error.error_code not in _HARMLESS and not error.error_code.retriable:
                self.trouble("group", error)
        except ClientError:
            outcome = UNKNOWN
        for number in numbers:
            self.feed(history.CommitDone(self.now_s, number, outcome))

    # -- watching ------------------------------------------------------------------------------------------------------

    async def watch(self, client: KafkaClient, _reader: str) -> None:
        """Ask the broker from time to time where logs end, who leads, and what the group has committed."""
        while True:
            await asyncio.sleep(self._rng.random() * 3)
            try:
                await self.look(client)
            except (ApiError, ClientError) as error:
                if isinstance(error, ApiError) and not error.error_code.retriable:
                    raise

    async def look_once(self, client: KafkaClient, _reader: str) -> None:
        """Ask once, when every broker must be up to date."""
        with suppress(ApiError, ClientError):
            await self.look(client)

    async def look(self, client: KafkaClient) -> None:
        """Ask once. Raises ApiError and ClientError."""
        invoked = self.now_s
        ends = await admin.list_offsets(client, dict.fromkeys(self.partitions, admin.LATEST_TIMESTAMP), retry=False)
        for partition, end in ends.items():
            if not isinstance(end, ApiError):
                self.feed(history.EndOffset(invoked, self.now_s, self.log_of(partition), end.offset))
        invoked = self.now_s
        metadata = await client.fetch_metadata([each.name for each in self.plan.topics])
        for partition in self.partitions:
            known = metadata.partition(*partition)
            if known is not None and known.leader >= 0:
                self.feed(history.LeaderEpoch(invoked, self.now_s, self.log_of(partition), known.leader_epoch))
        if self.plan.members:
            invoked = self.now_s
            committed = await fetch_offsets(client, "group", self.partitions)
            for partition in self.partitions:
                offset = committed[partition].offset if partition in committed else None
                self.feed(history.CommittedOffset(invoked, self.now_s, "group", self.log_of(partition), offset))

    async def read_all(self, client: KafkaClient, reader: str) -> None:
        """Read every log from its start to its end."""
        starts = await admin.list_offsets(client, dict.fromkeys(self.partitions, admin.EARLIEST_TIMESTAMP))
        ends = await admin.list_offsets(client, dict.fromkeys(self.partitions, admin.LATEST_TIMESTAMP))
        crcs = self.plan.consumer["check.crcs"]
        consumer = Consumer(client, ConsumerSettings.parse({"auto.offset.reset": "earliest", "check.crcs": crcs}))
        consumer.assign(self.partitions)
        found: dict[TopicPartition, list[tuple[int, bytes]]] = {each: [] for each in self.partitions}
        bounds: dict[TopicPartition, tuple[int, int]] = {}
        for partition in self.partitions:
            start, end = starts[partition], ends[partition]
            if isinstance(start, ApiError) or isinstance(end, ApiError):
                raise start if isinstance(start, ApiError) else ClientError(str(end))
            bounds[partition] = start.offset, end.offset
            consumer.seek(partition, start.offset)
        while any((consumer.position(each) or 0) < bounds[each][1] for each in self.partitions):
            for partition, records in (await self.poll(consumer, reader, "auditor")).items():
                found[partition] += [(record.offset, bytes(record.value)) for record in records]
        # If all records of a log are deleted, no reader gets to its end.
        self.ends = {partition: end for partition, (start, end) in bounds.items() if start < end}
        for partition, (start, end) in bounds.items():
            self.feed(history.FinalRead(self.now_s, self.log_of(partition), start, end, tuple(found[partition])))
        await consumer.close()
        self.everything_read = True

    everything_read = False
    ends: Mapping[TopicPartition, int] = {}

    def lagging(self, name: str) -> list[str]:
        """The logs whose ends a reader has not reached."""
        reached = self.reached.get(name, {})
        return [self.log_of(each) for each, end in self.ends.items() if reached.get(each, 0) < end]


class Listener:
    """Records the partitions that a member owns."""

    def __init__(self, clients: Clients, consumer: Consumer, reader: str, group: str) -> None:
        self._clients = clients
        self._group = group
        self._consumer = consumer
        self._reader = reader

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        clients = self._clients
        member = self._consumer._member
        assert member is not None
        for partition in partitions:
            clients.feed(history.Positioned(clients.now_s, self._reader, clients.log_of(partition), None))
        logs = tuple(clients.log_of(each) for each in member.owned)
        clients.feed(history.Assigned(clients.now_s, self._group, member.generation, self._reader, logs))

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Do nothing: the checker does not use revocations."""
