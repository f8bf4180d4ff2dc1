"""Sends a producer's batches to their leaders: several requests in flight, retries in order (Kafka class `Sender`).

Batches leave their queue only when their leader is connected: if several waited separately for a connection, a later
one could arrive first. A batch is not sent to a new leader while others are in flight to the old one, although Kafka's
producer allows it. A batch with a transient error goes back to its place, and later ones of the partition wait until
all batches in flight are settled, so that records keep their order. With idempotence (KIP-98) the broker drops
duplicates. When it is missing a sequence number that will never arrive, because the batch was given up or the broker
has lost it, the gap would block the partition, which therefore continues with a higher epoch (KIP-360). In a
transaction, the new epoch follows its abort: see `TransactionManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Final, NamedTuple

from client.batches import Batch, PartitionQueue, ProducerId, Queues
from client.errors import ClientError, ClientTimeoutError, DisconnectedError
from client.kafka_client import KafkaClient
from client.metadata import STALE_ERRORS, TrackedMetadata
from client.settings import ProducerSettings
from client.transactions.transaction_manager import TransactionManager
from protocol.errors import ApiError, EncodeError, ErrorCode, detached
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from protocol.topic_partition import TopicPartition

logger = logging.getLogger("kafka.clients.Producer")

_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
_MAX_PRODUCER_EPOCH: Final = 2**15 - 1
_CONCURRENT_TRANSACTIONS_PAUSE_S: Final = 0.02
"""While the markers of the last transaction are written, which does not take long."""
_SEQUENCE_ERRORS: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class _Outcome(NamedTuple):
    """A broker's response for one batch."""

    error_code: ErrorCode
    message: str
    base_offset: int = -1
    log_append_time_ms: int = -1


