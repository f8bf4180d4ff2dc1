"""A producer's transactions: their states, and the requests to coordinators (Kafka class `TransactionManager`).

At most one request to a coordinator is in flight. If its response is lost, it is retried before any other request,
because the coordinator's partitions must be known before the transaction ends. Errors are classified as in Kafka's
client: after an abortable one the caller aborts the transaction and the producer continues; after a fatal one, such as
fencing by a successor, the producer is unusable. It is unknown whether the broker has a batch that was given up, so the
producer continues with a higher epoch after the abort (KIP-360).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from client.batches import ProducerId
from client.errors import (
    ClientError,
    ClientTimeoutError,
    DisconnectedError,
    TransactionError,
    raise_for,
)
from client.groups import GroupMetadata, OffsetAndMetadata
from client.kafka_client import COORDINATOR_ERRORS, TRANSACTION, Coordinator, CoordinatorType, KafkaClient
from client.settings import ProducerSettings
from client.transactions.transaction_requests import (
    ABORTABLE,
    ABORTABLE_FOR_PRODUCER_ID,
    ADD_PARTITIONS_VERSION,
    FATAL_FOR_BATCHES,
    FATAL_FOR_PARTITIONS,
    LOST_IDENTITY,
    ProducerIdentity,
    State,
    TransactionManagerState,
    add_offsets,
    add_partitions,
    commit_offsets,
    end,
    raise_for_offsets,
    raise_for_partitions,
)
from protocol.errors import ApiError, EncodeError, ErrorCode
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.clients.Producer")


class TransactionManager(TransactionManagerState):
    """The transactions of one producer. `flush` sends queued batches, or fails those that must not be sent any more,
    and returns when all batches are settled. Requires brokers of Kafka 2.5 or later.
    """

    def __init__(self, client: KafkaClient, settings: ProducerSettings, transactional_id: str) -> None:
        super().__init__(transactional_id)
        self._client = client
        self._settings = settings
        self._coordinator = Coordinator(client, transactional_id, CoordinatorType.TRANSACTION, TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        self._new: dict[TopicPartition, None] = {}
        """Partitions with records that are not part of a request yet."""
        self._asked: list[TopicPartition] = []
        """Partitions in requests without a response yet."""
        self._partitions: set[TopicPartition] = set()
        self._has_begun = False
        """Whether the coordinator knows the transaction."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._lock = asyncio.Lock()

    # -- for the producer ----------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Get a producer id, which fences predecessors and ends their transaction; see `Producer.init_transactions`."""
        await self._perform("initTransactions", "InitProducerId", self._begin_init)

    def begin(self) -> None:
        """Begin a transaction. The coordinator learns of it with its first partition."""
        self.check("beginTransaction", State.READY, to=State.IN_TRANSACTION)
        self.state = State.IN_TRANSACTION

    def add(self, partition: TopicPartition) -> None:
        """Add `partition` to the transaction before a record for it is queued. Raises IllegalStateError and
        TransactionError.
        """
        if self.state is not State.IN_TRANSACTION or self.pending is not None:
            self.refuse_partition(partition)
        if partition not in self._partitions and partition not in self._asked:
            self._new[partition] = None

    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        self.check("sendOffsetsToTransaction", State.IN_TRANSACTION, to=State.IN_TRANSACTION)
        if group.generation > 0 and not group.member_id:
            raise ClientError(f"Passed in group metadata {group} has generationId > 0 but member.id unknown")
        if not offsets:
            return
        task = self._start(self._send_offsets(dict(offsets), group))
        await self._await(task, "AddOffsetsToTxn")

    async def commit(self, flush: Callable[[], Awaitable[None]]) -> None:
        """See `Producer.commit_transaction`."""

        def begin() -> Coroutine[None, None, None]:
            self.check("commitTransaction", State.IN_TRANSACTION, to=State.COMMITTING)
            self.state = State.COMMITTING
            return self._finish(flush, commit=True)

        await self._perform("commitTransaction", "EndTxn(true)", begin)

    async def abort(self, flush: Callable[[], Awaitable[None]]) -> None:
        """See `Producer.abort_transaction`."""

        def begin() -> Coroutine[None, None, None]:
            if self.state is not State.ABORTABLE_ERROR:
                self.check("abortTransaction", State.IN_TRANSACTION, to=State.ABORTING)
            self.state = State.ABORTING
            self._new.clear()
            return self._finish(flush, commit=False)

        await self._perform("abortTransaction", "EndTxn(false)", begin)

    async def close(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Wait for a pending commit, and abort an open transaction. Errors are only logged."""
        try:
            if self.pending is not None and self.state is not State.INITIALIZING:
                await self._await(self.pending, self.pending.get_name())
            elif self.state in {State.IN_TRANSACTION, State.ABORTABLE_ERROR}:
                logger.info("Aborting incomplete transaction due to shutdown")
                await self.abort(flush)
        except ClientError as error:
            logger.warning("The transaction of %s was not ended: %s", self.transactional_id, error)

    async def stop(self) -> None:
        """Cancel pending calls."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- for the sender ------------------------------------------------------------------------------------------------

    @property
    def drops_queued(self) -> Exception | None:
        """The reason why queued records that were never sent must fail, or None to send them."""
        if self.error is not None:
            return self.error.cause
        if self.state is State.ABORTING:
            return ClientError("Failing batch since transaction was aborted")
        return None

    @property
    def drops_all(self) -> bool:
        """Whether records waiting for a retry must fail as well."""
        return self.state is State.FATAL_ERROR

    def has(self, partition: TopicPartition) -> bool:
        """Whether the coordinator has added the partition, so that batches may be sent to it."""
        return partition in self._partitions

    async def add_partitions(self) -> None:
        """Send new partitions of the transaction to the coordinator, if any, in one attempt.

        Raises DisconnectedError, and ApiError with a retriable code, when a retry is necessary.
        """
        if self._asked or self._new:
            async with self._lock:
                if self._asked or self._new:
                    await self._add_partitions()

    def batch_failed(self, error: Exception) -> None:
        """Fail the transaction because a batch was given up, which may or may not be in the log."""
        is_fatal = isinstance(error, ApiError) and error.error_code in FATAL_FOR_BATCHES
        if is_fatal or self.state not in {State.ABORTING, State.FATAL_ERROR}:
            self.fail(error, is_fatal=is_fatal)
        self.must_bump_epoch = True

    # -- retryable calls -----------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[None, None, None], name: str | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # retrieve the exception even without a waiter: the state has it

    async def _perform(self, method: str, what: str, begin: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a call and wait for it; called again after a timeout, wait for the same call."""
        if self.pending is None:
            self.pending = self._start(begin(), method)
        elif self.pending.get_name() != method:
            self.check_pending(method)
        await self._await(self.pending, what)

    async def _await(self, task: asyncio.Task[None], what: str) -> None:
        done, _ = await asyncio.wait({task}, timeout=self._settings.max_block_ms / 1000)
        if not done:
            raise ClientTimeoutError(f"Timeout expired after {self._settings.max_block_ms}ms while awaiting {what}")
        if self.pending is task:
            self.pending = None
        if task.cancelled():
            raise ClientError("The producer closed forcefully")
        task.result()

    def _begin_init(self) -> Coroutine[None, None, None]:
        self.check("initTransactions", State.UNINITIALIZED, to=State.INITIALIZING)
        self.state = State.INITIALIZING
        return self._init()

    async def _init(self) -> None:
        async with self._lock:
            await self._get_producer_id()
            self.state = State.READY

    async def _get_producer_id(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
        )

        async def attempt() -> None:
            answer = await self._coordinator.ask(request, InitProducerIdResponse)
            raise_for(answer.error_code, "InitProducerId")
            self.producer = ProducerId(answer.producer_id, answer.producer_epoch)

        await self._repeat(self._coordinator, attempt, ABORTABLE_FOR_PRODUCER_ID)
        self.must_bump_epoch = False

    async def _finish(self, flush: Callable[[], Awaitable[None]], *, commit: bool) -> None:
        await flush()
        async with self._lock:
            if commit:
                self.raise_error()
            if self._asked:
                await self._repeat(self._coordinator, self._add_partitions)
            if commit or self.state is State.FATAL_ERROR:
                self.raise_error()
            if self._has_begun:
                await self._end(commit=commit)
            if self.must_bump_epoch and self.producer != ProducerId():
                await self._get_producer_id()
            self._partitions.clear()
            self._has_begun = False
            self.error = None
            self.state = State.UNINITIALIZED if self.producer == ProducerId() else State.READY

    async def _end(self, *, commit: bool) -> None:
        request = end(self._identity, commit=commit)

        async def attempt() -> None:
            answer = await self._coordinator.ask(request, EndTxnResponse)
            if not commit and answer.error_code in LOST_IDENTITY:
                self.must_bump_epoch = True  # the transaction no longer needs an abort
                return
            raise_for(answer.error_code, "EndTxn")

        await self._repeat(self._coordinator, attempt)

    async def _add_partitions(self) -> None:
        """Make one attempt; a permanent error changes the state."""
        if not self._asked:
            self._asked = list(self._new)
            self._new.clear()
        request = add_partitions(self._identity, self._asked)
        try:
            answer = await self._coordinator.ask(request, AddPartitionsToTxnResponse, at_most=ADD_PARTITIONS_VERSION)
            raise_for_partitions(answer)
        except DisconnectedError:
            self._coordinator.forget()
            raise
        except ApiError as error:
            if error.error_code.retriable:
                self._forget_if_moved(self._coordinator, error.error_code)
                raise
            self._asked = []
            self.refused(error, is_fatal=error.error_code in FATAL_FOR_PARTITIONS)
        except (ClientError, EncodeError) as error:
            self._asked = []
            self.fail(error, is_fatal=True)
        else:
            self._partitions.update(self._asked)
            self._asked = []
            self._has_begun = True

    async def _send_offsets(self, offsets: dict[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        group_coordinator = self._groups.get(group.group_id)
        if group_coordinator is None:
            group_coordinator = Coordinator(self._client, group.group_id, CoordinatorType.GROUP, TRANSACTION)
            self._groups[group.group_id] = group_coordinator

        async def add() -> None:
            answer = await self._coordinator.ask(add_offsets(self._identity, group), AddOffsetsToTxnResponse)
            raise_for(answer.error_code, f"AddOffsetsToTxn of group '{group.group_id}'")

        async def commit() -> None:
            self.raise_error()
            request = commit_offsets(self._identity, group, offsets)
            answer = await group_coordinator.ask(request, TxnOffsetCommitResponse)
            raise_for_offsets(answer, offsets, group)

        async with self._lock:
            self.raise_error()
            await self._repeat(self._coordinator, add)
            self._has_begun = True
            await self._repeat(group_coordinator, commit, ABORTABLE - LOST_IDENTITY)

    async def _repeat(
        self,
        coordinator: Coordinator,
        attempt: Callable[[], Awaitable[None]],
        abortable: frozenset[ErrorCode] = ABORTABLE,
    ) -> None:
        """Retry until the response is final. Raises TransactionError."""
        backoff = self._client.backoff()
        while True:
            try:
                return await attempt()
            except TransactionError:
                raise
            except DisconnectedError as error:
                logger.debug("A coordinator of %s does not answer: %s", self.transactional_id, error)
                coordinator.forget()
            except ApiError as error:
                code = error.error_code
                if not code.retriable:
                    raise self.refused(error, is_fatal=code not in abortable) from error
                self._forget_if_moved(coordinator, code)
            except (ClientError, EncodeError) as error:
                raise self.fail(error, is_fatal=True) from error
            if self.state is State.FATAL_ERROR:
                self.raise_error()
            await asyncio.sleep(backoff.next_s())

    @staticmethod
    def _forget_if_moved(coordinator: Coordinator, code: ErrorCode) -> None:
        if code in COORDINATOR_ERRORS or code == ErrorCode.REQUEST_TIMED_OUT:
            coordinator.forget()

    @property
    def _identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, *self.producer)
