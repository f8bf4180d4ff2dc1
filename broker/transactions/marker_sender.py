"""Sends transaction markers to the leaders of the partitions (Kafka: `TransactionMarkerChannelManager`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker.transactions.marker_writer import Marker, MarkerResults
from cluster.metadata_image import MetadataImage
from protocol.errors import ErrorCode
from protocol.topic_partition import TRANSACTION_STATE, TopicPartition
from protocol.value import Value

if TYPE_CHECKING:
    from cluster.transactions.open_transactions import Markers

logger = logging.getLogger("kafka.coordinator.transaction.TransactionMarkerChannelManager")

RETRY_S: Final = 0.1
"""Pause before markers that failed are sent again."""

_NO_LONGER: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""These errors mean that another coordinator now manages the transaction."""

WriteMarkers = Callable[[Sequence[Marker]], Awaitable[MarkerResults]]
"""Makes one broker write markers. The outcome is empty if the broker was unreachable or did not answer."""


class MarkerWork(Value, eq=False):
    """The markers of one transaction. `marked` is called with partitions whose marker is written. Once `is_obsolete`,
    the markers need not be sent any more.
    """

    markers: Markers
    coordinator_epoch: int
    marked: Callable[[Sequence[TopicPartition]], None]
    is_obsolete: Callable[[], bool]

    def marker(self, partitions: Sequence[TopicPartition]) -> Marker:
        """Build the marker for some of the partitions."""
        markers = self.markers
        return Marker(
            markers.producer_id, markers.producer_epoch, markers.is_commit, self.coordinator_epoch, partitions
        )


_Share = tuple[MarkerWork, Sequence[TopicPartition]]


class MarkerSender:
    """Sends markers to their leaders, one request at a time per broker; what is queued meanwhile goes into the next
    request. Markers that fail are sent again, to the current leader, until they are written or the coordinator has
    resigned. Deleted partitions are skipped.
    """

    def __init__(self, image: Callable[[], MetadataImage], write: Callable[[int], WriteMarkers | None]) -> None:
        """`image` returns the metadata; `write` a function that makes a broker write markers, or None if it is
        unreachable.
        """
        self._image = image
        self._write = write
        self._queues: dict[int, list[_Share]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._again: list[_Share] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, work: MarkerWork) -> None:
        """Queue the markers of a transaction. Sends nothing before this returns."""
        if not self._is_closed:
            self._distribute(work, work.markers.partitions)

    async def close(self) -> None:
        """Stop sending. The next coordinator of the transactions sends their markers again."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)

    def _distribute(self, work: MarkerWork, partitions: Sequence[TopicPartition]) -> None:
        image = self._image()
        by_leader: dict[int, list[TopicPartition]] = {}
        for topic_partition in partitions:
            by_leader.setdefault(image.leader_of(topic_partition), []).append(topic_partition)
        for leader, share in by_leader.items():
            self._queues.setdefault(leader, []).append((work, share))
            if leader not in self._senders:
                sender = asyncio.get_running_loop().create_task(self._run(leader), name=f"txn-markers-{leader}")
                self._senders[leader] = sender

    async def _run(self, leader: int) -> None:
        """Send until this broker's queue is empty."""
        try:
            while self._queues.get(leader):
                shares = [each for each in self._queues.pop(leader) if not each[0].is_obsolete()]
                if shares:
                    await self._send(leader, shares)
        finally:
            del self._senders[leader]

    async def _send(self, leader: int, shares: Sequence[_Share]) -> None:
        outcome: MarkerResults = {}
        try:
            write = self._write(leader)
            if write is not None:
                outcome = await write([work.marker(partitions) for work, partitions in shares])
        except Exception:  # a bug; but a transaction without its markers would block all readers
            logger.exception("Transaction markers could not be written by broker %d", leader)
        for work, partitions in shares:
            if not work.is_obsolete():
                try:
                    self._handle_result(work, partitions, outcome)
                except Exception:  # as above
                    logger.exception("The answer of broker %d about markers could not be processed", leader)
                    self._retry_later(work, partitions)

    def _handle_result(self, work: MarkerWork, partitions: Sequence[TopicPartition], outcome: MarkerResults) -> None:
        image, markers = self._image(), work.markers
        done, again = [], []
        for topic_partition in partitions:
            error_code = outcome.get((markers.producer_id, topic_partition))
            if error_code in _NO_LONGER:
                logger.info(
                    "Sending %s's transaction marker for partition %s has permanently failed with error %s",
                    markers.transactional_id, topic_partition, error_code,
                )  # fmt: skip
                return
            is_deleted = image.partition(topic_partition) is None and TRANSACTION_STATE in image.topics
            if error_code is ErrorCode.NONE or is_deleted or error_code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                done.append(topic_partition)
            else:
                again.append(topic_partition)
        if again:
            self._retry_later(work, again)
        if done:
            work.marked(done)

    def _retry_later(self, work: MarkerWork, partitions: Sequence[TopicPartition]) -> None:
        self._again.append((work, partitions))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._send_again)

    def _send_again(self) -> None:
        self._timer = None
        again, self._again = self._again, []
        for work, partitions in again:
            if not work.is_obsolete() and not self._is_closed:
                self._distribute(work, partitions)
