"""Sends ISR changes of the partitions led here to the controller (Kafka: `AlterPartitionManager`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker.controller.cluster_membership import PAUSE_AFTER_BUG_S
from client.errors import DisconnectedError
from cluster.metadata_image import PartitionImage
from cluster.replication.isr import IsrChange, complete_change
from cluster.replication.partition import Partition
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.log.unified_log import UnifiedLog

logger = logging.getLogger("kafka.server.AlterPartitionManager")

RETRY_S = 0.05
"""Kafka's pause before a failed change is sent again."""


class PartitionAlterer(Protocol):
    """The part of `ControllerApi` that the manager needs."""

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> Mapping[TopicPartition, PartitionImage | ErrorCode]: ...


class AlterPartitionManager:
    """Sends one request at a time, with all changes collected since the last one.

    Every partition has at most one pending change, and starts no other before the answer to it. So a change is sent
    until it is answered or the partition withdraws it. `find` returns the hosted partition of that name, or None.
    `changed(partition)` is called when a high watermark has moved. `flush(log)` is called when so few replicas are in
    sync that committed records must be flushed.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        find: Callable[[TopicPartition], Partition | None],
        changed: Callable[[TopicPartition], None],
        flush: Callable[[UnifiedLog], None],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._find = find
        self._changed = changed
        self._flush = flush
        self._controller: PartitionAlterer | None = None
        self._unsent: dict[TopicPartition, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None

    def connect(self, controller: PartitionAlterer) -> None:
        """Send to this controller from now on."""
        self._controller = controller
        self._send_next()

    def submit(self, change: IsrChange) -> None:
        """Send a change as soon as the previous one is answered."""
        self._unsent[change.topic_partition] = change
        self._send_next()

    def _send_next(self) -> None:
        if self._unsent and self._task is None and self._controller is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._send_all(self._controller), name="alter-partition"
            )

    async def _send_all(self, controller: PartitionAlterer) -> None:
        try:
            while changes := self._take():
                if pause_s := await self._send(controller, changes):
                    await asyncio.sleep(pause_s)
        finally:
            self._task = None

    def _take(self) -> list[IsrChange]:
        unsent, self._unsent = self._unsent, {}
        return [change for change in unsent.values() if self._is_pending(change)]

    def _is_pending(self, change: IsrChange) -> bool:
        partition = self._find(change.topic_partition)
        return partition is not None and partition.in_sync is not None and partition.in_sync.pending is change

    async def _send(self, controller: PartitionAlterer, changes: Sequence[IsrChange]) -> float:
        """Send changes and process the answers. Returns the pause in seconds before the rest is sent again."""
        answers: Mapping[TopicPartition, PartitionImage | ErrorCode] = {}
        pause_s = 0.0
        try:
            answers = await controller.alter_partition(self._broker_id, self._broker_epoch(), changes)
        except (ApiError, DisconnectedError, OSError) as error:
            logger.warning("The controller could not be asked to change in-sync replicas: %s", error)
        except Exception:  # a bug, but without a retry these partitions could never change their ISR again
            logger.exception("The controller could not be asked to change in-sync replicas")
            pause_s = PAUSE_AFTER_BUG_S
        for change in changes:
            answer = answers.get(change.topic_partition)
            try:
                if answer is not None and self._is_answered(change, answer):
                    continue
                pause_s = max(pause_s, RETRY_S)
            except Exception:  # a bug; the change is sent again, and the controller repeats its answer
                logger.exception("Could not process the answer to a change of the ISR of %s", change.topic_partition)
                pause_s = PAUSE_AFTER_BUG_S
            self._unsent.setdefault(change.topic_partition, change)
        return pause_s

    def _is_answered(self, change: IsrChange, answer: PartitionImage | ErrorCode) -> bool:
        """Process an answer. Returns whether it is final, so that the change is not sent again."""
        topic_partition = change.topic_partition
        partition = self._find(topic_partition)
        if partition is None:
            return True
        before = partition.image.isr
        outcome = complete_change(partition, change, answer)
        if isinstance(answer, ErrorCode):
            logger.info(
                "The in-sync replicas of %s do not become %s: %s", topic_partition, change.broker_ids, answer.name
            )
        elif partition.image.isr != before:
            logger.info("The in-sync replicas of %s are %s now", topic_partition, partition.image.isr)
            if partition.is_under_min_isr:
                self._flush(partition.log)
        if outcome.advanced:
            self._changed(topic_partition)
        return outcome.change is None

    async def close(self) -> None:
        """Stop sending."""
        self._controller = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
