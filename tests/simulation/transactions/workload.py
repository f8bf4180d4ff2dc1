"""The transactional clients of a seed: producers that write to several partitions at once, and a loop that consumes,
transforms and produces. At times both have twins, which start with a transactional id in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from random import Random

from client.consumer import Consumer
from client.errors import ClientError
from client.groups import GroupMetadata
from client.kafka_client import KafkaClient
from protocol.errors import ApiError
from protocol.records.batch import Record
from protocol.topic_partition import TopicPartition
from tests.simulation import history
from tests.simulation.clients import Clients, Main
from tests.simulation.cluster.invariants import Invariants
from tests.simulation.plan import TopicPlan, TransactionsPlan
from tests.simulation.transactions.client_session import ClientSession
from tests.simulation.transactions.group_consumer import group_consumer
from tests.simulation.transactions.session import AbortError, FencedError, Session, UnexpectedCodeError, hold
from tests.simulation.transactions.strikes import Strikes
from tests.simulation.transactions.transactions_plan import GROUP, LOOP, PRODUCER, instances
from tests.simulation.transactions.watch import Watch
from tests.simulation.transactions.work import Work

PREFIX = b"out:"
TAIL = "transactional-tail"
WATCH = "transactional-watch"
_FIRST_COMMIT = 1_000_000
"""Other commits have lower numbers."""


_THINKS = 0.25
_THINKS_S = 3.0
"""How long producers wait at most before they end a transaction: others may take over meanwhile."""
_LOOP_SETTINGS = {
    "isolation.level": "read_committed",
    "max.poll.records": "100",
    "max.partition.fetch.bytes": "1048576",
    "fetch.min.bytes": "1",
    "fetch.max.wait.ms": "500",
}
"""Settings to keep pace: each poll is a transaction."""


def partitions_of(topic: TopicPlan) -> list[TopicPartition]:
    """The partitions of a topic."""
    return [TopicPartition(topic.name, number) for number in range(topic.partitions)]


class Workload:
    """The transactional clients. Producers end by themselves; the loop and the reader do not."""

    def __init__(self, clients: Clients, plan: TransactionsPlan, invariants: Invariants) -> None:
        self.clients = clients
        self.strikes = Strikes(clients, invariants, plan.strike_chance)
        self.plan = plan
        self.inputs = partitions_of(plan.inputs)
        self.outputs = partitions_of(plan.outputs)
        self.was_read = False
        """Whether `read_transactions` is done."""
        self.ends: dict[TopicPartition, int] = {}
        """The ends of the logs, once `find_ends` has found them stable."""
        self.positions: dict[str, dict[TopicPartition, int]] = {LOOP: {}, TAIL: {}}
        """The positions of the loop and of the reader."""
        self._world = clients.world
        self._rng = Random(f"workload {self._world.seed}")
        self.rests = False
        """Whether the loop starts no further transactions. An instance may have fetched, before it left the group,
        records that another one has processed since; it writes them again, in a transaction that is aborted.
        """
        self._busy: dict[str, None] = {}
        self._writing: dict[str, None] = {}
        """The loop's instances that have a transaction open."""
        self._commits = _FIRST_COMMIT

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions of the workload's topics."""
        return [*self.inputs, *self.outputs]

    @property
    def is_idle(self) -> bool:
        """Whether all producers have ended. The loop never does."""
        return not self._busy

    @property
    def is_at_rest(self) -> bool:
        """Whether all writes have ended."""
        return self.rests and not self._writing

    def lagging(self) -> list[str]:
        """The readers that have not reached the log ends, and the offsets they lack."""
        lacking = []
        for name, partitions in ((LOOP, self.inputs), (TAIL, self.partitions)):
            positions = self.positions[name]
            lacking += [f"{name}: {each}" for each in partitions if positions.get(each, 0) < self.ends.get(each, 0)]
        return lacking

    def invoke_commits(self, offsets: dict[TopicPartition, int]) -> list[int]:
        """Record offsets of the loop before they are committed; returns the numbers of the commits."""
        clients, numbers = self.clients, []
        for partition, offset in offsets.items():
            self._commits += 1
            numbers.append(self._commits)
            log = clients.log_of(partition)
            clients.feed(history.CommitInvoked(clients.now_s, GROUP, log, self._commits, offset, None))
        return numbers

    def new_session(self, client: KafkaClient, transactional_id: str) -> Session | ClientSession:
        """A producer of a transactional id, of the kind in the plan."""
        plan = self.plan
        if transactional_id not in plan.client_ids:
            return Session(client, transactional_id, plan.timeout_ms, plan.give_up_s)
        clock = self.clients.machines[0].clock
        return ClientSession(
            client,
            transactional_id,
            plan.timeout_ms,
            plan.give_up_s,
            plan.request_timeout_ms,
            lambda: clock.now_ms() - clock.skew_ms,
        )

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all clients, and their twins later."""
        names = [f"{PRODUCER}-{number}" for number in range(self.plan.producers)]
        for name in names:
            self._start(name, partial(self._produce, name))
        loops = instances(self.plan.instances) or [LOOP]
        for name in loops:
            self._start(name, partial(self._loop, name))
        self._start(TAIL, self._tail)
        if self.plan.instances:
            watch = Watch(self.clients, self.strikes)
            self._start(f"{WATCH}-logs", lambda client, _: watch.watch_logs(client, self.partitions))
            self._start(f"{WATCH}-group", lambda client, _: watch.watch_group(client, GROUP, self.inputs))
        for name in (*names, *loops):
            for _ in range(self.plan.twins):
                seconds = self._rng.uniform(5.0, 0.9 * self.clients.plan.active_s)
                self._world.kernel_later(seconds, partial(self._start_twin, name))

    def _start(self, name: str, main: Main) -> None:
        self.clients.start(name, main, {"request.timeout.ms": str(self.plan.request_timeout_ms)})

    def _start_twin(self, name: str) -> None:
        twin = f"{name}-twin"
        if twin in self._busy or self.clients.is_over:
            return
        is_loop = name.startswith(LOOP)
        main = partial(self._loop if is_loop else self._produce, name, is_twin=True)
        self._start(twin, main)

    # -- producers -----------------------------------------------------------------------------------------------------

    async def _produce(self, transactional_id: str, client: KafkaClient, reader: str, *, is_twin: bool = False) -> None:
        name = reader.partition("/")[0]
        self._busy[name] = None
        rng = Random(f"{self._world.seed} {reader}")
        left = rng.randint(1, 4) if is_twin else 1_000_000
        while left and not self.clients.is_over:
            work = Work(self, client, transactional_id, reader)
            try:
                await work.begin()
                while left and not self.clients.is_over:
                    left -= 1
                    is_last = is_twin and not left and rng.random() < 0.5
                    await self._transact(work, rng, leaves_open=is_last)
                    await asyncio.sleep(rng.random() * self.plan.pause_s)
            except FencedError as error:
                self._world.trace.note(reader, f"is fenced: {error}")
                if is_twin:
                    break
                await asyncio.sleep(rng.random() * 3)
            finally:
                await work.session.close()
        twin = f"{transactional_id}-twin"
        if self.plan.closes and not is_twin:
            while twin in self._busy and self.clients.processes[twin].alive:
                await asyncio.sleep(0.1)
            work = Work(self, client, transactional_id, reader)
            await work.begin()
            await work.session.close()
        self._busy.pop(name, None)

    async def _transact(self, work: Work, rng: Random, *, leaves_open: bool) -> None:
        """Run one transaction. Raises FencedError."""
        transaction = work.next_transaction()
        chosen = rng.sample(self.inputs, rng.randint(2, len(self.inputs)))
        commit = rng.random() >= self.plan.abort_chance
        try:
            if rng.random() < 0.5:
                await work.session.add(chosen)
            for partition in chosen:
                await work.session.add([partition])
                for number in range(rng.randint(1, 2)):
                    values = [b"%s %s %d" % (transaction.encode(), str(partition).encode(), number)]
                    await work.write(transaction, partition, values)
            if isinstance(work.session, Session) and rng.random() < self.plan.hold_chance:
                commit = False
                await self._hold_one(work, work.session, transaction, rng.choice(chosen), rng)
        except AbortError:
            commit = False
        except UnexpectedCodeError as error:
            self.clients.trouble(work.name, error)
            commit = False
        if rng.random() < _THINKS:
            await asyncio.sleep(rng.random() * _THINKS_S)
        if leaves_open or (self.clients.is_over and not self.plan.closes and rng.random() < 0.5):
            return
        try:
            await work.end(transaction, commit=commit)
        except UnexpectedCodeError as error:
            self.clients.trouble(work.name, error)

    async def _hold_one(
        self, work: Work, session: Session, transaction: str, partition: TopicPartition, rng: Random
    ) -> None:
        """Send one more record, on a connection that is held back until the transaction was aborted. Jepsen found such
        records in later transactions.
        """
        values = [b"%s %s held" % (transaction.encode(), str(partition).encode())]
        try:
            connection = await session.leader(partition)
        except (ClientError, ApiError) as error:  # none exists now
            raise AbortError(str(error)) from error
        work.invoke(transaction, partition, values)
        release = hold(connection)
        self._world.trace.note(work.name, f"has a request for {partition} held back")
        session.write_once(connection, partition, values)
        self._world.kernel_later(rng.choice([0.5, 2.0, 10.0]) * rng.random(), release)
        await asyncio.sleep(rng.random() * 0.5)

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _loop(self, transactional_id: str, client: KafkaClient, reader: str, *, is_twin: bool = False) -> None:
        rng = Random(f"{self._world.seed} {reader}")
        name = reader.partition("/")[0]
        if is_twin:
            self._busy[name] = None
        left = rng.randint(1, 4) if is_twin else -1
        self._writing.pop(name, None)  # it may have been killed inside a transaction
        while left and not (is_twin and self.clients.is_over):
            work = Work(self, client, transactional_id, reader)
            consumer = self._consumer_of_loop(client, reader)
            try:
                await work.begin()
                if consumer.assignment:
                    await self.seek(work, consumer, reader)
                while left and not (is_twin and self.clients.is_over):
                    left -= 1
                    if not await self.transform(work, consumer, reader, rng):
                        await self.seek(work, consumer, reader)
            except FencedError as error:
                self._world.trace.note(reader, f"is fenced: {error}")
                if is_twin:
                    break
                await asyncio.sleep(rng.random() * 3)
            finally:
                await consumer.close()
                await work.session.close()
        self._busy.pop(name, None)

    def _consumer_of_loop(self, client: KafkaClient, reader: str) -> Consumer:
        if self.plan.instances:
            return group_consumer(self.clients, self.plan, client, reader, _LOOP_SETTINGS)
        consumer = Consumer(client, self.clients.consumer_settings(_LOOP_SETTINGS))
        consumer.assign(self.inputs)
        return consumer

    async def seek(self, work: Work, consumer: Consumer, reader: str) -> None:
        """Seek to the end of the last committed transaction."""
        clients = self.clients
        invoked = clients.now_s
        partitions = consumer.assignment
        offsets = await work.session.stable_offsets(GROUP, partitions)
        for partition in partitions:
            offset, log = offsets.get(partition), clients.log_of(partition)
            clients.feed(history.CommittedOffset(invoked, clients.now_s, GROUP, log, offset))
            consumer.seek(partition, offset or 0)
            clients.feed(history.Positioned(clients.now_s, reader, log, offset or 0))

    async def transform(self, work: Work, consumer: Consumer, reader: str, rng: Random) -> bool:
        """Process the available input in one transaction; returns whether it was committed or empty."""
        taken = await self.clients.poll(consumer, reader, LOOP)
        if not taken:
            self._reached(LOOP, consumer)
            return True
        if self.rests:
            return True
        name = reader.partition("/")[0]
        self._writing[name] = None
        try:
            return await self._write(work, consumer, reader, rng, taken)
        finally:
            self._writing.pop(name, None)

    async def _write(
        self, work: Work, consumer: Consumer, reader: str, rng: Random, taken: dict[TopicPartition, list[Record]]
    ) -> bool:
        transaction = work.next_transaction()
        self._note(reader, taken)
        offsets = {partition: records[-1].offset + 1 for partition, records in taken.items()}
        commit = self.clients.is_over or rng.random() >= self.plan.abort_chance
        try:
            await work.session.add(self.outputs)
            for records in taken.values():
                values = [b"%s%s@%s" % (PREFIX, record.value, transaction.encode()) for record in records]
                await work.write(transaction, rng.choice(self.outputs), values)
            await work.commit_offsets(consumer.group_metadata if self.plan.instances else GroupMetadata(GROUP), offsets)
        except AbortError:
            commit = False
        except UnexpectedCodeError as error:
            self.clients.trouble(work.name, error)
            commit = False
        if not await work.end(transaction, commit=commit, offsets=offsets):
            return False
        self._reached(LOOP, consumer)
        return True

    # -- readers -------------------------------------------------------------------------------------------------------

    async def _tail(self, client: KafkaClient, reader: str) -> None:
        """Read everything committed from the start, forever."""
        clients = self.clients
        consumer = Consumer(client, clients.consumer_settings({"isolation.level": "read_committed"}))
        consumer.assign(self.partitions)
        for partition in self.partitions:
            consumer.seek(partition, 0)
            clients.feed(history.Positioned(clients.now_s, reader, clients.log_of(partition), 0))
        while True:
            self._note(reader, await clients.poll(consumer, reader, TAIL))
            self._reached(TAIL, consumer)

    def _note(self, reader: str, taken: Mapping[TopicPartition, list[Record]]) -> None:
        clients = self.clients
        for partition, records in taken.items():
            log = clients.log_of(partition)
            for record in records:
                clients.feed(history.Read(clients.now_s, reader, log, record.offset, bytes(record.value)))

    def _reached(self, name: str, consumer: Consumer) -> None:
        for partition in consumer.assignment:
            reached = self.positions[name]
            reached[partition] = max(consumer.position(partition) or 0, reached.get(partition, 0))
