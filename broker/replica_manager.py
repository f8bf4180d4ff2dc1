"""The replicas this broker holds: one owner for which partitions exist here and who waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

from broker.group_commit import GroupCommit
from broker.purgatory import Purgatory
from broker.seams import Clock, Executor
from cluster.metadata_image import MetadataImage, PartitionImage, TopicImage
from cluster.partition import NO_EPOCH, Partition
from protocol.errors import ApiError, ErrorCode
from protocol.topic_partition import TopicPartition
from storage.appendable_log import LogAppendInfo
from storage.log_config import LogConfig
from storage.log_directory import NoRoomError
from storage.log_manager import LogManager
from storage.producer_state import AppendOrigin
from storage.unified_log import UnifiedLog

logger = logging.getLogger("kafka.server.ReplicaManager")

LeadershipListener = Callable[[TopicPartition, bool], None]

UNKNOWN_OFFSET = -1
CREATIONS_PER_SLICE = 50
"""Logs made before the event loop gets its turn: some 20 ms of work."""

_ANSWERED_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Produce errors answered with log start offset -1; others carry the partition's (ReplicaManager.appendToLocalLog)."""


class ReplicaManager:
    """Partitions by name, the logs behind them, and the fetches that wait.

    Changes of metadata arrive as images (`apply_image`); nobody else creates, deletes or promotes a replica.
    """

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        clock: Clock,
        executor: Executor,
        log_config_of: Callable[[MetadataImage, str], LogConfig],
    ) -> None:
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._clock = clock
        self._log_config_of = log_config_of
        self._partitions: dict[TopicPartition, Partition] = {}
        self._unavailable: dict[TopicPartition, ApiError] = {}
        """Replicas that should be here but whose log cannot be used, and why."""
        self._image = MetadataImage()
        self._strays_are_aside = False
        self._leadership_listeners: list[LeadershipListener] = []
        self.delayed_fetches = Purgatory("Fetch")
        self.group_commit = GroupCommit(executor, clock, self._log_flushed)

    # -- metadata ------------------------------------------------------------------------------------------------------

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """`listener(partition, leads)` is called after this broker began or ceased to lead a partition."""
        self._leadership_listeners.append(listener)

    async def prepare_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Make the logs of new replicas before `apply_image`, a slice at a time: 10,000 directories take seconds."""
        if not self._strays_are_aside:
            self._set_strays_aside(new)
        made = 0
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic or (before is not None and before.topic_id != topic.topic_id):
                continue
            config = self._log_config_of(new, name)
            for image in topic.partitions:
                topic_partition = TopicPartition(name, image.partition)
                if self._broker_id in image.replicas and topic_partition not in self._partitions:
                    self._create(topic, config, image, is_new=_is_new(old, topic, image))
                    made += 1
                    if made % CREATIONS_PER_SLICE == 0:
                        await asyncio.sleep(0)

    def _set_strays_aside(self, first: MetadataImage) -> None:
        """Rename the directories of logs that no topic of the first image has: a power cut can bring back what had
        been deleted, and a topic of that name may exist again.
        """
        for path in self._log_manager.settle_rivals(partial(_topic_id, first), self._clock.now_ms()):
            logger.warning("A log of an earlier topic was beside that of today's; it is set aside as %s", path)
        for topic_partition, log in list(self._log_manager.logs.items()):
            topic = first.topics.get(topic_partition.topic)
            exists = topic is not None and topic_partition.partition < len(topic.partitions)
            if topic is not None and exists and log.topic_id in (None, topic.topic_id):
                continue
            if log.directory.failure is not None:
                continue
            before = log.path
            try:
                path = self._log_manager.set_aside(topic_partition, self._clock.now_ms())
            except ApiError as error:
                logger.error("%s, which is of no topic, stays where it is: %s", before, error)
            else:
                logger.warning("%s is of no topic that exists; it is set aside as %s", before, path)
        self._strays_are_aside = True

    def apply_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Make the local replicas what `new` says: create, delete, lead, resign, take over configs."""
        self._image = new
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is not topic:
                if before is not None and before.topic_id != topic.topic_id:
                    self._remove_topic(before)
                self._apply_topic(old, new, topic)
        for name, topic in old.topics.items():
            if name not in new.topics:
                self._remove_topic(topic)
        if new.configs is not old.configs:
            self._apply_configs(new)

    def _apply_topic(self, old: MetadataImage, image: MetadataImage, topic: TopicImage) -> None:
        config: LogConfig | None = None
        for partition_image in topic.partitions:
            if self._broker_id not in partition_image.replicas:
                continue
            topic_partition = TopicPartition(topic.name, partition_image.partition)
            partition = self._partitions.get(topic_partition)
            if partition is not None and partition.is_settled and partition.image == partition_image:
                continue
            if partition is None:
                if config is None:
                    config = self._log_config_of(image, topic.name)
                partition = self._create(topic, config, partition_image, is_new=_is_new(old, topic, partition_image))
                if partition is None:
                    continue
            self._apply_role(partition, partition_image)

    def _create(self, topic: TopicImage, config: LogConfig, image: PartitionImage, *, is_new: bool) -> Partition | None:
        logs, now_ms = self._log_manager, self._clock.now_ms()
        topic_partition = TopicPartition(topic.name, image.partition)
        try:
            log = logs.get_or_create(topic_partition, topic.topic_id, config, now_ms, is_new=is_new)
        except ApiError as error:
            if topic_partition not in self._unavailable:
                logger.error("%s is not available here: %s", topic_partition, error)
            self._unavailable[topic_partition] = error
            return None
        if self._unavailable.pop(topic_partition, None) is not None:
            logger.info("%s is available again", topic_partition)
        log.config = config
        high_watermark = logs.high_watermarks.get(topic_partition, 0)
        partition = Partition(topic_partition, log, high_watermark, image)
        self._partitions[topic_partition] = partition
        return partition

    def _apply_role(self, partition: Partition, image: PartitionImage) -> None:
        led = partition.is_leader
        if image.leader == self._broker_id:
            partition.become_leader(image)
            if partition.log.flush_bound < partition.log.log_end_offset:
                # Recovery found records that may be in the page cache only: nobody sees them before they are flushed.
                self.group_commit.request(partition.log)
        else:
            partition.resign(image)
        self.delayed_fetches.wake(partition.topic_partition)
        if led != partition.is_leader:
            for listener in self._leadership_listeners:
                listener(partition.topic_partition, partition.is_leader)

    def _remove_topic(self, topic: TopicImage) -> None:
        for partition_image in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition_image.partition)
            partition = self._partitions.pop(topic_partition, None)
            if partition is None:
                if self._unavailable.pop(topic_partition, None) is not None:
                    self._delete_log(topic_partition)
                continue
            self._delete_log(topic_partition)
            self._let_go(partition)

    def _delete_log(self, topic_partition: TopicPartition) -> None:
        try:
            self._log_manager.delete(topic_partition, self._clock.now_ms())
        except ApiError as error:  # its disk fails at this very moment; the next start sets it aside
            logger.error("The log of %s could not be deleted: %s", topic_partition, error)

    def _let_go(self, partition: Partition) -> None:
        """Tell those who wait for a replica, or do something as its leader, that it is not here any more."""
        self.delayed_fetches.wake(partition.topic_partition)
        if partition.is_leader:
            for listener in self._leadership_listeners:
                listener(partition.topic_partition, False)

    def directory_failed(self, path: str) -> None:
        """The replicas in the log directory at `path` are offline: whoever asks is answered KAFKA_STORAGE_ERROR."""
        lost = [partition for partition in self._partitions.values() if partition.log.directory.path == path]
        for partition in lost:
            topic_partition = partition.topic_partition
            del self._partitions[topic_partition]
            self._unavailable[topic_partition] = partition.log.directory.offline_error()
            self._let_go(partition)
        names = ",".join(str(partition.topic_partition) for partition in lost)
        logger.warning("Broker %d stopped serving partitions %s: log directory %s failed", self._broker_id, names, path)

    def offline_replicas(self) -> list[TopicPartition]:
        """What should be here and cannot be used before the next start."""
        return [partition for partition, error in self._unavailable.items() if not isinstance(error, NoRoomError)]

    async def make_refused_logs(self) -> None:
        """Make the logs for which a disk had no room. A round: to be called now and then."""
        refused = [each for each in self._unavailable.items() if isinstance(each[1], NoRoomError)]
        for number, (topic_partition, error) in enumerate(refused, start=1):
            topic, image = self._image.topics.get(topic_partition.topic), self._image.partition(topic_partition)
            if topic is None or image is None or self._unavailable.get(topic_partition) is not error:
                continue  # deleted or made meanwhile, or the change that brings it is still being made
            config = self._log_config_of(self._image, topic.name)
            partition = self._create(topic, config, image, is_new=True)
            if partition is None:
                return  # nor will there be room for the others
            self._apply_role(partition, image)
            if number % CREATIONS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _apply_configs(self, image: MetadataImage) -> None:
        by_topic: dict[str, LogConfig] = {}
        for topic_partition, partition in self._partitions.items():
            config = by_topic.get(topic_partition.topic)
            if config is None:
                config = by_topic[topic_partition.topic] = self._log_config_of(image, topic_partition.topic)
            partition.log.config = config

    def use_log(self, topic_partition: TopicPartition, log: UnifiedLog) -> None:
        """The replica has been moved: `log`, which holds the same, takes the place of its log."""
        self._partitions[topic_partition].log = log
        self.delayed_fetches.wake(topic_partition)

    # -- looking up ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name behind a topic id, or None."""
        return self._image.topic_names.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The replica here. Raises UNKNOWN_TOPIC_OR_PARTITION, or KAFKA_STORAGE_ERROR when its disk failed."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            unavailable = self._unavailable.get(topic_partition)
            if unavailable is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(unavailable))
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this broker holds no replica of {topic_partition}")
        return partition

    def leader_of(self, topic_partition: TopicPartition, current_leader_epoch: int = NO_EPOCH) -> Partition:
        """The replica here, which must lead; see `partition` and `Partition.check_leader` for what is raised."""
        partition = self.partition(topic_partition)
        partition.check_leader(current_leader_epoch)
        return partition

    # -- data ----------------------------------------------------------------------------------------------------------

    def append(
        self,
        topic_partition: TopicPartition,
        records: memoryview,
        *,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> LogAppendInfo:
        """Append one batch to a partition led here and wake who waits for it.

        What `awaits_flush` is to be acknowledged after `when_flushed`, and wakes nobody before.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self.partition(topic_partition)
        info = partition.append_as_leader(
            records, required_acks=required_acks, now_ms=self._clock.now_ms(), origin=origin
        )
        if not info.awaits_flush:
            self.delayed_fetches.wake(topic_partition)
        return info

    def when_flushed(self, topic_partition: TopicPartition, info: LogAppendInfo) -> asyncio.Future[None]:
        """Done once an append that `awaits_flush` may be acknowledged; see `GroupCommit.wait` for how it fails."""
        log = self._partitions[topic_partition].log
        # All but so many are on stable storage then that flush.messages allows them to be acknowledged.
        return self.group_commit.wait(log, info.last_offset + 2 - log.config.flush_messages)

    def _log_flushed(self, log: UnifiedLog) -> None:
        partition = self._partitions.get(log.topic_partition)
        if partition is None or partition.log is not log or not partition.is_leader:
            return
        if partition.advance_high_watermark():
            self.delayed_fetches.wake(partition.topic_partition)

    def log_start_offset_after(self, error: ApiError, topic_partition: TopicPartition) -> int:
        """The log start offset that Kafka's answer to a failed produce carries."""
        if error.error_code in _ANSWERED_WITHOUT_LOG_START:
            return UNKNOWN_OFFSET
        partition = self._partitions.get(topic_partition)
        return UNKNOWN_OFFSET if partition is None else partition.log.log_start_offset

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Every partition's high watermark, as the checkpoints will hold them."""
        return {topic_partition: partition.high_watermark for topic_partition, partition in self._partitions.items()}


def _is_new(old: MetadataImage, topic: TopicImage, image: PartitionImage) -> bool:
    """Whether a replica begins with this change. At a start it does not: with a directory offline, it may be there."""
    before = old.topics.get(topic.name)
    has_begun = before is not None and before.topic_id == topic.topic_id and image.partition < len(before.partitions)
    return bool(old.brokers) and not has_begun


def _topic_id(image: MetadataImage, topic_partition: TopicPartition) -> UUID | None:
    topic = image.topics.get(topic_partition.topic)
    return None if topic is None else topic.topic_id