class Sender:
    """The queues of one producer and the task that sends them. Create and use it inside a running loop."""

    def __init__(
        self,
        client: KafkaClient,
        settings: ProducerSettings,
        metadata: TrackedMetadata,
        transactions: TransactionManager | None = None,
    ) -> None:
        self.queues = Queues()
        self._client = client
        self._settings = settings
        self._metadata = metadata
        self._transactions = transactions
        self._loop = asyncio.get_running_loop()
        self._producer = ProducerId()
        self._needs_producer_id = settings.enable_idempotence and transactions is None
        self._requests_in_flight: defaultdict[int, int] = defaultdict(int)
        self._requests: dict[asyncio.Task[None], None] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        """Tasks that connect to leaders; each includes the pause after a failure."""
        self._buffered_bytes = 0
        self._flushing = 0
        self._waiting_for_room = 0
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    # -- for the producer ----------------------------------------------------------------------------------------------

    def added(self, size: int) -> None:
        """Account for a record or batch of about `size` bytes added to the queues."""
        self._buffered_bytes += size
        self._work.set()

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be queued; always true for empty queues."""
        return not self._buffered_bytes or self._buffered_bytes + size <= self._settings.buffer_memory_bytes

    async def wait_for_room(self, size: int) -> None:
        """Wait until `has_room`; batches do not linger meanwhile."""
        self._waiting_for_room += 1
        try:
            while not self.has_room(size):
                self._work.set()
                await self._next_progress()
        finally:
            self._waiting_for_room -= 1

    async def flush(self) -> None:
        """Send without lingering, and wait until all batches are settled."""
        self._flushing += 1
        self._work.set()
        try:
            while not self.queues.is_empty:
                await self._next_progress()
        finally:
            self._flushing -= 1

    async def close(self) -> None:
        """Stop. Batches still queued or in flight fail."""
        tasks = [self._task, *self._requests, *self._connecting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self.queues:
            while queue.batches:
                queue.batches.popleft().fail(ClientError("Producer is closed forcefully."))

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = self._client.backoff()
        while True:
            self._work.clear()
            try:
                await self._prepare()
            except (DisconnectedError, ClientTimeoutError, ApiError) as error:
                self._fail_when_hopeless(error)
                if isinstance(error, ApiError) and error.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    await asyncio.sleep(_CONCURRENT_TRANSACTIONS_PAUSE_S)
                    continue
                logger.warning("Cannot send yet: %s", error)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff = self._client.backoff()
            sent = self._send_ready()
            # After sending, more may be due, because a request takes only one batch per partition.
            timeout_s = 0.0 if sent else self._time_to_next()
            if timeout_s is None or timeout_s > 0:
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._work.wait()
                except TimeoutError:
                    continue

    async def _prepare(self) -> None:
        """Refresh metadata, get a producer id, or add partitions to the transaction, as necessary.

        Raises DisconnectedError, ClientTimeoutError, ApiError.
        """
        self._expire()
        self._drop_queued()
        if self.queues.is_empty:
            return
        if self._metadata.needs_refresh:
            await self._metadata.refresh()
        if self._transactions is not None:
            await self._transactions.add_partitions()
        if self._needs_producer_id:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)
            answer = await (await self._client.any_connection()).ask(request, InitProducerIdResponse)
            if answer.error_code:
                raise ApiError(ErrorCode.of(answer.error_code), "no producer id")
            self._producer = ProducerId(answer.producer_id, answer.producer_epoch)
            self._needs_producer_id = False

    def _fail_when_hopeless(self, error: Exception) -> None:
        """Fail all queued batches on a permanent error code (such as CLUSTER_AUTHORIZATION_FAILED)."""
        if isinstance(error, ApiError) and not error.error_code.retriable:
            for queue in self.queues:
                while queue.batches:
                    self._abandon(queue.batches.popleft(), error)

    def _expire(self) -> None:
        """Fail batches that are older than `delivery.timeout.ms`."""
        now_s = self._loop.time()
        for queue in self.queues:
            while queue.batches and (now_s - queue.batches[0].created_s) * 1000 > self._settings.delivery_timeout_ms:
                batch = queue.batches.popleft()
                elapsed_ms = round((now_s - batch.created_s) * 1000)
                self._abandon(
                    batch,
                    ClientTimeoutError(
                        f"Expiring {len(batch)} record(s) for {batch.partition}:{elapsed_ms} ms has passed since "
                        "batch creation"
                    ),
                )

    def _send_ready(self) -> bool:
        """Start requests with the due batches, one per partition; returns whether it started any."""
        self._drop_queued()
        if self._needs_producer_id:
            return False
        now_s = self._loop.time()
        linger_s = 0.0 if self._must_not_linger else self._settings.linger_ms / 1000
        requests: dict[int, list[Batch]] = defaultdict(list)
        sizes: defaultdict[int, int] = defaultdict(int)
        for queue in self.queues:
            due_s = queue.due_s(linger_s)
            if due_s is None or due_s > now_s:
                continue
            known = self._metadata.leader_of(queue.partition)
            if known is None or not self._is_ready(known.leader) or not queue.may_send_to(known.leader):
                continue
            size = queue.batches[0].size_bytes
            if sizes[known.leader] and sizes[known.leader] + size > self._settings.max_request_bytes:
                continue
            if not (self._is_in_transaction(queue) if self._transactions else self._has_epoch(queue)):
                continue
            sizes[known.leader] += size
            queue.set_leader(known.leader)
            requests[known.leader].append(queue.take(self._producer if self._settings.enable_idempotence else None))
        for leader, batches in requests.items():
            self._requests_in_flight[leader] += 1
            task = asyncio.create_task(self._produce(leader, batches))
            self._requests[task] = None
            task.add_done_callback(self._requests.pop)
        return bool(requests)

    def _drop_queued(self) -> None:
        """Fail queued batches of a transaction that has failed or is being aborted."""
        if self._transactions is None:
            return
        reason = self._transactions.drops_queued
        if reason is None:
            return
        for queue in self.queues:
            # Batches that were sent before are retried until settled, so that none arrives after the abort.
            keeps_sent = not (self._transactions.drops_all or queue.has_gap)
            kept = [batch for batch in queue.batches if keeps_sent and batch.attempts]
            for batch in queue.batches:
                if batch not in kept:
                    self._buffered_bytes -= batch.payload_bytes
                    batch.fail(reason, is_reported=True)
            queue.batches.clear()
            queue.batches.extend(kept)
        self._progress.set()

    def _is_in_transaction(self, queue: PartitionQueue) -> bool:
        """Whether the partition is in the transaction and its queue can use the producer's current epoch."""
        if self._transactions is None or not self._transactions.has(queue.partition):
            return False
        self._producer = self._transactions.producer
        if queue.producer != self._producer:
            queue.restart_sequence(self._producer)
        return not queue.needs_new_epoch

    def _has_epoch(self, queue: PartitionQueue) -> bool:
        """Give the partition a higher epoch if it needs one; returns False if epochs are used up and a new producer id
        is necessary.
        """
        if not queue.needs_new_epoch:
            return True
        if self._producer.epoch == _MAX_PRODUCER_EPOCH:
            self._needs_producer_id = True
            return False
        self._producer = self._producer._replace(epoch=self._producer.epoch + 1)
        return True

    def _is_ready(self, leader: int) -> bool:
        """Whether the leader can take a request now. Starts a connection if it is not connected."""
        if not self._client.is_connected(leader):
            if leader not in self._connecting:
                self._connecting[leader] = asyncio.create_task(self._connect(leader))
            return False
        return self._requests_in_flight[leader] < self._settings.max_in_flight_requests

    async def _connect(self, leader: int) -> None:
        try:
            await self._client.node_connection(leader)
        except (DisconnectedError, ApiError) as error:
            self._fail_when_hopeless(error)
            self._metadata.mark_stale()
            logger.warning("Cannot send to broker %d yet: %s", leader, error)
            await asyncio.sleep(self._client.settings.retry_backoff_ms / 1000)
        finally:
            del self._connecting[leader]
            self._work.set()

    @property
    def _must_not_linger(self) -> bool:
        return self._flushing > 0 or self._waiting_for_room > 0

    def _time_to_next(self) -> float | None:
        """Seconds until a batch is due or metadata should be refreshed; None to wait for an event."""
        if self.queues.is_empty:
            return None
        if self._metadata.needs_refresh or self._needs_producer_id:
            return self._client.settings.retry_backoff_ms / 1000
        linger_s = 0.0 if self._must_not_linger else self._settings.linger_ms / 1000
        now_s = self._loop.time()
        waits = [due_s - now_s for queue in self.queues if (due_s := queue.due_s(linger_s)) is not None]
        # A due batch that was not sent waits for a pending request or connection, which wakes the sender when it ends.
        later = [wait for wait in waits if wait > 0]
        return min(later) if later else None

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _produce(self, leader: int, batches: list[Batch]) -> None:
        """Send batches to their leader and settle them by its response."""
        failure: Exception | None = None
        outcomes: dict[TopicPartition, _Outcome] = {}
        try:
            outcomes = await self._ask(leader, batches)
        except DisconnectedError as error:
            lost = _Outcome(ErrorCode.NETWORK_EXCEPTION, str(error))
            outcomes = {batch.partition: lost for batch in batches}
        except (ClientError, ApiError, EncodeError) as error:
            failure = detached(error)
        finally:
            self._requests_in_flight[leader] -= 1
        for batch in batches:
            queue = self.queues.of(batch.partition)
            if failure is not None:
                self._abandon(batch, failure)
            else:
                self._complete(queue, batch, outcomes[batch.partition])
            queue.completed(batch)
        self._progress.set()
        self._work.set()

    async def _ask(self, leader: int, batches: list[Batch]) -> dict[TopicPartition, _Outcome]:
        """Raises DisconnectedError, UnsupportedVersionError and EncodeError."""
        topics: dict[str, list[ProduceRequest.PartitionProduceData]] = defaultdict(list)
        for batch in batches:
            data = batch.encode(self.queues.of(batch.partition).producer, self._settings)
            topics[batch.partition.topic].append(
                ProduceRequest.PartitionProduceData(index=batch.partition.partition, records=data)
            )
        request = ProduceRequest(
            transactional_id=self._settings.transactional_id,
            acks=self._settings.acks,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
            ],
        )
        connection = await self._client.node_connection(leader)
        if self._settings.acks == 0:
            connection.send_unanswered(request)
            return {batch.partition: _Outcome(ErrorCode.NONE, "") for batch in batches}
        response = await connection.ask(request, ProduceResponse)
        outcomes = {
            TopicPartition(topic.name, each.index): _Outcome(
                ErrorCode.of(each.error_code), each.error_message or "", each.base_offset, each.log_append_time_ms
            )
            for topic in response.responses
            for each in topic.partition_responses
        }
        missing = _Outcome(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker did not answer for the partition")
        return {batch.partition: outcomes.get(batch.partition, missing) for batch in batches}

    def _complete(self, queue: PartitionQueue, batch: Batch, outcome: _Outcome) -> None:
        """Complete one batch, queue it for a retry, or fail it."""
        code = outcome.error_code
        if code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            self._buffered_bytes -= batch.payload_bytes
            queue.delivered(batch)
            batch.succeed(outcome.base_offset, outcome.log_append_time_ms)
            return
        if code in STALE_ERRORS:
            self._metadata.mark_stale()
        age_ms = (self._loop.time() - batch.created_s) * 1000
        may_retry = batch.attempts <= self._settings.retries and age_ms < self._settings.delivery_timeout_ms
        if may_retry and (code.retriable or (code in _SEQUENCE_ERRORS and self._may_retry_sequence(queue, batch))):
            logger.debug("Sending batch to %s again: %s", batch.partition, code.name)
            queue.put_back(batch, self._loop.time() + self._client.settings.retry_backoff_ms / 1000)
            return
        self._abandon(batch, ApiError(code, outcome.message))

    def _may_retry_sequence(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Whether to retry a batch with a refused sequence number. A gap fails a transaction."""
        is_transactional = self._transactions is not None
        return queue.refused(batch, is_transactional=is_transactional) and not (is_transactional and queue.has_gap)

    def _abandon(self, batch: Batch, error: Exception) -> None:
        self._buffered_bytes -= batch.payload_bytes
        self.queues.of(batch.partition).abandoned(batch)
        batch.fail(error, is_reported=self._transactions is not None)
        if self._transactions is not None:
            self._transactions.batch_failed(error)
        self._progress.set()
